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
