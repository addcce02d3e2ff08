"""Logs of the original's site become episodes that the environment plays just so."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.envs.webshop.conftest import six_products
from tests.envs.webshop.original_site import Person, Shown
from trl_agent_envs.records import EpisodeRecord
from trl_agent_envs.webshop import Goal, Shop
from trl_agent_envs.webshop.env import WebShopEnv
from trl_agent_envs.webshop.log_lines import LogError, LogLine, read_log
from trl_agent_envs.webshop.retracing import NotReplayable
from trl_agent_envs.webshop.session import Session
from trl_agent_envs.webshop.session_logs import Conversion, convert_logs
from trl_agent_envs.webshop.synthetic import generate


def goal_of(shop: Shop, asin: str, goal_set: str = "synthetic") -> Goal:
    return next(goal for goal in shop.goals(goal_set) if goal.asin == asin)


@pytest.fixture
def person(strict: Shop) -> Person:
    return Person(strict, goal_of(strict, "B000000001"))


class Logs:
    """Log files of one test, and what becomes of them."""

    def __init__(self, folder: Path, shop: Shop) -> None:
        self.folder, self.shop, self.conversion = folder, shop, Conversion()

    def write(self, *texts: str) -> list[Path]:
        paths = [self.folder / f"{i}.jsonl" for i in range(len(texts))]
        for path, text in zip(paths, texts):
            path.write_text(text, encoding="utf-8")
        return paths

    def convert(self, *texts: str, **options: Any) -> list[EpisodeRecord]:
        return list(convert_logs(self.write(*texts), self.shop, self.conversion, **options))

    def actions(self, person: Person) -> list[str]:
        (episode,) = self.convert(person.text(), strict=True)
        return [step.response for step in episode]


@pytest.fixture
def logs(tmp_path: Path, strict: Shop) -> Logs:
    return Logs(tmp_path, strict)


def test_a_plain_visit(person: Person, logs: Logs, strict: Shop) -> None:
    person.search("persian", "rug")
    person.open("B000000001")
    person.choose("color", "navy | red")
    person.choose("item shape", "round")
    person.choose("color", "black")
    person.read("Description")
    person.prev()
    person.buy()
    (episode,) = logs.convert(person.text(), strict=True)
    expected = ["search[persian rug]", "click[b000000001]", "click[navy | red]", "click[round]", "click[black]",
                "click[description]", "click[< prev]", "click[buy now]"]  # fmt: skip
    assert [step.response for step in episode] == expected
    env = WebShopEnv(data_dir=six_products(), split="all")
    observation, info = env.reset(options={"goal_id": person.goal.goal_id})
    assert episode[0].extra == {"system_prompt": info["system_prompt"]}
    for step in episode:
        assert (step.prompt, step.goal_id, step.episode) == (observation, person.goal.goal_id, "A1B2C3")
        observation, reward, done, _, info = env.step(step.response)
        assert (step.reward, step.done, step.score) == (reward, done, info["score"])
    assert episode.score == person.lines[-1]["reward"] > 0
    assert logs.conversion == Conversion(episodes=1)


def back_to_an_earlier_page_of_results(person: Person) -> list[str]:
    person.search("rug")
    person.turn(1)
    person.turn(1)
    person.browser_back()
    person.browser_back()
    person.open("B000000002")
    person.buy()
    return ["search[rug]", "click[next >]", "click[next >]", "click[< prev]", "click[< prev]",
            "click[b000000002]", "click[buy now]"]  # fmt: skip


def back_and_forth_between_two_products(person: Person) -> list[str]:
    person.search("rug")
    person.open("B000000001")
    person.browser_back(kept=False)
    person.open("B000000002")
    person.read("Features")
    person.browser_back()
    person.browser_back()
    person.open("B000000001")
    person.buy()
    return ["search[rug]", "click[b000000001]", "click[< prev]", "click[b000000002]", "click[features]",
            "click[< prev]", "click[< prev]", "click[b000000001]", "click[buy now]"]  # fmt: skip


def a_choice_undone(person: Person) -> list[str]:
    """Nothing on the page unchooses, so the product is opened again."""
    person.search("rug")
    person.open("B000000001")
    person.choose("item shape", "round")
    person.choose("color", "black")
    person.browser_back()
    person.browser_back(kept=False)
    person.choose("color", "black")
    person.buy()
    return ["search[rug]", "click[b000000001]", "click[round]", "click[black]", "click[< prev]",
            "click[b000000001]", "click[black]", "click[buy now]"]  # fmt: skip


def bought_from_a_kept_page(person: Person) -> list[str]:
    """Nothing but the purchase says that the person went back."""
    person.search("rug")
    person.open("B000000001")
    person.choose("color", "black")
    person.choose("item shape", "round")
    person.browser_back()
    person.buy()
    return ["search[rug]", "click[b000000001]", "click[black]", "click[round]", "click[< prev]",
            "click[b000000001]", "click[black]", "click[buy now]"]  # fmt: skip


def from_sub_page_to_sub_page(person: Person) -> list[str]:
    person.search("rug")
    person.open("B000000001")
    person.read("Description")
    person.browser_back()
    person.read("Features")
    person.reload()
    person.browser_back()
    person.buy()
    return ["search[rug]", "click[b000000001]", "click[description]", "click[< prev]", "click[features]",
            "click[< prev]", "click[buy now]"]  # fmt: skip


def a_second_search(person: Person) -> list[str]:
    person.search("rug")
    person.reload()
    person.browser_back()
    person.search("lamp")
    person.browser_back(kept=False)
    person.reload()
    person.search("persian")
    person.open("B000000001")
    person.buy()
    return ["search[rug]", "click[back to search]", "search[lamp]", "click[back to search]", "search[persian]",
            "click[b000000001]", "click[buy now]"]  # fmt: skip


def hard_words(person: Person) -> list[str]:
    person.search("café", "50%", "a/b?c#d", "'quoted'", "[rug]", "", "persian")
    person.open("B000000001")
    person.buy()
    return ["search[café 50% a/b?c#d 'quoted'  rug   persian]", "click[b000000001]", "click[buy now]"]


@pytest.mark.parametrize(
    "story",
    [
        back_to_an_earlier_page_of_results,
        back_and_forth_between_two_products,
        a_choice_undone,
        bought_from_a_kept_page,
        from_sub_page_to_sub_page,
        a_second_search,
        hard_words,
    ],
)
def test_browsers_go_back(person: Person, logs: Logs, story: Callable[[Person], list[str]]) -> None:
    expected = story(person)
    assert logs.actions(person) == expected


def test_keywords_and_options_may_be_spelled_as_in_an_address(person: Person, logs: Logs) -> None:
    person.search("persian", "o'clock")
    person.open("B000000001")
    person.choose("color", "black")
    person.buy()
    lists = logs.actions(person)
    for line in person.lines[1:]:
        content = line["content"]
        if "keywords" in content:
            content["keywords"] = str(content["keywords"])
            content["page"] = str(content["page"])
        if "options" in content:
            content["options"] = "%7B%27color%27%3A%20%27black%27%7D" if content["options"] else "{}"
    assert logs.actions(person) == lists


def test_the_site_may_have_stood_below_a_path(person: Person, logs: Logs) -> None:
    person.search("persian")
    person.open("B000000001")
    person.read("Reviews")
    person.prev()
    person.buy()
    for line in person.lines:
        line["url"] = line["url"].replace(":3000/", ":3000/the/shop/")
    (episode,) = logs.convert(person.text(), strict=True)
    assert episode[0].episode == "A1B2C3"
    assert "click[reviews]" in [step.response for step in episode]


def random_person(shop: Shop, goal: Goal, rng: random.Random) -> Person:
    person = Person(shop, goal, f"s{rng.randrange(10**9)}")
    words = (shop.catalog[goal.asin].title + " persian rug running shoes tea").lower().split()
    for _ in range(rng.randint(3, 25)):
        moves: list[Callable[[], None]] = [person.reload]
        if len(person.history) > 1:
            moves += [person.browser_back, lambda: person.browser_back(kept=False)] * 2
        now = person.now
        if now.page == "index":
            moves += [lambda: person.search(*rng.sample(words, 2))] * 6
        else:
            moves += [person.back_to_search]
        if now.page == "search_results":
            moves += [lambda: person.turn(1)] + ([lambda: person.turn(-1)] if now.number > 1 else [])
            if person.listed():
                moves += [lambda: person.open(rng.choice(person.listed()))] * 6
        if now.page in ("item_page", "item_sub_page"):
            moves += [person.prev]
        if now.page == "item_page":
            moves += [lambda: person.read(rng.choice(("Description", "Features", "Reviews")))]
            options = shop.catalog[now.asin].options
            if options:
                kind = rng.choice(list(options))
                moves += [lambda: person.choose(kind, rng.choice(options[kind]))] * 4  # noqa: B023 - called at once
        rng.choice(moves)()
    while person.now.page != "item_page":
        if person.now.page == "index":
            person.search(*words[:2])
        elif person.now.page == "search_results" and person.listed():
            person.open(rng.choice(person.listed()))
        else:
            person.back_to_search() if person.now.page == "search_results" else person.prev()
    person.buy()
    return person


def states(shop: Shop, goal: Goal, actions: list[str]) -> list[Shown]:
    """The pages that the package's session shows, in the words of the log."""
    session = Session(shop, goal)
    found = [Shown()]
    names = {"results": "search_results", "item": "item_page", "sub": "item_sub_page"}
    for action in actions:
        session.act(action)
        page = session.page
        if page.kind == "index":
            found.append(Shown())
            continue
        chosen = tuple(sorted((page.chosen or {}).items()))
        asin = page.product.asin if page.product else ""
        name = names.get(page.kind, "done")
        found.append(Shown(name, tuple(session.keywords), session.number, asin, chosen, page.sub_page))
    return found


def test_the_pages_of_any_log_come_in_its_order(tmp_path: Path) -> None:
    shop = Shop.load(generate(60, seed=0))
    for seed in range(150):
        rng = random.Random(seed)
        goal = rng.choice(shop.goals("synthetic"))
        person = random_person(shop, goal, rng)
        conversion = Conversion()
        path = tmp_path / "log.jsonl"
        path.write_text(person.text())
        (episode,) = convert_logs([path], shop, conversion, strict=True)
        assert conversion == Conversion(episodes=1)
        assert episode.score == person.lines[-1]["reward"]
        shown = iter(states(shop, goal, [step.response for step in episode]))
        before = None
        for line in map(shown_by, person.lines):
            if line == before:  # loaded again
                continue
            before = line
            assert any(line == state for state in shown), f"seed {seed}: {line} is not shown, or not in time"


def shown_by(line: dict[str, Any]) -> Shown:
    content = line.get("content", {})
    sub_page = line["url"].split("/")[8].lower() if line["page"] == "item_sub_page" else ""
    if line["page"] == "done":  # its line has neither keywords nor page, the session has both
        return AnySearch("done", asin=content["asin"], options=tuple(sorted(content["options"].items())))
    return Shown(
        line["page"],
        tuple(content.get("keywords", ())),
        content.get("page", 1),
        content.get("asin", ""),
        tuple(sorted(content.get("options", {}).items())),
        sub_page,
    )


class AnySearch(Shown):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shown) and dataclasses.replace(other, keywords=(), number=1) == Shown(
            self.page, asin=self.asin, options=self.options
        )

    __hash__ = Shown.__hash__


def test_human_goals_keep_their_id(strict: Shop, logs: Logs) -> None:
    goal = goal_of(strict, "B000000003", "human")
    person = Person(
        strict,
        dataclasses.replace(goal, instruction="i want noir trail shoes, and price lower than 90.00 dollars"),
    )
    person.search("trail")
    person.open("B000000003")
    person.buy()
    (episode,) = logs.convert(person.text(), strict=True)
    assert episode.goal_id == goal.goal_id
    assert "90.00 dollars" in episode[0].prompt


def test_a_goal_the_shop_does_not_have_has_no_id(strict: Shop, logs: Logs) -> None:
    goal = dataclasses.replace(goal_of(strict, "B000000001"), instruction="something else")
    person = Person(strict, goal)
    person.search("persian")
    person.open("B000000001")
    person.buy()
    (episode,) = logs.convert(person.text(), strict=True)
    assert episode.goal_id is None
    assert "something else" in episode[0].prompt


def test_a_shop_without_human_goals_converts_logs_of_them(tmp_path: Path) -> None:
    raw = six_products()
    raw.human.clear()
    logs = Logs(tmp_path, Shop.load(raw))
    goal = dataclasses.replace(goal_of(logs.shop, "B000000001"), options=("black",))
    person = Person(logs.shop, goal)
    person.search("persian")
    person.open("B000000001")
    person.choose("color", "black")
    person.buy()
    (episode,) = logs.convert(person.text(), strict=True)
    assert episode.goal_id is None
    assert episode.success


def test_another_score_and_another_list_are_counted_and_kept(person: Person, logs: Logs) -> None:
    person.search("rug")
    person.open("B000000001")
    person.buy()
    person.lines[1]["content"]["search_result_asins"] = ["B000000001"]
    person.lines[-1]["reward"] = 0.125
    (episode,) = logs.convert(person.text(), strict=True)
    assert (logs.conversion.other_lists, logs.conversion.other_scores) == (1, 1)
    assert episode[0].extra["logged_score"] == 0.125
    assert episode.score != 0.125


def test_what_follows_a_purchase_is_left_out(person: Person, logs: Logs) -> None:
    person.search("rug")
    person.open("B000000002")
    person.buy()
    person.browser_back(kept=False)
    person.prev()
    person.open("B000000001")
    person.buy()
    (episode,) = logs.convert(person.text(), strict=True)
    assert episode[-2].response == "click[b000000002]"
    assert logs.conversion.after_purchase == 4


def test_sessions_in_one_file_are_told_apart(strict: Shop, logs: Logs) -> None:
    people = [Person(strict, goal_of(strict, asin), asin) for asin in ("B000000001", "B000000005")]
    lines = []
    for move in (lambda p: p.search("rug" if p.session == "B000000001" else "tea"), lambda p: p.open(p.session),
                 Person.buy):  # fmt: skip
        for person in people:
            move(person)
    for one, two in zip(*(person.lines for person in people)):
        lines += [json.dumps(one), json.dumps(two)]
    episodes = logs.convert("\n".join(lines), strict=True)
    assert [episode[0].episode for episode in episodes] == ["B000000001", "B000000005"]
    assert [episode[1].response for episode in episodes] == ["click[b000000001]", "click[b000000005]"]


def bought(strict: Shop, **changes: Any) -> Person:
    person = Person(strict, dataclasses.replace(goal_of(strict, "B000000001"), **changes))
    person.search("rug")
    person.open("B000000001")
    person.buy()
    return person


def test_a_visit_that_cannot_be_done_again_is_left_out_with_its_reason(strict: Shop, logs: Logs) -> None:
    no_purchase = Person(strict, goal_of(strict, "B000000001"))
    no_purchase.search("rug")
    unlisted = bought(strict)
    unlisted.lines[2]["content"]["asin"] = "B000000006"
    other_goal = bought(strict)
    other_goal.lines[2]["goal"] = other_goal.lines[2]["goal"] | {"instruction_text": "another"}
    unknown = bought(strict)
    for line in unknown.lines:
        line["goal"]["asin"] = "B999999999"
    attributes_page = bought(strict)
    line = json.loads(json.dumps(attributes_page.lines[2]))
    attributes_page.lines.insert(
        3, line | {"page": "item_sub_page", "url": "http://x/item_sub_page/s/B/k/1/Attributes/{}"}
    )
    for line in attributes_page.lines:
        line["url"] = line["url"].replace("A1B2C3", "s")
    empty_search = bought(strict)
    empty_search.lines[1]["content"]["keywords"] = [""]
    everyone = [no_purchase, unlisted, other_goal, unknown, attributes_page, empty_search]
    episodes = logs.convert(*[person.text() for person in everyone], bought(strict).text())
    assert len(episodes) == 1
    assert dict(logs.conversion.skipped) == {
        "the visit ends without a purchase": 1,
        "a page of kind item_page cannot be reached": 1,
        "the goal changes within the visit": 1,
        "the catalogue lacks the product asked for": 1,
        "a page of kind item_sub_page cannot be reached": 1,
        "a page of kind search_results cannot be reached": 1,
    }
    assert [problem.split(".jsonl:")[1].split(":")[0] for problem in logs.conversion.problems] == [
        "2", "3", "4", "4", "4", "2",
    ]  # fmt: skip
    assert (
        "1.jsonl:3: a page of kind item_page cannot be reached ('b000000006' cannot be clicked"
        in (logs.conversion.problems[1])
    )
    with pytest.raises(NotReplayable, match=r"0\.jsonl:2: the visit ends without a purchase"):
        logs.convert(no_purchase.text(), strict=True)


def test_a_shared_option_text_that_means_the_other_type_is_refused(tmp_path: Path) -> None:
    from tests.envs.webshop.conftest import product, values
    from trl_agent_envs.webshop import RawCatalog

    options = {"Size": values("one", "two"), "Pack": values("one", "six")}
    record = product("B000000001", "rug", customization_options=options)
    wish = {"attributes": ["x"], "instruction": "rug", "instruction_attributes": ["x"]}
    shop = Shop.load(RawCatalog([record], {"B000000001": wish}, {}, "one"))
    logs = Logs(tmp_path, shop)
    for kind, converted in (("pack", 1), ("size", 0)):
        person = Person(shop, shop.goals("synthetic")[0])
        person.search("rug")
        person.open("B000000001")
        person.choose(kind, "one")
        person.buy()
        assert len(logs.convert(person.text())) == converted
    assert "several option types share a value" in logs.conversion.problems[0]


MALFORMED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "not an object": (lambda line: [], r"\(row\): \[\] \(list\), expected a JSON object"),
    "no page": (lambda line: line.pop("page") and line, "page: missing, expected one of index"),
    "a strange page": (lambda line: line | {"page": "cart"}, r"page: 'cart' \(str\), expected one of"),
    "no url": (lambda line: line.pop("url") and line, "url: missing"),
    "a url without a path": (lambda line: line | {"url": "http://x"}, "url: 'http://x'"),
    "a url of another page": (
        lambda line: line | {"url": "http://x/search_results/s/k/1"},
        r"url: 'http://x/search_results/s/k/1' \(str\), expected /item_page/<session>/",
    ),
    "a url that is none": (lambda line: line | {"url": "http://[x/s"}, "url: 'http"),
    "no goal": (lambda line: line | {"goal": None}, "goal: missing, expected an object"),
    "a goal without asin": (
        lambda line: line | {"goal": line["goal"] | {"asin": 3}},
        r"goal\.asin: 3 \(int\)",
    ),
    "a goal without text": (
        lambda line: line | {"goal": line["goal"] | {"instruction_text": None}},
        r"goal\.instruction_text: missing",
    ),
    "goal attributes": (
        lambda line: line | {"goal": line["goal"] | {"attributes": "soft"}},
        r"goal\.attributes: 'soft' \(str\), expected a list of strings",
    ),
    "goal options": (
        lambda line: line | {"goal": line["goal"] | {"goal_options": {"size": 3}}},
        r"goal\.goal_options: \{'size': 3\}",
    ),
    "a price that is no number": (
        lambda line: line | {"goal": line["goal"] | {"price_upper": "30"}},
        r"goal\.price_upper: '30' \(str\), expected a finite number",
    ),
    "no content": (lambda line: line.pop("content") and line, "content: missing, expected an object"),
    "keywords": (lambda line: with_content(line, keywords="[1]"), r"content\.keywords: \[1\] \(list\)"),
    "keywords that are code": (
        lambda line: with_content(line, keywords="__import__('os').getcwd()"),
        r"content\.keywords: \"__import__",
    ),
    "no keywords": (lambda line: with_content(line, keywords=[]), r"content\.keywords: an empty list"),
    "page number": (lambda line: with_content(line, page="two"), r"content\.page: 'two' \(str\)"),
    "a page far away": (lambda line: with_content(line, page=10**9), r"content\.page: 1000000000"),
    "no asin": (lambda line: with_content(line, asin=None), r"content\.asin: missing, expected a string"),
    "options": (lambda line: with_content(line, options=["red"]), r"content\.options: \['red'\] \(list\)"),
    "no options": (lambda line: with_content(line, options=None), r"content\.options: missing"),
}


def with_content(line: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return line | {"content": line["content"] | changes}


@pytest.mark.parametrize(("change", "message"), MALFORMED.values(), ids=list(MALFORMED))
def test_a_malformed_line_is_named_by_file_line_and_field(
    strict: Shop, logs: Logs, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    person = bought(strict)
    assert person.lines[2]["page"] == "item_page"
    person.lines[2] = change(json.loads(json.dumps(person.lines[2])))
    assert logs.convert(person.text(), bought(strict).text())[0].score is not None
    assert dict(logs.conversion.skipped) == {"a line is malformed": 1}
    with pytest.raises(LogError, match=rf"0\.jsonl:3:{message}"):
        logs.convert(person.text(), strict=True)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"page": "index"', "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"{}", "page: missing"),
    ],
)
def test_a_line_that_is_not_json_is_reported(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\n" + raw + b"\n\n")
    (line,) = read_log(path)
    assert isinstance(line, LogError)
    assert str(line).startswith(f"{path}:2:")
    assert message in str(line)


def test_results_and_purchases_are_checked_too(strict: Shop, tmp_path: Path) -> None:
    person = bought(strict)
    person.lines[1]["content"]["search_result_asins"] = "B000000001"
    person.lines[3]["reward"] = "1.0"
    path = tmp_path / "log.jsonl"
    path.write_text(person.text())
    index, results, item, done = read_log(path)
    assert isinstance(index, LogLine)
    assert isinstance(item, LogLine)
    assert "content.search_result_asins: 'B000000001' (str)" in str(results)
    assert "reward: '1.0' (str), expected a finite number" in str(done)


def test_every_malformed_line_is_reported(strict: Shop, logs: Logs) -> None:
    person = bought(strict)
    person.lines[1]["content"]["page"] = None
    person.lines[2]["url"] = None
    assert logs.convert(person.text() + "{\n") == []
    assert [problem.split(".jsonl:")[1].split(":")[0] for problem in logs.conversion.problems] == [
        "2",
        "3",
        "5",
    ]
    assert logs.conversion.skipped.total() == 1
