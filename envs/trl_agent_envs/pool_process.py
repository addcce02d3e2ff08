"""The process back end: a process for each environment; one that hangs is killed with all it started."""

from __future__ import annotations

import json
import logging
import multiprocessing.spawn
import os
import pickle
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from time import monotonic
from typing import Any, cast

from trl_agent_envs import pool_kill, pool_worker
from trl_agent_envs.pool_kill import TOKEN_VARIABLE, kill_group, kill_marked
from trl_agent_envs.pool_outcome import Outcome
from trl_agent_envs.pool_protocol import EnvEvent, EnvPoolError, EventKind, failed_event, overran
from trl_agent_envs.pool_target import EnvTarget

logger = logging.getLogger(__name__)

_HEARTBEAT = 1.0  # seconds between looks for a dead worker whose end of the pipe a child still holds open
_CLOSE_TIMEOUT = 5.0  # seconds that all environments together get to close themselves
_REAP_TIMEOUT = 10.0  # seconds until a killed process must be gone

_BOOT = (
    "import json, sys; arguments = json.loads(sys.argv[1]); sys.path[:] = arguments.pop('path'); "
    "from trl_agent_envs.pool_worker import main; main(**arguments)"
)


@dataclass(slots=True)
class _Worker:
    """A running process; `kind`, `started`, `timeout` and `limit` describe its last request."""

    slot: int
    process: subprocess.Popen[bytes]
    pipe: Connection
    token: str
    kind: EventKind = "reset"
    started: float = 0.0
    timeout: float = 0.0
    limit: str = ""


class ProcessBackend:
    """One worker process a slot, started at the slot's first reset, each in a session of its own.

    Workers are started as multiprocessing's spawn does it, but without its resource tracker and without
    importing the main script. POSIX only.
    """

    def __init__(self, target: EnvTarget, num_envs: int) -> None:
        if os.name != "posix":
            raise EnvPoolError("EnvPool: backend='process' needs a POSIX system; use backend='inline'")
        if pool_worker.importing_main:
            raise EnvPoolError(
                "EnvPool: the main script starts a pool whenever it is imported, and its workers import it. "
                'Put what it does under `if __name__ == "__main__":`, or move the environment into a module.'
            )
        self._name = target.name
        self._payload = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._payload.write(_pickle_target(target))
        self._payload.flush()
        # A pool within a worker of another: the outer one's mark comes first, so that it finds them too.
        self._token = os.environ.get(TOKEN_VARIABLE, "") + "/" + secrets.token_hex(16)
        self._keeper = _Keeper(self._token)
        self._workers: list[_Worker | None] = [None] * num_envs
        self._pending: dict[Connection, _Worker] = {}
        self._events: list[EnvEvent] = []
        self._closed = False

    def reset(self, slot: int, seed: int | None, options: dict[str, Any] | None, timeout: float) -> None:
        started = monotonic()
        worker = self._workers[slot] or self._start(slot)
        self._submit(worker, "reset", ("reset", seed, options), started, timeout, "reset_timeout")

    def step(self, slot: int, action: str, timeout: float, limit: str) -> None:
        self._submit(self._worker(slot), "step", ("step", action), monotonic(), timeout, limit)

    def poll(self, timeout: float | None) -> list[EnvEvent]:
        end = None if timeout is None else monotonic() + timeout
        while not self._events and self._pending:
            now = monotonic()
            until = min(worker.started + worker.timeout for worker in self._pending.values())
            left = min(until - now, _HEARTBEAT, _HEARTBEAT if end is None else end - now)
            ready = wait(self._pending, max(0.0, left))
            for pipe in ready:
                self._receive(self._pending.pop(cast(Connection, pipe)))
            self._expire(look_for_dead=not ready)
            if end is not None and monotonic() >= end:
                break
        events, self._events = self._events, []
        return events

    def call(self, slot: int, method: str, args: tuple[Any, ...], timeout: float) -> Any:
        worker = self._worker(slot)
        try:
            worker.pipe.send(("call", method, args))
            if not worker.pipe.poll(timeout):
                raise EnvPoolError(f"no answer within {timeout:.3g} s; its process was killed")
            status, value, _ = worker.pipe.recv()
        except (EOFError, OSError) as exc:
            raise EnvPoolError(self._end(worker)) from exc
        if status != "ok":
            raise EnvPoolError(value)
        return value

    def discard(self, slot: int) -> None:
        worker, self._workers[slot] = self._workers[slot], None
        if worker is not None:
            self._pending.pop(worker.pipe, None)
            self._end(worker)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        workers = [worker for worker in self._workers if worker is not None]
        busy, self._pending = self._pending, {}
        try:
            _ask_to_close([worker for worker in workers if worker.pipe not in busy])
        finally:  # Ctrl-C while waiting
            for worker in workers:
                kill_group(worker.process.pid)
            kill_marked(self._token)
            for worker in workers:
                self._reap(worker)
            self._workers = [None] * len(self._workers)
            self._keeper.close()
            self._payload.close()

    def _worker(self, slot: int) -> _Worker:
        worker = self._workers[slot]
        if worker is None:
            raise EnvPoolError(f"slot {slot} has no environment yet")
        return worker

    def _start(self, slot: int) -> _Worker:
        ours, theirs = Pipe()
        token = f"{self._token}-{secrets.token_hex(8)}"
        descriptors = (theirs.fileno(), self._payload.fileno())
        arguments = {"path": sys.path, "connection": descriptors[0], "payload": descriptors[1]}
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(arguments)],
                env={**os.environ, TOKEN_VARIABLE: token},
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,  # a group to kill, and no Ctrl-C from the terminal
            )
        self._keeper.add(process.pid)
        worker = self._workers[slot] = _Worker(slot, process, ours, token)
        return worker

    def _submit(
        self,
        worker: _Worker,
        kind: EventKind,
        message: tuple[Any, ...],
        started: float,
        timeout: float,
        limit: str,
    ) -> None:
        worker.kind, worker.started, worker.timeout, worker.limit = kind, started, timeout, limit
        try:
            worker.pipe.send(message)
        except OSError:  # it died since its last answer
            self._fail(worker, "env_error", None)
        except (pickle.PicklingError, TypeError, AttributeError) as exc:
            raise EnvPoolError(f"EnvPool: the {kind} of slot {worker.slot} cannot be pickled: {exc}") from exc
        else:
            self._pending[worker.pipe] = worker

    def _receive(self, worker: _Worker) -> None:
        try:
            status, value, seconds = worker.pipe.recv()
        except (EOFError, OSError):
            self._fail(worker, "env_error", None)
        except Exception as exc:  # noqa: BLE001 - unpickling runs the constructors of the environment's own classes
            error = (
                f"its answer does not unpickle here, keep plain values in info: {type(exc).__name__}: {exc}"
            )
            self._fail(worker, "env_error", error)
        else:
            if status == "ok":
                outcome: Outcome = value
                self._events.append(EnvEvent(worker.slot, worker.kind, *outcome, None, seconds))
            else:
                self._fail(worker, "env_error", value)

    def _expire(self, *, look_for_dead: bool) -> None:
        now = monotonic()
        for pipe, worker in list(self._pending.items()):
            seconds = now - worker.started
            if seconds >= worker.timeout:
                del self._pending[pipe]
                error = overran(worker.kind, seconds, worker.timeout, worker.limit)
                self._fail(worker, "env_timeout", f"{error}; its process was killed")
            elif look_for_dead and _is_dead(worker) and not pipe.poll():
                del self._pending[pipe]
                self._fail(worker, "env_error", None)

    def _fail(self, worker: _Worker, cause: Any, error: str | None) -> None:
        """End the worker and queue the failure; `error` None says that it died by itself."""
        ended = self._end(worker)
        self._workers[worker.slot] = None
        seconds = monotonic() - worker.started
        self._events.append(
            failed_event(worker.slot, worker.kind, cause, ended if error is None else error, seconds)
        )

    def _end(self, worker: _Worker) -> str:
        """Kill the worker with all it started, and say how its process ended."""
        kill_group(worker.process.pid)
        kill_marked(worker.token)
        return self._reap(worker)

    def _reap(self, worker: _Worker) -> str:
        process = worker.process
        worker.pipe.close()
        try:
            code = process.wait(_REAP_TIMEOUT)
        except subprocess.TimeoutExpired:  # in the kernel, on a dead disk or the like
            logger.error("process %d of slot %d does not end after SIGKILL", process.pid, worker.slot)
            return "the environment's process hangs in the kernel"
        self._keeper.remove(process.pid)
        if code >= 0:
            return f"the environment's process ended by itself with exit status {code}"
        # SIGKILL is this pool's own, or that of a system short of memory; another one was there first.
        return f"the environment's process died of {signal.Signals(-code).name}"


class _Keeper:
    """A small process that outlives this one, however that ends, to kill the workers it leaves behind."""

    def __init__(self, token: str) -> None:
        theirs, self._lifeline = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", pool_kill.__file__, str(theirs), str(os.getpid()), token],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs,),
            start_new_session=True,
        )
        os.close(theirs)

    def add(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        self._tell(f"-{group}\n")

    def close(self) -> None:
        os.close(self._lifeline)
        try:
            self._process.wait(_REAP_TIMEOUT)
        except subprocess.TimeoutExpired:
            logger.error("the process that guards the pool's workers did not end and is killed")
            self._process.kill()
            self._process.wait()

    def _tell(self, line: str) -> None:
        try:
            os.write(self._lifeline, line.encode())
        except BrokenPipeError:  # somebody killed it; workers still end by themselves between two steps
            logger.warning("the process that guards the pool's workers is gone")


def _pickle_target(target: EnvTarget) -> bytes:
    try:
        data = pickle.dumps(target)
    except (pickle.PicklingError, TypeError, AttributeError) as exc:
        raise EnvPoolError(
            f"EnvPool: {target.name} or its arguments cannot be pickled for backend='process' ({exc}). Use "
            "a class or function at the top of a module, not a lambda or a local one, or backend='inline'."
        ) from exc
    preparation: dict[str, Any] = {}
    if b"__main__" in data:
        preparation = multiprocessing.spawn.get_preparation_data("trl_agent_envs worker")
        preparation = {key: value for key, value in preparation.items() if key in _PREPARATION}
    return pickle.dumps(preparation) + data


_PREPARATION = ("name", "sys_argv", "init_main_from_name", "init_main_from_path")


def _is_dead(worker: _Worker) -> bool:
    """Whether the process ended; it stays unreaped, so that nothing else gets its id before `_end`."""
    if not hasattr(os, "waitid"):
        return False  # the pipe's end says it, if later
    return os.waitid(os.P_PID, worker.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _ask_to_close(workers: list[_Worker]) -> None:
    waiting = set()
    for worker in workers:
        with suppress(OSError):
            worker.pipe.send(("close",))
            waiting.add(worker.pipe)
    end = monotonic() + _CLOSE_TIMEOUT
    while waiting and monotonic() < end:
        waiting.difference_update(wait(waiting, end - monotonic()))
    if waiting:
        logger.warning(
            "%d environments did not close within %.0f s and were killed", len(waiting), _CLOSE_TIMEOUT
        )
