"""Losses per action token, `(N,)` each, unreduced.

The caller sums over the tokens and divides by a token count that holds for all micro-batches and ranks, so
that how a batch is split changes nothing. With N = 0 the sums are 0 and the graph is whole.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trl_agent.rewards import MAX_LOG_RATIO


class PolicyLoss(NamedTuple):
    """per_token: (N,). ratio: (N,), new over old probability. clipped: (N,) bool, where the clip is the
    active bound and stops the gradient. valid: (N,) bool, False where the old log-probability was unknown.
    """

    per_token: Tensor
    ratio: Tensor
    clipped: Tensor
    valid: Tensor


def policy_loss(
    new_logprobs: Tensor,
    logprobs: Tensor,
    advantages: Tensor,
    cliprange_low: float,
    cliprange_high: float,
) -> PolicyLoss:
    """PPO's clipped surrogate, negated: max(-A r, -A clip(r, 1 - low, 1 + high)).

    Args:
        new_logprobs: (N,) nats, current policy, with gradient.
        logprobs: (N,) nats, at rollout. Where it is not finite (a sampler that gave none) the token counts as
            on-policy: ratio 1.
        advantages: (N,).
        cliprange_low, cliprange_high: how far the ratio may fall below and rise above 1.

    The log-ratio is clamped to +-20, so that no ratio overflows.

    Source: Schulman et al. 2017 (arXiv:1707.06347), equation 7; separate upper bound: Yu et al. 2025 (DAPO,
    arXiv:2503.14476), equation 10.
    """
    valid = torch.isfinite(logprobs)
    old = torch.where(valid, logprobs, new_logprobs.detach())
    ratio = (new_logprobs - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - cliprange_low, 1.0 + cliprange_high)
    return PolicyLoss(torch.maximum(unclipped, clipped), ratio.detach(), clipped > unclipped, valid)


def value_loss(
    new_values: Tensor, values: Tensor, returns: Tensor, cliprange_value: float | None = None
) -> Tensor:
    """Half the squared error, the larger of the plain one and the one clipped around the rollout's values.

    Args:
        new_values: (N,), current critic, with gradient.
        values: (N,), at rollout. returns: (N,), the targets.
        cliprange_value: how far a value may move in one update; None does not clip.

    Source: the value clipping of OpenAI baselines' ppo2, with TRL's factor 1/2.
    """
    error = (new_values - returns).square()
    if cliprange_value is not None:
        clipped = torch.clamp(new_values, values - cliprange_value, values + cliprange_value)
        error = torch.maximum(error, (clipped - returns).square())
    return 0.5 * error


def bc_loss(new_logprobs: Tensor) -> Tensor:
    """Behaviour cloning: the negative log-likelihood of demonstrated tokens, (N,) nats."""
    return -new_logprobs
