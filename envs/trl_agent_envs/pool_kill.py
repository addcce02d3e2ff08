"""Ends a worker process together with everything it started."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

TOKEN_VARIABLE = "TRL_AGENT_ENV_WORKER"
"""Environment variable that marks a worker; its children inherit it, also those that leave its group."""

_ROUNDS = 20  # a process may fork while the list is read, so read again until nothing is left


def kill_worker(group: int, token: str) -> None:
    """Kill the process group `group`, and every process marked with `token` (found on Linux only), SIGKILL.

    The caller has not reaped the worker yet, so its id cannot have gone to another process. A browser puts
    itself in a session of its own and a daemon changes parent: neither the group nor the tree of parents
    finds those.
    """
    with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
        os.killpg(group, signal.SIGKILL)
    kill_marked(token)


def kill_marked(token: str) -> None:
    """Kill every process marked with `token`, this one excepted."""
    for _ in range(_ROUNDS):
        pids = marked_processes(token)
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def marked_processes(token: str) -> list[int]:
    """Return the ids of the processes marked with `token`, this one excepted (none where /proc is missing)."""
    mark = f"{TOKEN_VARIABLE}={token}".encode()
    try:
        names = os.listdir("/proc")
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:  # it ended meanwhile, or is another user's
            continue
    return found
