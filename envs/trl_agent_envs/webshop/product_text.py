"""A product and its human instructions as one line of JSON, as a store keeps them."""

from __future__ import annotations

import json
from dataclasses import fields

from .product import HumanInstruction, Product


def product_text(product: Product, wishes: tuple[HumanInstruction, ...]) -> str:
    """Return the line; every value comes back equal from `read_product_text`."""
    values = [getattr(product, field.name) for field in fields(product)]
    human = [[wish.text, wish.attributes, wish.options] for wish in wishes]
    return json.dumps([*values, human], ensure_ascii=False, separators=(",", ":"))


def read_product_text(text: str) -> tuple[Product, tuple[HumanInstruction, ...]]:
    """Return what `product_text` has written."""
    asin, title, category, query, path, description, *rest = json.loads(text)
    bullets, pricing, tag, options, attributes, instruction, wanted, image, human = rest
    product = Product(
        asin,
        title,
        category,
        query,
        path,
        description,
        tuple(bullets),
        tuple(pricing),
        tag,
        {name: tuple(values) for name, values in options.items()},
        tuple(attributes),
        instruction,
        tuple(wanted),
        image,
    )
    return product, tuple([HumanInstruction(text, tuple(a), tuple(o)) for text, a, o in human])
