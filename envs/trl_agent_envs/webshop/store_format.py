"""What a built catalogue looks like on the disk: its files, its version, and the checks before it is opened."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .goal_table import GoalTable
from .product import CatalogError
from .sorted_texts import SortedTexts, packed

VERSION = 1
"""Changes with every change of the files or of what they hold; a store of another version is refused."""

MANIFEST = "webshop_store.json"

DATA = "data.bin"
"""Everything else, in sections that the manifest names."""

_ALIGNED = 64

_REBUILD = "build it again: trl-agent webshop index DATA --out {folder} --overwrite"


class StoreError(CatalogError):
    """A built catalogue cannot be used; the message says why and what to do."""


def is_store(path: Path) -> bool:
    """Return whether `path` is a folder that a build has finished."""
    return (path / MANIFEST).is_file()


class StoreWriter:
    """Writes a store: all sections into one file, one after the other, then the manifest.

    One file, because each file that is mapped costs a process a file descriptor for as long as it is open.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sections: dict[str, dict[str, Any]] = {}
        self._file = (folder / DATA).open("w+b")

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *failure: object) -> None:
        self._file.close()

    def add(self, name: str, values: NDArray[Any]) -> None:
        """Append an array."""
        self._begin(name, values.dtype, len(values))
        self._file.write(np.ascontiguousarray(values).data.cast("B") if len(values) else b"")

    def add_texts(self, name: str, texts: list[str]) -> None:
        """Append texts that are in order."""
        block, offsets = packed(texts)
        self.add(name, np.frombuffer(block, np.uint8))
        self.add(f"{name}_offsets", offsets)

    def add_lines(self, name: str) -> Callable[[bytes], int]:
        """Begin a section of bytes; what is returned appends to it and returns how much. `end_lines` ends it."""
        self._begin(name, np.dtype(np.uint8), 0)
        return self._file.write

    def end_lines(self, name: str) -> None:
        """End the section that `add_lines` has begun."""
        self._sections[name]["length"] = self._file.tell() - self._sections[name]["offset"]

    def reserve(self, name: str, dtype: Any, length: int) -> NDArray[Any]:
        """Append an array to be filled in place, mapped from the file."""
        kind = np.dtype(dtype)
        start = self._begin(name, kind, length)
        end = start + kind.itemsize * length
        if hasattr(os, "posix_fallocate") and length:
            # take the room now: a full disk is then an error, and not the end of the process
            os.posix_fallocate(self._file.fileno(), start, end - start)
        self._file.truncate(end)
        self._file.seek(end)
        self._file.flush()
        if not length:
            return np.empty(0, kind)
        return np.memmap(self._file, kind, "r+", start, (length,))

    def _begin(self, name: str, dtype: np.dtype[Any], length: int) -> int:
        self._file.write(b"\0" * (-self._file.tell() % _ALIGNED))
        start = self._file.tell()
        self._sections[name] = {"type": dtype.str, "offset": start, "length": length}
        return start

    def finish(self, facts: dict[str, Any]) -> None:
        """Write the manifest: version, facts, where the sections are, and the size of the data file."""
        self._file.flush()
        files = {DATA: (self._folder / DATA).stat().st_size}
        content = {"version": VERSION, **facts, "files": files, "sections": self._sections}
        (self._folder / MANIFEST).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


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


class StoreReader:
    """The sections of a store, mapped from the disk: processes share their pages.

    facts: what the manifest says.

    Raises:
        StoreError: another version, or a file that is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.facts = read_manifest(folder)
        self._folder = folder
        try:
            with (folder / DATA).open("rb") as stream:
                self._data = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise self._damaged(DATA, error) from error

    def array(self, name: str) -> NDArray[Any]:
        """Return an array."""
        try:
            section = self.facts["sections"][name]
            dtype = np.dtype(section["type"])
            return np.frombuffer(self._data, dtype, int(section["length"]), int(section["offset"]))
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(MANIFEST, error) from error

    def block(self, name: str) -> memoryview:
        """Return a section of bytes."""
        return self.array(name).data

    def texts(self, name: str) -> SortedTexts:
        """Return texts that are in order."""
        return SortedTexts(self.block(name), self.array(f"{name}_offsets"))

    def table(self, goal_set: str) -> GoalTable:
        """Return the goals of a set."""
        return GoalTable(*(self.array(f"goals_{goal_set}_{field.name}") for field in fields(GoalTable)))

    def _damaged(self, name: str, error: Exception) -> StoreError:
        todo = _REBUILD.format(folder=self._folder)
        return StoreError(f"{self._folder / name}: is damaged ({error!r}); {todo}")


def label_key(label: str, value: str) -> str:
    """Return what the store lists the products of this query, category or attribute under."""
    return f"{label[0]}{value}"
