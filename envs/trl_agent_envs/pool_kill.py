"""Ends worker processes with everything they started; run as a script, does so once the pool's own process is
gone.

Imports the standard library only, so that the script starts in milliseconds.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress

TOKEN_VARIABLE = "TRL_AGENT_ENV_WORKER"
"""Environment variable that marks a worker; its children inherit it, also those that leave its group."""

_ROUNDS = 20  # a process may fork while the list is read, so read again until nothing is left
_LAST_BREATH = 2.0  # seconds to wait for a killed process to be gone; it loses its mark a moment before
_PARENT_CHECK = 2.0  # seconds between looks at the parent's id, in case a fork of it holds the lifeline open


def kill_group(group: int) -> None:
    """Kill a worker's process group. Its leader is not reaped yet, so nothing else can have got its id."""
    with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
        os.killpg(group, signal.SIGKILL)


def kill_marked(token: str) -> None:
    """Kill every process whose mark begins with `token`, this one excepted, and wait for their end (Linux only).

    A browser puts itself in a session of its own and a daemon changes parent: neither the process group nor
    the tree of parents finds those.
    """
    for _ in range(_ROUNDS):
        pids = marked_processes(token)
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                _kill_and_wait(pid)


def _kill_and_wait(pid: int) -> None:
    """Kill a process that need not be a child of this one; return when it is gone."""
    handle = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        select.select([handle], [], [], _LAST_BREATH)
    finally:
        os.close(handle)


def marked_processes(token: str) -> list[int]:
    """Return the ids of the processes whose mark begins with `token`, this one excepted. Needs /proc."""
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
                variables = file.read().split(b"\0")
        except OSError:  # it ended meanwhile, or is another user's
            continue
        if any(variable.startswith(mark) for variable in variables):
            found.append(int(name))
    return found


def keep(lifeline: int, parent: int, token: str) -> None:
    """Wait until process `parent` is gone, however it went, then kill what is left of its workers.

    `lifeline` is the reading end of a pipe whose other end the parent alone holds. It says there which
    process groups its workers have: ``+GROUP`` and ``-GROUP``, a line each.
    """
    groups: set[int] = set()
    data = b""
    while os.getppid() == parent:
        if not select.select([lifeline], [], [], _PARENT_CHECK)[0]:
            continue
        read = os.read(lifeline, 4096)
        if not read:
            break
        *lines, data = (data + read).split(b"\n")
        for line in lines:
            (groups.add if line.startswith(b"+") else groups.discard)(int(line[1:]))
    for group in groups:
        kill_group(group)
    kill_marked(token)


if __name__ == "__main__":
    keep(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
