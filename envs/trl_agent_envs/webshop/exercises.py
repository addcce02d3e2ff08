"""Reading exercises: pages of products and which of them is meant, to teach a small model to choose and copy ids."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence

from .catalog import Product
from .raw import RawCatalog
from .shop import Shop
from .splits import product_splits
from .synthetic import all_asins, generate

Session = list[tuple[str, str]]
"""(observation, action) pairs of one episode."""


def train_shop() -> RawCatalog:
    """The embedded catalogue without the products of the dev and test splits."""
    raw, shop = generate(), Shop.load()
    split = product_splits(shop.catalog)
    kept = [record for record in raw.products if split[record["asin"]] == "train"]
    return RawCatalog(kept, raw.attributes, raw.human, source="train products")


def group_by_kind(products: Sequence[Product]) -> dict[str, list[Product]]:
    kinds: dict[str, list[Product]] = defaultdict(list)
    for product in products:
        kinds[product.query].append(product)
    return kinds


def reading_exercise(kinds: list[list[Product]], most: int, rng: random.Random) -> Session:
    """A result page of one to `most` products, mostly of one kind, and one of them asked for; see `probe`.

    The wish stands before the page, as in the shop: a model that reads from left to right can only mark on the page
    what it knows to be wanted already.
    """
    size = rng.randint(1, most)
    pool = rng.choice([kind for kind in kinds if len(kind) >= size])
    if rng.random() < 0.2:
        pool = [product for kind in kinds for product in kind]
    products = rng.sample(pool, size)
    listing = " [SEP] ".join(f"{p.asin} [SEP] {p.title} [SEP] {p.price_tag}" for p in products)
    page = f"[SEP] Back to Search [SEP] Page 1 (Total results: 50) [SEP] Next > [SEP] {listing}"
    product = rng.choice(products)
    return [(f"Instruction: [SEP] {probe(product, products, rng)} {page}", f"click[{product.asin}]")]


def probe(product: Product, others: list[Product], rng: random.Random) -> str:
    """What tells `product` from the others on its page: its id, its place, its title, or some of its attributes."""
    draw = rng.random()
    if draw < 0.1:
        return product.asin  # plain copying, the skill that the others are built on
    if product is others[0] and draw < 0.6:
        return f"the first of the {product.query}"
    shown = [a for a in product.attributes if a in product.title.lower()]
    if rng.random() < 0.4 or not shown:
        return product.title
    wanted = rng.sample(shown, rng.randint(1, len(shown)))
    alike = [p for p in others if p is not product and all(a in p.title.lower() for a in wanted)]
    if alike:
        return product.title
    return f"{product.query} with {' and '.join(wanted)}"


def rename_products(session: Session, rng: random.Random) -> Session:
    """Give every product of the session another id, the same one wherever it stands."""
    text = "\x00".join(part for step in session for part in step)
    asins = sorted(set(re.findall(r"\bB0[A-Z]{8}\b", text.upper())))
    names = dict(zip(asins, rng.sample(all_asins(), len(asins))))
    text = re.sub(r"\b[Bb]0[A-Za-z]{8}\b", lambda found: names[found[0].upper()], text)
    parts = text.split("\x00")
    return list(zip(parts[::2], parts[1::2]))
