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


def test_every_answer_is_on_the_page_and_asked_once(shop: Shop) -> None:
    kinds = list(exercises.group_by_kind(shop.catalog.products).values())
    rng = random.Random(0)
    for _ in range(50):
        session = exercises.reading_exercise(kinds, 10, rng)
        page = session[0][0]
        answers = [action.removeprefix("click[").removesuffix("]") for _, action in session]
        listed = re.findall(r"B0[A-Z]{8} \[SEP\] (.+?) \[SEP\] \$", page)
        assert len(set(answers)) == len(answers) == len(listed)
        assert all(answer in page for answer in answers)


def test_renaming_is_the_same_everywhere_in_a_session() -> None:
    session = [("B0AAAAAAAA then B0BBBBBBBB", "click[b0aaaaaaaa]"), ("B0BBBBBBBB", "click[buy now]")]
    (page, click), (later, buy) = exercises.rename_products(session, random.Random(3))
    first, second = page.split(" then ")
    assert click == f"click[{first}]"
    assert later == second
    assert buy == "click[buy now]"
    assert first != second
    assert not {"B0AAAAAAAA", "B0BBBBBBBB"} & {first, second}
