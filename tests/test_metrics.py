from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator

from tests.fakes import make_trajectory
from trl_agent.batch import EpisodeTensors
from trl_agent.metrics import MetricSums, count_objective, count_rollout, explained_variance, moments
from trl_agent.trajectory import Trajectory, Turn


@pytest.fixture
def accelerator():
    return Accelerator(cpu=True)


def test_means_weigh_what_they_count(accelerator):
    sums = MetricSums()
    sums.add("loss", 6.0, 3)
    sums.add("loss", 2.0, 1)
    sums.add("nothing", 0.0, 0)
    sums.add_largest("gap", 1.0)
    sums.add_largest("gap", 3.0)
    sums.add_largest("gap", 2.0)
    assert sums.reduce(accelerator) == {"loss": 2.0, "gap": 3.0}


def test_rollout_by_hand(accelerator):
    turn = Turn("o", "a", 0, 0, 0, reward=0.25)
    wrong = replace(turn, action_error="no such button")
    trajectories = [
        Trajectory(turns=[turn, wrong], score=1.0, success=True, terminated=True),
        Trajectory(turns=[turn], score=0.5, truncated=True, truncation_cause="turn_limit"),
    ]
    sums = MetricSums()
    count_rollout(trajectories, sums)
    metrics = sums.reduce(accelerator)
    assert metrics["env/score"] == 0.75
    assert metrics["env/success"] == 0.5
    assert metrics["env/return"] == 0.375
    assert metrics["env/turns"] == 1.5
    assert metrics["env/action_errors"] == 0.5
    assert metrics["env/truncated_turn_limit"] == 0.5
    assert metrics["env/truncated_env_error"] == 0


def test_objective_by_hand(accelerator):
    trajectory = make_trajectory([(2, 2)])
    episode = replace(
        EpisodeTensors.from_trajectory(trajectory),
        logprobs=torch.tensor([-1.0, -2.0]),
        values=torch.tensor([0.5, 1.5]),
        rewards=torch.tensor([0.0, 3.0]),
    )
    sums = MetricSums()
    count_objective([episode], [torch.tensor([0.1, 0.2])], 0.5, sums)
    metrics = sums.reduce(accelerator)
    assert metrics["objective/kl"] == pytest.approx(0.3)
    assert metrics["objective/non_score_reward"] == pytest.approx(-0.15)
    assert metrics["objective/rlhf_reward"] == 3.0
    assert metrics["objective/entropy"] == 3.0
    assert metrics["val/value_avg"] == 1.0


def test_moments_and_explained_variance(accelerator):
    assert moments(accelerator, []) == (0.0, 1.0)
    mean, var = moments(accelerator, [torch.tensor([1e6, 1e6 + 2]), torch.tensor([1e6 + 4])])
    assert mean == 1e6 + 2
    assert var == pytest.approx(8 / 3)
    base = EpisodeTensors.from_trajectory(make_trajectory([(2, 2)]))
    returns = torch.tensor([1.0, 3.0])
    for values, expected in (([1.0, 3.0], 1.0), ([5.0, 5.0], 0.0), ([3.0, 1.0], -3.0)):
        episode = replace(base, returns=returns, values=torch.tensor(values))
        assert explained_variance(accelerator, [episode]) == expected
    flat = replace(base, returns=torch.ones(2), values=torch.zeros(2))
    assert explained_variance(accelerator, [flat]) == 0.0
