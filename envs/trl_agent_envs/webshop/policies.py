"""Policies that need no model: the floor, a rule of thumb, and the ceiling to compare a model with."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from .env import WebShopEnv
from .replay import search_action

_Policy = Callable[[str, dict[str, Any]], str]


def oracle(env: WebShopEnv, seed: int = 0) -> _Policy:
    """Return the expert who knows the wanted product."""
    return lambda observation, info: env.oracle_action() or ""


def random_valid(env: WebShopEnv, seed: int = 0) -> _Policy:
    """Return a shopper who clicks anything; an episode follows from `seed` and its goal."""
    rng = random.Random()

    def act(observation: str, info: dict[str, Any]) -> str:
        if "system_prompt" in info:
            rng.seed(f"{seed}/{info['goal_id']}")
        return env.sample_action(rng) or ""

    return act


def first_result(env: WebShopEnv, seed: int = 0) -> _Policy:
    """Return a shopper who searches for the instruction and buys what comes first, without choosing options.

    Source: the rule-based baseline of Yao et al. (2022), "WebShop", section 4.1.
    """

    def act(observation: str, info: dict[str, Any]) -> str:
        page = env.session.page
        if page.kind == "item":
            return "click[buy now]"
        if page.kind == "results" and page.products:
            return f"click[{page.products[0].asin}]"
        return search_action(env.session.goal.instruction)

    return act


POLICIES: dict[str, Callable[[WebShopEnv, int], _Policy]] = {
    "oracle": oracle,
    "random": random_valid,
    "first": first_result,
}
"""By the names of the command line. Each takes the environment it is to play in, and a seed."""
