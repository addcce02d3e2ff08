from __future__ import annotations

import random

import numpy as np
import pytest

from trl_agent_envs.outcomes import bootstrap_interval, summarize_outcomes


def test_interval_of_a_proportion_is_near_the_normal_one() -> None:
    values = [1.0] * 60 + [0.0] * 140
    low, high = bootstrap_interval(values)
    half = 1.96 * np.sqrt(0.3 * 0.7 / 200)
    assert low == pytest.approx(0.3 - half, abs=0.01)
    assert high == pytest.approx(0.3 + half, abs=0.01)
    assert bootstrap_interval(values) == (low, high)
    wider = bootstrap_interval(values, level=0.99)
    assert wider[0] < low < high < wider[1]


def test_episodes_of_one_cluster_count_together() -> None:
    """Ten equal episodes of each of 40 products say as much as one of each: the interval is that of 40."""
    rng = random.Random(0)
    of_product = [float(rng.random() < 0.4) for _ in range(40)]
    values = [value for value in of_product for _ in range(10)]
    clusters = [product for product in range(40) for _ in range(10)]
    assert bootstrap_interval(values, clusters=clusters) == pytest.approx(bootstrap_interval(of_product))
    low, high = bootstrap_interval(values)
    together = bootstrap_interval(values, clusters=clusters)
    assert together[1] - together[0] > 2.5 * (high - low)
    assert bootstrap_interval(values, clusters=range(400)) == (low, high)


def test_clusters_of_several_sizes_by_a_plain_loop() -> None:
    values, clusters = [1.0, 0.0, 0.0, 1.0, 0.5], ["a", "a", "a", "b", "c"]
    groups = [[1.0, 0.0, 0.0], [1.0], [0.5]]
    rng = np.random.default_rng(3)
    means = []
    for _ in range(500):
        drawn = [value for i in rng.integers(0, 3, 3) for value in groups[i]]
        means.append(sum(drawn) / len(drawn))
    low, high = np.quantile(means, [0.05, 0.95])
    found = bootstrap_interval(values, clusters=clusters, level=0.9, resamples=500, seed=3)
    assert found == pytest.approx((low, high))


def test_no_spread_no_width_and_nothing_is_an_error() -> None:
    assert bootstrap_interval([0.5, 0.5]) == (0.5, 0.5)
    with pytest.raises(ValueError, match="at least one"):
        bootstrap_interval([])
    with pytest.raises(ValueError, match="level"):
        bootstrap_interval([1.0], level=1.0)
    with pytest.raises(ValueError, match="one cluster a value, got 1 and 2"):
        bootstrap_interval([1.0, 0.0], clusters=["a"])


def test_summary_by_hand() -> None:
    summary = summarize_outcomes([(1.0, True), (0.5, False), (0.0, False)])
    assert (summary.n, summary.score) == (3, 0.5)
    assert summary.success == pytest.approx(1 / 3)
    report = summary.to_dict()
    assert report["score_ci"] == [0.0, 1.0]
    metrics = summary.to_metrics("eval")
    assert metrics["eval_success_high"] == report["success_ci"][1]
    assert metrics["eval_n"] == 3
