"""Which goal an episode gets in the original program when none is asked for."""

from __future__ import annotations

import bisect
import itertools
import random
import string
from collections.abc import Sequence

from .goals import ORDER_SEED

_NAME_LENGTH = 10


class OriginalDraws:
    """Draws goals as the original does, random number for random number.

    Its weights are summed with a zero in front, so that each goal has the weight of the one before it: the
    first goal never comes up, the last one's own weight counts for nothing. Each draw first names the visit
    with ten random letters.

    The generator starts where the original's stands after it has shuffled its goals, so that draws without
    `reseed` are the same in every process, as they are there.

    Args:
        weights: of all goals of the set, by goal id; their number decides where the generator starts.
        ids: the goal ids to draw from, in order.

    Source: the original's `SimServer.receive` and `random_idx`.
    """

    def __init__(self, weights: Sequence[float], ids: Sequence[int]) -> None:
        self._ids = ids
        self._count = len(weights)
        self._sums = [0.0, *itertools.accumulate(weights[goal_id] for goal_id in ids)]
        self._rng: random.Random | None = None

    def reseed(self, seed: int) -> None:
        """Go on as the original does after ``random.seed(seed)``."""
        self._rng = random.Random(seed)

    def next(self) -> int:
        """Return the next goal id."""
        if self._rng is None:
            self._rng = random.Random(ORDER_SEED)
            self._rng.shuffle(list(range(self._count)))
        self._rng.choices(string.ascii_lowercase, k=_NAME_LENGTH)
        place = bisect.bisect(self._sums, self._rng.uniform(0, self._sums[-1]))
        return self._ids[min(place, len(self._ids) - 1)]
