"""The gym's whole contract: a text environment, its spaces and the keys of ``info``."""

from __future__ import annotations

import random
from typing import Any, Literal, TypedDict

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

Backend = Literal["inline", "process", "async"]
"""How `EnvPool` runs an environment: in this process, in a process of its own, or on an asyncio loop."""

SUCCESS_SCORE = 1.0 - 1e-9
"""A score of at least this is success, where the environment does not say so itself."""

TruncationCause = Literal["turn_limit", "token_limit", "env_error", "env_timeout"]
"""Why an episode ended without being `terminated`."""


class StepInfo(TypedDict, total=False):
    """Keys of ``info`` that the trainer, the pool and the recipes read. All but `score` are optional.

    score: the environment's own number for the episode so far, in [0, 1]. Final once the episode ended.
    success: whether the episode reached its goal.
    goal_id: which goal the episode has; the same id always means the same goal. Train and test split on it.
    available_actions: what may be done now, in the environment's own form (WebShop: a dict).
    action_error: why the last action did nothing, or None. A wrong action is an observation, never an exception.
    system_prompt: the rules of the environment for a language model. Given by `reset` only.
    truncation_cause: a `TruncationCause`, set when `truncated` is True.
    """

    score: float
    success: bool
    goal_id: int | str
    available_actions: Any
    action_error: str | None
    system_prompt: str
    truncation_cause: TruncationCause


class UnicodeText(Space[str]):
    """Every Python string of at most `max_length` characters (`gymnasium.spaces.Text` has a fixed charset).

    Args:
        max_length: longest string in the space, in characters.
    """

    def __init__(self, max_length: int = 1_000_000, seed: int | np.random.Generator | None = None) -> None:
        if max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {max_length}")
        self.max_length = max_length
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: None = None, probability: None = None) -> str:
        """Return up to 32 random characters of the Basic Multilingual Plane (no surrogates)."""
        if mask is not None or probability is not None:
            raise ValueError("UnicodeText.sample takes neither mask nor probability")
        length = int(self.np_random.integers(0, min(32, self.max_length) + 1))
        points: NDArray[np.int64] = self.np_random.integers(0x20, 0xD800, size=length)
        return "".join(map(chr, points))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, UnicodeText) and other.max_length == self.max_length


class AgentEnv(gym.Env[str, str]):
    """A text environment: observations and actions are strings, `info` carries `StepInfo`.

    Subclass it, implement `reset` and `step`, register the class with Gymnasium. Nothing else is needed to
    train on it. `check_agent_env` tests an implementation against this contract.

    `metadata["backend"]` tells `EnvPool` how to run the environment. Use "inline" for one that never blocks and
    costs microseconds; leave the default, "process", for anything that may hang, crash or hold the interpreter;
    "async" for one that has the coroutines `areset`, `astep` and `aclose`.
    """

    metadata: dict[str, Any] = {"render_modes": [], "backend": "process"}  # noqa: RUF012 - declared so by Gymnasium
    observation_space: Space[str] = UnicodeText()
    action_space: Space[str] = UnicodeText()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode. `options={"goal_id": ...}` chooses the goal; else `seed` does.

        The subclass calls ``super().reset(seed=seed)`` first, draws from `self.np_random` only, and returns its
        own observation and info.
        """
        super().reset(seed=seed)
        return "", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Do `action`; return observation, reward, terminated, truncated and info."""
        raise NotImplementedError

    def state_key(self) -> str | None:
        """Return a text equal for equal states and different for different ones, or None if there is none."""
        return None

    def oracle_action(self) -> str | None:
        """Return what an expert would do now, or None where no expert exists."""
        return None

    def sample_action(self, rng: random.Random) -> str | None:
        """Return a random action that is valid now, or None where the environment cannot tell."""
        return None
