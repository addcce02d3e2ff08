"""Goals: what a shopper is asked to buy, built from a catalogue as the original builds them."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from .catalog import Catalog, Product

GoalSet = Literal["synthetic", "human"]
GOAL_SETS: tuple[GoalSet, ...] = ("synthetic", "human")

NO_PRICE_LIMIT = 1_000_000.0
ORDER_SEED = 233
"""The original's seed for the order of the goals; it makes a goal id mean the same goal everywhere."""

_PRICE_GRID = [10.0 * i for i in range(1, 100)]


@dataclass(frozen=True, slots=True)
class Goal:
    """One thing to buy.

    goal_id: place in the goal list of its set, in the original's order.
    instruction: what the agent reads, with the price clause.
    options: option type -> value (synthetic), or the values alone (human).
    price_upper: highest acceptable price in dollars; 1,000,000 means no limit.
    weight: the original's sampling weight (rare attributes weigh more; 1 for human goals).
    """

    goal_id: int
    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: dict[str, str] | tuple[str, ...]
    price_upper: float
    weight: float


def draw_prices(catalog: Catalog, rng: random.Random) -> dict[str, float]:
    """Return the price charged for each product: its only price, or one drawn uniformly from its range."""
    return {
        product.asin: product.pricing[0] if len(product.pricing) == 1 else rng.uniform(*product.pricing[:2])
        for product in catalog
    }


def build_goals(goal_set: str, catalog: Catalog, prices: dict[str, float], rng: random.Random) -> list[Goal]:
    """Return the goals of a set in the original's order.

    Args:
        prices: charged price per asin, as `draw_prices` returns it.
        rng: the generator that drew the prices; the price limits are its next numbers.

    Raises:
        ValueError: an unknown goal set, or one that the catalogue has no instructions for.
    """
    if goal_set == "synthetic":
        drafts = _synthetic(catalog, prices, rng)
    elif goal_set == "human":
        drafts = _human(catalog, prices, rng)
    else:
        raise ValueError(f"goals must be one of {', '.join(GOAL_SETS)}; got {goal_set!r}")
    if not drafts:
        raise ValueError(f"{catalog.source} has no {goal_set} goals")
    random.Random(ORDER_SEED).shuffle(drafts)
    return [Goal(goal_id, *draft) for goal_id, draft in enumerate(drafts)]


_Draft = tuple[str, str, tuple[str, ...], dict[str, str] | tuple[str, ...], float, float]


def _price_limit(price: float, rng: random.Random) -> tuple[float, str]:
    """Draw a limit above `price`: the larger of two of the next four tens of dollars."""
    grid = [value for value in _PRICE_GRID if value > price][:4]
    if len(grid) < 2:
        return NO_PRICE_LIMIT, ""
    limit = max(rng.sample(grid, 2))
    return limit, f", and price lower than {limit:.2f} dollars"


def _synthetic(catalog: Catalog, prices: dict[str, float], rng: random.Random) -> list[_Draft]:
    """One goal for each combination of a product's option values."""
    drafts: list[tuple[Product, str, dict[str, str], float]] = []
    uses: Counter[str] = Counter()
    for product in catalog:
        if product.instruction is None:
            continue
        limit, clause = _price_limit(prices[product.asin], rng)
        names = sorted(product.options)
        for values in itertools.product(*(product.options[name] for name in names)):
            options = dict(zip(names, values))
            wish = ", and ".join(f"{name}: {value}" for name, value in options.items())
            text = product.instruction + (f" with {wish}" if wish else "") + clause
            drafts.append((product, text, options, limit))
            uses.update(product.instruction_attributes)
    return [
        (product.asin, text, product.instruction_attributes, options, limit, _rarity(product, uses))
        for product, text, options, limit in drafts
    ]


def _rarity(product: Product, uses: Counter[str]) -> float:
    wanted = product.instruction_attributes
    return sum(1.0 / uses[attribute] for attribute in wanted) / len(wanted)


def _human(catalog: Catalog, prices: dict[str, float], rng: random.Random) -> list[_Draft]:
    drafts: list[_Draft] = []
    for product in catalog:
        for wish in catalog.human.get(product.asin, ()):
            limit, clause = _price_limit(prices[product.asin], rng)
            text = wish.text.strip(".") + clause
            drafts.append((product.asin, text, wish.attributes, wish.options, limit, 1.0))
    return drafts
