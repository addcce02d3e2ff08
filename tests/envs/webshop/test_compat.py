"""One test a switch: what the original does wrong, that the switch alone repairs it, and that no other one does."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable

import pytest

from trl_agent_envs.webshop import Compat, RawCatalog, Shop
from trl_agent_envs.webshop.env import WebShopEnv
from trl_agent_envs.webshop.goals import Goal
from trl_agent_envs.webshop.session import ActionError, Session

SWITCHES = [field.name for field in dataclasses.fields(Compat)]
ORIGINAL, STRICT = Compat.named("original"), Compat.named("strict")


def _reward_of_a_colour_inside_a_word(raw: RawCatalog, compat: Compat) -> object:
    options = {"color": "black", "item shape": "rectangular"}
    goal = Goal(0, "B000000001", "", ("hand woven",), options, 30.0, 1.0)
    return Shop.load(raw, compat=compat).reward(goal, "B000000001", options).total


def _label_with_a_quote(raw: RawCatalog, compat: Compat) -> object:
    session = _visit(raw, compat, "search[trail]", "click[b000000003]", 'click[12" red]')
    return "[clicked button]" in session.observation("text_rich")


def _address_word_in_a_search(raw: RawCatalog, compat: Compat) -> object:
    return _visit(raw, compat, "search[search_results rug]", "click[b000000001]", "click[< prev]").page.number


def _search_by_attribute(raw: RawCatalog, compat: Compat) -> object:
    return _visit(raw, compat, "search[rug]", "search[<a> hand woven]").page.total


def _search_after_the_purchase(raw: RawCatalog, compat: Compat) -> object:
    buy = ("search[rug]", "click[b000000001]", "click[buy now]")
    return _visit(raw, compat, *buy, "search[rug]").page.kind


def _draws_of_the_first_goal(raw: RawCatalog, compat: Compat) -> object:
    env = WebShopEnv(data_dir=raw, compat=compat, split="all")
    drawn = Counter(env.reset(seed=seed)[1]["goal_id"] for seed in range(300))
    return drawn[0] > 0


# switch -> (what to look at, the original's answer, the right answer)
CASES: dict[str, tuple[Callable[[RawCatalog, Compat], object], object, object]] = {
    "exact_option_matches": (_reward_of_a_colour_inside_a_word, 3 / 4, 1.0),
    "clicked_from_state": (_label_with_a_quote, False, True),
    "page_from_state": (_address_word_in_a_search, 0, 1),
    "special_searches": (_search_by_attribute, 2, 1),
    "over_when_done": (_search_after_the_purchase, "results", "done"),
    "even_draws": (_draws_of_the_first_goal, False, True),
}


def _visit(raw: RawCatalog, compat: Compat, *actions: str) -> Session:
    goal = Goal(3, "B000000001", "Find me rugs", ("non slip",), {"color": "black"}, 30.0, 1.0)
    session = Session(Shop.load(raw, compat=compat), goal)
    for action in actions:
        try:
            session.act(action)
        except ActionError:
            continue
    return session


def test_every_switch_is_tested() -> None:
    assert sorted(CASES) == sorted(SWITCHES)
    assert all(getattr(STRICT, name) for name in SWITCHES)
    assert not any(getattr(ORIGINAL, name) for name in SWITCHES)


@pytest.mark.parametrize("switch", SWITCHES)
def test_the_switch_alone_makes_the_difference(raw: RawCatalog, switch: str) -> None:
    look, wrong, right = CASES[switch]
    for compat, expected in (
        (ORIGINAL, wrong),
        (dataclasses.replace(ORIGINAL, **{switch: True}), right),
        (dataclasses.replace(STRICT, **{switch: False}), wrong),
        (STRICT, right),
    ):
        assert look(raw, compat) == expected


def test_names() -> None:
    assert Compat.named(ORIGINAL) is ORIGINAL
    with pytest.raises(ValueError, match='must be "strict", "original" or a Compat'):
        Compat.named("loose")
