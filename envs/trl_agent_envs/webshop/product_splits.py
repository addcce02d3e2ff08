"""Which split each product is in, so that nothing bought in training, or nearly the same, is asked for in a test."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from .catalog import Catalog

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")

NEAR_IDENTICAL = 0.7
"""Titles are near-identical when their words (numbers left out) have at least this Jaccard index."""

MANY_PRODUCTS = 20_000
"""Up to this many products near-identical titles are found, all of them; the work grows with the square."""

_WORD = re.compile(r"[^\W\d_]+")

_of_catalog: WeakKeyDictionary[Catalog, NDArray[np.uint8]] = WeakKeyDictionary()


def product_splits(catalog: Catalog) -> dict[str, Split]:
    """Return the split of every product."""
    codes = split_codes(catalog).tolist()
    return {product.asin: SPLITS[code] for product, code in zip(catalog, codes)}


def split_codes(catalog: Catalog) -> NDArray[np.uint8]:
    """Return the split of every product as an index into `SPLITS`, in the order of the catalogue."""
    if catalog.split_codes is not None:
        return catalog.split_codes
    kept = _of_catalog.get(catalog)
    if kept is None:
        drafts = SplitDrafts()
        for product in catalog:
            drafts.add(product.asin, product.title)
        kept = _of_catalog[catalog] = drafts.codes()
    return kept


class SplitDrafts:
    """Takes the products of a catalogue in their order and finds the split of each."""

    def __init__(self) -> None:
        self._by_title = bytearray()
        self._asins: list[str] = []
        self._titles: list[str] = []

    def add(self, asin: str, title: str) -> None:
        """Take the next product."""
        self._by_title.append(SPLITS.index(title_split(asin, title)))
        if len(self._by_title) <= MANY_PRODUCTS:
            self._asins.append(asin)
            self._titles.append(title)

    def codes(self) -> NDArray[np.uint8]:
        """Return an index into `SPLITS` for each product."""
        if len(self._by_title) > MANY_PRODUCTS:
            return np.frombuffer(bytes(self._by_title), np.uint8)
        leaders = near_identical(self._asins, self._titles)
        groups: dict[str, set[Split]] = defaultdict(set)
        for asin, leader in leaders.items():
            groups[leader].add(hashed_split(asin))
        # Training wins: what is trained on is never tested on, also not when products are added later.
        of_group = {leader: min(found, key=SPLITS.index) for leader, found in groups.items()}
        return np.asarray([SPLITS.index(of_group[leaders[asin]]) for asin in self._asins], np.uint8)


def title_split(asin: str, title: str) -> Split:
    """Return the split that a stable hash of the title's words (numbers left out) falls into.

    Titles of the same words are then in the same split, at any size and without comparing them. Near-identical
    titles are not looked for: many products form chains in which each is like the next, and every chain is for
    training as a whole (of 60,000 generated products, 99 %). A title without words counts by its asin.
    """
    return hashed_split(" ".join(sorted(_words(title))) or asin)


def hashed_split(text: str) -> Split:
    """Return the split that a stable hash of `text` falls into."""
    bucket = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big") % 100
    return "train" if bucket < 80 else "dev" if bucket < 90 else "test"


def _words(title: str) -> frozenset[str]:
    return frozenset(_WORD.findall(title.lower()))


def near_identical(asins: Sequence[str], titles: Sequence[str]) -> dict[str, str]:
    """Return, for each asin, the smallest asin that a chain of near-identical titles connects it to."""
    words = [_words(title) for title in titles]
    postings: dict[str, list[int]] = defaultdict(list)
    for i, own in enumerate(words):
        for word in own:
            postings[word].append(i)
    arrays = {word: np.asarray(where) for word, where in postings.items()}
    sizes = np.asarray([len(own) for own in words])
    parent = list(range(len(asins)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for i, own in enumerate(words):
        if not own:
            continue
        common = np.bincount(np.concatenate([arrays[word] for word in own]), minlength=len(asins))
        alike = np.flatnonzero(common >= NEAR_IDENTICAL * (sizes + len(own) - common))
        for j in alike[alike > i].tolist():
            a, b = root(i), root(j)
            parent[max(a, b, key=asins.__getitem__)] = min(a, b, key=asins.__getitem__)
    return {asin: asins[root(i)] for i, asin in enumerate(asins)}
