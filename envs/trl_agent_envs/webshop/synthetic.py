"""The embedded catalogue: products and instructions drawn from a seed, in the original files' record schemas.

Product i depends on (seed, i) only, so a larger catalogue begins with the smaller one and can be streamed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import isqrt
from typing import Any

from .lexicon import BRANDS, DEPARTMENTS, ProductType
from .raw import RawCatalog

DEFAULT_NUM_PRODUCTS = 2000
DEFAULT_SEED = 0

_SYLLABLES = [c + v for c in "BDFGKLMNPRSTVZ" for v in "AEIOU"]
_CENTS = (".99", ".99", ".99", ".49", ".00")
_ALL_TYPES = [(department, kind) for department, kinds in DEPARTMENTS.items() for kind in kinds]

_INSTRUCTIONS = (
    "Find me {first} {query} with {rest}",
    "i am looking for {query} that are {all}",
    "i need {first} {query} with {rest}",
    "i want to buy {query}, {all}",
    "show me {first} {query}, {rest}",
    "looking for {first} {query} that are {rest}",
    "can you find {query} with {all}",
    "please get me {query} which are {all}",
)
_HUMAN_INSTRUCTIONS = (
    "i would like some {options} {query} that are {all}.",
    "i'm shopping for {query} in {options}, {all} please.",
    "my friend wants {all} {query}, {options}.",
    "get {query} for me, {options} and {all}.",
)


@dataclass(frozen=True)
class _Draft:
    """One product before it becomes records."""

    asin: str
    department: str
    kind: ProductType
    brand: str
    attributes: list[str]
    options: dict[str, list[str]]
    prices: list[str]


def generate(num_products: int = DEFAULT_NUM_PRODUCTS, seed: int = DEFAULT_SEED) -> RawCatalog:
    """Return a catalogue of `num_products` products with a synthetic instruction each and some human-style ones.

    Raises:
        ValueError: `num_products` is below 1 or above what the product ids can name (24,010,000).
    """
    raw = RawCatalog(products=[], attributes={}, human={}, source="embedded catalogue")
    for product, attributes, human in iterate(num_products, seed):
        asin = product["asin"]
        raw.products.append(product)
        raw.attributes[asin] = attributes
        if human:
            raw.human[asin] = human
    return raw


def iterate(
    num_products: int, seed: int = DEFAULT_SEED
) -> Iterator[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]]:
    """Yield (product record, attribute record, human instructions) one product at a time, in constant memory."""
    chunks = _chunks()
    if not 1 <= num_products <= most_products():
        raise ValueError(f"num_products must be in [1, {most_products()}], got {num_products}")
    for index in range(num_products):
        rng = random.Random(f"webshop/{seed}/{index}")
        draft = _draw(_asin(index, chunks), rng)
        yield _product_record(draft, rng), _attribute_record(draft, rng), _human_records(draft, rng)


def most_products() -> int:
    """Return how many products the ids can name."""
    return len(_chunks()) ** 2


@cache
def _chunks() -> list[str]:
    """All consonant-vowel-consonant-vowel groups in a fixed mixed order: the alphabet of the product ids."""
    chunks = [a + b for a in _SYLLABLES for b in _SYLLABLES]
    random.Random(1).shuffle(chunks)
    return chunks


def _asin(index: int, chunks: list[str]) -> str:
    """Name product `index`: "B0" and two groups.

    Pairs are numbered in growing squares, so N products use about sqrt(N) groups, whatever N: ids stay pronounceable
    and those of a small catalogue are the first ones of a large one.
    """
    side = isqrt(index)
    offset = index - side * side
    first, second = (side, offset) if offset <= side else (offset - side - 1, side)
    return f"B0{chunks[first]}{chunks[second]}"


def _draw(asin: str, rng: random.Random) -> _Draft:
    department, kind = rng.choice(_ALL_TYPES)
    attributes = rng.sample(kind.attributes, rng.choice((3, 4, 4, 5)))
    names = list(kind.options)
    count = min(len(names), rng.choice((0, 1, 1, 1, 2, 2)))
    options = {
        name: _some(kind.options[name], rng) for name in sorted(rng.sample(names, count), key=names.index)
    }
    low, high = kind.price
    first = rng.randint(low, high)
    prices = [f"${first}{rng.choice(_CENTS)}"]
    kind_of_price = rng.random()
    if kind_of_price < 0.05:
        prices = []
    elif kind_of_price < 0.12:
        prices.append(f"${first + rng.randint(3, 20)}.99")
    return _Draft(asin, department, kind, rng.choice(BRANDS), attributes, options, prices)


def _some(values: tuple[str, ...], rng: random.Random) -> list[str]:
    """Two to four of the values, in the order the lexicon lists them."""
    return sorted(rng.sample(values, rng.randint(2, 4)), key=values.index)


def _title(draft: _Draft, rng: random.Random) -> str:
    """A title names some of the attributes; the rest is found on the features page only."""
    shown = draft.attributes[: rng.choice((2, 3, 3, 4))]
    first, rest = shown[0].title(), [a.title() for a in shown[1:]]
    form = rng.randrange(3)
    if form == 0:
        return f"{draft.brand} {first} {draft.kind.noun} with {', '.join(rest)}"
    if form == 1:
        return f"{draft.brand} {draft.kind.noun}, {', '.join([first, *rest])}"
    return f"{draft.brand} {first}, {', '.join(rest)} {draft.kind.noun}"


def _product_record(draft: _Draft, rng: random.Random) -> dict[str, Any]:
    """The keys of `items_shuffle*.json` that the original's loader reads."""
    features = [f"{a.capitalize()}: made for everyday use." for a in draft.attributes]
    rng.shuffle(features)
    return {
        "asin": draft.asin,
        "name": _title(draft, rng),
        "category": draft.department,
        "query": draft.kind.query,
        "product_category": draft.kind.category,
        "full_description": f"{draft.kind.noun} by {draft.brand}. {', '.join(draft.attributes).capitalize()}.",
        "small_description": features,
        "pricing": " - ".join(draft.prices),
        "customization_options": {
            name.title(): [
                {"is_selected": False, "is_available": True, "value": value, "asin": draft.asin}
                for value in values
            ]
            for name, values in draft.options.items()
        }
        or "",
        "images": [],
        "average_rating": "",
        "page": 1,
    }


def _attribute_record(draft: _Draft, rng: random.Random) -> dict[str, Any]:
    """The record of `items_ins_v2*.json`: what the product has, and a goal that asks for some of it."""
    wanted = _wanted(draft, rng)
    text = rng.choice(_INSTRUCTIONS).format(
        query=draft.kind.query, first=wanted[0], rest=" and ".join(wanted[1:]), all=" and ".join(wanted)
    )
    return {"attributes": list(draft.attributes), "instruction": text, "instruction_attributes": wanted}


def _wanted(draft: _Draft, rng: random.Random) -> list[str]:
    """Two or three attributes; the title shows the first ones, so most goals can be judged from a result list."""
    count = min(len(draft.attributes), rng.choice((2, 2, 3)))
    if rng.random() < 0.7:
        return rng.sample(draft.attributes[:count], count)
    return rng.sample(draft.attributes, count)


def _human_records(draft: _Draft, rng: random.Random) -> list[dict[str, Any]]:
    """Records of `items_human_ins.json` for about a third of the products that have options."""
    if not draft.options or rng.random() > 1 / 3:
        return []
    wanted = _wanted(draft, rng)
    chosen = {name: rng.choice(values) for name, values in draft.options.items()}
    text = rng.choice(_HUMAN_INSTRUCTIONS).format(
        options=", ".join(chosen.values()), query=draft.kind.query, all=" and ".join(wanted)
    )
    return [
        {
            "asin": draft.asin,
            "instruction": text,
            "attributes": list(draft.attributes),
            "options": [f"{name}: {value}" for name, value in chosen.items()],
            "instruction_attributes": wanted,
            "instruction_options": list(chosen.values()),
        }
    ]


@cache
def all_asins(num_products: int = DEFAULT_NUM_PRODUCTS) -> tuple[str, ...]:
    """Return the ids of a catalogue of `num_products` products, in its order."""
    return tuple(_asin(index, _chunks()) for index in range(num_products))
