"""How episodes ended, summed up: success rate and mean score, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Summary:
    """n episodes; success: share that reached the goal; score: mean of the environment's number. The
    intervals (low, high) are 95 % percentile bootstrap intervals (see `bootstrap_interval`).
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
    values: Sequence[float],
    *,
    clusters: Sequence[Hashable] | None = None,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean.

    Args:
        values: one number an episode; at least one.
        clusters: what each episode belongs to, such as its product. Whole clusters are resampled then, because
            episodes of one cluster say much the same; None takes each episode for itself.
        level: share of the bootstrap means inside.
        resamples: bootstrap samples.
        seed: of the resampling, so that equal values give equal intervals.

    Raises:
        ValueError: no values, a level outside (0, 1), or not as many clusters as values.

    Source: Efron 1979, "Bootstrap Methods: Another Look at the Jackknife"; Davison & Hinkley 1997, section 3.8
    (clusters).
    """
    if len(values) == 0:
        raise ValueError("an interval needs at least one episode, got none")
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    if clusters is not None and len(clusters) != len(values):
        raise ValueError(f"need one cluster a value, got {len(clusters)} and {len(values)}")
    sample = np.asarray(values, dtype=np.float64)
    sizes = np.ones_like(sample)
    if clusters is not None:
        numbers = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters))}
        places = np.asarray([numbers[cluster] for cluster in clusters])
        sizes = np.bincount(places).astype(np.float64)
        sample = np.bincount(places, weights=sample) / sizes
    means = _resampled_means(sample, sizes, resamples, np.random.default_rng(seed))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resampled_means(
    means: NDArray[np.float64], sizes: NDArray[np.float64], resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return means over episodes of clusters drawn with replacement, of the given means and sizes."""
    count = len(means)
    picks = (rng.integers(0, count, count) for _ in range(resamples))
    if (sizes == 1).all():
        return np.array([means[pick].mean() for pick in picks])
    return np.array([np.average(means[pick], weights=sizes[pick]) for pick in picks])


def summarize_outcomes(
    outcomes: Iterable[tuple[float, bool]], clusters: Sequence[Hashable] | None = None
) -> Summary:
    """Summarize (score, success) pairs, one an episode.

    Args:
        outcomes: at least one.
        clusters: see `bootstrap_interval`.
    """
    pairs = list(outcomes)
    scores = [float(score) for score, _ in pairs]
    successes = [float(success) for _, success in pairs]
    success_ci = bootstrap_interval(successes, clusters=clusters)
    score_ci = bootstrap_interval(scores, clusters=clusters)
    return Summary(len(pairs), float(np.mean(successes)), success_ci, float(np.mean(scores)), score_ci)
