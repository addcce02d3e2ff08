"""Product: one product of the shop, and how the original's records are checked and cleaned into it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

PRICELESS = 100.0
"""Price in dollars of a product without one."""

NO_ATTRIBUTES = ("DUMMY_ATTR",)
"""Attributes of a product that the attribute file does not list; the original's placeholder."""


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


class Record:
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


def read_product(reader: Record, asin: str, attribute_record: Any, attribute_file: str) -> Product:
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


def _pricing(reader: Record) -> tuple[tuple[float, ...], str]:
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


def _options(reader: Record) -> dict[str, tuple[str, ...]]:
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
    reader = Record(record, file, asin)
    attributes = reader.texts("attributes") if "attributes" in reader.record else NO_ATTRIBUTES
    if reader.record.get("instruction") is None:
        return attributes, None, ()
    wanted = reader.texts("instruction_attributes")
    if not wanted:
        raise reader.error("instruction_attributes", "an instruction needs at least one attribute")
    return attributes, reader.text("instruction"), wanted


def read_human(asin: str, records: Any, file: str) -> tuple[HumanInstruction, ...]:
    if not isinstance(records, list):
        raise CatalogError(f"{file}: record {asin}: expected a list, got {type(records).__name__}")
    instructions = []
    for index, record in enumerate(records):
        reader = Record(record, file, f"{asin}[{index}]")
        attributes = reader.texts("instruction_attributes")
        if attributes:  # the original skips an instruction that asks for no attribute
            options = reader.texts("instruction_options")
            instructions.append(HumanInstruction(reader.text("instruction"), attributes, options))
    return tuple(instructions)
