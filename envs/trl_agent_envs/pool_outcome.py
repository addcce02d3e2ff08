"""Turns what an environment returned or raised into checked plain values."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import gymnasium as gym
import numpy as np

from trl_agent_envs.core import TruncationCause

_CAUSES = frozenset(get_args(TruncationCause))
_MAX_TRACEBACK = 4000  # characters kept of a traceback: its end says most

StateKey = Callable[[], str | None]


class EnvContractError(TypeError):
    """An environment returned something that `AgentEnv` does not allow."""


class Outcome(NamedTuple):
    """The fields that `EnvEvent` has in common for every back end, in its order."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    state_key: str | None
    truncation_cause: TruncationCause | None


def find_state_key(env: gym.Env[Any, Any]) -> StateKey | None:
    """Return the environment's `state_key`, reached past Gymnasium's wrappers, or None if it has none."""
    return getattr(env.unwrapped, "state_key", None)


def reset_outcome(result: Any, state_key: StateKey | None) -> Outcome:
    """Check what `reset` returned. Raises `EnvContractError`."""
    try:
        observation, info = result
    except (TypeError, ValueError) as exc:
        raise EnvContractError(f"reset returned {_show(result)}, expected (observation, info)") from exc
    if not isinstance(observation, str):
        raise EnvContractError(f"reset returned the observation {_show(observation)}, expected a str")
    if not isinstance(info, dict):
        raise EnvContractError(f"reset returned the info {_show(info)}, expected a dict")
    return Outcome(observation, 0.0, False, False, info, state_key() if state_key is not None else None, None)


def step_outcome(result: Any, state_key: StateKey | None) -> Outcome:
    """Check what `step` returned. Raises `EnvContractError`."""
    try:
        observation, reward, terminated, truncated, info = result
    except (TypeError, ValueError) as exc:
        expected = "(observation, reward, terminated, truncated, info)"
        raise EnvContractError(f"step returned {_show(result)}, expected {expected}") from exc
    if not isinstance(observation, str):
        raise EnvContractError(f"step returned the observation {_show(observation)}, expected a str")
    if type(reward) is not float:
        reward = _as_float(reward)
    if not math.isfinite(reward):
        raise EnvContractError(f"step returned the reward {reward}, expected a finite number")
    if terminated is not True and terminated is not False:
        terminated = _as_bool(terminated, "terminated")
    if truncated is not True and truncated is not False:
        truncated = _as_bool(truncated, "truncated")
    if not isinstance(info, dict):
        raise EnvContractError(f"step returned the info {_show(info)}, expected a dict")
    truncated = truncated and not terminated
    cause = _cause(info) if truncated else None
    key = state_key() if state_key is not None else None
    return Outcome(observation, reward, terminated, truncated, info, key, cause)


def describe(exc: BaseException) -> str:
    """Return an exception as text: one line of summary, then its traceback (its last 4000 characters)."""
    lines = "".join(traceback.format_exception(exc))
    return f"{type(exc).__name__}: {exc}\n{lines[-_MAX_TRACEBACK:]}".rstrip()


def _cause(info: dict[str, Any]) -> TruncationCause:
    cause = info.get("truncation_cause")
    if cause is None:
        return "turn_limit"  # Gymnasium's TimeLimit wrapper truncates without giving a cause
    if cause not in _CAUSES:
        raise EnvContractError(
            f"info['truncation_cause'] is {_show(cause)}, expected one of {sorted(_CAUSES)}"
        )
    return cause  # type: ignore[no-any-return]


def _as_float(reward: Any) -> float:
    if isinstance(reward, (str, bytes)):
        raise EnvContractError(f"step returned the reward {_show(reward)}, expected a number")
    try:
        return float(reward)
    except (TypeError, ValueError, OverflowError) as exc:
        raise EnvContractError(f"step returned the reward {_show(reward)}, expected a number") from exc


def _as_bool(value: Any, name: str) -> bool:
    if not isinstance(value, np.bool_):
        raise EnvContractError(f"step returned {name}={_show(value)}, expected a bool")
    return bool(value)


def _show(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
