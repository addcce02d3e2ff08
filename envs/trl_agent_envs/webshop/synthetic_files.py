"""The generator's catalogue written in the original's file format, one product at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from .new_folder import new_folder
from .product import CatalogError
from .sources import ATTRIBUTES, HUMAN, PRODUCTS
from .synthetic import DEFAULT_SEED, iterate, most_products

_BETWEEN_CALLS = 1000


def write_files(
    num_products: int,
    out: str | Path,
    *,
    seed: int = DEFAULT_SEED,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Write the three files into the new folder `out`, as a whole or not at all, in constant memory.

    Args:
        progress: called with the number of products written so far, now and then.

    Raises:
        CatalogError: `out` exists already, or the generator cannot make so many products.
    """
    out = Path(out)
    if not 1 <= num_products <= most_products():
        raise CatalogError(f"num_products must be in [1, {most_products()}], got {num_products}")
    try:
        with new_folder(out) as folder, ExitStack() as files:
            products, attributes, human = (
                files.enter_context(_Collection(folder / f"{name}.json", brackets))
                for name, brackets in (
                    (f"{PRODUCTS}_{num_products}", "[]"),
                    (f"{ATTRIBUTES}_{num_products}", "{}"),
                    (HUMAN, "{}"),
                )
            )
            for done, (product, wanted, wishes) in enumerate(iterate(num_products, seed), 1):
                products.add(product)
                attributes.add(wanted, product["asin"])
                if wishes:
                    human.add(wishes, product["asin"])
                if progress is not None and done % _BETWEEN_CALLS == 0:
                    progress(done)
    except FileExistsError as error:
        raise CatalogError(f"{error}; name a new folder") from error
    return out


class _Collection:
    """A JSON array or object, written element by element, one a line."""

    def __init__(self, file: Path, brackets: str) -> None:
        self._file, self._brackets = file, brackets
        self._separator = brackets[0] + "\n"

    def __enter__(self) -> _Collection:
        self._stream: TextIO = self._file.open("w", encoding="utf-8")
        return self

    def add(self, element: Any, key: str | None = None) -> None:
        """Append an array's element, or an object's value with its key."""
        name = "" if key is None else f"{json.dumps(key)}: "
        self._stream.write(f"{self._separator}{name}{json.dumps(element)}")
        self._separator = ",\n"

    def __exit__(self, *failure: object) -> None:
        start = self._brackets[0] if self._separator != ",\n" else ""
        self._stream.write(f"{start}\n{self._brackets[1]}\n")
        self._stream.close()
