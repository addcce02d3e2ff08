"""Catalog: the products of a shop, checked, cleaned and ready to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from .product import NO_ATTRIBUTES, PRICELESS, CatalogError, HumanInstruction, Product
from .raw import RawCatalog

__all__ = [
    "NO_ATTRIBUTES",
    "PRICELESS",
    "Catalog",
    "CatalogError",
    "HumanInstruction",
    "Label",
    "Listing",
    "Product",
]

Label = Literal["query", "category", "attribute"]
"""What products can be listed by."""


class Listing(Sequence[Product]):
    """Some of a shop's products by their places; a product is read when it is looked at."""

    def __init__(self, products: Sequence[Product], positions: Sequence[int]) -> None:
        self._products, self._positions = products, positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> Product: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Product, ...]: ...

    def __getitem__(self, index: int | slice) -> Product | tuple[Product, ...]:
        if isinstance(index, slice):
            return tuple([self._products[position] for position in self._positions[index]])
        return self._products[self._positions[index]]


class Catalog:
    """All products of a shop, in the order of the file, read-only once built.

    Args:
        products: in memory, or read from a store when they are looked at.
        human: asin -> what people asked for.
        source: how messages name the data.
        by_asin: asin -> product; made from `products` unless given.
        labelled: (label, value) -> places of the products that have it; None looks through all products.
        split_codes: the split of each product (see `product_splits.split_codes`) where it is known already.
    """

    def __init__(
        self,
        products: Sequence[Product],
        human: Mapping[str, tuple[HumanInstruction, ...]],
        source: str,
        *,
        by_asin: Mapping[str, Product] | None = None,
        labelled: Callable[[Label, str], Sequence[int]] | None = None,
        split_codes: NDArray[np.uint8] | None = None,
    ) -> None:
        self.products = products
        self.human = human
        self.source = source
        self.by_asin = {product.asin: product for product in products} if by_asin is None else by_asin
        self.split_codes = split_codes
        self._labelled = labelled

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

    def labelled(self, label: Label, value: str) -> Listing:
        """Return the products with this query, category (department) or attribute, in their order."""
        if self._labelled is not None:
            return Listing(self.products, self._labelled(label, value))
        return Listing(
            self.products,
            [place for place, product in enumerate(self.products) if value in _labels_of(product, label)],
        )

    @classmethod
    def load(cls, source: str | Path | RawCatalog) -> Catalog:
        """Read a folder (or products file) in the original's format, or records already in memory.

        Raises:
            CatalogError: a file is missing, is not JSON, or holds a record with a missing or wrong-typed
                field.
        """
        from .sources import open_source

        opened = open_source(source)
        products: list[Product] = []
        human: dict[str, tuple[HumanInstruction, ...]] = {}
        for product, wishes in opened.products():
            products.append(product)
            if wishes is not None:
                human[product.asin] = wishes
        return cls(products, human, opened.name)


def _labels_of(product: Product, label: Label) -> tuple[str, ...]:
    if label == "attribute":
        return product.attributes
    return (product.query if label == "query" else product.category,)
