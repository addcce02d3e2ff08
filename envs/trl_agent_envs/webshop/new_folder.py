"""A folder that appears as a whole or not at all: it is filled beside its place and renamed at the end."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on this system: what a killed process left is then ignored, not removed
    fcntl = None  # type: ignore[assignment]

_MARK = ".building-"


@contextlib.contextmanager
def new_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Give a folder to fill; it is renamed to `target` when the block ends without an exception.

    What killed processes left beside `target` is removed first.

    Args:
        replace: remove what stands at `target` at the end; else `target` must not exist, or be an empty folder.

    Raises:
        FileExistsError: something is at `target`, also if another process has put it there meanwhile.
    """
    if not replace:
        _refuse_existing(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    folder, lock = _locked_folder(target)
    try:
        yield folder
        if replace and target.exists():
            old = target.parent / f".{target.name}{_MARK}old-{secrets.token_hex(4)}"
            target.rename(old)
            folder.rename(target)
            shutil.rmtree(old)
        else:
            try:
                folder.rename(target)  # in one step, and only where nothing or an empty folder is
            except OSError as error:
                _refuse_existing(target)
                raise error
    finally:
        if lock is not None:
            os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(target: Path) -> None:
    """Remove the unfinished folders of processes that no longer run."""
    if fcntl is None:
        return
    for folder in target.parent.glob(f".{target.name}{_MARK}*"):
        with contextlib.suppress(OSError):  # locked: its process is at work; or gone: another has removed it
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(descriptor)


def _locked_folder(target: Path) -> tuple[Path, int | None]:
    """Make a folder and hold a lock on it, which ends with the process however it ends."""
    while True:
        folder = target.parent / f".{target.name}{_MARK}{os.getpid()}-{secrets.token_hex(4)}"
        folder.mkdir()
        if fcntl is None:
            return folder, None
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # a cleaner was quicker
            continue
        with contextlib.suppress(OSError):  # a file system without locks: nobody else gets one either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if folder.exists():  # else a cleaner was quicker than the lock
            return folder, descriptor
        os.close(descriptor)


def _refuse_existing(target: Path) -> None:
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise FileExistsError(f"{target} exists already")
