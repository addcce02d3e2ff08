from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from trl_agent_envs.webshop import Compat, Goal, Shop
from trl_agent_envs.webshop.reward import (
    color_inside,
    color_word,
    count_options,
    fuzzy_match,
    title_score,
    type_reward,
)


@pytest.mark.parametrize(
    ("query", "category", "title", "expected"),
    [
        (True, True, 1.0, 1.0),
        (False, False, 0.21, 1.0),
        (False, False, 0.2, 0.5),
        (False, True, 0.15, 1.0),
        (True, True, 0.09, 0.1),
        (True, True, 0.0, 0.0),
        (False, False, 0.1, 0.5),
    ],
)
def test_type_reward(query: bool, category: bool, title: float, expected: float) -> None:
    assert type_reward(query, category, title) == expected


def test_title_score_counts_repeats_on_the_wanted_side() -> None:
    assert title_score(("rug", "rug", "wool", "mat"), ("rug", "wool")) == 0.5
    assert title_score((), ("rug",)) == 0.2
    assert title_score(("rug",), ()) == 0.0


def test_fuzzy_match() -> None:
    assert fuzzy_match("rubber soles", "rubber sole")
    assert fuzzy_match("x-large", "large")  # all words of one are in the other
    assert not fuzzy_match("red", "blue")
    assert not fuzzy_match("é", "é")  # nothing is left after cleaning
    assert not fuzzy_match("", "a")


def test_colors() -> None:
    assert color_inside("rectangular") == "tan"
    assert color_word("rectangular") == "rectangular"
    assert color_inside("navy | red") == color_word("navy | red") == "navy"
    assert color_word("xnj-gray") == "gray"


@pytest.mark.parametrize(
    ("wanted", "chosen", "original", "strict"),
    [
        ({"item shape": "rectangular"}, {"item shape": "rectangular"}, 0, 1),
        ({"color": "black"}, {"color": "black137"}, 1, 0),
        ({"size": "large"}, {"size": "x-large"}, 0, 0),
        ({"color": "navy blue"}, {"color": "navy blue"}, 1, 1),
        ({"color": "red"}, {"color": "black"}, 0, 0),
        ({"color": "red", "size": "7"}, {}, 0, 0),
        (("orange",), {"color": "bright orange"}, 1, 1),
        (("40mm",), {"size": "40mm"}, 1, 1),
        (("rectangular",), {"shape": "round"}, 0, 0),
        ((), {"size": "7"}, 0, 0),
    ],
)
def test_options(wanted: Any, chosen: dict[str, str], original: int, strict: int) -> None:
    assert count_options(wanted, chosen, exact=False) == original
    assert count_options(wanted, chosen, exact=True) == strict


@pytest.fixture
def rug_goal() -> Goal:
    options = {"color": "black", "item shape": "rectangular"}
    return Goal(0, "B000000001", "", ("hand woven", "non slip"), options, 30.0, 1.0)


def test_exact_purchase(strict: Shop, original: Shop, rug_goal: Goal) -> None:
    assert isinstance(rug_goal.options, dict)
    info = strict.reward(rug_goal, "B000000001", rug_goal.options)
    assert (info.total, info.r_type, info.r_att, info.r_option, info.r_price) == (1.0, 1.0, 1.0, 1.0, True)
    assert (info.w_att, info.w_option, info.w_price) == (2 / 5, 2 / 5, 1 / 5)
    info = original.reward(rug_goal, "B000000001", rug_goal.options)
    assert (info.total, info.r_option) == (4 / 5, 1 / 2)


def test_one_switch_repairs_it(raw: Any, rug_goal: Goal) -> None:
    switched = dataclasses.replace(Compat.named("original"), exact_option_matches=True)
    assert isinstance(rug_goal.options, dict)
    assert Shop.load(raw, compat=switched).reward(rug_goal, "B000000001", rug_goal.options).total == 1.0


def test_other_purchases(strict: Shop, rug_goal: Goal) -> None:
    # "non slip" of two attributes, no option, at 100 dollars; the titles share one noun of two
    info = strict.reward(rug_goal, "B000000002", {})
    assert (info.total, info.r_att, info.r_option, info.r_price) == (1 / 5, 1 / 2, 0.0, False)
    assert (info.query_match, info.category_match, info.title_score) == (True, True, 0.5)
    assert strict.reward(rug_goal, "B000000002", {}, price=29.0).total == 2 / 5
    # a lamp's title has nothing in common with a rug's
    lamp = strict.reward(rug_goal, "B000000006", {}, price=1.0)
    assert (lamp.total, lamp.r_type) == (0.0, 0.0)


def test_without_options_there_is_no_option_part(strict: Shop) -> None:
    goal = Goal(0, "B000000004", "", ("rubber soles",), {}, 1_000_000.0, 1.0)
    info = strict.reward(goal, "B000000003", {"size": "7"})
    assert (info.r_option, info.w_option, info.w_att) == (None, None, 1 / 2)
    assert info.total == 1.0  # two of three nouns, the same query, "rubber sole" is close enough


def test_attribute_in_the_text_counts(strict: Shop) -> None:
    goal = Goal(0, "B000000001", "", ("soft wool", "imported", "persian"), {}, 50.0, 1.0)
    assert strict.reward(goal, "B000000001", {}).r_att == 1.0
