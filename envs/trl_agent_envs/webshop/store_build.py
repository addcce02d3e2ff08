"""Builds a catalogue on the disk with its search index, goals and splits, from a source of any size."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np

from .goal_table import TableBuilder
from .goals import GOAL_SETS, draw_limits, draw_price
from .new_folder import new_folder
from .postings import PostingsBuilder
from .product import HumanInstruction, Product
from .product_splits import SplitDrafts
from .product_text import product_text
from .raw import RawCatalog
from .sorted_texts import encode, offsets_of
from .sources import Source, open_source
from .store_format import StoreError, StoreWriter, is_store, label_key

Progress = Callable[[str, int, int], None]
"""Called with what is done at the moment, how far it is, and how far it has to go."""


def build_store(
    source: str | Path | RawCatalog,
    out: str | Path,
    *,
    price_seed: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Build the store of a source (see `sources.open_source`) at `out`, as a whole or not at all.

    Memory: about 1 kB a product, and 8 bytes for each search term of each.

    Args:
        price_seed: draws the prices of products with a price range, and the goals' price limits.
        overwrite: replace the store at `out`.

    Raises:
        CatalogError: the source is malformed (file, record and key are named).
        StoreError: `out` exists (without `overwrite`), or is something else than a store.
    """
    out = Path(out)
    opened = open_source(source)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        if not is_store(out):
            raise StoreError(f"{out}: exists and is not a built catalogue; name another folder")
        if not overwrite:
            raise StoreError(f"{out}: exists already; pass --overwrite (overwrite=True) or another folder")
    try:
        with new_folder(out, replace=overwrite) as folder, StoreWriter(folder) as writer:
            _Build(writer, price_seed).run(opened, progress or _no_progress)
    except FileExistsError as error:
        raise StoreError(f"{error}: another process has built it meanwhile") from error
    return out


def fill_store(folder: Path, source: str | Path | RawCatalog, price_seed: int = 0) -> None:
    """Build the store of a source in an empty folder. Killed in the middle, it leaves no manifest."""
    with StoreWriter(folder) as writer:
        _Build(writer, price_seed).run(open_source(source), _no_progress)


def _no_progress(phase: str, done: int, total: int) -> None:
    pass


class _Build:
    """One build. All products pass once; what is kept of them is small."""

    def __init__(self, writer: StoreWriter, price_seed: int) -> None:
        self._writer, self._price_seed = writer, price_seed
        self._rng = random.Random(price_seed)
        self._asins: list[str] = []
        self._prices = array("d")
        self._sizes = array("q")
        self._with_human = array("i")
        self._postings = PostingsBuilder()
        self._splits = SplitDrafts()
        self._tables = {goal_set: TableBuilder(goal_set) for goal_set in GOAL_SETS}
        self._labels: dict[str, int] = {}
        self._label_ids, self._label_sizes = array("i"), array("i")

    def run(self, source: Source, progress: Progress) -> None:
        write = self._writer.add_lines("products")
        products = source.products(lambda done: progress("products", done, source.size))
        for position, (product, wishes) in enumerate(products):
            self._sizes.append(write(encode(product_text(product, wishes or ()))))
            self._add(position, product, wishes or ())
        self._writer.end_lines("products")
        progress("products", source.size, source.size)
        steps = (self._write_products, self._write_index, self._write_labels, self._write_goals)
        for number, step in enumerate(steps):
            progress("index", number, len(steps))
            step()
        facts = {
            "source": source.name,
            "num_products": len(self._asins),
            "price_seed": self._price_seed,
            "mean_length": self._postings.mean_length,
            "goal_sets": self._found_sets,
        }
        self._writer.finish(facts)
        progress("index", len(steps), len(steps))

    def _add(self, position: int, product: Product, wishes: tuple[HumanInstruction, ...]) -> None:
        self._asins.append(product.asin)
        self._prices.append(draw_price(product, self._rng))
        self._postings.add(product.search_text)
        self._splits.add(product.asin, product.title)
        if wishes:
            self._with_human.append(position)
        for table in self._tables.values():
            table.add(position, product, wishes)
        ids = self._labels
        own = [
            ids.setdefault(label, len(ids))
            for label in (
                label_key("query", product.query),
                label_key("category", product.category),
                *(label_key("attribute", name) for name in dict.fromkeys(product.attributes)),
            )
        ]
        self._label_ids.extend(own)
        self._label_sizes.append(len(own))

    def _write_products(self) -> None:
        self._writer.add("products_offsets", offsets_of(np.asarray(self._sizes)))
        self._writer.add("prices", np.asarray(self._prices))
        self._writer.add("splits", self._splits.codes())
        self._writer.add("human", np.asarray(self._with_human))
        self._order = np.asarray(sorted(range(len(self._asins)), key=self._asins.__getitem__))
        self._writer.add_texts("asins", [self._asins[place] for place in self._order.tolist()])
        self._writer.add("order", self._order.astype(np.int32))

    def _write_index(self) -> None:
        terms, postings = self._postings.build(
            self._order, lambda name, dtype, length: self._writer.reserve(f"postings_{name}", dtype, length)
        )
        self._writer.add("postings_offsets", postings.offsets)
        self._writer.add_texts("terms", terms)

    def _write_labels(self) -> None:
        labels = sorted(self._labels)
        rank = np.empty(len(labels), np.int32)
        rank[[self._labels[label] for label in labels]] = np.arange(len(labels), dtype=np.int32)
        ids = rank[np.asarray(self._label_ids)]
        owners = np.repeat(np.arange(len(self._asins), dtype=np.int32), np.asarray(self._label_sizes))
        self._writer.add("labels_positions", owners[np.argsort(ids, kind="stable")])
        self._writer.add("labels_starts", offsets_of(np.bincount(ids, minlength=len(labels))))
        self._writer.add_texts("labels", labels)

    def _write_goals(self) -> None:
        after_prices = self._rng.getstate()
        self._found_sets: list[str] = []
        for goal_set, builder in self._tables.items():
            self._rng.setstate(after_prices)
            limits = draw_limits([self._prices[position] for position in builder.positions], self._rng)
            table = builder.finish(limits)
            if table is not None:
                self._found_sets.append(goal_set)
                for field in fields(table):
                    self._writer.add(f"goals_{goal_set}_{field.name}", getattr(table, field.name))
