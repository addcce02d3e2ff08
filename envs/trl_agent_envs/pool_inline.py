"""The inline back end: environments run in the caller's thread, one after the other."""

from __future__ import annotations

import logging
from time import perf_counter
from typing import Any

import gymnasium as gym

from trl_agent_envs.pool_outcome import StateKey, describe, find_state_key, reset_outcome, step_outcome
from trl_agent_envs.pool_protocol import EnvEvent, EnvPoolError, EventKind, failed_event, overran
from trl_agent_envs.pool_target import EnvTarget

logger = logging.getLogger(__name__)


class InlineBackend:
    """Runs each reset and step at once, inside the submit. For environments that take microseconds.

    It cannot interrupt anything: a step that hangs hangs the caller, and the deadlines are checked when a
    step returns (one that overran its own ends the episode as "env_timeout"). Building an environment has no
    deadline.
    """

    def __init__(self, target: EnvTarget, num_envs: int) -> None:
        self._target = target
        self._envs: list[gym.Env[Any, Any] | None] = [None] * num_envs
        self._state_keys: list[StateKey | None] = [None] * num_envs
        self._events: list[EnvEvent] = []

    def reset(self, slot: int, seed: int | None, options: dict[str, Any] | None, timeout: float) -> None:
        start = perf_counter()
        try:
            env = self._envs[slot]
            if env is None:
                env = self._envs[slot] = self._target.build()
                self._state_keys[slot] = find_state_key(env)
                start = perf_counter()
            outcome = reset_outcome(env.reset(seed=seed, options=options), self._state_keys[slot])
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - an environment may raise anything
            self._fail(slot, "reset", exc, perf_counter() - start)
            return
        seconds = perf_counter() - start
        if seconds > timeout:
            self._time_out(slot, "reset", seconds, timeout, "reset_timeout")
        else:
            self._events.append(EnvEvent(slot, "reset", *outcome, None, seconds))

    def step(self, slot: int, action: str, timeout: float, limit: str) -> None:
        start = perf_counter()
        try:
            outcome = step_outcome(self._envs[slot].step(action), self._state_keys[slot])  # type: ignore[union-attr]
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - an environment may raise anything
            self._fail(slot, "step", exc, perf_counter() - start)
            return
        seconds = perf_counter() - start
        if seconds > timeout:
            self._time_out(slot, "step", seconds, timeout, limit)
        else:
            self._events.append(EnvEvent(slot, "step", *outcome, None, seconds))

    def poll(self, timeout: float | None) -> list[EnvEvent]:
        events, self._events = self._events, []
        return events

    def call(self, slot: int, method: str, args: tuple[Any, ...], timeout: float) -> Any:
        env = self._envs[slot]
        if env is None:
            raise EnvPoolError(f"slot {slot} has no environment yet")
        try:
            return getattr(env.unwrapped, method)(*args)
        except (Exception, SystemExit) as exc:
            raise EnvPoolError(describe(exc)) from exc

    def discard(self, slot: int) -> None:
        env, self._envs[slot], self._state_keys[slot] = self._envs[slot], None, None
        if env is None:
            return
        try:
            env.close()
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - a broken environment may not be able to close
            logger.warning("closing the environment of slot %d (%s) failed: %s", slot, self._target.name, exc)

    def close(self) -> None:
        for slot in range(len(self._envs)):
            self.discard(slot)

    def _fail(self, slot: int, kind: EventKind, exc: BaseException, seconds: float) -> None:
        self.discard(slot)
        self._events.append(failed_event(slot, kind, "env_error", describe(exc), seconds))

    def _time_out(self, slot: int, kind: EventKind, seconds: float, timeout: float, limit: str) -> None:
        self.discard(slot)
        error = overran(kind, seconds, timeout, limit)
        self._events.append(failed_event(slot, kind, "env_timeout", error, seconds))
