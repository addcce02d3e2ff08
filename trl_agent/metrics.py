"""Numbers that all ranks add up: exact means, whatever the split over ranks and micro batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from trl_agent.batch import EpisodeTensors
from trl_agent.processes import global_sums
from trl_agent.trajectory import Trajectory, TruncationCause


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


def count_rollout(trajectories: Sequence[Trajectory], sums: MetricSums) -> None:
    """Add what an update's episodes were like; every metric is a mean over episodes."""
    n = len(trajectories)
    sums.add("objective/scores", sum(t.score for t in trajectories), n)
    sums.add("env/score", sum(t.score for t in trajectories), n)
    sums.add("env/success", sum(t.success for t in trajectories), n)
    sums.add("env/return", sum(turn.reward for t in trajectories for turn in t.turns), n)
    sums.add("env/turns", sum(len(t.turns) for t in trajectories), n)
    sums.add("env/action_tokens", sum(t.num_action_tokens for t in trajectories), n)
    sums.add("env/tokens", sum(t.num_tokens for t in trajectories), n)
    sums.add(
        "env/action_errors", sum(turn.action_error is not None for t in trajectories for turn in t.turns), n
    )
    for cause in get_args(TruncationCause):
        sums.add(f"env/truncated_{cause}", sum(t.truncation_cause == cause for t in trajectories), n)


def count_objective(
    episodes: Sequence[EpisodeTensors], kls: Sequence[Tensor | None], kl_coef: float, sums: MetricSums
) -> None:
    """Add the objective's parts, sums over an episode's tokens, as means over episodes; no KL without a reference."""
    n = len(episodes)
    known = [x for x in kls if x is not None]
    reward = sum(float(e.rewards.sum()) for e in episodes)
    if known:
        kl = sum(float(x.sum()) for x in known)
        sums.add("objective/kl", kl, n)
        sums.add("objective/non_score_reward", -kl_coef * kl, n)
    sums.add("objective/rlhf_reward", reward, n)
    sums.add("objective/entropy", -sum(float(e.logprobs.sum()) for e in episodes), n)
    sums.add(
        "val/value_avg",
        sum(float(e.values.sum()) for e in episodes),
        sum(e.num_action_tokens for e in episodes),
    )


def explained_variance(accelerator: Accelerator, episodes: Sequence[EpisodeTensors]) -> float:
    """Return 1 - Var(returns - values) / Var(returns) over all processes' tokens: 1 is a perfect critic, 0
    one that knows the mean only. 0 where the returns do not vary. All processes call it.
    """
    _, total = moments(accelerator, [episode.returns for episode in episodes])
    _, rest = moments(accelerator, [episode.returns - episode.values for episode in episodes])
    return 1.0 - rest / total if total > 0 else 0.0


def moments(accelerator: Accelerator, tensors: Sequence[Tensor]) -> tuple[float, float]:
    """Return mean and (population) variance over the elements of all ranks' tensors; (0, 1) of nothing.

    Two passes, so that a mean far from 0 costs no digits. All ranks call it.
    """
    flat = (
        torch.cat([tensor.double() for tensor in tensors]) if tensors else torch.zeros(0, dtype=torch.float64)
    )
    total, count = global_sums(accelerator, [float(flat.sum()), flat.numel()])
    if count == 0:
        return 0.0, 1.0
    mean = total / count
    (squares,) = global_sums(accelerator, [float((flat - mean).square().sum())])
    return mean, squares / count
