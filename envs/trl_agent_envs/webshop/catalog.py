"""Products: the original's data files (or a `RawCatalog`) checked, cleaned and ready to read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from .raw import RawCatalog

PRICELESS = 100.0
"""Price in dollars of a product without one."""

NO_ATTRIBUTES = ("DUMMY_ATTR",)
"""Attributes of a product that the attribute file does not list; the original's placeholder."""

_PRODUCTS, _ATTRIBUTES, _HUMAN = "items_shuffle", "items_ins_v2", "items_human_ins"


class CatalogError(ValueError):
    """A data file is missing or malformed; the message names file, record and key."""


@dataclass(frozen=True, slots=True)
class HumanInstruction:
    """What a person asked for, and which attributes and option values make it fulfilled."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """One product as the pages, the search and the reward need it.

    pricing: one price, or the two ends of a range, in dollars. price_tag: the same as the pages show it.
    options: option type -> its values, both lower case, in the order of the page.
    instruction: the synthetic instruction (without options and price), or None.
    """

    asin: str
    title: str
    category: str
    query: str
    product_category: str
    description: str
    bullet_points: tuple[str, ...]
    pricing: tuple[float, ...]
    price_tag: str
    options: dict[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    instruction: str | None
    instruction_attributes: tuple[str, ...]
    main_image: str

    @property
    def search_text(self) -> str:
        """The text the search index holds for the product."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        first = self.bullet_points[0] if self.bullet_points else ""
        return " ".join((self.title, self.description, first, options)).lower()


class Catalog:
    """All products of a shop, in the order of the file, read-only once built."""

    def __init__(
        self, products: list[Product], human: dict[str, tuple[HumanInstruction, ...]], source: str
    ) -> None:
        self.products = products
        self.human = human
        self.source = source
        self.by_asin = {product.asin: product for product in products}

    def __len__(self) -> int:
        return len(self.products)

    def __iter__(self) -> Iterator[Product]:
        return iter(self.products)

    def __contains__(self, asin: object) -> bool:
        return asin in self.by_asin

    def __getitem__(self, asin: str) -> Product:
        """Return the product `asin`; KeyError names the catalogue."""
        try:
            return self.by_asin[asin]
        except KeyError:
            raise KeyError(f"{self.source} has no product {asin!r}") from None

    @classmethod
    def load(cls, source: str | Path | RawCatalog) -> Catalog:
        """Read a folder (or products file) in the original's format, or records already in memory.

        Raises:
            CatalogError: a file is missing, is not JSON, or holds a record with a missing or wrong-typed
                field.
        """
        if isinstance(source, RawCatalog):
            raw, names = source, dict.fromkeys((_PRODUCTS, _ATTRIBUTES, _HUMAN), source.source)
        else:
            raw, names = _read_files(Path(source))
        products: list[Product] = []
        seen: set[str] = set()
        for index, record in enumerate(raw.products):
            reader = _Record(record, names[_PRODUCTS], index)
            asin = reader.text("asin")
            # the original's rule: junk ids are dropped, the first of several equal ids counts
            if asin == "nan" or len(asin) > 10 or asin in seen:
                continue
            seen.add(asin)
            products.append(_product(reader, asin, raw.attributes.get(asin), names[_ATTRIBUTES]))
        if not products:
            raise CatalogError(f"{names[_PRODUCTS]}: holds no usable product")
        human = {
            asin: _human(asin, records, names[_HUMAN]) for asin, records in raw.human.items() if asin in seen
        }
        return cls(products, human, raw.source)


class _Record:
    """Typed access to one JSON record, with errors that say where it stands."""

    def __init__(self, record: Any, file: str, where: int | str) -> None:
        self.file, self.where = file, where
        if not isinstance(record, dict):
            raise self.error(None, f"expected an object, got {type(record).__name__}")
        self.record = record

    def error(self, key: str | None, what: str) -> CatalogError:
        name = f"record {self.where}"
        asin = self.record.get("asin") if hasattr(self, "record") else None
        if isinstance(asin, str) and asin != self.where:
            name += f" (asin {asin})"
        return CatalogError(f"{self.file}: {name}: " + (f"key {key!r}: {what}" if key else what))

    def get(self, key: str) -> Any:
        if key not in self.record:
            raise self.error(key, "is missing")
        return self.record[key]

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            raise self.error(key, f"expected a string, got {type(value).__name__}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "expected a list of strings")
        return tuple(value)


def _product(reader: _Record, asin: str, attribute_record: Any, attribute_file: str) -> Product:
    small = reader.get("small_description")
    bullets = (small,) if isinstance(small, str) else reader.texts("small_description")
    pricing, price_tag = _pricing(reader)
    attributes, instruction, wanted = _attributes(asin, attribute_record, attribute_file)
    images = reader.texts("images") if "images" in reader.record else ()
    return Product(
        asin=asin,
        title=reader.text("name"),
        category=reader.text("category"),
        query=reader.text("query").lower().strip(),
        product_category=reader.text("product_category"),
        description=reader.text("full_description"),
        bullet_points=bullets,
        pricing=pricing,
        price_tag=price_tag,
        options=_options(reader),
        attributes=attributes,
        instruction=instruction,
        instruction_attributes=wanted,
        main_image=images[0] if images else "",
    )


def _pricing(reader: _Record) -> tuple[tuple[float, ...], str]:
    text = reader.record.get("pricing")
    if text is None or text == "":
        return (PRICELESS,), f"${PRICELESS}"
    if not isinstance(text, str):
        raise reader.error("pricing", f"expected a string, got {type(text).__name__}")
    try:
        prices = tuple(float(Decimal(re.sub(r"[^\d.]", "", part))) for part in text.split("$")[1:])
    except InvalidOperation:
        prices = ()
    if not prices:
        raise reader.error("pricing", f"expected '', '$a' or '$a - $b', got {text!r}")
    if len(prices) == 1:
        return prices, f"${prices[0]}"
    return prices[:2], f"${prices[0]} to ${prices[1]}"


def _options(reader: _Record) -> dict[str, tuple[str, ...]]:
    raw = reader.get("customization_options")
    if not raw:
        return {}
    if not isinstance(raw, dict):
        raise reader.error("customization_options", f"expected '' or an object, got {type(raw).__name__}")
    options = {}
    for name, contents in raw.items():
        if contents is None:
            continue
        if not isinstance(contents, list):
            raise reader.error(
                f"customization_options.{name}", f"expected a list, got {type(contents).__name__}"
            )
        values = []
        for content in contents:
            value = content.get("value") if isinstance(content, dict) else None
            if not isinstance(value, str):
                raise reader.error(f"customization_options.{name}", "expected objects with a text 'value'")
            values.append(value.strip().replace("/", " | ").lower())
        options[name.lower()] = tuple(values)
    return options


def _attributes(asin: str, record: Any, file: str) -> tuple[tuple[str, ...], str | None, tuple[str, ...]]:
    """Return what the product has, its synthetic instruction, and what the instruction asks for."""
    if record is None:
        return NO_ATTRIBUTES, None, ()
    reader = _Record(record, file, asin)
    attributes = reader.texts("attributes") if "attributes" in reader.record else NO_ATTRIBUTES
    if reader.record.get("instruction") is None:
        return attributes, None, ()
    wanted = reader.texts("instruction_attributes")
    if not wanted:
        raise reader.error("instruction_attributes", "an instruction needs at least one attribute")
    return attributes, reader.text("instruction"), wanted


def _human(asin: str, records: Any, file: str) -> tuple[HumanInstruction, ...]:
    if not isinstance(records, list):
        raise CatalogError(f"{file}: record {asin}: expected a list, got {type(records).__name__}")
    instructions = []
    for index, record in enumerate(records):
        reader = _Record(record, file, f"{asin}[{index}]")
        attributes = reader.texts("instruction_attributes")
        if attributes:  # the original skips an instruction that asks for no attribute
            options = reader.texts("instruction_options")
            instructions.append(HumanInstruction(reader.text("instruction"), attributes, options))
    return tuple(instructions)


def _read_files(path: Path) -> tuple[RawCatalog, dict[str, str]]:
    """Find and read the three files. The human instructions may be absent."""
    folder, products_file = (path.parent, path) if path.is_file() else (path, _find(path, _PRODUCTS))
    suffix = products_file.stem.removeprefix(_PRODUCTS)
    attributes_file = folder / f"{_ATTRIBUTES}{suffix}.json"
    if not attributes_file.is_file():
        attributes_file = _find(folder, _ATTRIBUTES)
    human_file = folder / f"{_HUMAN}.json"
    products = _read_json(products_file, list)
    attributes = _read_json(attributes_file, dict)
    human = _read_json(human_file, dict) if human_file.is_file() else {}
    names = {_PRODUCTS: str(products_file), _ATTRIBUTES: str(attributes_file), _HUMAN: str(human_file)}
    return RawCatalog(products, attributes, human, str(folder)), names


def _find(folder: Path, stem: str) -> Path:
    if not folder.is_dir():
        raise CatalogError(f"data_dir {str(folder)!r} does not exist; it must hold {stem}*.json")
    found = sorted(folder.glob(f"{stem}*.json"))
    if not found:
        raise CatalogError(
            f"{folder}: no {stem}*.json; data_dir must be a folder in the original WebShop's format"
        )
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise CatalogError(
            f"{folder}: several {stem}*.json ({names}); pass the products file itself as data_dir"
        )
    return found[0]


def _read_json(file: Path, kind: type) -> Any:
    try:
        content = json.loads(file.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CatalogError(f"{file}: is not JSON: {error}") from error
    if not isinstance(content, kind):
        expected = "an array" if kind is list else "an object"
        raise CatalogError(f"{file}: expected {expected} at the top, got {type(content).__name__}")
    return content
