"""Reading exercises: every question has one right answer on its page, and no held-out product appears."""

from __future__ import annotations

import random
import re

import pytest

from trl_agent_envs.webshop import exercises
from trl_agent_envs.webshop.shop import Shop
from trl_agent_envs.webshop.splits import product_splits


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop.load(exercises.train_shop())


def test_only_train_products_are_there(shop: Shop) -> None:
    split = product_splits(Shop.load().catalog)
    assert {split[product.asin] for product in shop.catalog} == {"train"}


def test_the_answer_is_on_a_page_behind_the_wish(shop: Shop) -> None:
    kinds = list(exercises.group_by_kind(shop.catalog.products).values())
    rng = random.Random(0)
    sizes = set()
    for _ in range(100):
        ((seen, action),) = exercises.reading_exercise(kinds, 10, rng)
        answer = action.removeprefix("click[").removesuffix("]")
        wish, page = seen.split(" [SEP] Back to Search [SEP] ")
        listed = dict(re.findall(r"(B0[A-Z]{8}) \[SEP\] (.+?) \[SEP\] \$", page))
        assert answer in listed
        wanted = wish.removeprefix("Instruction: [SEP] ")
        if " with " in wanted and wanted not in listed.values():
            attributes = wanted.split(" with ")[1].split(" and ")
            fitting = [asin for asin, title in listed.items() if all(a in title.lower() for a in attributes)]
            assert fitting == [answer]
        sizes.add(len(listed))
    assert sizes == set(range(1, 11))


def test_renaming_is_the_same_everywhere_in_a_session() -> None:
    session = [("B0AAAAAAAA then B0BBBBBBBB", "click[b0aaaaaaaa]"), ("B0BBBBBBBB", "click[buy now]")]
    (page, click), (later, buy) = exercises.rename_products(session, random.Random(3))
    first, second = page.split(" then ")
    assert click == f"click[{first}]"
    assert later == second
    assert buy == "click[buy now]"
    assert first != second
    assert not {"B0AAAAAAAA", "B0BBBBBBBB"} & {first, second}
