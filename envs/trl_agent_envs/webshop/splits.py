"""Train, dev and test goals, split by product so that nothing bought in training is asked for in a test."""

from __future__ import annotations

import numpy as np

from .product_splits import (
    MANY_PRODUCTS,
    NEAR_IDENTICAL,
    SPLITS,
    Split,
    hashed_split,
    near_identical,
    product_splits,
    split_codes,
    title_split,
)
from .shop import Shop

__all__ = [
    "MANY_PRODUCTS",
    "NEAR_IDENTICAL",
    "ORIGINAL_RANGES",
    "SPLITS",
    "Split",
    "hashed_split",
    "near_identical",
    "product_splits",
    "split_codes",
    "split_ids",
    "splits",
    "title_split",
]

ORIGINAL_RANGES = {"original:test": (0, 500), "original:eval": (500, 1500), "original:train": (1500, None)}
"""The original's splits: ranges of goal ids. They are not disjoint by product."""


def splits(goal_set: str = "synthetic", shop: Shop | None = None) -> dict[str, list[int]]:
    """Return the goal ids of "train" (80 % of products or more), "dev" and "test" (10 % or less).

    The split of a product follows from its asin alone; where titles are near-identical, from the asins of all
    their products (train if any of them is). It does not change with seeds or versions. In a catalogue of more
    than `MANY_PRODUCTS` it follows from the title's words alone (see `title_split`).

    Args:
        goal_set: "synthetic" or "human".
        shop: the shop, None for the embedded one.
    """
    shop = Shop.load() if shop is None else shop
    codes = split_codes(shop.catalog)[shop.goals(goal_set).table.position_of_each()]
    return {split: np.flatnonzero(codes == code).tolist() for code, split in enumerate(SPLITS)}


def split_ids(goal_set: str, split: str, shop: Shop) -> list[int]:
    """Return the goal ids of one split: of `SPLITS`, "all", or of `ORIGINAL_RANGES`.

    Raises:
        ValueError: an unknown split, or one without goals.
    """
    if split == "all":
        return list(range(len(shop.goals(goal_set))))
    if split in ORIGINAL_RANGES:
        start, stop = ORIGINAL_RANGES[split]
        ids = list(range(len(shop.goals(goal_set)))[start:stop])
    elif split in SPLITS:
        ids = splits(goal_set, shop)[split]
    else:
        raise unknown_split(split)
    if not ids:
        raise empty_split(goal_set, split, shop)
    return ids


def unknown_split(split: str) -> ValueError:
    """Return the error of a name that is no split."""
    return ValueError(f"split must be one of {', '.join((*SPLITS, 'all', *ORIGINAL_RANGES))}; got {split!r}")


def empty_split(goal_set: str, split: str, shop: Shop) -> ValueError:
    """Return the error of a split without goals."""
    return ValueError(f"split {split!r} of the {goal_set} goals of {shop.catalog.source} is empty")
