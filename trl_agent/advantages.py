"""Advantages of one episode's action tokens.

Everything is over the `N` action tokens of one unpadded episode, in turn order, across segments: tokens of
observations do not exist here, so inserting observations cannot change an advantage. The token after a
turn's last action token is the next turn's first action token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from trl_agent.rewards import check_turn_ends

DiscountPer = Literal["turn", "token"]


def discounts(
    turn_ends: Sequence[int], num_tokens: int, gamma: float, lam: float, per: DiscountPer
) -> tuple[Tensor, Tensor]:
    """Return gamma and lambda for the passage from each action token to the next, both (N,) fp32.

    "token": the same everywhere. "turn": `gamma` and `lam` at each turn's last token and 1 inside a turn,
    so that how far a reward reaches back counts turns, whatever their length in tokens.

    Args:
        turn_ends: index of each turn's last action token, ascending: `Trajectory.turn_ends`.
        num_tokens: N.
    """
    for name, value in (("gamma", gamma), ("lam", lam)):
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} must be in [0, 1], got {value}")
    check_turn_ends(turn_ends, num_tokens)
    if per == "token":
        return torch.full((num_tokens,), gamma), torch.full((num_tokens,), lam)
    if per != "turn":
        raise ValueError(f'per must be "turn" or "token", got {per!r}')
    gammas, lams = torch.ones(num_tokens), torch.ones(num_tokens)
    ends = torch.tensor(list(turn_ends), dtype=torch.long)
    gammas[ends], lams[ends] = gamma, lam
    return gammas, lams


def bootstrap(last_value: float, *, terminated: bool, truncated: bool) -> float:
    """Return the value of what follows an episode's last token: `last_value` if it was truncated, 0 if
    terminated.

    Raises:
        ValueError: both or neither flag is set; an unfinished episode has no advantages.
    """
    if terminated == truncated:
        raise ValueError(
            "an episode ends either terminated or truncated, "
            f"got terminated={terminated} and truncated={truncated}"
        )
    return last_value if truncated else 0.0


def gae(
    rewards: Tensor, values: Tensor, bootstrap_value: float | Tensor, gammas: Tensor, lams: Tensor
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over one episode.

    delta_t = r_t + gamma_t V_{t+1} - V_t and A_t = delta_t + gamma_t lambda_t A_{t+1}, where V_N is
    `bootstrap_value` and A_N is 0.

    Args:
        rewards: (N,), earned by choosing token t.
        values: (N,), V before token t is chosen.
        bootstrap_value: V after the last token, see `bootstrap`.
        gammas, lams: (N,), see `discounts`.

    Returns:
        advantages and returns = advantages + values, (N,) each, in the dtype and on the device of `values`.
        No gradient. The recursion runs in double precision.

    Source: Schulman et al. 2016 (arXiv:1506.02438), equations 11, 12 and 16.
    """
    shapes = {tuple(item.shape) for item in (rewards, values, gammas, lams)}
    if len(shapes) != 1 or values.dim() != 1:
        raise ValueError(f"rewards, values, gammas and lams must be 1-D of one length, got shapes {shapes}")
    # Python floats: one copy from the device, and far faster than N small tensor operations.
    columns = [item.detach().double().tolist() for item in (rewards, values, gammas, lams)]
    next_value, next_advantage = float(bootstrap_value), 0.0
    reverse: list[float] = []
    for reward, value, gamma, lam in zip(*(reversed(column) for column in columns), strict=True):
        next_advantage = reward + gamma * next_value - value + gamma * lam * next_advantage
        next_value = value
        reverse.append(next_advantage)
    advantages = torch.tensor(reverse[::-1], dtype=values.dtype, device=values.device)
    return advantages, advantages + values.detach()


def leave_one_out(values: Sequence[float], groups: Sequence[int]) -> list[float]:
    """Return for each value the mean of the other values of its group; 0 where it has none.

    Subtracted from an episode's return it takes away how hard the goal is, which says nothing of the policy, and
    leaves the gradient's expectation as it was: the others do not depend on this episode's actions.

    Source: RLOO, Ahmadian et al. 2024 (arXiv:2402.14740), section 3.
    """
    if len(values) != len(groups):
        raise ValueError(f"{len(values)} values have {len(groups)} groups")
    sums: dict[int, tuple[float, int]] = {}
    for value, group in zip(values, groups):
        total, number = sums.get(group, (0.0, 0))
        sums[group] = (total + value, number + 1)
    return [
        (sums[group][0] - value) / (sums[group][1] - 1) if sums[group][1] > 1 else 0.0
        for value, group in zip(values, groups)
    ]


def whiten(
    x: Tensor, mean: float | Tensor, var: float | Tensor, *, shift_mean: bool = True, eps: float = 1e-8
) -> Tensor:
    """Scale `x` to unit variance and, with `shift_mean`, to zero mean.

    The moments are handed in because they belong to all ranks' tokens, not to one rank's or one
    micro-batch's.

    Args:
        x: (N,).
        mean, var: moments of the population that x is part of.
        eps: added to the variance.
    """
    variance = torch.as_tensor(var, dtype=x.dtype, device=x.device)
    whitened = (x - mean) * torch.rsqrt(variance + eps)
    return whitened if shift_mean else whitened + mean
