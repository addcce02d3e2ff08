"""GoalTable: the goals of a set as arrays, in the original's order, and which of them belong to one product."""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .product import HumanInstruction, Product
from .sorted_texts import offsets_of

ORDER_SEED = 233
"""The original's seed for the order of the goals; it makes a goal id mean the same goal everywhere."""


@dataclass(frozen=True)
class GoalTable:
    """Entry e is one instruction; it makes a goal for each option combination (a human one makes one goal).

    positions: place of the entry's product in the catalogue. wishes: of a human entry, which of the product's
        instructions it is. limits: price limit, dollars. weights: the original's sampling weight.
    starts: number of entry e's first goal when goals are counted entry by entry; ``[entries + 1]``.
    order: goal id -> that number.
    members: all goal ids, those of a product together and ascending; products in the order of their first
        goal. group_starts: where each product's begin; ``[products + 1]``. group_positions: its place.
    """

    positions: NDArray[np.int32]
    wishes: NDArray[np.int32]
    limits: NDArray[np.float64]
    weights: NDArray[np.float64]
    starts: NDArray[np.int64]
    order: NDArray[np.int32]
    members: NDArray[np.int32]
    group_starts: NDArray[np.int64]
    group_positions: NDArray[np.int32]

    def position_of_each(self) -> NDArray[np.int32]:
        """Return the place of the product of each goal, by goal id."""
        found = np.empty(len(self.order), np.int32)
        found[self.members] = np.repeat(self.group_positions, np.diff(self.group_starts))
        return found

    def weight_of_each(self) -> NDArray[np.float64]:
        """Return the sampling weight of each goal, by goal id."""
        by_draft: NDArray[np.float64] = np.repeat(self.weights, np.diff(self.starts))
        return by_draft[self.order]


class TableBuilder:
    """Takes a catalogue's products in their order and makes the table of one set."""

    def __init__(self, goal_set: str) -> None:
        self._human = goal_set == "human"
        self.positions = array("i")
        self._wishes, self._goals, self._wanted, self._wanted_sizes = (array("i") for _ in range(4))
        self._attributes: dict[str, int] = {}

    def add(self, position: int, product: Product, human: tuple[HumanInstruction, ...]) -> None:
        """Take the next product."""
        if self._human:
            for number in range(len(human)):
                self._entry(position, number, 1)
        elif product.instruction is not None:
            self._entry(position, 0, math.prod(len(values) for values in product.options.values()))
            ids = self._attributes
            wanted = [ids.setdefault(name, len(ids)) for name in product.instruction_attributes]
            self._wanted.extend(wanted)
            self._wanted_sizes.append(len(wanted))

    def _entry(self, position: int, number: int, goals: int) -> None:
        self.positions.append(position)
        self._wishes.append(number)
        self._goals.append(goals)

    def finish(self, limits: NDArray[np.float64]) -> GoalTable | None:
        """Return the table, None if there is no goal. `limits`: of each entry, drawn in their order."""
        starts = offsets_of(self._goals)
        total = int(starts[-1])
        if total == 0:
            return None
        shuffled = array("i", range(total))
        random.Random(ORDER_SEED).shuffle(shuffled)
        order = np.asarray(shuffled)
        positions = np.asarray(self.positions)
        by_draft: NDArray[np.int32] = np.repeat(positions, np.asarray(self._goals))
        return GoalTable(
            positions,
            np.asarray(self._wishes),
            limits,
            self._weights(),
            starts,
            order,
            *grouped(by_draft[order]),
        )

    def _weights(self) -> NDArray[np.float64]:
        """Return, for each entry, the mean over its attributes of 1 / (goals that want the attribute)."""
        if self._human:
            return np.ones(len(self.positions))
        sizes = np.asarray(self._wanted_sizes)
        goals = np.repeat(np.asarray(self._goals), sizes)
        uses = np.bincount(np.asarray(self._wanted), weights=goals).tolist()
        rarity = [1.0 / number if number else 0.0 for number in uses]
        weights, start = [], 0
        for size in self._wanted_sizes:
            weights.append(sum([rarity[i] for i in self._wanted[start : start + size]]) / size)
            start += size
        return np.asarray(weights)


def grouped(positions: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[Any]]:
    """Return members, starts and places of the products (see `GoalTable`) for the product of each goal."""
    by_product = np.argsort(positions, kind="stable").astype(np.int32)
    sorted_positions = positions[by_product]
    first = np.flatnonzero(np.diff(sorted_positions, prepend=-1))
    sizes = np.diff(first, append=len(positions))
    rank = np.argsort(by_product[first], kind="stable")
    starts = offsets_of(sizes[rank])
    members = np.repeat(first[rank] - starts[:-1], sizes[rank]) + np.arange(len(positions))
    return by_product[members], starts, sorted_positions[first[rank]]
