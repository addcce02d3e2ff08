"""What the processes of one run do together, and which part of the work each has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather

T = TypeVar("T")


def owned(num: int, rank: int, world: int) -> range:
    """Return the contiguous block of `num` things that process `rank` of `world` has."""
    return range(rank * num // world, (rank + 1) * num // world)


def permutation(n: int, *key: int) -> list[int]:
    """Return a permutation of range(n) that depends on the non-negative numbers `key` alone."""
    order: list[int] = np.random.default_rng(key).permutation(n).tolist()
    return order


def minibatch_shares(counts: Sequence[int], rank: int, num_mini_batches: int, *key: int) -> list[list[int]]:
    """Cut a permutation of all processes' items into minibatches; return what `rank` has of each.

    The processes' items count as one list, in the order of the ranks. So the minibatches do not
    depend on how the list is split over processes.

    Args:
        counts: items per process.
        rank: whose part to return.
        num_mini_batches: minibatches; their sizes differ by one item at most.
        key: of the permutation.

    Returns:
        Indices into the process's own items, per minibatch.
    """
    starts = [0, *accumulate(counts)]
    total, first = starts[-1], starts[rank]
    order = permutation(total, *key)
    cuts = [total * k // num_mini_batches for k in range(num_mini_batches + 1)]
    mine = range(first, starts[rank + 1])
    return [[i - first for i in order[a:b] if i in mine] for a, b in pairwise(cuts)]


def gather_rows(accelerator: Accelerator, values: Sequence[float]) -> list[list[float]]:
    """Return every process's `values`, by rank. All processes call it, with as many values."""
    if accelerator.num_processes == 1:
        return [[float(value) for value in values]]
    dtype = torch.float32 if accelerator.device.type == "mps" else torch.float64
    row = torch.tensor([list(values)], dtype=dtype, device=accelerator.device)
    rows: list[list[float]] = gather(row).tolist()
    return rows


def global_sums(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """Add `values` over the processes, element by element."""
    return [sum(column) for column in zip(*gather_rows(accelerator, values), strict=True)]


def on_main(accelerator: Accelerator, action: Callable[[], T], error: type[Exception]) -> T:
    """Do `action` on the main process; every process returns its result or raises its `error`."""
    if accelerator.num_processes == 1:
        return action()
    outcome: list[object] = [None, None]
    if accelerator.is_main_process:
        try:
            outcome[0] = action()
        except error as failure:
            outcome[1] = str(failure)
    broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise error(outcome[1])
    return outcome[0]  # type: ignore[return-value]
