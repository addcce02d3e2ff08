"""EnvPool: many episodes at once, with deadlines, bounded retries and slots that are rebuilt."""

from __future__ import annotations

import logging
import math
import os
import weakref
from enum import Enum
from operator import attrgetter
from time import monotonic
from types import TracebackType
from typing import Any, Literal, Self, get_args

from trl_agent_envs.core import Backend
from trl_agent_envs.pool_inline import InlineBackend
from trl_agent_envs.pool_protocol import EnvEvent, EnvPoolError, PoolBackend
from trl_agent_envs.pool_target import EnvFactory, EnvTarget, resolve_target

__all__ = ["EnvEvent", "EnvPool", "EnvPoolError", "Schedule"]

logger = logging.getLogger(__name__)

Schedule = Literal["free", "lockstep"]

_FAILURES = ("env_error", "env_timeout")  # the truncation causes that are the environment's fault

_by_slot = attrgetter("slot")


class _State(Enum):
    EMPTY = "no episode yet"  # nothing to step: never reset, or its environment failed
    BUSY = "a reset or step in flight"
    RUNNING = "an episode"
    ENDED = "an episode that is over"


class EnvPool:
    """Runs `num_envs` episodes of one environment at once.

    Each slot holds one environment. `submit_reset` and `submit_step` start work, `wait` returns what is
    finished::

        with EnvPool("trl_agent_envs:trl_agent/WebShop-v0", num_envs=8) as pool:
            for slot in range(8):
                pool.submit_reset(slot, seed=slot)
            for event in pool.wait():
                if not event.done:
                    pool.submit_step(event.slot, "search[red shoes]")

    An environment that raises, hangs past a deadline or dies ends its own episode and no other: the event is
    `truncated` with the cause "env_error" or "env_timeout" and the error's text, and the slot gets a new
    environment at its next reset. Used as a context manager, or closed, the pool leaves no process behind; so
    also when the interpreter exits by an exception or Ctrl-C, or is killed.

    Back ends: "inline" (in this process, in the submit; cannot interrupt a hang: a step that overran its
    deadline is an "env_timeout" once it returns), "process" (a process a slot; what hangs is killed with all
    its children; the environment, its arguments, `info` and what `call` takes and returns are pickled),
    "async" (the environment's coroutines `areset`, `astep` and `aclose` on one asyncio loop in a thread; what
    hangs is cancelled).

    Args:
        env: a Gymnasium id, with the module that registers it in front if need be ("my_pkg:MyEnv-v0"), or a
            callable that returns an environment.
        env_kwargs: arguments of the environment.
        num_envs: slots.
        backend: None takes what the environment's class says in ``metadata["backend"]`` ("process" if it says
            nothing); for another callable its attribute `backend`, else "inline".
        step_timeout: seconds that one step may take.
        episode_timeout: seconds that an episode's steps may take in all (the environment's time; the policy's
            is not counted). None: no limit.
        reset_timeout: seconds that one reset may take, building the environment included (not on "inline").
        max_retries: how often a failed reset is tried again, each time with a new environment.
        schedule: "free": `wait` returns as soon as one slot is ready, so a slow environment makes no other
            wait. "lockstep": `wait` returns when every submitted slot is ready, in the order of the slots, so
            a run repeats.
        max_consecutive_failures: episodes that may end by a failure of the environment, over all slots, with
            none that ends well in between; one more raises. Default: ``max(1, max_retries) * num_envs``.

    Raises:
        EnvPoolError: an unknown environment, an argument out of range; and by the methods: misuse (a busy
            slot, a slot without an episode, a closed pool), an environment that fails too often.
    """

    def __init__(
        self,
        env: str | EnvFactory,
        env_kwargs: dict[str, Any] | None = None,
        num_envs: int = 8,
        *,
        backend: Backend | None = None,
        step_timeout: float = 60.0,
        episode_timeout: float | None = 600.0,
        reset_timeout: float = 120.0,
        max_retries: int = 3,
        schedule: Schedule = "free",
        max_consecutive_failures: int | None = None,
    ) -> None:
        _check_count("num_envs", num_envs, 1)
        _check_count("max_retries", max_retries, 0)
        _check_seconds("step_timeout", step_timeout)
        _check_seconds("reset_timeout", reset_timeout)
        if episode_timeout is not None:
            _check_seconds("episode_timeout", episode_timeout)
        if schedule not in get_args(Schedule):
            raise EnvPoolError(f"EnvPool: schedule={schedule!r}, expected one of {get_args(Schedule)}")
        if max_consecutive_failures is None:
            max_consecutive_failures = max(1, max_retries) * num_envs
        _check_count("max_consecutive_failures", max_consecutive_failures, 1)
        self._closed = True  # until everything below worked
        self._target = resolve_target(env, env_kwargs, backend)
        self.num_envs = num_envs
        self.schedule: Schedule = schedule
        self._step_timeout = step_timeout
        self._episode_timeout = math.inf if episode_timeout is None else episode_timeout
        self._reset_timeout = reset_timeout
        self._max_retries = max_retries
        self._max_failures = max_consecutive_failures
        self._failures = 0
        self._states = [_State.EMPTY] * num_envs
        self._used = [0.0] * num_envs  # seconds of the episode's deadline
        self._resets: list[tuple[int | None, dict[str, Any] | None]] = [(None, None)] * num_envs
        self._tries = [0] * num_envs
        self._busy = 0
        self._ready: list[EnvEvent] = []
        self._backend = _start_backend(self._target, num_envs)
        self._finalizer = weakref.finalize(self, _close_backend, self._backend, os.getpid())
        self._closed = False

    @property
    def env_name(self) -> str:
        """The environment's id, or its factory's name."""
        return self._target.name

    @property
    def backend(self) -> Backend:
        """The back end in use."""
        return self._target.backend

    @property
    def num_pending(self) -> int:
        """Submitted slots whose event `wait` has not returned yet."""
        return self._busy + len(self._ready)

    def submit_reset(
        self, slot: int, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Start an episode in `slot`, which may not be busy (an episode still running is given up).

        A reset that fails is retried with a new environment; see `wait`.
        """
        self._check_slot(slot)
        self._resets[slot] = (seed, options)
        self._tries[slot] = 0
        self._start_reset(slot)

    def submit_step(self, slot: int, action: str) -> None:
        """Do `action` in the episode of `slot`. Raises `TypeError` where it is not a string."""
        if not isinstance(action, str):
            kind = type(action).__name__
            raise TypeError(f"EnvPool.submit_step: slot {slot} got an action of type {kind}, expected str")
        self._check_slot(slot)
        if self._states[slot] is not _State.RUNNING:
            held = self._states[slot].value
            raise EnvPoolError(
                f"EnvPool.submit_step: slot {slot} holds {held}; submit_reset and wait for it first"
            )
        timeout, limit = self._step_timeout, "step_timeout"
        left = self._episode_timeout - self._used[slot]
        if left < timeout:
            timeout, limit = max(left, 0.0), "episode_timeout"
        self._states[slot] = _State.BUSY
        self._busy += 1
        try:
            self._backend.step(slot, action, timeout, limit)
        except BaseException:  # Ctrl-C in the middle: the environment is in no known state
            self._abandon(slot)
            raise

    def wait(self, *, timeout: float | None = None) -> list[EnvEvent]:
        """Return events of submitted slots, each once; which ones, and in what order, the schedule says.

        Args:
            timeout: seconds to wait at most; then the list is empty. None: as long as it takes (each reset
                and step has its deadline, so it does not take for ever).

        Raises:
            EnvPoolError: nothing was submitted; a reset failed `max_retries` + 1 times; more than
                `max_consecutive_failures` episodes in a row failed. The events at hand come with the next
                `wait`.
        """
        self._check_open()
        if not self._busy and not self._ready:
            raise EnvPoolError(
                "EnvPool.wait: no slot has a reset or step in flight, so none can become ready"
            )
        end = None if timeout is None else monotonic() + timeout
        while self._busy and (not self._ready or self.schedule == "lockstep"):
            left = None if end is None else max(0.0, end - monotonic())
            events = self._backend.poll(left)
            self._absorb(events)
            if not events and end is not None and monotonic() >= end:
                return []
        events, self._ready = self._ready, []
        if self.schedule == "lockstep":
            events.sort(key=_by_slot)
        return events

    def call(self, slot: int, method: str, *args: Any) -> Any:
        """Return ``env.unwrapped.method(*args)`` of a slot that is not busy: `oracle_action`, `sample_action`
        ...

        On the process back end the arguments are copies: a random generator handed to `sample_action` does
        not advance here, so hand a new one, seeded for the turn, to each call.

        Raises:
            EnvPoolError: the slot has no environment, which has no such method, or the method failed or
                overran `step_timeout`, if it can be interrupted (then the episode is lost: the slot needs a
                reset).
        """
        self._check_slot(slot)
        if self._states[slot] is _State.EMPTY:
            raise EnvPoolError(
                f"EnvPool.call: slot {slot} holds {_State.EMPTY.value}; submit_reset and wait for it first"
            )
        if method.startswith("_"):
            raise EnvPoolError(f"EnvPool.call: {method!r} is private to the environment")
        try:
            return self._backend.call(slot, method, args, self._step_timeout)
        except BaseException as exc:
            self._states[slot] = _State.EMPTY
            self._backend.discard(slot)
            if isinstance(exc, EnvPoolError):
                raise EnvPoolError(
                    f"EnvPool.call: {method!r} of {self.env_name} (slot {slot}) failed: {exc}"
                ) from exc
            raise

    def close(self) -> None:
        """Close every environment and end what runs them. May be called twice."""
        self._closed = True
        self._busy = 0
        self._ready = []
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self.num_envs

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.schedule
        return f"EnvPool({self.env_name!r}, num_envs={self.num_envs}, backend={self.backend!r}, {state})"

    def _start_reset(self, slot: int) -> None:
        self._states[slot] = _State.BUSY
        self._busy += 1
        self._used[slot] = 0.0
        seed, options = self._resets[slot]
        try:
            self._backend.reset(slot, seed, options, self._reset_timeout)
        except BaseException:  # Ctrl-C in the middle: the environment is in no known state
            self._abandon(slot)
            raise

    def _abandon(self, slot: int) -> None:
        self._states[slot] = _State.EMPTY
        self._busy -= 1
        self._backend.discard(slot)

    def _absorb(self, events: list[EnvEvent]) -> None:
        """Take all events in, then raise if one of them was a failure too many."""
        failure: EnvPoolError | None = None
        for event in sorted(events, key=_by_slot) if self.schedule == "lockstep" else events:
            self._busy -= 1
            if event.kind == "reset" and event.error is not None:
                failure = self._retry(event) or failure
            elif event.truncation_cause in _FAILURES:
                failure = self._count_failure(event) or failure
            else:
                self._take(event)
        if failure is not None:
            raise failure

    def _take(self, event: EnvEvent) -> None:
        if event.terminated or event.truncated:
            self._states[event.slot] = _State.ENDED
            self._failures = 0
        else:
            self._states[event.slot] = _State.RUNNING
        if event.kind == "step":
            self._used[event.slot] += event.seconds
        self._ready.append(event)

    def _retry(self, event: EnvEvent) -> EnvPoolError | None:
        """Try a failed reset again, or return the error if that was the last try."""
        slot = event.slot
        self._tries[slot] += 1
        if self._tries[slot] <= self._max_retries:
            logger.warning(
                "reset %d of %s (slot %d) failed: %s", self._tries[slot], self.env_name, slot, event.error
            )
            self._start_reset(slot)
            return None
        self._states[slot] = _State.EMPTY
        seed, options = self._resets[slot]
        return EnvPoolError(
            f"EnvPool: {self.env_name} could not be reset in {self._tries[slot]} tries (slot {slot}, "
            f"seed={seed}, options={options}). Last cause, {event.truncation_cause}: {event.error}"
        )

    def _count_failure(self, event: EnvEvent) -> EnvPoolError | None:
        """Deliver the end of a failed episode; return the error if it was one too many in a row."""
        self._ready.append(event)
        self._failures += 1
        # An environment that reports its own failure is whole, and may be reset.
        self._states[event.slot] = _State.ENDED if event.error is None else _State.EMPTY
        if self._failures <= self._max_failures:
            return None
        count, self._failures = self._failures, 0
        return EnvPoolError(
            f"EnvPool: {count} episodes of {self.env_name} in a row ended by a failure of the environment "
            f"(max_consecutive_failures={self._max_failures}). Last cause, {event.truncation_cause}: "
            f"{event.error or 'reported by the environment itself'}"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise EnvPoolError(f"EnvPool: the pool of {self.env_name} is closed")

    def _check_slot(self, slot: int) -> None:
        if self._closed:
            self._check_open()
        if not 0 <= slot < self.num_envs:
            raise EnvPoolError(f"EnvPool: slot {slot}, expected 0 <= slot < {self.num_envs}")
        if self._states[slot] is _State.BUSY:
            raise EnvPoolError(f"EnvPool: slot {slot} is busy; wait for its event first")


def _start_backend(target: EnvTarget, num_envs: int) -> PoolBackend:
    # Imported on demand: an inline pool needs neither subprocesses nor an asyncio loop.
    if target.backend == "process":
        from trl_agent_envs.pool_process import ProcessBackend

        return ProcessBackend(target, num_envs)
    if target.backend == "async":
        from trl_agent_envs.pool_async import AsyncBackend

        return AsyncBackend(target, num_envs)
    return InlineBackend(target, num_envs)


def _close_backend(backend: PoolBackend, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the finalizer, not the environments
        backend.close()


def _check_count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise EnvPoolError(f"EnvPool: {name}={value!r}, expected an integer of at least {least}")


def _check_seconds(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise EnvPoolError(f"EnvPool: {name}={value!r}, expected a finite number of seconds above 0")
