"""Train, dev and test goals, split by product so that nothing bought in training is asked for in a test."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np

from .catalog import Catalog
from .shop import Shop

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")

NEAR_IDENTICAL = 0.7
"""Titles are near-identical when their words (numbers left out) have at least this Jaccard index."""

ORIGINAL_RANGES = {"original:test": (0, 500), "original:eval": (500, 1500), "original:train": (1500, None)}
"""The original's splits: ranges of goal ids. They are not disjoint by product."""

_WORD = re.compile(r"[^\W\d_]+")


def splits(goal_set: str = "synthetic", shop: Shop | None = None) -> dict[str, list[int]]:
    """Return the goal ids of "train" (80 % of products or more), "dev" and "test" (10 % or less).

    The split of a product follows from its asin alone; where titles are near-identical, from the asins of all
    their products (train if any of them is). It does not change with seeds or versions.

    Args:
        goal_set: "synthetic" or "human".
        shop: the shop, None for the embedded one.
    """
    shop = Shop.load() if shop is None else shop
    of_product = product_splits(shop.catalog)
    ids: dict[str, list[int]] = {split: [] for split in SPLITS}
    for goal in shop.goals(goal_set):
        ids[of_product[goal.asin]].append(goal.goal_id)
    return ids


def split_ids(goal_set: str, split: str, shop: Shop) -> list[int]:
    """Return the goal ids of one split: of `SPLITS`, "all", or of `ORIGINAL_RANGES`.

    Raises:
        ValueError: an unknown split, or one without goals.
    """
    if split == "all":
        return list(range(len(shop.goals(goal_set))))
    if split in ORIGINAL_RANGES:
        start, stop = ORIGINAL_RANGES[split]
        ids = list(range(len(shop.goals(goal_set))))[start:stop]
    elif split in SPLITS:
        ids = splits(goal_set, shop)[split]
    else:
        raise ValueError(
            f"split must be one of {', '.join((*SPLITS, 'all', *ORIGINAL_RANGES))}; got {split!r}"
        )
    if not ids:
        raise ValueError(f"split {split!r} of the {goal_set} goals of {shop.catalog.source} is empty")
    return ids


_of_catalog: WeakKeyDictionary[Catalog, dict[str, Split]] = WeakKeyDictionary()


def product_splits(catalog: Catalog) -> dict[str, Split]:
    """Return the split of every product."""
    kept = _of_catalog.get(catalog)
    if kept is None:
        leaders = near_identical([p.asin for p in catalog], [p.title for p in catalog])
        groups: dict[str, set[Split]] = defaultdict(set)
        for asin, leader in leaders.items():
            groups[leader].add(hashed_split(asin))
        # Training wins: what is trained on is never tested on, also not when products are added later.
        of_group = {leader: min(found, key=SPLITS.index) for leader, found in groups.items()}
        kept = _of_catalog[catalog] = {asin: of_group[leader] for asin, leader in leaders.items()}
    return kept


def hashed_split(asin: str) -> Split:
    """Return the split that a stable hash of `asin` falls into."""
    bucket = int.from_bytes(hashlib.sha256(asin.encode()).digest()[:8], "big") % 100
    return "train" if bucket < 80 else "dev" if bucket < 90 else "test"


def near_identical(asins: Sequence[str], titles: Sequence[str]) -> dict[str, str]:
    """Return, for each asin, the smallest asin that a chain of near-identical titles connects it to."""
    words = [frozenset(_WORD.findall(title.lower())) for title in titles]
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
