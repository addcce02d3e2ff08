"""Per-token rewards of one episode: what the environment paid, less the price of leaving the reference.

Everything is over the `N` action tokens of one unpadded episode, in turn order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

KLEstimator = Literal["k1", "k2", "k3"]

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-this before they are exponentiated."""


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, kind: KLEstimator) -> Tensor:
    """Estimate KL(policy || reference) at tokens sampled from the policy.

    With r = ref_logprobs - logprobs: "k1" is -r (unbiased, may be negative), "k2" is r^2 / 2 (biased, low
    variance), "k3" is exp(r) - 1 - r (unbiased, never negative).

    Args:
        logprobs, ref_logprobs: (N,) log-probabilities of the same tokens, in nats.

    Returns:
        (N,) in nats per token.

    Source: Schulman 2020, "Approximating KL Divergence" (joschu.net/blog/kl-approx.html).
    """
    log_ratio = ref_logprobs - logprobs
    if kind == "k1":
        return -log_ratio
    if kind == "k2":
        return 0.5 * log_ratio.square()
    if kind == "k3":
        return torch.expm1(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)) - log_ratio
    raise ValueError(f'kind must be "k1", "k2" or "k3", got {kind!r}')


def token_rewards(
    turn_rewards: Sequence[float],
    turn_ends: Sequence[int],
    num_tokens: int,
    kl: Tensor | None = None,
    kl_coef: float = 0.0,
) -> Tensor:
    """Put each turn's reward on its last action token and charge `kl_coef * kl` on every token.

    Args:
        turn_rewards: K rewards.
        turn_ends: K indices into the action tokens, ascending: `Trajectory.turn_ends`.
        num_tokens: N.
        kl: (N,) nats per token, or None to charge nothing.
        kl_coef: reward per nat.

    Returns:
        (N,) fp32, on the device of `kl` (CPU without it). No gradient.

    Raises:
        ValueError: lengths that do not match, or an end outside the tokens.

    Source: Ziegler et al. 2019 (arXiv:1909.08593), section 2: R = r - beta * KL, charged token by token.
    """
    if len(turn_rewards) != len(turn_ends):
        raise ValueError(f"{len(turn_rewards)} turn rewards but {len(turn_ends)} turn ends")
    check_turn_ends(turn_ends, num_tokens)
    if kl is None:
        rewards = torch.zeros(num_tokens)
    elif kl.shape != (num_tokens,):
        raise ValueError(f"kl has shape {tuple(kl.shape)}, expected ({num_tokens},), one entry per token")
    else:
        rewards = -kl_coef * kl.detach().float()
    if turn_ends:
        index = torch.tensor(list(turn_ends), device=rewards.device)
        rewards[index] += torch.tensor(list(turn_rewards), dtype=rewards.dtype, device=rewards.device)
    return rewards


def check_turn_ends(turn_ends: Sequence[int], num_tokens: int) -> None:
    """Raise ValueError unless `turn_ends` ascend strictly within ``range(num_tokens)``."""
    bounds = [-1, *turn_ends, num_tokens]
    if any(later <= earlier for earlier, later in pairwise(bounds)):
        raise ValueError(f"turn_ends must ascend strictly from 0 to {num_tokens - 1}, got {list(turn_ends)}")
