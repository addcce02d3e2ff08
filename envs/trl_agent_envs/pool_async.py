"""The async back end: environments with coroutines share one asyncio loop in a background thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import queue
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from trl_agent_envs.pool_outcome import (
    EnvContractError,
    Outcome,
    StateKey,
    describe,
    find_state_key,
    reset_outcome,
    step_outcome,
)
from trl_agent_envs.pool_protocol import EnvEvent, EnvPoolError, EventKind, failed_event, overran
from trl_agent_envs.pool_target import EnvTarget

logger = logging.getLogger(__name__)

_CANCEL_GRACE = 1.0  # seconds a cancelled coroutine gets to clean up before its environment is closed
_ACLOSE_TIMEOUT = 10.0  # seconds one `aclose` may take
_BLOCKED_AFTER = 10.0  # seconds past a deadline after which the loop itself must be blocked


class EnvExit(RuntimeError):
    """An environment called `sys.exit`."""


@dataclass(slots=True)
class _Slot:
    """One environment: `env` is unwrapped, since Gymnasium's wrappers know no coroutines."""

    env: Any
    state_key: StateKey | None
    max_steps: int | None
    steps: int = 0


class AsyncBackend:
    """Runs ``areset(seed=, options=)``, ``astep(action)`` and ``aclose()`` of ``env.unwrapped``.

    A coroutine that overruns its deadline is cancelled, and the environment closed. One that blocks the
    thread (`time.sleep`, a busy loop) blocks all environments and cannot be interrupted: `poll` says so by
    `EnvPoolError`. Environments are built in a thread of their own; what needs the loop is opened in
    `areset`. Of Gymnasium's wrappers the time limit works; others are refused.
    """

    def __init__(self, target: EnvTarget, num_envs: int) -> None:
        self._target = target
        self._slots: list[_Slot | None] = [None] * num_envs  # the loop's thread alone writes it
        self._events: queue.SimpleQueue[EnvEvent] = queue.SimpleQueue()
        self._deadlines: dict[int, float] = {}  # the caller's thread alone uses it
        # The loop itself holds tasks weakly. Work is cancelled by `close`, closings are waited for.
        self._work: set[asyncio.Future[Any]] = set()
        self._closings: set[asyncio.Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="EnvPool", daemon=True)
        self._thread.start()
        self._closed = False

    def reset(self, slot: int, seed: int | None, options: dict[str, Any] | None, timeout: float) -> None:
        self._deadlines[slot] = monotonic() + timeout
        self._spawn(self._run(slot, "reset", self._reset(slot, seed, options), timeout, "reset_timeout"))

    def step(self, slot: int, action: str, timeout: float, limit: str) -> None:
        self._deadlines[slot] = monotonic() + timeout
        self._spawn(self._run(slot, "step", self._step(slot, action), timeout, limit))

    def poll(self, timeout: float | None) -> list[EnvEvent]:
        events: list[EnvEvent] = []
        stuck = max(0.0, min(self._deadlines.values(), default=0.0) + _BLOCKED_AFTER - monotonic())
        try:
            events.append(self._events.get(timeout=stuck if timeout is None else min(timeout, stuck)))
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            if not events and (timeout is None or timeout > stuck):
                raise EnvPoolError(
                    f"EnvPool: an environment of {self._target.name} blocks the asyncio loop (nothing "
                    f"came for {_BLOCKED_AFTER:.0f} s past a deadline), and with it all others. Its "
                    "coroutines must await what takes time; if they cannot, run it with backend='process'."
                ) from None
        for event in events:
            self._deadlines.pop(event.slot, None)
        return events

    def call(self, slot: int, method: str, args: tuple[Any, ...], timeout: float) -> Any:
        future = asyncio.run_coroutine_threadsafe(_no_exit(self._call(slot, method, args)), self._loop)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError as exc:
            if not future.done():
                future.cancel()
                raise EnvPoolError(f"no answer within {timeout:.3g} s; it was cancelled") from exc
            raise EnvPoolError(describe(exc)) from exc
        except Exception as exc:
            raise EnvPoolError(describe(exc)) from exc

    def discard(self, slot: int) -> None:
        self._deadlines.pop(slot, None)
        self._loop.call_soon_threadsafe(self._drop, slot, None)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        future = asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop)
        try:
            future.result(2 * _ACLOSE_TIMEOUT)
        except concurrent.futures.TimeoutError:
            logger.error(
                "an environment of %s blocks the asyncio loop; its thread is given up", self._target.name
            )
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CANCEL_GRACE)
            if not self._thread.is_alive():
                self._loop.close()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._loop.call_soon_threadsafe(lambda: _keep(self._work, coroutine))

    async def _run(
        self, slot: int, kind: EventKind, work: Coroutine[Any, Any, Outcome], timeout: float, limit: str
    ) -> None:
        """Give `work` its deadline and queue the event it leads to."""
        start = monotonic()
        task = asyncio.ensure_future(_no_exit(work))
        task.add_done_callback(_ignore)
        try:
            await asyncio.wait({task}, timeout=timeout)
        finally:
            if not task.done():
                task.cancel()
        seconds = monotonic() - start
        if not task.done():
            self._drop(slot, task)
            error = overran(kind, seconds, timeout, limit) + "; it was cancelled"
            self._events.put(failed_event(slot, kind, "env_timeout", error, seconds))
            return
        failure = asyncio.CancelledError() if task.cancelled() else task.exception()
        if failure is not None:
            self._drop(slot, None)
            self._events.put(failed_event(slot, kind, "env_error", describe(failure), seconds))
        else:
            outcome: Outcome = task.result()
            self._events.put(EnvEvent(slot, kind, *outcome, None, seconds))

    async def _reset(self, slot: int, seed: int | None, options: dict[str, Any] | None) -> Outcome:
        held = self._slots[slot]
        if held is None:
            held = self._slots[slot] = _open(await self._build())
        held.steps = 0
        return reset_outcome(await held.env.areset(seed=seed, options=options), held.state_key)

    async def _step(self, slot: int, action: str) -> Outcome:
        held = self._slots[slot]
        assert held is not None  # the pool resets first
        outcome = step_outcome(await held.env.astep(action), held.state_key)
        held.steps += 1
        if held.max_steps is not None and held.steps >= held.max_steps and not outcome.terminated:
            return outcome._replace(truncated=True, truncation_cause=outcome.truncation_cause or "turn_limit")
        return outcome

    async def _call(self, slot: int, method: str, args: tuple[Any, ...]) -> Any:
        held = self._slots[slot]
        if held is None:
            raise EnvPoolError(f"slot {slot} has no environment yet")
        result = getattr(held.env, method)(*args)
        return await result if inspect.isawaitable(result) else result

    async def _build(self) -> gym.Env[Any, Any]:
        """Build in a thread that may be abandoned, so that a slow constructor delays no other environment."""
        future: asyncio.Future[gym.Env[Any, Any]] = self._loop.create_future()

        def finish(env: gym.Env[Any, Any] | None, failure: BaseException | None) -> None:
            if not future.done():
                if failure is not None:
                    future.set_exception(failure)
                elif env is not None:
                    future.set_result(env)
            elif env is not None:  # built too late
                _keep(self._closings, _aclose(env.unwrapped, None))

        def build() -> None:
            env: gym.Env[Any, Any] | None = None
            failure: Exception | None = None
            try:
                env = self._target.build()
            except SystemExit as exc:
                failure = EnvExit(f"sys.exit({exc.code!r})")
            except Exception as exc:  # noqa: BLE001 - an environment may raise anything
                failure = exc
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(finish, env, failure)

        threading.Thread(target=build, name="EnvPool build", daemon=True).start()
        return await future

    def _drop(self, slot: int, task: asyncio.Future[Any] | None) -> None:
        """Close the slot's environment in the background, once `task`, which still uses it, is over."""
        held, self._slots[slot] = self._slots[slot], None
        if held is not None:
            _keep(self._closings, _aclose(held.env, task))

    async def _shut_down(self) -> None:
        work = set(self._work)
        for task in work:
            task.cancel()
        if work:
            await asyncio.wait(work, timeout=_CANCEL_GRACE)
        for slot in range(len(self._slots)):
            self._drop(slot, None)
        if self._closings:
            await asyncio.wait(set(self._closings), timeout=_ACLOSE_TIMEOUT)


def _keep(tasks: set[asyncio.Future[Any]], work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def _ignore(task: asyncio.Future[Any]) -> None:
    """Mark the failure of a cancelled task as seen: nobody waits for it any more."""
    if not task.cancelled():
        task.exception()


async def _no_exit(work: Coroutine[Any, Any, Any]) -> Any:
    """Turn `sys.exit` into an ordinary error: asyncio would let it end the loop."""
    try:
        return await work
    except SystemExit as exc:
        raise EnvExit(f"sys.exit({exc.code!r})") from exc


async def _aclose(env: Any, task: asyncio.Future[Any] | None) -> None:
    if task is not None:
        await asyncio.wait({task}, timeout=_CANCEL_GRACE)
    try:
        await asyncio.wait_for(_no_exit(env.aclose()), _ACLOSE_TIMEOUT)
    except Exception as exc:  # noqa: BLE001 - a broken environment may not be able to close
        logger.warning("closing an environment failed: %s", describe(exc))


def _open(env: gym.Env[Any, Any]) -> _Slot:
    """Check that the environment can run here. Raises `EnvContractError`."""
    max_steps = None
    wrapped: Any = env
    while isinstance(wrapped, gym.Wrapper):
        if isinstance(wrapped, TimeLimit):
            max_steps = wrapped._max_episode_steps
        elif not isinstance(wrapped, (OrderEnforcing, PassiveEnvChecker)):
            raise EnvContractError(
                f"backend='async' would skip the wrapper {type(wrapped).__name__}; remove it"
            )
        wrapped = wrapped.env
    missing = [name for name in ("areset", "astep", "aclose") if not hasattr(wrapped, name)]
    if missing:
        raise EnvContractError(
            f"{type(wrapped).__name__} has no {', '.join(missing)}, which backend='async' needs"
        )
    return _Slot(wrapped, find_state_key(env), max_steps)
