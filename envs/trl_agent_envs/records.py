"""Step records: episodes as JSON lines, one step a line, with errors that name file, line and field."""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self, cast

from trl_agent_envs.core import SUCCESS_SCORE

_KNOWN = ("prompt", "response", "reward", "done", "episode", "goal_id", "score")


class RecordError(ValueError):
    """A step record, or a file of them, is malformed: "file:line:field: what, expected ..."."""


@dataclass(frozen=True)
class StepRecord:
    """One step of one episode.

    prompt: the observation answered. response: the action. reward: what the environment returned for it.
    done: whether the episode ends here (terminated or truncated). episode, goal_id: which ones, if known.
    score: the environment's own number so far, in [0, 1], if known. extra: every other key of the row; a
    first step keeps the rules of the environment in ``extra["system_prompt"]``.
    """

    prompt: str
    response: str
    reward: float
    done: bool
    episode: int | str | None = None
    goal_id: int | str | None = None
    score: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class EpisodeRecord(list[StepRecord]):
    """The steps of one episode, in order."""

    @property
    def score(self) -> float | None:
        """The last score that a step gives, or None."""
        return next((step.score for step in reversed(self) if step.score is not None), None)

    @property
    def goal_id(self) -> int | str | None:
        """The goal that the steps name, or None."""
        return next((step.goal_id for step in self if step.goal_id is not None), None)

    @property
    def success(self) -> bool:
        """Whether the score is 1 (within 1e-9)."""
        score = self.score
        return score is not None and score >= SUCCESS_SCORE


def read_step_records(path: str | os.PathLike[str]) -> Iterator[StepRecord]:
    """Yield the steps of a file of JSON lines (``.gz``: compressed), one at a time. Empty lines are skipped.

    Raises:
        RecordError: a row is not a JSON object, lacks a key or has one of a wrong type; the file cannot be
        read.
    """
    for _, step in _numbered_steps(path):
        yield step


def read_episodes(path: str | os.PathLike[str]) -> Iterator[EpisodeRecord]:
    """Yield the episodes of a file: rows up to ``done: true``. Holds one episode in memory.

    Raises:
        RecordError: as `read_step_records`; also a file that ends within an episode, and rows of one episode
            that name different episodes or goals.
    """
    steps = EpisodeRecord()
    first = last = 0
    for last, step in _numbered_steps(path):
        if not steps:
            first = last
        else:
            _check_same(path, first, last, "episode", steps[0].episode, step.episode)
            _check_same(path, first, last, "goal_id", steps[0].goal_id, step.goal_id)
        steps.append(step)
        if step.done:
            yield steps
            steps = EpisodeRecord()
    if steps:
        raise _error(
            path, last, "done", f"the file ends within the episode that began at line {first}", "true"
        )


class StepRecordWriter:
    """Appends whole episodes to a file of step records; each is on disk when `write_episode` returns.

    Use as a context manager. A file that exists is added to, after a check that it ends with a whole episode;
    `append=False` starts it anew. A name that ends in ``.gz`` compresses. Folders are created.

    Raises:
        RecordError: the file to add to ends in the middle of a row or an episode.
        OSError: the file cannot be written. What an interrupted write left is cut off, if the file is not
        compressed.
    """

    def __init__(self, path: str | os.PathLike[str], *, append: bool = True) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        compressed = self.path.suffix == ".gz"
        if append and not compressed:
            _check_tail(self.path)
        mode: Literal["ab", "wb"] = "ab" if append else "wb"
        if compressed:
            self._file = cast(BinaryIO, gzip.open(self.path, mode))  # noqa: SIM115 - closed by `close`
        else:
            self._file = cast(BinaryIO, self.path.open(mode, buffering=0))
        self._plain = not compressed

    def write_episode(self, steps: Iterable[StepRecord]) -> None:
        """Append one episode.

        Raises:
            RecordError: no step; `done` is not True at the last step and there alone; a field of a wrong
                type; an extra value that JSON cannot hold. Nothing is written then.
        """
        steps = list(steps)
        if not steps:
            raise RecordError(f"{self.path}: an episode without a step, expected at least one")
        data = b"".join(
            self._encode(index, step, index == len(steps) - 1) for index, step in enumerate(steps)
        )
        start = self._file.seek(0, os.SEEK_END) if self._plain else 0
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
            self._file.flush()
        except BaseException:  # a full disk, Ctrl-C: leave no half episode behind
            if self._plain:
                os.ftruncate(self._file.fileno(), start)
            raise

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _encode(self, index: int, step: StepRecord, last: bool) -> bytes:
        where = f"step {index} of the episode to write"
        clash = [key for key in step.extra if key in _KNOWN or not isinstance(key, str)]
        if clash:
            raise _error(self.path, where, "extra", f"key {clash[0]!r}", f"strings other than {_KNOWN}")
        row = {key: getattr(step, key) for key in _KNOWN}
        row = {key: value for key, value in row.items() if value is not None or key in _KNOWN[:4]}
        _parse(self.path, where, row)
        if step.done is not last:
            raise _error(
                self.path, where, "done", str(step.done), f"{last}: the last step, and no other, is done"
            )
        try:
            text = json.dumps(row | step.extra, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as exc:
            raise _error(self.path, where, "extra", str(exc), "values that JSON can hold") from exc
        try:
            return text.encode() + b"\n"
        except UnicodeEncodeError:  # lone surrogates have no UTF-8; JSON's escapes keep them
            return json.dumps(row | step.extra, allow_nan=False).encode() + b"\n"


def _numbered_steps(path: str | os.PathLike[str]) -> Iterator[tuple[int, StepRecord]]:
    number = 0
    try:
        with gzip.open(path, "rb") if os.fspath(path).endswith(".gz") else open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _parse(path, number, _load(path, number, line))
    except (OSError, EOFError, zlib.error) as exc:
        raise _error(
            path, number + 1, "(row)", f"cannot be read ({exc})", "a readable file of step records"
        ) from exc


def _load(path: str | os.PathLike[str], number: int, line: bytes) -> Mapping[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as exc:
        raise _error(path, number, "(row)", f"not UTF-8 at byte {exc.start}", "UTF-8 text") from exc
    except (ValueError, RecursionError) as exc:
        raise _error(path, number, "(row)", f"not JSON ({exc})", "one JSON object a line") from exc
    if not isinstance(row, dict):
        raise _error(path, number, "(row)", _show(row), "a JSON object")
    return row


def _parse(path: str | os.PathLike[str], number: int | str, row: Mapping[str, Any]) -> StepRecord:
    """Check one row. Raises `RecordError` for the first field that is wrong."""

    def wrong(name: str, expected: str) -> RecordError:
        return _error(path, number, name, _show(row[name]) if name in row else "missing", expected)

    for name in ("prompt", "response"):
        if not isinstance(row.get(name), str):
            raise wrong(name, "a string")
    reward = _finite(row.get("reward"))
    if reward is None:
        raise wrong("reward", "a finite number")
    if not isinstance(row.get("done"), bool):
        raise wrong("done", "true or false")
    for name in ("episode", "goal_id"):
        value = row.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, str))):
            raise wrong(name, "an integer, a string or null")
    score = _finite(row.get("score"))
    if row.get("score") is not None and (score is None or not 0.0 <= score <= 1.0):
        raise wrong("score", "a number in [0, 1] or null")
    extra = {key: value for key, value in row.items() if key not in _KNOWN}
    return StepRecord(
        row["prompt"],
        row["response"],
        reward,
        row["done"],
        row.get("episode"),
        row.get("goal_id"),
        score,
        extra,
    )


def _finite(value: Any) -> float | None:
    """Return a finite number as a float, None for everything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _check_same(
    path: str | os.PathLike[str], first: int, number: int, name: str, begun: Any, value: Any
) -> None:
    if begun is not None and value is not None and begun != value:
        what = f"{_show(value)} in the episode that began at line {first}"
        raise _error(path, number, name, what, f"{begun!r}, or done: true in the row before")


def _check_tail(path: Path) -> None:
    """Raise `RecordError` unless the file is absent, empty, or ends with a row that has ``done: true``."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        last, number = b"", 0
        for count, line in enumerate(file, start=1):
            if line.strip():
                last, number = line, count
    if last and not (last.endswith(b"\n") and _parse(path, number, _load(path, number, last)).done):
        what = "the file ends within an episode (a writer was interrupted)"
        raise _error(
            path, number, "done", what, "true; cut the file after the last row that has it, or append=False"
        )


def _show(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def _error(path: str | os.PathLike[str], line: int | str, name: str, what: str, expected: str) -> RecordError:
    return RecordError(f"{os.fspath(path)}:{line}:{name}: {what}, expected {expected}")
