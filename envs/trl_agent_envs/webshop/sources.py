"""Where a catalogue comes from: the original's files, records in memory, or the generator; one product at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .json_stream import OnRead, read_array, read_object
from .product import CatalogError, HumanInstruction, Product, Record, read_human, read_product
from .raw import RawCatalog

PRODUCTS, ATTRIBUTES, HUMAN = "items_shuffle", "items_ins_v2", "items_human_ins"
"""How the names of the original's files begin."""

SYNTHETIC = "synthetic:"
"""A source of this form, with the number of products behind it, is the generator's catalogue."""

MAX_ASIN = 10

Rows = Iterable[tuple[Any, Any, Any]]
"""A product's record, its attribute record or None, its human instructions or None."""


@dataclass(frozen=True)
class Source:
    """Records that have not been checked yet.

    name: how messages name the data. files: how they name products, attributes, human instructions.
    size: what `rows` counts up to in its argument's calls (bytes of the products file, or products).
    """

    name: str
    files: tuple[str, str, str]
    size: int
    rows: Callable[[OnRead | None], Rows]

    def products(
        self, on_read: OnRead | None = None
    ) -> Iterator[tuple[Product, tuple[HumanInstruction, ...] | None]]:
        """Yield each usable product, checked, and its human instructions (None: the source has none for it).

        The original's rule: junk ids are dropped, and the first of several equal ids counts.

        Raises:
            CatalogError: a malformed record (file, record and key are named), or no usable product at all.
        """
        products_file, attributes_file, human_file = self.files
        seen: set[str] = set()
        for index, (record, attributes, human) in enumerate(self.rows(on_read)):
            reader = Record(record, products_file, index)
            asin = reader.text("asin")
            if asin == "nan" or len(asin) > MAX_ASIN or asin in seen:
                continue
            seen.add(asin)
            product = read_product(reader, asin, attributes, attributes_file)
            yield product, None if human is None else read_human(asin, human, human_file)
        if not seen:
            raise CatalogError(f"{products_file}: holds no usable product")


def open_source(source: str | Path | RawCatalog) -> Source:
    """Return what `source` names: records in memory, "synthetic:N", a folder, or a products file in one.

    Raises:
        CatalogError: a file is missing or is there twice, or N is not a number the generator accepts.
    """
    if isinstance(source, RawCatalog):
        return _of_records(source)
    if isinstance(source, str) and source.startswith(SYNTHETIC):
        return _of_generator(source.removeprefix(SYNTHETIC))
    return _of_files(Path(source))


def _of_records(raw: RawCatalog) -> Source:
    def rows(on_read: OnRead | None) -> Rows:
        return _joined(raw.products, raw.attributes.get, raw.human.get)

    return Source(raw.source, (raw.source, raw.source, raw.source), len(raw.products), rows)


def _of_generator(number: str) -> Source:
    from .synthetic import iterate, most_products

    count = int(number) if number.isdecimal() else 0
    if not 1 <= count <= most_products():
        raise CatalogError(
            f"{SYNTHETIC}N needs a number of products N from 1 to {most_products()}, got {number!r}"
        )

    def rows(on_read: OnRead | None) -> Rows:
        for done, (product, attributes, human) in enumerate(iterate(count), 1):
            yield product, attributes, human or None
            if on_read is not None and done % 1000 == 0:
                on_read(done)

    name = f"synthetic catalogue of {count} products"
    return Source(name, (name, name, name), count, rows)


def _of_files(path: Path) -> Source:
    """Find the three files. The human instructions may be absent."""
    folder, products_file = (path.parent, path) if path.is_file() else (path, _find(path, PRODUCTS))
    suffix = products_file.stem.removeprefix(PRODUCTS)
    attributes_file = folder / f"{ATTRIBUTES}{suffix}.json"
    if not attributes_file.is_file():
        attributes_file = _find(folder, ATTRIBUTES)
    human_file = folder / f"{HUMAN}.json"

    def rows(on_read: OnRead | None) -> Rows:
        attributes, human = _Packed(attributes_file), _Packed(human_file)
        return _joined(read_array(products_file, on_read), attributes.get, human.get)

    files = (str(products_file), str(attributes_file), str(human_file))
    return Source(str(folder), files, products_file.stat().st_size, rows)


def _joined(records: Iterable[Any], attributes: Callable[[str], Any], human: Callable[[str], Any]) -> Rows:
    for record in records:
        asin = record.get("asin") if isinstance(record, dict) else None
        yield (record, attributes(asin), human(asin)) if isinstance(asin, str) else (record, None, None)


class _Packed:
    """A file of records by key. They are kept as text: a million of them as objects would take gigabytes."""

    def __init__(self, file: Path) -> None:
        pairs = read_object(file) if file.is_file() else iter(())
        self._texts = {key: json.dumps(record) for key, record in pairs}

    def get(self, key: str) -> Any:
        text = self._texts.get(key)
        return None if text is None else json.loads(text)


def _find(folder: Path, stem: str) -> Path:
    if not folder.is_dir():
        raise CatalogError(f"data_dir {str(folder)!r} does not exist; it must hold {stem}*.json")
    found = sorted(folder.glob(f"{stem}*.json"))
    if not found:
        raise CatalogError(
            f"{folder}: no {stem}*.json; data_dir must be a folder in the original WebShop's format, or one "
            "that `trl-agent webshop index` has built"
        )
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise CatalogError(
            f"{folder}: several {stem}*.json ({names}); pass the products file itself as data_dir"
        )
    return found[0]
