import pytest

from trl_agent.evaluation import summarize, summarize_outcomes
from trl_agent.trajectory import Trajectory


def test_summary_of_trajectories():
    summary = summarize([Trajectory(score=1.0, success=True), Trajectory(score=0.5), Trajectory(score=0.0)])
    assert (summary.n, summary.score) == (3, 0.5)
    assert summary.success == pytest.approx(1 / 3)
    assert summary == summarize_outcomes([(1.0, True), (0.5, False), (0.0, False)])
