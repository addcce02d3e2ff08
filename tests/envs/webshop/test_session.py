"""Pages and moves, by hand; and each difference between "strict" and "original" by its own switch."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_agent_envs.webshop import Compat, Goal, RawCatalog, Shop
from trl_agent_envs.webshop.session import ActionError, Session, _quote, parse_action

RUG = Goal(3, "B000000001", "Find me rugs", ("non slip",), {"color": "black"}, 30.0, 1.0)


def visit(shop: Shop, *actions: str) -> Session:
    session = Session(shop, RUG)
    for action in actions:
        session.act(action)
    return session


def switched(raw: RawCatalog, **changes: bool) -> Shop:
    """The original with one fault repaired."""
    return Shop.load(raw, compat=dataclasses.replace(Compat.named("original"), **changes))


@given(st.text(alphabet="ab[]\n \r\u2028", max_size=12))
@settings(max_examples=500)
def test_parse_is_the_originals_pattern(action: str) -> None:
    match = re.match(r"(.+)\[(.+)\]", action)
    assert parse_action(action) == (match.groups() if match else None)


def test_index_page(strict: Shop) -> None:
    session = visit(strict)
    assert session.observation("text") == "WebShop [SEP] Instruction: [SEP] Find me rugs [SEP] Search"
    assert session.observation("text_rich") == (
        "WebShop\nInstruction: \nFind me rugs\n[button] Search [button_]\n"
    )
    assert session.clickables == ("search",)


def test_results_page(strict: Shop) -> None:
    session = visit(strict, "search[Running SHOES]")
    assert session.observation("text") == (
        "Instruction: [SEP] Find me rugs [SEP] Back to Search [SEP] Page 1 (Total results: 2) [SEP] Next > "
        "[SEP] B000000004 [SEP] Street Running Shoes [SEP] $985.0 [SEP] "
        "B000000003 [SEP] Trail Running Shoes [SEP] $30.0 to $50.25"
    )
    assert session.clickables == ("back to search", "next >", "b000000004", "b000000003")
    session = visit(strict, "search[running shoes]", "click[b000000003]", "click[< prev]")
    assert session.observation("text_rich") == (
        "Instruction:\nFind me rugs\n[button] Back to Search [button_]\nPage 1 (Total results: 2)\n"
        "[button] Next > [button_]\n"
        "\n[button] B000000004 [button_]\nStreet Running Shoes\n$985.0\n"
        "\n[clicked button] B000000003 [clicked button_]\nTrail Running Shoes\n$30.0 to $50.25\n"
    )


def test_paging_past_the_end_and_back(strict: Shop) -> None:
    session = visit(strict, "search[rug]", "click[next >]")
    assert session.observation("text").endswith("Page 2 (Total results: 2) [SEP] < Prev [SEP] Next >")
    assert session.clickables == ("back to search", "< prev", "next >")
    session.act("click[< prev]")
    assert session.page.number == 1


def test_item_page(strict: Shop) -> None:
    session = visit(strict, "search[persian]", "click[b000000001]", "click[black]")
    assert session.observation("text") == (
        "Instruction: [SEP] Find me rugs [SEP] Back to Search [SEP] < Prev [SEP] color [SEP] navy | red "
        "[SEP] black [SEP] item shape [SEP] rectangular [SEP] round [SEP] Persian Rug [SEP] Price: $20.5 "
        "[SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
    )
    assert session.observation("text_rich") == (
        "You have clicked black.\nInstruction:\nFind me rugs\n[button] Back to Search [button_]\n"
        "[button] < Prev [button_]\ncolor\n  [button] navy | red [button_]\n"
        "  [clicked button] black [clicked button_]\nitem shape\n  [button] rectangular [button_]\n"
        "  [button] round [button_]\nPersian Rug\nPrice: $20.5\nRating: N.A.\n"
        "[button] Description [button_]\n"
        "[button] Features [button_]\n[button] Reviews [button_]\n[button] Buy Now [button_]\n"
    )
    assert session.clickables == (
        "back to search", "< prev", "description", "features", "reviews", "buy now",
        "navy | red", "black", "rectangular", "round",
    )  # fmt: skip
    session.act("click[navy | red]")
    assert session.options == {"color": "navy | red"}


def test_sub_pages_keep_the_options(strict: Shop) -> None:
    session = visit(strict, "search[persian]", "click[b000000001]", "click[round]", "click[features]")
    head = "Instruction: [SEP] Find me rugs [SEP] Back to Search [SEP] < Prev"
    assert session.observation("text") == f"{head} [SEP] Imported"
    assert session.observation("text_rich").endswith("[button] < Prev [button_]\n Imported \n")
    session.act("click[< prev]")
    session.act("click[description]")
    assert session.observation("text") == f"{head} [SEP] Soft wool."
    session.act("click[< prev]")
    session.act("click[reviews]")
    assert session.observation("text") == head
    assert session.options == {"item shape": "round"}
    session.act("click[back to search]")
    assert (session.options, session.visited, session.keywords) == ({}, set(), [])


def test_product_texts_are_shown_as_they_are(strict: Shop) -> None:
    session = visit(strict, "search[honey]", "click[b000000005]")
    assert " [SEP] Tea & <b>Honey</b> [SEP] Price" in session.observation("text")


def test_done_page(strict: Shop) -> None:
    session = visit(
        strict, "search[persian]", "click[b000000001]", "click[round]", "click[black]", "click[buy now]"
    )
    text = session.observation("text")
    assert text.startswith("Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it")
    assert (
        '[SEP] B000000001 [SEP] options [SEP] {"color": "black", "item shape": "round"} [SEP] attrs' in text
    )
    assert text.endswith("Your score (min 0.0, max 1.0) [SEP] 1.0 [SEP] Reward Details [SEP] None")
    assert session.clickables == ()
    assert session.reward is not None
    assert session.reward.total == 1.0


@pytest.mark.parametrize(
    ("before", "action", "message"),
    [
        ([], "buy it", "is not an action"),
        ([], "buy[it]", "There is no action 'buy'"),
        ([], "Search[rug]", "There is no action 'Search'"),
        ([], "click[search]", "write search"),
        ([], "click[buy now]", "cannot be clicked"),
        (["search[rug]"], "click[< prev]", "cannot be clicked"),
        (["search[rug]", "click[b000000001]"], "click[next >]", "cannot be clicked"),
        (["search[rug]", "click[b000000001]"], "click[green]", "'green' cannot be clicked"),
        (["search[rug]", "click[b000000001]", "click[buy now]"], "search[rug]", "nothing more"),
    ],
)
def test_what_does_nothing_says_why(strict: Shop, before: list[str], action: str, message: str) -> None:
    session = visit(strict, *before)
    seen = (session.observation("text"), session.key(with_visited=True))
    with pytest.raises(ActionError, match=message):
        session.act(action)
    assert (session.observation("text"), session.key(with_visited=True)) == seen


def test_clicked_labels(raw: RawCatalog) -> None:
    """Quirk 2: the original looks for the quoted label in the address."""
    quoted = 'click[12" red]'
    for shop, shown in (
        (Shop.load(raw, compat="original"), False),
        (switched(raw, clicked_from_state=True), True),
    ):
        session = visit(shop, "search[trail]", "click[b000000003]", quoted)
        assert session.options == {"color": '12" red'}
        assert ('You have clicked 12" red.' in session.observation("text_rich")) is shown
        session.act("click[café noir]")
        assert ("You have clicked café noir." in session.observation("text_rich")) is shown
        session.act("click[8]")
        assert "  [clicked button] 8 [clicked button_]\n" in session.observation("text_rich")
        session = visit(shop, 'search[trail "7"]', "click[b000000003]")
        assert ("You have clicked 7." in session.observation("text_rich")) is not shown


def test_address_words_in_a_search(raw: RawCatalog) -> None:
    """Quirk 3: the original reads from the address which page it is on."""
    actions = ("search[search_results rug]", "click[b000000001]", "click[< prev]")
    assert (
        visit(Shop.load(raw, compat="original"), *actions)
        .observation("text")
        .endswith("Page 0 (Total results: 2) [SEP] Next >")
    )
    repaired = visit(switched(raw, page_from_state=True), *actions)
    assert (repaired.page.number, len(repaired.page.products)) == (1, 2)


def test_special_searches(raw: RawCatalog) -> None:
    """Quirk 4: the original raises, and has forgotten the product by then."""
    session = visit(Shop.load(raw, compat="original"), "search[rug]", "click[b000000001]", "click[black]")
    for action in (
        "search[<a> non slip]",
        "click[black]",
        "click[features]",
        "click[buy now]",
        "click[< prev]",
    ):
        page = session.page
        with pytest.raises(ActionError):
            session.act(action)
        assert session.page is page
    session.act("click[back to search]")
    repaired = visit(switched(raw, special_searches=True), "search[<a> non slip]")
    assert [p.asin for p in repaired.page.products] == ["B000000001", "B000000002"]
    assert visit(switched(raw, special_searches=True), "search[<c>]").page.total == 0


def test_after_the_purchase(raw: RawCatalog) -> None:
    buy = ("search[rug]", "click[b000000001]", "click[buy now]")
    assert visit(Shop.load(raw, compat="original"), *buy, "search[tea]").page.kind == "results"
    with pytest.raises(ActionError):
        visit(switched(raw, over_when_done=True), *buy, "search[tea]")


def test_keys_tell_states_apart(strict: Shop) -> None:
    walks = [
        [], ["search[rug]"], ["search[a rug]"], ["search[rug]", "click[next >]"], ["search[rug]",
        "click[b000000001]"], ["search[rug]", "click[b000000001]", "click[black]"], ["search[rug]",
        "click[b000000001]", "click[features]"], ["search[rug]", "click[b000000002]"],
    ]  # fmt: skip
    keys = [visit(strict, *walk).key(with_visited=False) for walk in walks]
    assert len(set(keys)) == len(walks)
    back = visit(strict, "search[rug]", "click[b000000001]", "click[< prev]")
    assert back.key(with_visited=False) == keys[1]
    assert back.key(with_visited=True) != visit(strict, "search[rug]").key(with_visited=True)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("it's", '"it\'s"'),
        ("a" * 80, f"'{'a' * 80}'"),
        ("a" * 81, f"'{'a' * 77}...'"),
        ("\U00014647" * 9, "'" + r"\U00014647" * 7 + r"\U00014" + "...'"),
    ],
)
def test_what_an_error_quotes_is_bounded_as_it_is_written(text: str, quoted: str) -> None:
    assert _quote(text) == quoted
    assert len(quoted) <= 82
