from __future__ import annotations

import random
from collections import Counter

import pytest

from trl_agent_envs.webshop import RawCatalog
from trl_agent_envs.webshop.draws import OriginalDraws
from trl_agent_envs.webshop.env import WebShopEnv


def test_each_goal_has_the_weight_of_the_one_before_it() -> None:
    draws = OriginalDraws([1.0, 2.0, 5.0, 100.0], range(4))
    draws.reseed(0)
    # sums 0, 1, 3, 8, 108: the share [0, 1) is goal 1's, [1, 3) goal 2's, and the rest goal 3's
    drawn = Counter(draws.next() for _ in range(54_000))
    assert drawn == {
        1: pytest.approx(500, abs=80),
        2: pytest.approx(1000, abs=110),
        3: 54_000 - drawn[1] - drawn[2],
    }


def test_numbers_are_used_as_the_original_uses_them() -> None:
    """Ten letters for the name of the visit, then one uniform number."""
    draws = OriginalDraws([3.0, 1.0, 1.0, 1.0], [1, 2, 3])
    draws.reseed(7)
    rng = random.Random(7)
    for _ in range(50):
        for _ in range(10):
            rng.random()
        # weights 1, 1, 1 of goals 1 to 3: [0, 1) is goal 2, the rest goal 3
        assert draws.next() == (2 if rng.random() * 3.0 < 1.0 else 3)


def test_one_goal_is_always_drawn() -> None:
    draws = OriginalDraws([1.0, 2.0], [1])
    assert {draws.next() for _ in range(20)} == {1}


def test_env_without_seeds_repeats_and_with_seeds_follows_them(raw: RawCatalog) -> None:
    def goals(number: int, **reset: int) -> list[int]:
        env = WebShopEnv(data_dir=raw, compat="original", split="all")
        first = env.reset(**reset)[1]["goal_id"]
        return [first, *(env.reset()[1]["goal_id"] for _ in range(number - 1))]

    assert goals(30) == goals(30)
    assert goals(30, seed=1) == goals(30, seed=1) != goals(30, seed=2)
    assert 0 not in goals(300)
