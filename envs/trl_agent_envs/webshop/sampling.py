"""Which goals to evaluate on: as many different products as possible."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence

from .goals import Goal, Goals


def spread_goals(goals: Sequence[Goal], ids: Sequence[int], number: int, seed: int = 0) -> list[int]:
    """Return up to `number` of the goal `ids`, chosen at random, one of each product before a second of any.

    A product with hundreds of option combinations then counts no more than one with a single one.
    """
    rng = random.Random(f"spread/{seed}")
    by_product: dict[object, list[int]] = defaultdict(list)
    for goal_id, product in zip(ids, _products(goals, ids)):
        by_product[product].append(goal_id)
    queues = list(by_product.values())
    for queue in queues:
        rng.shuffle(queue)
    rng.shuffle(queues)
    rounds = max((len(queue) for queue in queues), default=0)
    chosen = [queue[turn] for turn in range(rounds) for queue in queues if turn < len(queue)]
    return chosen[:number]


def _products(goals: Sequence[Goal], ids: Sequence[int]) -> Iterable[object]:
    """Return what names the product of each of the goals `ids`."""
    if isinstance(goals, Goals):  # without putting millions of goals together
        positions: list[int] = goals.table.position_of_each()[list(ids)].tolist()
        return positions
    return (goals[goal_id].asin for goal_id in ids)
