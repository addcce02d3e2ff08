"""What `EnvPool` and its back ends say to each other: events, the pool's error, the back-end protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from trl_agent_envs.core import TruncationCause

EventKind = Literal["reset", "step"]


class EnvPoolError(RuntimeError):
    """The pool was misused, or an environment failed more often than the pool may retry."""


@dataclass(frozen=True, slots=True)
class EnvEvent:
    """What one `submit_reset` or `submit_step` led to.

    slot: which of the pool's slots, 0 <= slot < num_envs.
    kind: "reset" or "step".
    observation, reward, terminated, truncated, info: as the environment returned them, types checked; never
        both `terminated` and `truncated` (an environment that says both has terminated).
    state_key: ``env.unwrapped.state_key()`` after the call, None where the environment has none.
    truncation_cause: set when, and only when, `truncated`; "turn_limit" unless ``info`` says otherwise.
    error: text when the environment itself failed (raised, hung past a deadline, died): then `truncated` is
        True, the cause is "env_error" or "env_timeout", the observation is "", the reward 0.0 and `info`
        empty.
    seconds: time the environment took, in seconds (a reset: building the environment included where that
        counts against its deadline).
    """

    slot: int
    kind: EventKind
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    state_key: str | None
    truncation_cause: TruncationCause | None
    error: str | None
    seconds: float

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated


def failed_event(slot: int, kind: EventKind, cause: TruncationCause, error: str, seconds: float) -> EnvEvent:
    """Return the event of an environment that failed."""
    return EnvEvent(slot, kind, "", 0.0, False, True, {}, None, cause, error, seconds)


def overran(kind: EventKind, seconds: float, timeout: float, limit: str) -> str:
    """Return the error text of a `kind` that ran for `seconds` where `limit`, a setting, left `timeout`."""
    return f"the {kind} ran for {seconds:.3g} s, {limit} left it {timeout:.3g} s"


class PoolBackend(Protocol):
    """How a pool runs its environments. Slots are numbered from 0; the pool never submits to a busy slot.

    A back end builds a slot's environment at the first `reset` after the start, a failure or `discard`. Every
    submit leads to exactly one event out of `poll`, also when the environment raises, hangs or dies; by then
    the broken environment is gone.
    """

    def reset(self, slot: int, seed: int | None, options: dict[str, Any] | None, timeout: float) -> None:
        """Start a reset, to be over in `timeout` seconds."""

    def step(self, slot: int, action: str, timeout: float, limit: str) -> None:
        """Start a step, to be over in `timeout` seconds; `limit` names the setting that says so."""

    def poll(self, timeout: float | None) -> list[EnvEvent]:
        """Return what is ready; wait up to `timeout` seconds (None: for ever) while nothing is."""

    def call(self, slot: int, method: str, args: tuple[Any, ...], timeout: float) -> Any:
        """Return ``env.unwrapped.method(*args)`` of an idle slot. Raises `EnvPoolError` when that fails."""

    def discard(self, slot: int) -> None:
        """Drop the slot's environment, if it has one."""

    def close(self) -> None:
        """Drop everything. May be called twice."""
