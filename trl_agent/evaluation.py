"""How good a policy is: success rate and mean score with bootstrap intervals, on chosen goals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trl_agent.trajectory import Trajectory


@dataclass(frozen=True)
class Summary:
    """n episodes; success: share that reached the goal; score: mean of the environment's number. The
    intervals (low, high) are 95 % percentile bootstrap intervals over episodes.
    """

    n: int
    success: float
    success_ci: tuple[float, float]
    score: float
    score_ci: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        """As JSON: the entry of `report.json`."""
        return {
            "n": self.n,
            "success": self.success,
            "success_ci": list(self.success_ci),
            "score": self.score,
            "score_ci": list(self.score_ci),
        }

    def to_metrics(self, prefix: str) -> dict[str, float]:
        """As one flat dict for the log: `{prefix}_success`, `{prefix}_success_low` ..."""
        metrics: dict[str, float] = {f"{prefix}_n": self.n}
        for name, mean, (low, high) in (
            ("success", self.success, self.success_ci),
            ("score", self.score, self.score_ci),
        ):
            metrics |= {f"{prefix}_{name}": mean, f"{prefix}_{name}_low": low, f"{prefix}_{name}_high": high}
        return metrics


def bootstrap_interval(
    values: Sequence[float], *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean.

    Args:
        values: one number an episode; at least one.
        level: share of the bootstrap means inside.
        resamples: bootstrap samples.
        seed: of the resampling, so that equal values give equal intervals.

    Source: Efron 1979, "Bootstrap Methods: Another Look at the Jackknife".
    """
    if len(values) == 0:
        raise ValueError("an interval needs at least one episode, got none")
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    sample = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    means = np.array([sample[rng.integers(0, len(sample), len(sample))].mean() for _ in range(resamples)])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def summarize_outcomes(outcomes: Iterable[tuple[float, bool]]) -> Summary:
    """Summarize (score, success) pairs, one an episode."""
    pairs = list(outcomes)
    scores = [float(score) for score, _ in pairs]
    successes = [float(success) for _, success in pairs]
    success_ci, score_ci = bootstrap_interval(successes), bootstrap_interval(scores)
    return Summary(len(pairs), float(np.mean(successes)), success_ci, float(np.mean(scores)), score_ci)


def summarize(trajectories: Iterable[Trajectory]) -> Summary:
    """Summarize episodes. One that an environment's failure ended counts as it stands: it did not succeed."""
    return summarize_outcomes((trajectory.score, trajectory.success) for trajectory in trajectories)
