from __future__ import annotations

import math

import pytest
import torch

from tests.fakes import make_trajectory
from trl_agent.rewards import kl_estimate, token_rewards


def test_kl_estimators_by_hand():
    logprobs, ref = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0])  # r = -0.5, 1.0
    torch.testing.assert_close(kl_estimate(logprobs, ref, "k1"), torch.tensor([0.5, -1.0]))
    torch.testing.assert_close(kl_estimate(logprobs, ref, "k2"), torch.tensor([0.125, 0.5]))
    expected = torch.tensor([math.exp(-0.5) - 0.5, math.e - 2.0])
    torch.testing.assert_close(kl_estimate(logprobs, ref, "k3"), expected)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_of_equal_policies_is_zero(kind):
    logprobs = torch.randn(7)
    assert kl_estimate(logprobs, logprobs.clone(), kind).abs().max() == 0


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_kl_estimators_are_unbiased(kind):
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    expected = sum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True))
    assert (p * kl_estimate(p.log(), q.log(), kind)).sum().item() == pytest.approx(expected, rel=1e-5)


def test_k3_does_not_overflow():
    assert torch.isfinite(kl_estimate(torch.tensor([-900.0]), torch.tensor([0.0]), "k3")).all()


def test_unknown_estimator_is_named():
    with pytest.raises(ValueError, match="k4"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4")  # type: ignore[arg-type]


def test_token_rewards_by_hand():
    kl = torch.tensor([0.1, 0.2, 0.3, 0.4])
    rewards = token_rewards([1.0, 2.0], [1, 3], 4, kl, kl_coef=0.5)
    torch.testing.assert_close(rewards, torch.tensor([-0.05, 0.9, -0.15, 1.8]))


def test_reward_after_a_final_observation_lands_on_the_last_action_token():
    trajectory = make_trajectory([(5, 2), (4, 3)], final_observation=6, rewards=[0.0, 1.0])
    rewards = token_rewards(trajectory.turn_rewards, trajectory.turn_ends, trajectory.num_action_tokens)
    assert rewards.tolist() == [0, 0, 0, 0, 1]


def test_turn_without_tokens_keeps_its_reward():
    trajectory = make_trajectory([(5, 2), (4, 0)], rewards=[0.25, 1.0])
    rewards = token_rewards(trajectory.turn_rewards, trajectory.turn_ends, trajectory.num_action_tokens)
    assert rewards.tolist() == [0, 1.25]


def test_no_gradient_through_the_kl_charge():
    logprobs = torch.zeros(2, requires_grad=True)
    kl = kl_estimate(logprobs, torch.ones(2), "k1")
    assert not token_rewards([1.0], [1], 2, kl, 0.1).requires_grad


def test_empty_episode():
    assert token_rewards([], [], 0).shape == (0,)


@pytest.mark.parametrize(
    ("turn_rewards", "turn_ends", "num_tokens", "message"),
    [
        ([1.0], [0, 1], 2, "1 turn rewards but 2 turn ends"),
        ([1.0], [2], 2, "from 0 to 1"),
        ([1.0, 1.0], [1, 1], 2, "ascend strictly"),
        ([1.0], [-1], 2, "ascend strictly"),
    ],
)
def test_bad_turn_ends(turn_rewards, turn_ends, num_tokens, message):
    with pytest.raises(ValueError, match=message):
        token_rewards(turn_rewards, turn_ends, num_tokens)


def test_bad_kl_shape():
    with pytest.raises(ValueError, match="kl has shape"):
        token_rewards([1.0], [1], 2, torch.zeros(3), 0.1)
