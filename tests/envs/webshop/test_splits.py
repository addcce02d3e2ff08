from __future__ import annotations

import pytest

from trl_agent_envs.webshop import RawCatalog, Shop, splits
from trl_agent_envs.webshop.splits import (
    hashed_split,
    near_identical,
    product_splits,
    split_ids,
    title_split,
)
from trl_agent_envs.webshop.synthetic import generate


def test_the_hash_never_changes() -> None:
    """First eight bytes of SHA-256, as a number, modulo 100: 0-79 train, 80-89 dev, 90-99 test."""
    letters = {"train": "r", "dev": "d", "test": "t"}
    found = "".join(letters[hashed_split(f"B0000000{i:02}")] for i in range(40))
    assert found == "rrrrrrrtrrrrrrrrrdrrrrrrrrrtrrrrrrtrrrrr"


def test_near_identical_titles_share_a_leader() -> None:
    titles = {
        "D": "red wool rug for living rooms 5 x 8",
        "B": "red wool rug for living rooms 9 x 12",
        "C": "red wool rug for living rooms",
        "A": "blue table lamp",
        "E": "Blue TABLE lamp, 2",
        "F": "",
        "G": "42",
    }
    leaders = near_identical(list(titles), list(titles.values()))
    assert leaders == {"D": "B", "B": "B", "C": "B", "A": "A", "E": "A", "F": "F", "G": "G"}


def test_disjoint_by_product_and_about_80_10_10() -> None:
    shop = Shop.load(generate(1000, seed=3))
    ids = splits("synthetic", shop)
    goals = shop.goals("synthetic")
    assert sorted(i for split in ids.values() for i in split) == list(range(len(goals)))
    asins = {split: {goals[i].asin for i in ids[split]} for split in ids}
    assert not asins["train"] & asins["dev"]
    assert not asins["train"] & asins["test"]
    assert not asins["dev"] & asins["test"]
    assert 760 < len(asins["train"]) < 890
    assert 55 < len(asins["dev"]) < 130
    assert 55 < len(asins["test"]) < 130


def test_near_identical_products_stay_together(raw: RawCatalog) -> None:
    """Five products of one title, whose asins fall into all three splits, are all for training."""
    for record, number in zip(raw.products, ("00", "07", "17", "27", "34", "01")):
        record |= {"asin": f"B0000000{number}", "name": "Plain Wool Rug"}
    raw.products[1]["name"] = "Lamp"
    of_product = product_splits(Shop.load(raw).catalog)
    assert hashed_split("B000000007") == of_product["B000000007"] == "test"
    assert {split for asin, split in of_product.items() if asin != "B000000007"} == {"train"}


def test_a_product_keeps_its_split_whatever_the_seed() -> None:
    first, second = (Shop.load(generate(60, seed=0), price_seed=seed) for seed in (0, 1))
    assert splits("synthetic", first) == splits("synthetic", second)
    assert product_splits(first.catalog) == product_splits(second.catalog)


def test_default_is_the_embedded_shop() -> None:
    shop = Shop.load()
    assert splits() == splits("synthetic", shop)
    assert all(splits("human").values())


def test_original_ranges(raw: RawCatalog) -> None:
    shop = Shop.load(generate(400, seed=0))
    count = len(shop.goals())
    assert count > 500
    assert split_ids("synthetic", "original:test", shop) == list(range(500))
    assert split_ids("synthetic", "original:eval", shop) == list(range(500, min(1500, count)))
    assert split_ids("synthetic", "all", shop) == list(range(count))
    with pytest.raises(ValueError, match="is empty"):
        split_ids("synthetic", "original:train", Shop.load(raw))
    with pytest.raises(ValueError, match="split must be one of train, dev, test, all, original:test"):
        split_ids("synthetic", "validation", shop)


def test_titles_of_the_same_words_are_in_the_same_split() -> None:
    """First eight bytes of SHA-256 of the sorted words, modulo 100; numbers and order do not count."""
    titles = ["Wool Rug, red 5x8", "red RUG (wool) 9 x 12", "5 x red wool rug x"]
    assert {title_split(str(number), title) for number, title in enumerate(titles)} == {
        hashed_split("red rug wool x")
    }
    assert title_split("B000000007", "12 34") == hashed_split("B000000007") == "test"
    found = [title_split("", f"title {chr(97 + i % 26)}{chr(97 + i // 26)}") for i in range(650)]
    assert 490 < found.count("train") < 550
    assert 45 < found.count("dev") < 85
