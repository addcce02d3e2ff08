"""Rewards that a user's functions add to what the environment paid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from trl_agent.trajectory import Trajectory

RewardFunc = Callable[[Trajectory], float | Sequence[float]]
"""Maps an episode to one number, for its last turn, or to one number a turn."""


def add_rewards(trajectory: Trajectory, funcs: Sequence[RewardFunc]) -> Trajectory:
    """Return the trajectory with the functions' rewards added to its turns'.

    Raises:
        ValueError: a function returned a list that is not one number a turn; it is named.
    """
    if not funcs or not trajectory.turns:
        return trajectory
    rewards = [turn.reward for turn in trajectory.turns]
    for func in funcs:
        extra = func(trajectory)
        if isinstance(extra, (int, float)):
            rewards[-1] += extra
            continue
        if len(extra) != len(rewards):
            raise ValueError(
                f"reward function {getattr(func, '__name__', func)!r} returned {len(extra)} rewards for "
                f"{len(rewards)} turns; return one number, or one a turn"
            )
        rewards = [reward + float(more) for reward, more in zip(rewards, extra, strict=True)]
    turns = [replace(turn, reward=reward) for turn, reward in zip(trajectory.turns, rewards, strict=True)]
    return replace(trajectory, turns=turns)


class ActionErrorPenalty:
    """Takes `size` off the reward of each turn whose action the environment could not carry out.

    An environment that lets an agent try again does not reward getting it right at once; without a price on errors
    nothing keeps a policy from drifting into them.
    """

    __name__ = "action_error_penalty"

    def __init__(self, size: float) -> None:
        if size < 0:
            raise ValueError(f"size={size} is out of range: it must be at least 0")
        self.size = size

    def __call__(self, trajectory: Trajectory) -> list[float]:
        return [-self.size if turn.action_error else 0.0 for turn in trajectory.turns]
