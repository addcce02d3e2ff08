from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trl_agent_envs.webshop import Catalog, CatalogError, RawCatalog, Shop
from trl_agent_envs.webshop.synthetic import generate


def test_cleans_what_the_pages_show(raw: RawCatalog) -> None:
    catalog = Catalog.load(raw)
    rug, modern, shoes = catalog.products[:3]
    assert rug.options == {"color": ("navy | red", "black"), "item shape": ("rectangular", "round")}
    assert (rug.pricing, rug.price_tag) == ((20.5,), "$20.5")
    assert (modern.pricing, modern.price_tag) == ((100.0,), "$100.0")
    assert (shoes.pricing, shoes.price_tag) == ((30.0, 50.25), "$30.0 to $50.25")
    assert modern.bullet_points == ("No slip. ",)
    assert shoes.query == "running shoes"
    assert catalog["B000000006"].attributes == ("DUMMY_ATTR",)
    assert rug.search_text == (
        "persian rug soft wool. imported  color: navy | red, black, and item shape: rectangular, round"
    )
    assert "B000000001" in catalog
    assert "B000000009" not in catalog


def test_skips_junk_and_repeated_ids(raw: RawCatalog) -> None:
    extra = [dict(raw.products[0], asin=asin) for asin in ("nan", "B0000000012", "B000000001")]
    raw.products += extra
    assert len(Catalog.load(raw)) == 6


def _write(folder: Path, raw: RawCatalog) -> None:
    files = {"items_shuffle_6": raw.products, "items_ins_v2_6": raw.attributes, "items_human_ins": raw.human}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("make", [lambda raw: raw, lambda _: generate(30, seed=1)])
def test_folder_and_records_give_the_same(tmp_path: Path, raw: RawCatalog, make: Any) -> None:
    records = make(raw)
    _write(tmp_path, records)
    expected = Catalog.load(records)
    for source in (tmp_path, str(tmp_path), tmp_path / "items_shuffle_6.json"):
        loaded = Catalog.load(source)
        assert loaded.products == expected.products
        assert loaded.human == expected.human


def test_shop_notices_changed_files(tmp_path: Path, raw: RawCatalog) -> None:
    _write(tmp_path, raw)
    shop = Shop.load(tmp_path)
    assert Shop.load(str(tmp_path)) is shop
    raw.products.pop()
    _write(tmp_path, raw)
    assert len(Shop.load(tmp_path).catalog) == len(shop.catalog) - 1


def test_human_instructions_may_be_absent(tmp_path: Path, raw: RawCatalog) -> None:
    _write(tmp_path, raw)
    (tmp_path / "items_human_ins.json").unlink()
    assert Catalog.load(tmp_path).human == {}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("name", None, r"record 1 \(asin B000000002\): key 'name': expected a string, got NoneType"),
        ("full_description", 3, r"key 'full_description': expected a string, got int"),
        ("query", ["a"], r"key 'query': expected a string"),
        ("small_description", [1], r"key 'small_description': expected a list of strings"),
        ("pricing", "cheap", r"key 'pricing': expected '', '\$a' or '\$a - \$b', got 'cheap'"),
        ("pricing", "$", r"key 'pricing'"),
        ("pricing", 12.5, r"key 'pricing': expected a string, got float"),
        ("customization_options", [1], r"key 'customization_options': expected '' or an object, got list"),
        (
            "customization_options",
            {"Size": "7"},
            r"key 'customization_options.Size': expected a list, got str",
        ),
        ("customization_options", {"Size": [{"price": 1}]}, r"key 'customization_options.Size'"),
        ("images", "x", r"key 'images': expected a list of strings"),
        ("asin", 7, r"six: record 1: key 'asin': expected a string, got int"),
    ],
)
def test_wrong_field_is_named(raw: RawCatalog, key: str, value: Any, message: str) -> None:
    raw.products[1][key] = value
    with pytest.raises(CatalogError, match=message):
        Catalog.load(raw)


@pytest.mark.parametrize(
    "key", ["asin", "name", "full_description", "small_description", "category", "query", "product_category",
            "customization_options"],
)  # fmt: skip
def test_missing_field_is_named(raw: RawCatalog, key: str) -> None:
    del raw.products[3][key]
    with pytest.raises(CatalogError, match=rf"six: record 3.*key '{key}': is missing"):
        Catalog.load(raw)


def test_other_malformed_records(raw: RawCatalog) -> None:
    raw.attributes["B000000001"] = {"attributes": [], "instruction": "x", "instruction_attributes": []}
    with pytest.raises(
        CatalogError, match=r"record B000000001: key 'instruction_attributes': .*at least one"
    ):
        Catalog.load(raw)
    raw.attributes = {}
    raw.human["B000000003"] = [{"instruction_attributes": ["a"]}]
    with pytest.raises(CatalogError, match=r"record B000000003\[0\]: key 'instruction_options': is missing"):
        Catalog.load(raw)
    raw.products[2] = "text"  # type: ignore[call-overload]
    with pytest.raises(CatalogError, match=r"record 2: expected an object, got str"):
        Catalog.load(raw)
    raw.products = []
    with pytest.raises(CatalogError, match="no usable product"):
        Catalog.load(raw)


def test_files_that_cannot_be_read(tmp_path: Path, raw: RawCatalog) -> None:
    with pytest.raises(CatalogError, match="does not exist"):
        Catalog.load(tmp_path / "nowhere")
    with pytest.raises(CatalogError, match=r"no items_shuffle\*.json"):
        Catalog.load(tmp_path)
    _write(tmp_path, raw)
    (tmp_path / "items_ins_v2_6.json").write_text("{", encoding="utf-8")
    with pytest.raises(CatalogError, match=r"items_ins_v2_6.json: is not JSON"):
        Catalog.load(tmp_path)
    (tmp_path / "items_ins_v2_6.json").write_text("[]", encoding="utf-8")
    with pytest.raises(CatalogError, match=r"items_ins_v2_6.json: expected an object at the top, got list"):
        Catalog.load(tmp_path)
    (tmp_path / "items_ins_v2_6.json").unlink()
    with pytest.raises(CatalogError, match=r"no items_ins_v2\*.json"):
        Catalog.load(tmp_path)
    (tmp_path / "items_shuffle_7.json").write_text("[]", encoding="utf-8")
    with pytest.raises(CatalogError, match="several items_shuffle"):
        Catalog.load(tmp_path)
