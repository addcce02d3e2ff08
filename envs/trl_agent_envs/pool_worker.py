"""What runs in a worker of the process back end: one environment, driven through a pipe.

Imports this package and the environment's module, nothing else; above all not the parent's main script
(unless the environment is defined there), which may import a deep-learning framework.

Messages in: ``("reset", seed, options)``, ``("step", action)``, ``("call", method, args)``, ``("close",)``.
Messages out: ``("ok", Outcome or value, seconds)`` or ``("error", text, seconds)``.
"""

from __future__ import annotations

import io
import multiprocessing.spawn
import os
import pickle
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trl_agent_envs.pool_outcome import Outcome, describe, find_state_key, reset_outcome, step_outcome

if TYPE_CHECKING:
    import gymnasium as gym

    from trl_agent_envs.pool_outcome import StateKey
    from trl_agent_envs.pool_target import EnvTarget

importing_main = False
"""True while the parent's main script is imported here; starting a pool then would never end."""


def main(*, connection: int, payload: int) -> None:
    """Serve until told to close, or until the parent is gone. Both arguments are descriptors."""
    for descriptor in (connection, payload):
        os.set_inheritable(
            descriptor, False
        )  # a child that held the pipe open would hide this worker's death
    with Connection(connection) as pipe:
        _serve(pipe, payload)


def _serve(pipe: Connection, payload: int) -> None:
    worker = _Worker(payload)
    while True:
        try:
            kind, *args = pipe.recv()
        except EOFError:  # the parent is gone
            kind, args = "close", []
        if kind == "close":
            worker.close()
            return
        start = perf_counter()
        try:
            reply = ("ok", getattr(worker, kind)(*args), perf_counter() - start)
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - an environment may raise anything
            reply = ("error", describe(exc), perf_counter() - start)
        try:
            _send(pipe, reply)
        except BrokenPipeError:
            worker.close()
            return


class _Worker:
    """The environment, built at the first reset so that what its constructor raises answers that reset."""

    def __init__(self, payload: int) -> None:
        self._payload = payload
        self._env: gym.Env[Any, Any] | None = None
        self._state_key: StateKey | None = None

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Outcome:
        if self._env is None:
            self._env = _load_target(self._payload).build()
            self._state_key = find_state_key(self._env)
        return reset_outcome(self._env.reset(seed=seed, options=options), self._state_key)

    def step(self, action: str) -> Outcome:
        assert self._env is not None  # the pool resets first
        return step_outcome(self._env.step(action), self._state_key)

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        assert self._env is not None
        return getattr(self._env.unwrapped, method)(*args)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()


def _send(pipe: Connection, reply: tuple[str, Any, float]) -> None:
    try:
        data = ForkingPickler.dumps(reply)
    except Exception as exc:  # noqa: BLE001 - an object's own __reduce__ may raise anything
        data = ForkingPickler.dumps(("error", _unpicklable(reply[1], exc), reply[2]))
    pipe.send_bytes(data)


def _unpicklable(value: Any, exc: Exception) -> str:
    what = f"the value {type(value).__name__}"
    for key, item in value.info.items() if isinstance(value, Outcome) else ():
        try:
            ForkingPickler.dumps((key, item))
        except Exception:  # noqa: BLE001 - as above
            what = f"info[{key!r}], a {type(item).__name__},"
            break
    return (
        f"{what} cannot be sent from the environment's process ({type(exc).__name__}: {exc}). Keep plain "
        "values there, or run the environment with backend='inline'."
    )


def _load_target(payload: int) -> EnvTarget:
    global importing_main
    # The workers share the descriptor and so its position: each reads at positions of its own.
    data = io.BytesIO(os.pread(payload, os.fstat(payload).st_size, 0))
    preparation: dict[str, Any] = pickle.load(data)  # noqa: S301 - written by our own parent process
    if preparation:
        importing_main = True
        multiprocessing.spawn.prepare(preparation)
        importing_main = False
    target: EnvTarget = pickle.load(data)  # noqa: S301 - as above
    return target
