from __future__ import annotations

import math

import pytest
import torch

from trl_agent.losses import bc_loss, policy_loss, value_loss


def test_policy_loss_by_hand():
    ratios = torch.tensor([1.0, 1.5, 0.5, 1.5, 0.5])
    advantages = torch.tensor([2.0, 1.0, 1.0, -1.0, -1.0])
    result = policy_loss(ratios.log(), torch.zeros(5), advantages, 0.2, 0.28)
    # kept; held at 1.28; kept (pessimistic); kept (pessimistic); held at 0.8
    torch.testing.assert_close(result.per_token, torch.tensor([-2.0, -1.28, -0.5, 1.5, 0.8]))
    assert result.clipped.tolist() == [False, True, False, False, True]
    torch.testing.assert_close(result.ratio, ratios)
    assert not result.ratio.requires_grad


def test_policy_gradient_by_hand_and_zero_where_clipped():
    new = torch.tensor([0.1, math.log(1.5)], requires_grad=True)
    policy_loss(new, torch.zeros(2), torch.tensor([2.0, 1.0]), 0.2, 0.2).per_token.sum().backward()
    torch.testing.assert_close(new.grad, torch.tensor([-2.0 * math.exp(0.1), 0.0]))


def test_log_ratio_is_clamped():
    result = policy_loss(torch.tensor([0.0]), torch.tensor([-900.0]), torch.tensor([-1.0]), 0.2, 0.2)
    assert result.per_token.item() == pytest.approx(math.exp(20), rel=1e-5)


def test_unknown_old_logprob_is_neutral():
    new = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    old = torch.tensor([float("nan"), -1.0, float("-inf")])
    result = policy_loss(new, old, torch.ones(3), 0.2, 0.2)
    assert result.ratio.tolist() == [1.0, 1.0, 1.0]
    assert result.valid.tolist() == [False, True, False]
    result.per_token.sum().backward()
    assert new.grad.tolist() == [-1.0, -1.0, -1.0]


def test_value_loss_by_hand():
    new, old, returns = torch.tensor([2.0, 0.1, 2.0]), torch.zeros(3), torch.tensor([3.0, 1.0, 1.0])
    # clipped predictions: 0.5, 0.1, 0.5 -> errors max(1, 6.25), max(.81, .81), max(1, .25)
    torch.testing.assert_close(value_loss(new, old, returns, 0.5), 0.5 * torch.tensor([6.25, 0.81, 1.0]))
    torch.testing.assert_close(value_loss(new, old, returns), 0.5 * torch.tensor([1.0, 0.81, 1.0]))


def test_bc_loss():
    assert bc_loss(torch.tensor([-0.5])).item() == 0.5


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_smoothed_bc_loss_is_cross_entropy_with_smoothed_labels(smoothing):
    generator = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(7, 11, generator=generator), torch.arange(7)
    log_p = logits.log_softmax(-1)
    soft = torch.full((7, 11), smoothing / 11)
    soft[torch.arange(7), targets] += 1 - smoothing
    ours = bc_loss(log_p[torch.arange(7), targets], log_p.mean(-1), smoothing)
    torch.testing.assert_close(ours, -(soft * log_p).sum(-1))
    torch.testing.assert_close(
        ours,
        torch.nn.functional.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing),
    )


def test_bc_weights_by_hand_and_without_gradient():
    logprobs = torch.tensor([0.5, 0.9, 1e-9]).log().requires_grad_()
    loss = bc_loss(logprobs, weighting="p(1-p)")
    weights = torch.tensor([0.25, 0.09, 1e-9])
    torch.testing.assert_close(loss, -weights * logprobs)
    loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, -weights)


def test_bc_loss_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="mean_logprobs"):
        bc_loss(torch.zeros(1), smoothing=0.1)
    with pytest.raises(ValueError, match=r"\[0, 1\], got 1.5"):
        bc_loss(torch.zeros(1), torch.zeros(1), 1.5)
    with pytest.raises(ValueError, match="'p'"):
        bc_loss(torch.zeros(1), weighting="p")


def test_no_tokens_gives_zero_with_a_graph():
    source = torch.ones(3, requires_grad=True)
    empty, nothing = source[:0], torch.zeros(0)
    total = (
        policy_loss(empty, nothing, nothing, 0.2, 0.2).per_token.sum()
        + value_loss(empty, nothing, nothing, 0.2).sum()
        + bc_loss(empty).sum()
    )
    assert total.item() == 0.0
    total.backward()
    assert source.grad.tolist() == [0.0, 0.0, 0.0]
