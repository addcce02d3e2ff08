"""Store: a built catalogue opened for reading; everything large is mapped from the disk, nothing is unpickled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import cast, overload

import numpy as np
from numpy.typing import NDArray

from .catalog import Catalog, Label
from .goals import GOAL_SETS
from .postings import Postings
from .product import HumanInstruction, Product
from .product_text import read_product_text
from .search import SearchIndex
from .sorted_texts import SortedTexts
from .store_format import StoreError, StoreReader, label_key

_CACHED_PRODUCTS = 4096

_Row = tuple[Product, tuple[HumanInstruction, ...]]
"""A product and what people asked for when they were to buy it."""


class Store:
    """A built catalogue with its index, prices, goals and splits.

    price_seed: what the prices and the goals' limits were drawn with. tables: the goals of each set there is.

    Raises:
        StoreError: another format version, or damaged files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        sections = StoreReader(folder)
        facts = sections.facts
        try:
            self.price_seed = int(facts["price_seed"])
            goal_sets = [goal_set for goal_set in GOAL_SETS if goal_set in facts["goal_sets"]]
            mean_length, source = float(facts["mean_length"]), str(facts["source"])
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{folder}: its manifest is damaged ({error!r}); build it again") from error
        order = sections.array("order")
        products = _StoredProducts(sections.block("products"), sections.array("products_offsets"))
        by_asin = _ByAsin(sections.texts("asins"), order, products)
        self.catalog = Catalog(
            products,
            _StoredHuman(products, by_asin, sections.array("human")),
            source,
            by_asin=by_asin,
            labelled=_labels(sections),
            split_codes=sections.array("splits"),
        )
        postings = Postings(
            len(order), *(sections.array(f"postings_{name}") for name in ("offsets", "docs", "scores"))
        )
        self.index = SearchIndex.opened(sections.texts("terms"), postings, order, mean_length)
        self.prices: Mapping[str, float] = _StoredPrices(by_asin, sections.array("prices"))
        self.tables = {goal_set: sections.table(goal_set) for goal_set in goal_sets}


class _StoredProducts(Sequence[Product]):
    """Products by place. The last ones looked at are kept."""

    def __init__(self, block: memoryview, offsets: NDArray[np.int64]) -> None:
        self._block, self._offsets = block, offsets
        self.row = lru_cache(maxsize=_CACHED_PRODUCTS)(self._row)

    def _row(self, place: int) -> _Row:
        start, end = self._offsets[place : place + 2].tolist()
        return read_product_text(str(self._block[start:end], "utf-8", "surrogatepass"))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Product: ...

    @overload
    def __getitem__(self, index: slice) -> list[Product]: ...

    def __getitem__(self, index: int | slice) -> Product | list[Product]:
        if isinstance(index, slice):
            return [self.row(place)[0] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"no product at place {index}; there are {len(self)}")
        return self.row(place)[0]

    def __iter__(self) -> Iterator[Product]:
        # what passes once is not kept
        return (self._row(place)[0] for place in range(len(self)))


class _ByAsin(Mapping[str, Product]):
    """Products by id; `place` gives the place alone."""

    def __init__(self, asins: SortedTexts, order: NDArray[np.int32], products: _StoredProducts) -> None:
        self._asins, self._order, self._products = asins, order, products
        self.place = lru_cache(maxsize=_CACHED_PRODUCTS)(self._place)

    def _place(self, asin: str) -> int | None:
        number = self._asins.find(asin)
        return None if number is None else int(self._order[number])

    def __getitem__(self, asin: str) -> Product:
        place = self.place(asin) if isinstance(asin, str) else None
        if place is None:
            raise KeyError(asin)
        return self._products[place]

    def __iter__(self) -> Iterator[str]:
        return (product.asin for product in self._products)

    def __len__(self) -> int:
        return len(self._order)


class _StoredHuman(Mapping[str, tuple[HumanInstruction, ...]]):
    def __init__(self, products: _StoredProducts, by_asin: _ByAsin, places: NDArray[np.int32]) -> None:
        self._products, self._by_asin, self._places = products, by_asin, places

    def __getitem__(self, asin: str) -> tuple[HumanInstruction, ...]:
        place = self._by_asin.place(asin)
        wishes = () if place is None else self._products.row(place)[1]
        if not wishes:
            raise KeyError(asin)
        return wishes

    def __iter__(self) -> Iterator[str]:
        return (self._products[place].asin for place in self._places.tolist())

    def __len__(self) -> int:
        return len(self._places)


class _StoredPrices(Mapping[str, float]):
    def __init__(self, by_asin: _ByAsin, prices: NDArray[np.float64]) -> None:
        self._by_asin, self._prices = by_asin, prices

    def __getitem__(self, asin: str) -> float:
        place = self._by_asin.place(asin)
        if place is None:
            raise KeyError(asin)
        return float(self._prices[place])

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_asin)

    def __len__(self) -> int:
        return len(self._prices)


def _labels(sections: StoreReader) -> Callable[[Label, str], Sequence[int]]:
    labels = sections.texts("labels")
    starts, positions = (sections.array(f"labels_{name}") for name in ("starts", "positions"))

    def labelled(label: Label, value: str) -> Sequence[int]:
        number = labels.find(label_key(label, value))
        if number is None:
            return ()
        start, end = starts[number : number + 2].tolist()
        return cast("Sequence[int]", positions[start:end])

    return labelled
