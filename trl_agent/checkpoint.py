"""Checkpoint folders that are complete or not there at all.

A checkpoint is written into a hidden folder beside its place, flushed to the disk and renamed, so whatever
ends the process, a folder called ``checkpoint-<update>`` can be loaded. Nothing in it is read with pickle.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

METRICS_FILE = "metrics.jsonl"
FINAL = "final"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_WRITING = ".writing-"
_REPLACED = ".replaced-"


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read; the message says which, why and what to do."""


def write_atomically(target: Path, write: Callable[[Path], None]) -> None:
    """Make the folder `target` with what `write(folder)` puts into it, or leave everything as it was.

    An existing `target` is replaced.

    Raises:
        CheckpointError: the disk is full or the folder cannot be written. What was there before is untouched.
    """
    aside = target.parent / f"{_WRITING}{target.name}"
    replaced = target.parent / f"{_REPLACED}{target.name}"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        write(aside)
        _sync_tree(aside)
        if target.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            os.rename(target, replaced)
        os.rename(aside, target)
        _sync(target.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise CheckpointError(_why_not_written(target, error)) from error


def write_json_atomically(path: Path, content: Any) -> None:
    """Write one JSON file so that a reader sees the old or the new content, never a part."""
    aside = path.with_name(f"{_WRITING}{path.name}")
    aside.write_text(json.dumps(content, indent=2), encoding="utf-8")
    _sync(aside)
    os.replace(aside, path)


def checkpoints(output_dir: Path) -> list[Path]:
    """Return the complete checkpoints in `output_dir`, oldest first."""
    if not output_dir.is_dir():
        return []
    found = [
        (int(match[1]), path) for path in output_dir.iterdir() if (match := _CHECKPOINT.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found)]


def claim_output_dir(
    output_dir: str | Path, *, resume: bool | str | Path = False, overwrite: bool = False
) -> Path | None:
    """Decide what happens to a folder that a run wants to write into.

    Args:
        output_dir: the run's folder; need not exist.
        resume: True (or "true", as a command line has it) continues from the newest checkpoint in it, a
            path from that checkpoint.
        overwrite: remove what an earlier run left in it (checkpoints, final/, metrics.jsonl; nothing else).

    Returns:
        The checkpoint to continue from, or None to start.

    Raises:
        CheckpointError: it holds an earlier run and neither was said; nothing to resume from; both were said.
    """
    folder = Path(output_dir)
    if str(resume).lower() in ("true", "false", ""):
        resume = str(resume).lower() == "true"
    _clear_leftovers(folder)
    saved = checkpoints(folder)
    if resume and overwrite:
        raise CheckpointError(
            "resume_from_checkpoint and overwrite_output_dir exclude each other; choose one"
        )
    if resume:
        if resume is not True:
            return _existing(Path(resume))
        if not saved:
            raise CheckpointError(
                f"{folder} holds no checkpoint-<update> to resume from; start without resuming"
            )
        return saved[-1]
    left = [*saved, *(folder / name for name in (METRICS_FILE, FINAL) if (folder / name).exists())]
    if left and not overwrite:
        kind = "a finished run" if (folder / FINAL).exists() else "an unfinished run"
        raise CheckpointError(
            f"{folder} holds {kind} ({', '.join(path.name for path in left[-4:])}): set "
            "resume_from_checkpoint=True to continue it, overwrite_output_dir=True to remove it, or choose "
            "another output_dir"
        )
    for path in left:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return None


def remove_old(output_dir: Path, keep: int | None) -> None:
    """Remove the oldest checkpoints but `keep`; None keeps all."""
    if keep is not None:
        for path in checkpoints(output_dir)[: -max(keep, 1)]:
            shutil.rmtree(path)


def rng_state() -> dict[str, Any]:
    """Return the state of every global random generator as tensors, numbers and text."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    state: dict[str, Any] = {
        "python": (version, list(words), gauss),
        "numpy": (
            str(name),
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            position,
            has_gauss,
            cached,
        ),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what `rng_state` returned."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def load_tensors(path: Path, device: torch.device | str = "cpu") -> Any:
    """Read a file written by `torch.save`; refuse everything but tensors, numbers, text and containers.

    Raises:
        CheckpointError: the file is missing, damaged or holds other objects.
    """
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, UnpicklingError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); resume from another checkpoint") from error


def truncate_metrics(path: Path, last_step: int) -> None:
    """Drop the lines of `metrics.jsonl` past `last_step`: a resumed run writes them again.

    A half line at the end, of a run that was killed, goes too.
    """
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line).get("step", 0) <= last_step:
                kept.append(line)
        except json.JSONDecodeError:
            break
    aside = path.with_name(f"{_WRITING}{path.name}")
    aside.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    os.replace(aside, path)


def _existing(path: Path) -> Path:
    if not path.is_dir():
        raise CheckpointError(f"resume_from_checkpoint: there is no folder {path}")
    return path


def _clear_leftovers(folder: Path) -> None:
    """Finish or undo what a killed run had begun."""
    for path in folder.glob(f"{_REPLACED}*"):
        target = folder / path.name.removeprefix(_REPLACED)
        if target.exists():
            shutil.rmtree(path)
        else:
            os.rename(path, target)
    for path in folder.glob(f"{_WRITING}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _sync_tree(folder: Path) -> None:
    for directory, _, names in os.walk(folder):
        for name in names:
            _sync(Path(directory, name))
        _sync(Path(directory))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _why_not_written(target: Path, error: BaseException) -> str:
    text = f"{target.name} could not be written in {target.parent}: {error}."
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "space left" in str(
        error
    )
    free = shutil.disk_usage(_nearest_existing(target.parent)).free
    if full or free < 2**20:
        text += f" The disk is full ({free / 2**20:.0f} MiB free): make room."
    older = [path.name for path in checkpoints(target.parent)]
    if older:
        return f"{text} {older[-1]} is complete: continue from it with resume_from_checkpoint=True."
    return f"{text} No earlier checkpoint exists."


def _nearest_existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
