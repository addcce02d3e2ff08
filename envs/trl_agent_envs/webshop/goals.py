"""Goals: what a shopper is asked to buy, built from a catalogue as the original builds them."""

from __future__ import annotations

import random
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from .catalog import Catalog, Product
from .goal_table import ORDER_SEED, GoalTable, TableBuilder

__all__ = [
    "GOAL_SETS",
    "NO_PRICE_LIMIT",
    "ORDER_SEED",
    "Goal",
    "GoalSet",
    "Goals",
    "build_goals",
    "check_goal_set",
    "draw_limits",
    "draw_price",
    "draw_prices",
    "no_goals",
    "without_price",
]

GoalSet = Literal["synthetic", "human"]
GOAL_SETS: tuple[GoalSet, ...] = ("synthetic", "human")

NO_PRICE_LIMIT = 1_000_000.0

_PRICE_GRID = [10.0 * i for i in range(1, 100)]
_PRICE_CLAUSE = re.compile(r", and price lower than [\d.]+ dollars$")
_CACHED_GOALS = 8192


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


class Goals(Sequence[Goal]):
    """The goals of a set, placed by goal id. A goal is put together when it is looked at.

    Millions of goals then cost a few arrays, which processes share where they come from a store.
    """

    def __init__(self, goal_set: str, catalog: Catalog, table: GoalTable) -> None:
        self.goal_set, self.catalog, self.table = goal_set, catalog, table
        self._made = lru_cache(maxsize=_CACHED_GOALS)(self._make)

    def __len__(self) -> int:
        return len(self.table.order)

    @overload
    def __getitem__(self, index: int) -> Goal: ...

    @overload
    def __getitem__(self, index: slice) -> list[Goal]: ...

    def __getitem__(self, index: int | slice) -> Goal | list[Goal]:
        if isinstance(index, slice):
            return [self._made(number) for number in range(*index.indices(len(self)))]
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"no {self.goal_set} goal {index}; there are {len(self)}")
        return self._made(int(number))

    def __iter__(self) -> Iterator[Goal]:
        return map(self._make, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other))

    __hash__ = None  # type: ignore[assignment] # equal to any sequence of the same goals

    def _make(self, goal_id: int) -> Goal:
        table = self.table
        draft = int(table.order[goal_id])
        entry = int(table.starts.searchsorted(draft, side="right")) - 1
        product = self.catalog.products[int(table.positions[entry])]
        limit = float(table.limits[entry])
        clause = "" if limit == NO_PRICE_LIMIT else f", and price lower than {limit:.2f} dollars"
        attributes: tuple[str, ...] = product.instruction_attributes
        options: dict[str, str] | tuple[str, ...]
        if self.goal_set == "human":
            wish = self.catalog.human[product.asin][int(table.wishes[entry])]
            text, attributes, options = wish.text.strip("."), wish.attributes, wish.options
        else:
            options = _combination(product, draft - int(table.starts[entry]))
            wanted = ", and ".join(f"{name}: {value}" for name, value in options.items())
            text = (product.instruction or "") + (f" with {wanted}" if wanted else "")
        weight = float(table.weights[entry])
        return Goal(goal_id, product.asin, text + clause, attributes, options, limit, weight)


def _combination(product: Product, number: int) -> dict[str, str]:
    """Return one combination of option values; they are counted with the last type (by name) changing first."""
    names = sorted(product.options)
    chosen = dict.fromkeys(names, "")
    for name in reversed(names):
        number, place = divmod(number, len(product.options[name]))
        chosen[name] = product.options[name][place]
    return chosen


def draw_prices(catalog: Catalog, rng: random.Random) -> dict[str, float]:
    """Return the price charged for each product: its only price, or one drawn uniformly from its range."""
    return {product.asin: draw_price(product, rng) for product in catalog}


def draw_price(product: Product, rng: random.Random) -> float:
    """Return the price charged for one product; prices are drawn in the order of the catalogue."""
    return product.pricing[0] if len(product.pricing) == 1 else rng.uniform(*product.pricing[:2])


def draw_limits(prices: Sequence[float], rng: random.Random) -> NDArray[np.float64]:
    """Return a limit above each price: the larger of two of the next four tens of dollars."""
    return np.asarray([_price_limit(price, rng) for price in prices], dtype=np.float64)


def _price_limit(price: float, rng: random.Random) -> float:
    above = bisect_right(_PRICE_GRID, price)
    grid = _PRICE_GRID[above : above + 4]
    return max(rng.sample(grid, 2)) if len(grid) >= 2 else NO_PRICE_LIMIT


def build_goals(goal_set: str, catalog: Catalog, prices: Mapping[str, float], rng: random.Random) -> Goals:
    """Return the goals of a set in the original's order.

    Args:
        prices: charged price per asin, as `draw_prices` returns it.
        rng: the generator that drew the prices; the price limits are its next numbers.

    Raises:
        ValueError: an unknown goal set, or one that the catalogue has no instructions for.
    """
    check_goal_set(goal_set)
    builder = TableBuilder(goal_set)
    for position, product in enumerate(catalog):
        builder.add(position, product, catalog.human.get(product.asin, ()))
    charged = [prices[catalog.products[position].asin] for position in builder.positions]
    table = builder.finish(draw_limits(charged, rng))
    if table is None:
        raise no_goals(goal_set, catalog)
    return Goals(goal_set, catalog, table)


def without_price(instruction: str) -> str:
    """Return an instruction without the clause that `Goals` puts at its end."""
    return _PRICE_CLAUSE.sub("", instruction)


def check_goal_set(goal_set: str) -> None:
    """Raise ValueError unless `goal_set` is one of `GOAL_SETS`."""
    if goal_set not in GOAL_SETS:
        raise ValueError(f"goals must be one of {', '.join(GOAL_SETS)}; got {goal_set!r}")


def no_goals(goal_set: str, catalog: Catalog) -> ValueError:
    """Return the error of a catalogue without instructions of this set."""
    return ValueError(f"{catalog.source} has no {goal_set} goals")
