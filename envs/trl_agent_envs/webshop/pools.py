"""GoalPools: the goals of a split, product by product, so that a product with many counts no more than another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from .goal_table import grouped
from .goals import Goals
from .product_splits import SPLITS, split_codes
from .shop import Shop
from .splits import ORIGINAL_RANGES, empty_split, unknown_split


class GoalPools(Sequence[NDArray[np.int32]]):
    """One array of goal ids for each product that has goals in a split; in the order of the first goals."""

    def __init__(
        self, members: NDArray[np.int32], starts: NDArray[np.int64], chosen: NDArray[np.integer] | None
    ) -> None:
        self._members, self._starts, self._chosen = members, starts, chosen

    def __len__(self) -> int:
        return len(self._starts) - 1 if self._chosen is None else len(self._chosen)

    @overload
    def __getitem__(self, index: int) -> NDArray[np.int32]: ...

    @overload
    def __getitem__(self, index: slice) -> list[NDArray[np.int32]]: ...

    def __getitem__(self, index: int | slice) -> NDArray[np.int32] | list[NDArray[np.int32]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"no pool {index}; there are {len(self)}")
        group = index % len(self) if self._chosen is None else self._chosen[index]
        start, end = self._starts[group : group + 2].tolist()
        return self._members[start:end]

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return (self[index] for index in range(len(self)))


_of_shop: WeakKeyDictionary[Shop, dict[tuple[str, str], GoalPools]] = WeakKeyDictionary()


def goal_pools(goal_set: str, split: str, shop: Shop) -> GoalPools:
    """Return the pools of one split (see `splits.split_ids`); all environments of a shop share them.

    Raises:
        ValueError: an unknown split, or one without goals.
    """
    kept = _of_shop.setdefault(shop, {})
    if (goal_set, split) not in kept:
        kept[goal_set, split] = _find_pools(goal_set, split, shop)
    return kept[goal_set, split]


def _find_pools(goal_set: str, split: str, shop: Shop) -> GoalPools:
    goals: Goals = shop.goals(goal_set)
    table = goals.table
    if split == "all":
        pools = GoalPools(table.members, table.group_starts, None)
    elif split in SPLITS:
        codes = split_codes(shop.catalog)[table.group_positions]
        chosen = np.flatnonzero(codes == SPLITS.index(split)).astype(np.int32)
        pools = GoalPools(table.members, table.group_starts, chosen)
    elif split in ORIGINAL_RANGES:
        start, stop = ORIGINAL_RANGES[split]
        members, starts, _ = grouped(table.position_of_each()[start:stop])
        pools = GoalPools(members + np.int32(start), starts, None)
    else:
        raise unknown_split(split)
    if not len(pools):
        raise empty_split(goal_set, split, shop)
    return pools
