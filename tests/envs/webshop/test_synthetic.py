"""The embedded catalogue: as many products as promised, the same each time, one a prefix of the other."""

from __future__ import annotations

import pytest

from trl_agent_envs.webshop.synthetic import all_asins, generate


def test_default_catalogue_is_large_varied_and_unambiguous() -> None:
    raw = generate()
    assert len(raw.products) >= 1000
    assert (
        len({p["asin"] for p in raw.products}) == len({p["name"] for p in raw.products}) == len(raw.products)
    )
    assert {p["category"] for p in raw.products} == {"beauty", "electronics", "fashion", "garden", "grocery"}
    assert all(len(p["asin"]) == 10 for p in raw.products)
    openings = {record["instruction"].split()[0] for record in raw.attributes.values()}
    assert len(openings) >= 5  # goals are phrased in several ways


def test_a_small_catalogue_is_the_beginning_of_a_large_one() -> None:
    small, large = generate(50), generate(80)
    assert large.products[:50] == small.products
    assert all_asins(80)[:50] == tuple(p["asin"] for p in small.products)


def test_another_seed_gives_other_products_under_the_same_ids() -> None:
    first, second = generate(20, seed=0), generate(20, seed=1)
    assert [p["asin"] for p in first.products] == [p["asin"] for p in second.products]
    assert [p["name"] for p in first.products] != [p["name"] for p in second.products]


def test_what_is_asked_for_is_something_the_product_has() -> None:
    raw = generate(200)
    for record in raw.attributes.values():
        assert set(record["instruction_attributes"]) <= set(record["attributes"])


@pytest.mark.parametrize("number", [0, -1, 24_010_001])
def test_numbers_out_of_range_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match="num_products"):
        generate(number)
