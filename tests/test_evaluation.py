import numpy as np
import pytest

from trl_agent.evaluation import bootstrap_interval, summarize, summarize_outcomes
from trl_agent.trajectory import Trajectory


def test_interval_of_a_proportion_is_near_the_normal_one():
    values = [1.0] * 60 + [0.0] * 140
    low, high = bootstrap_interval(values)
    half = 1.96 * np.sqrt(0.3 * 0.7 / 200)
    assert low == pytest.approx(0.3 - half, abs=0.01)
    assert high == pytest.approx(0.3 + half, abs=0.01)
    assert bootstrap_interval(values) == (low, high)
    wider = bootstrap_interval(values, level=0.99)
    assert wider[0] < low < high < wider[1]


def test_no_spread_no_width_and_nothing_is_an_error():
    assert bootstrap_interval([0.5, 0.5]) == (0.5, 0.5)
    with pytest.raises(ValueError, match="at least one"):
        bootstrap_interval([])
    with pytest.raises(ValueError, match="level"):
        bootstrap_interval([1.0], level=1.0)


def test_summary_by_hand():
    summary = summarize([Trajectory(score=1.0, success=True), Trajectory(score=0.5), Trajectory(score=0.0)])
    assert (summary.n, summary.score) == (3, 0.5)
    assert summary.success == pytest.approx(1 / 3)
    assert summary == summarize_outcomes([(1.0, True), (0.5, False), (0.0, False)])
    report = summary.to_dict()
    assert report["score_ci"] == [0.0, 1.0]
    metrics = summary.to_metrics("eval")
    assert metrics["eval_success_high"] == report["success_ci"][1]
    assert metrics["eval_n"] == 3
