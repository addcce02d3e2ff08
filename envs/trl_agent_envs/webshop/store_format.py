"""What a built catalogue looks like on the disk: its files, its version, and the checks before it is opened."""

from __future__ import annotations

import json
import mmap
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .goal_table import GoalTable
from .product import CatalogError
from .sorted_texts import SortedTexts

VERSION = 1
"""Changes with every change of the files or of what they hold; a store of another version is refused."""

MANIFEST = "webshop_store.json"

TEXTS = ("asins", "terms", "labels")
"""Sorted texts: NAME.bin and NAME_offsets.npy."""

_REBUILD = "build it again: trl-agent webshop index DATA --out {folder} --overwrite"


class StoreError(CatalogError):
    """A built catalogue cannot be used; the message says why and what to do."""


def is_store(path: Path) -> bool:
    """Return whether `path` is a folder that a build has finished."""
    return (path / MANIFEST).is_file()


def write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    """Write version, facts, and the size of every file in the folder."""
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    content = {"version": VERSION, **facts, "files": sizes}
    (folder / MANIFEST).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the facts of a store after checking that its version fits and its files are whole.

    Raises:
        StoreError: another version, or a file that is missing or has another size.
    """
    todo = _REBUILD.format(folder=folder)
    try:
        facts = json.loads((folder / MANIFEST).read_bytes())
        version, files = facts["version"], dict(facts["files"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{folder / MANIFEST}: cannot be read ({error!r}); {todo}") from error
    if version != VERSION:
        raise StoreError(
            f"{folder}: was built in format {version!r}, this version of the package reads {VERSION}; {todo}"
        )
    for name, size in files.items():
        file = folder / Path(name).name
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            state = "is missing" if found is None else f"has {found} bytes instead of {size}"
            raise StoreError(f"{file}: {state}; {todo}")
    return dict(facts)


def read_array(folder: Path, name: str) -> NDArray[Any]:
    """Return an array of the store, mapped from the disk: processes share its pages."""
    file = folder / f"{name}.npy"
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False).view(np.ndarray)  # type: ignore[no-any-return]
    except (OSError, ValueError, EOFError) as error:
        raise StoreError(f"{file}: cannot be read ({error}); {_REBUILD.format(folder=folder)}") from error


def read_block(folder: Path, name: str) -> bytes:
    """Return a block of bytes of the store, mapped from the disk."""
    file = folder / f"{name}.bin"
    try:
        with file.open("rb") as stream:
            if not file.stat().st_size:
                return b""
            # read by slices only, which a map answers with bytes
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)  # type: ignore[return-value]
    except OSError as error:
        raise StoreError(f"{file}: cannot be read ({error}); {_REBUILD.format(folder=folder)}") from error


def read_texts(folder: Path, name: str) -> SortedTexts:
    """Return sorted texts of the store."""
    return SortedTexts(read_block(folder, name), read_array(folder, f"{name}_offsets"))


def read_table(folder: Path, goal_set: str) -> GoalTable:
    """Return the goals of a set."""
    return GoalTable(*(read_array(folder, f"goals_{goal_set}_{field.name}") for field in fields(GoalTable)))


def label_key(label: str, value: str) -> str:
    """Return what the store lists the products of this query, category or attribute under."""
    return f"{label[0]}{value}"
