"""Numbers that all ranks add up: exact means, whatever the split over ranks and micro batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from accelerate import Accelerator
from accelerate.utils import gather, gather_object


def gather_rows(accelerator: Accelerator, values: Sequence[float]) -> list[list[float]]:
    """Return every rank's `values`, by rank. All ranks call it, with as many values."""
    if accelerator.num_processes == 1:
        return [list(values)]
    dtype = torch.float32 if accelerator.device.type == "mps" else torch.float64
    row = torch.tensor([list(values)], dtype=dtype, device=accelerator.device)
    return gather(row).tolist()


def global_sums(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """Add `values` over the ranks, element by element."""
    return [sum(column) for column in zip(*gather_rows(accelerator, values), strict=True)]


class MetricSums:
    """Collects (sum, count) pairs by name, and largest values; ranks may know different names."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}
        self._largest: dict[str, float] = {}

    def add(self, name: str, total: float, count: float) -> None:
        """Add `total`, the sum of a metric over `count` things (tokens, episodes)."""
        entry = self._sums.setdefault(name, [0.0, 0.0])
        entry[0] += float(total)
        entry[1] += float(count)

    def add_largest(self, name: str, value: float) -> None:
        """Keep the largest value."""
        self._largest[name] = max(self._largest.get(name, float("-inf")), float(value))

    def reduce(self, accelerator: Accelerator) -> dict[str, float]:
        """Return name -> mean over all ranks (metrics with count 0 left out), and the largest values.

        All ranks call it.
        """
        sums: dict[str, list[float]] = {}
        largest: dict[str, float] = {}
        for rank_sums, rank_largest in gather_object([(self._sums, self._largest)]):
            for name, (total, count) in rank_sums.items():
                entry = sums.setdefault(name, [0.0, 0.0])
                entry[0] += total
                entry[1] += count
            for name, value in rank_largest.items():
                largest[name] = max(largest.get(name, value), value)
        means = {name: total / count for name, (total, count) in sums.items() if count}
        return {**means, **largest}
