"""A shop of six products, written by hand, for tests with numbers that can be checked by eye."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trl_agent_envs.webshop import RawCatalog, Shop


def product(asin: str, name: str, **changes: Any) -> dict[str, Any]:
    record: dict[str, Any] = {
        "asin": asin,
        "name": name,
        "full_description": "",
        "small_description": ["Imported "],
        "images": ["https://example.org/a.jpg"],
        "product_category": "Home › Rugs › Area Rugs",
        "category": "garden",
        "query": "area rugs",
        "pricing": "$20.50",
        "customization_options": "",
    }
    return record | changes


def values(*texts: str) -> list[dict[str, Any]]:
    return [{"value": text, "is_selected": False} for text in texts]


def six_products() -> RawCatalog:
    rugs = {
        "Color": values("Navy/Red", " black "),
        "Item Shape": values("rectangular", "round"),
        "Size": None,
    }
    shoe_options = {"Color": values('12" red', "café noir"), "Size": values("7", "8")}
    products = [
        product("B000000001", "Persian Rug", full_description="Soft wool.", customization_options=rugs),
        product("B000000002", "Modern Rug", pricing="", small_description="No slip. "),
        product("B000000003", "Trail Running Shoes", customization_options=shoe_options, category="fashion",
                query="Running Shoes ", product_category="Clothing › Men › Shoes", pricing="$30 - $50.25"),
        product("B000000004", "Street Running Shoes", category="fashion", query="running shoes",
                product_category="Clothing › Women › Shoes", pricing="$985.00"),
        product("B000000005", "Tea & <b>Honey</b>", category="grocery", query="tea",
                product_category="Food › Tea", small_description=["first", "second"]),
        product("B000000006", "Lamp", category="garden", query="lamps", product_category="Home › Lamps"),
    ]  # fmt: skip
    attributes: dict[str, dict[str, Any]] = {
        "B000000001": _wish("Find me rugs with hand woven", "hand woven", "non slip"),
        "B000000002": {"attributes": ["non slip"]},
        "B000000003": _wish("Find me shoes with rubber sole", "rubber sole"),
        "B000000004": _wish("Find me shoes", "rubber soles"),
        "B000000005": _wish("Find me tea", "organic"),
    }
    person = {
        "asin": "B000000003",
        "instruction": "i want noir trail shoes.",
        "attributes": ["rubber sole"],
        "options": ["color: café noir"],
        "instruction_attributes": ["rubber sole"],
        "instruction_options": ["café noir"],
    }
    return RawCatalog(
        products, attributes, {"B000000003": [person, person | {"instruction_attributes": []}]}, "six"
    )


def _wish(text: str, *attributes: str) -> dict[str, Any]:
    return {"attributes": list(attributes), "instruction": text, "instruction_attributes": list(attributes)}


@pytest.fixture(scope="session")
def make_six() -> Callable[[], RawCatalog]:
    return six_products


@pytest.fixture
def raw() -> RawCatalog:
    return six_products()


@pytest.fixture(scope="session")
def strict() -> Shop:
    return Shop.load(six_products())


@pytest.fixture(scope="session")
def original() -> Shop:
    return Shop.load(six_products(), compat="original")
