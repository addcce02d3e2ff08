"""Catalogues built once and opened from the user's cache folder afterwards, so that processes share them.

The folder is ``$TRL_AGENT_CACHE``, else ``$XDG_CACHE_HOME/trl_agent``, else ``~/.cache/trl_agent``; an empty
TRL_AGENT_CACHE turns the cache off. Without a folder that can be written, catalogues are read as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
from pathlib import Path

from .new_folder import new_folder
from .raw import RawCatalog
from .store import Store
from .store_format import VERSION, StoreError

VARIABLE = "TRL_AGENT_CACHE"

MAX_SOURCE_BYTES = 512_000_000
"""A products file above this is not built on the side; `trl-agent webshop index` builds it on request."""

_KEPT_OF_A_SOURCE = 4  # so that two checkouts of the package do not replace each other's
_KEPT = 24

_MODULES = (
    "catalog goals goal_table json_stream lexicon postings product product_splits product_text raw "
    "sorted_texts sources store_build store_format synthetic tokens"
)
"""The modules that decide what a built catalogue holds. Their text is part of an entry's name."""

_log = logging.getLogger(__name__)


def cache_folder() -> Path | None:
    """Return where built catalogues are kept, None where the cache is turned off."""
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return Path(chosen) / "webshop" if chosen else None
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "trl_agent" / "webshop"
    except RuntimeError:  # there is no home
        return None


def cached_store(name: str, state: object, source: str | Path | RawCatalog | None) -> Store | None:
    """Return the store of a source, built now unless an earlier process has; None where that cannot be.

    Args:
        name: what stays the same when the source changes (its path).
        state: what changes with it (sizes and times of its files).
        source: what to build from; None is the embedded catalogue.

    Raises:
        CatalogError: the source is malformed.
    """
    folder = cache_folder()
    if folder is None:
        return None
    of_source = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    try:
        entry = folder / f"{of_source}-{_fingerprint(state)}"
        # once is enough, unless another process replaces a damaged entry at the same moment
        return _opened(entry, source) or _opened(entry, source)
    except (OSError, StoreError) as error:
        _log.warning(
            "%s is read without the cache %s: %s. Set %s to a folder that can be written, or to nothing.",
            name or "The embedded catalogue", folder, error, VARIABLE,
        )  # fmt: skip
        return None


def _opened(entry: Path, source: str | Path | RawCatalog | None) -> Store | None:
    """Open the entry, built first if need be; None if it has been replaced since."""
    damaged = False
    if entry.exists():
        try:
            return _used(entry)
        except StoreError:
            damaged = True
    _build(entry, source, replace=damaged)
    _remove_old(entry)
    try:
        return _used(entry)
    except StoreError:
        return None


def _used(entry: Path) -> Store:
    opened = Store(entry)
    with contextlib.suppress(OSError):
        os.utime(entry)  # the entries that were used last are kept
    return opened


def _build(entry: Path, source: str | Path | RawCatalog | None, *, replace: bool) -> None:
    from .store_build import fill_store  # seldom needed, so seldom imported

    if source is None:
        from .synthetic import generate

        source = generate()
    # if another process has finished the entry meanwhile, that one is as good
    with contextlib.suppress(FileExistsError), new_folder(entry, replace=replace) as folder:
        fill_store(folder, source)


def _fingerprint(state: object) -> str:
    found = hashlib.sha256(f"{VERSION} {state!r}".encode("utf-8", "surrogatepass"))
    for module in _MODULES.split():
        found.update((Path(__file__).parent / f"{module}.py").read_bytes())
    return found.hexdigest()[:16]


def _remove_old(newest: Path) -> None:
    folder, of_source = newest.parent, newest.name.partition("-")[0]

    def used(entry: Path) -> float:
        try:
            return entry.stat().st_mtime
        except OSError:
            return 0.0

    entries = sorted((e for e in folder.iterdir() if not e.name.startswith(".")), key=used, reverse=True)
    same = [entry for entry in entries if entry.name.startswith(f"{of_source}-")]
    for entry in {*same[_KEPT_OF_A_SOURCE:], *entries[_KEPT:]}:
        shutil.rmtree(entry, ignore_errors=True)
