from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import make_trajectory
from trl_agent.advantages import bootstrap, discounts, gae, leave_one_out, whiten
from trl_agent.rewards import token_rewards


def _sum_of_deltas(rewards, values, last, gammas, lams):
    """A_t as the explicit double sum over later deltas (Schulman et al. 2016, equation 16), no recursion."""
    n = len(rewards)
    after = [*values[1:], last]
    deltas = [rewards[t] + gammas[t] * after[t] - values[t] for t in range(n)]
    result = []
    for t in range(n):
        total = 0.0
        for later in range(t, n):
            weight = 1.0
            for passed in range(t, later):
                weight *= gammas[passed] * lams[passed]
            total += weight * deltas[later]
        result.append(total)
    return result


def test_gae_by_hand():
    # deltas: 0 + .5*2 - 1 = 0, 1 + .5*4 - 2 = 1, 2 + .5*8 - 4 = 2; gamma*lambda = .25
    advantages, returns = gae(
        torch.tensor([0.0, 1.0, 2.0]),
        torch.tensor([1.0, 2.0, 4.0]),
        8.0,
        torch.full((3,), 0.5),
        torch.full((3,), 0.5),
    )
    assert advantages.tolist() == [0.375, 1.5, 2.0]
    assert returns.tolist() == [1.375, 3.5, 6.0]


def test_lambda_one_is_the_discounted_return_and_lambda_zero_the_one_step_error():
    rewards, values = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, -1.0, 2.0])
    gammas = torch.full((3,), 0.9)
    _, returns = gae(rewards, values, 0.0, gammas, torch.ones(3))
    torch.testing.assert_close(returns, torch.tensor([1 + 0.9 * 2 + 0.81 * 3, 2 + 0.9 * 3, 3.0]))
    advantages, _ = gae(rewards, values, 0.0, gammas, torch.zeros(3))
    torch.testing.assert_close(advantages, torch.tensor([1 - 0.9 - 0.5, 2 + 1.8 + 1.0, 3.0 - 2.0]))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), per=st.sampled_from(["turn", "token"]), gamma=st.floats(0, 1), lam=st.floats(0, 1))
def test_gae_equals_the_double_sum(data, per, gamma, lam):
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    ends = [sum(lengths[: k + 1]) - 1 for k in range(len(lengths))]
    n = sum(lengths)
    numbers = st.lists(st.floats(-3, 3), min_size=n, max_size=n)
    rewards, values, last = data.draw(numbers), data.draw(numbers), data.draw(st.floats(-3, 3))
    gammas, lams = discounts(ends, n, gamma, lam, per)
    double = torch.float64
    advantages, returns = gae(
        torch.tensor(rewards, dtype=double), torch.tensor(values, dtype=double), last, gammas, lams
    )
    expected = _sum_of_deltas(rewards, values, last, gammas.tolist(), lams.tolist())
    torch.testing.assert_close(advantages, torch.tensor(expected, dtype=double), atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(returns - torch.tensor(values, dtype=double), advantages)


def test_discount_per_turn_and_per_token():
    gammas, lams = discounts([1, 4], 5, 0.9, 0.8, "turn")
    torch.testing.assert_close(gammas, torch.tensor([1, 0.9, 1, 1, 0.9]))
    torch.testing.assert_close(lams, torch.tensor([1, 0.8, 1, 1, 0.8]))
    gammas, lams = discounts([1, 4], 5, 0.9, 0.8, "token")
    torch.testing.assert_close(gammas, torch.full((5,), 0.9))
    torch.testing.assert_close(lams, torch.full((5,), 0.8))


def test_per_turn_discounting_counts_turns_not_tokens():
    """The first token of an episode of 3 turns sees the last reward through gamma squared, at any turn
    length.
    """
    for lengths in ([1, 1, 1], [4, 2, 7]):
        ends = [sum(lengths[: k + 1]) - 1 for k in range(3)]
        n = sum(lengths)
        gammas, lams = discounts(ends, n, 0.5, 1.0, "turn")
        _, returns = gae(token_rewards([0, 0, 1.0], ends, n), torch.zeros(n), 0.0, gammas, lams)
        assert returns[0].item() == 0.25
        assert returns[-1].item() == 1.0


def _advantages(trajectory, values, gamma, lam, per):
    n = trajectory.num_action_tokens
    rewards = token_rewards(trajectory.turn_rewards, trajectory.turn_ends, n)
    gammas, lams = discounts(trajectory.turn_ends, n, gamma, lam, per)
    last = bootstrap(0.7, terminated=trajectory.terminated, truncated=trajectory.truncated)
    return gae(rewards, values, last, gammas, lams)[0]


@pytest.mark.parametrize("per", ["turn", "token"])
@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize(("gamma", "lam"), [(0.9, 0.8), (1.0, 0.95), (0.5, 0.0)])
def test_inserting_observations_changes_nothing(per, truncated, gamma, lam):
    actions, rewards = [3, 1, 2], [0.1, -0.5, 1.0]
    values = torch.linspace(-1, 1, 6)
    compact = make_trajectory(
        [(1, actions[0]), (0, actions[1]), (0, actions[2])], rewards=rewards, truncated=truncated
    )
    long = make_trajectory(
        [(20, actions[0]), (9, actions[1]), (31, actions[2])],
        rewards=rewards,
        truncated=truncated,
        final_observation=5,
    )
    torch.testing.assert_close(
        _advantages(compact, values, gamma, lam, per),
        _advantages(long, values, gamma, lam, per),
        atol=0,
        rtol=0,
    )


def test_credit_flows_across_segments():
    shape, rewards = [(3, 2), (4, 2), (2, 3)], [0.0, 0.0, 1.0]
    values = torch.linspace(0, 1, 7)
    whole = make_trajectory(shape, rewards=rewards)
    split = make_trajectory(shape, rewards=rewards, new_segment_at=[1, 2])
    assert len(split.segments) == 3
    a, b = (_advantages(t, values, 0.9, 0.9, "turn") for t in (whole, split))
    assert torch.equal(a, b)
    # the token before the cut sees the next segment's first value: delta_1 = 0.9 * V_2 - V_1
    no_lambda = _advantages(split, values, 0.9, 0.0, "turn")
    assert no_lambda[1].item() == pytest.approx(0.9 * values[2].item() - values[1].item(), abs=1e-6)


def test_truncated_bootstraps_terminated_does_not():
    assert bootstrap(3.0, terminated=False, truncated=True) == 3.0
    assert bootstrap(3.0, terminated=True, truncated=False) == 0.0
    one = torch.ones(1)
    assert gae(torch.zeros(1), torch.zeros(1), 3.0, one * 0.5, one)[0].item() == 1.5


@pytest.mark.parametrize("flag", [True, False])
def test_an_episode_ends_one_way(flag):
    with pytest.raises(ValueError, match="terminated or truncated"):
        bootstrap(1.0, terminated=flag, truncated=flag)


def test_gae_of_no_tokens_and_without_gradient():
    empty = torch.zeros(0)
    advantages, returns = gae(empty, empty, 1.0, empty, empty)
    assert advantages.shape == returns.shape == (0,)
    values = torch.zeros(2, requires_grad=True)
    advantages, returns = gae(torch.ones(2), values, torch.tensor(0.0), torch.ones(2), torch.ones(2))
    assert not advantages.requires_grad
    assert not returns.requires_grad


def test_gae_rejects_lengths_that_differ():
    with pytest.raises(ValueError, match="one length"):
        gae(torch.zeros(2), torch.zeros(3), 0.0, torch.ones(2), torch.ones(2))


@pytest.mark.parametrize(("gamma", "lam", "name"), [(1.1, 0.9, "gamma"), (0.9, -0.1, "lam")])
def test_discounts_outside_the_unit_interval(gamma, lam, name):
    with pytest.raises(ValueError, match=name):
        discounts([0], 1, gamma, lam, "turn")


def test_whiten():
    x = torch.tensor([1.0, 3.0])
    torch.testing.assert_close(whiten(x, 1.0, 4.0), torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(whiten(x, 1.0, 4.0, shift_mean=False), torch.tensor([1.0, 2.0]))
    assert torch.isfinite(whiten(torch.ones(3), 1.0, 0.0)).all()


def test_leave_one_out_is_the_mean_of_the_others_of_a_group():
    values, groups = [1.0, 4.0, 10.0, 2.0, 6.0], [7, 7, 7, 3, 1]
    assert leave_one_out(values, groups) == [7.0, 5.5, 2.5, 0.0, 0.0]
    with pytest.raises(ValueError, match="2 values have 1 groups"):
        leave_one_out([1.0, 2.0], [0])
