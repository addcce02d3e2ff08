"""Losses per action token, `(N,)` each, unreduced.

The caller sums over the tokens and divides by a token count that holds for all micro-batches and ranks, so
that how a batch is split changes nothing. With N = 0 the sums are 0 and the graph is whole.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

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


BCWeighting = Literal["uniform", "p(1-p)"]


def bc_loss(
    new_logprobs: Tensor,
    mean_logprobs: Tensor | None = None,
    smoothing: float = 0.0,
    weighting: BCWeighting = "uniform",
) -> Tensor:
    """Behaviour cloning: cross entropy with (1 - smoothing) one-hot + smoothing uniform over the vocabulary.

    Args:
        new_logprobs: (N,) nats, of the demonstrated tokens, with gradient.
        mean_logprobs: (N,) nats, log p averaged over the vocabulary, with gradient; needed with smoothing.
        smoothing: share of the uniform distribution, in [0, 1].
        weighting: "p(1-p)" weighs a token by p (1 - p), p being its present probability: most where the policy
            hesitates, little where it knows the token already or finds it absurd.

    Returns:
        (N,) nats.

    Source: Szegedy et al. 2016 (arXiv:1512.00567), section 7; the weighting: Zhang et al. 2025 (CHORD,
    arXiv:2508.11408), equation 6.
    """
    if not 0.0 <= smoothing <= 1.0:
        raise ValueError(f"smoothing must be in [0, 1], got {smoothing}")
    loss = -new_logprobs
    if smoothing > 0.0:
        if mean_logprobs is None:
            raise ValueError("label smoothing needs mean_logprobs")
        loss = (1.0 - smoothing) * loss - smoothing * mean_logprobs
    if weighting == "uniform":
        return loss
    if weighting != "p(1-p)":
        raise ValueError(f'weighting must be "uniform" or "p(1-p)", got {weighting!r}')
    p = new_logprobs.detach().exp()
    return p * (1.0 - p) * loss
