"""Writes visits that ended to a file of step records, one server a file, never half an episode."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import BinaryIO

from trl_agent_envs.records import RecordError, StepRecordWriter

from ..pages import ObservationMode
from ..replay import replay
from .visits import Visit

FILE_NAME = "demonstrations.jsonl"


class RecorderError(ValueError):
    """The folder cannot be recorded into; the message says why and what to do."""


class Recorder:
    """Adds each visit that has ended to ``demonstrations.jsonl`` of a folder, as one episode.

    An episode is written at once and flushed; if a killed server left the beginning of one at the end of the
    file, it is cut off (`cut` counts the bytes). Use from one thread at a time.

    Args:
        folder: is created if it is not there.
        observation_mode: what the records' prompts show, "text" or "text_rich".

    Raises:
        RecorderError: the folder cannot be written to, another server records into it, or its file holds
            something else.
    """

    def __init__(self, folder: str | Path, observation_mode: ObservationMode = "text") -> None:
        self.path = Path(folder) / FILE_NAME
        self.observation_mode: ObservationMode = observation_mode
        self._lock: BinaryIO | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(self.path.with_suffix(".lock"))
            self.cut = _cut_unfinished(self.path)
            self._writer = StepRecordWriter(self.path)
        except BlockingIOError:
            self._unlock()
            raise RecorderError(f"another server records into {folder}; choose another folder") from None
        except OSError as error:
            self._unlock()
            raise RecorderError(f"cannot record into {folder}: {error.strerror or error}") from error
        except RecordError as error:
            self._unlock()
            raise RecorderError(f"cannot add to what is recorded already: {error}") from error

    def write(self, visit: Visit) -> None:
        """Append a visit that has ended.

        Raises:
            ReplayError: what was done cannot be done again.
            OSError: the file cannot be written; no part of the episode is left in it.
        """
        goal = visit.session.goal
        self._writer.write_episode(
            replay(
                visit.session.shop,
                goal,
                visit.actions,
                observation_mode=self.observation_mode,
                episode=f"site-{uuid.uuid4().hex}",
                goal_id=goal.goal_id,
                truncation_cause=None if visit.bought else "turn_limit",
            )
        )

    def close(self) -> None:
        """Close the file, so that another server can record into it. May be called twice."""
        self._writer.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()


def _lock(path: Path) -> BinaryIO:
    """Return an open file that is locked until it is closed or the process ends. BlockingIOError: it is taken."""
    file = path.open("ab")
    if sys.platform != "win32":  # there, two servers on one folder are the user's to avoid
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
    return file


def _cut_unfinished(path: Path) -> int:
    """Cut off the beginning of an episode that a killed server left at the end; return the bytes cut.

    Raises:
        RecordError: a whole line at the end is not a step record, so the file is not one of ours.
    """
    if not path.exists():
        return 0
    position = kept = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            position += len(line)
            if not line.endswith(b"\n"):
                break
            row = _json(line) if line.strip() else {"done": False}
            if not isinstance(row, dict) or not isinstance(row.get("done"), bool):
                raise RecordError(f"{path}:{number}:(row): is not a step record, expected one")
            if row["done"]:
                kept = position
    if position > kept:
        with path.open("r+b") as file:
            file.truncate(kept)
    return position - kept


def _json(line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None
