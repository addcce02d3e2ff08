from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from trl_agent_envs.webshop import CatalogError, RawCatalog, Shop
from trl_agent_envs.webshop.nouns import guess_nouns, title_nouns


def _guess(raw: RawCatalog, title: str) -> tuple[str, ...]:
    raw.products[0]["name"] = title
    return guess_nouns(Shop.load(raw).catalog.products[0])


@pytest.mark.parametrize(
    ("title", "nouns"),
    [
        ("Persian Rug for the Living Room", ("persian", "rug", "living", "room")),
        ("Women's T-Shirt, 2 Pack (Size: 7.5)", ("women", "t", "shirt", "pack", "size")),
        ("A 5 x 7 Rug - Size M, v-neck", ("rug", "size", "neck")),
        ("USB-C Cable with 3 Ports", ("usb", "cable", "ports")),
        ("12 & 1/2", ()),
        ("", ()),
    ],
)
def test_guess(raw: RawCatalog, title: str, nouns: tuple[str, ...]) -> None:
    assert _guess(raw, title) == nouns


def test_file(raw: RawCatalog, tmp_path: Path) -> None:
    file = tmp_path / "nouns.jsonl"
    file.write_text('{"asin": "B000000001", "nouns": ["mat", "mat"]}\n\n', encoding="utf-8")
    products = Shop.load(raw).catalog.products
    tagger = title_nouns(file)
    assert tagger(products[0]) == ("mat", "mat")
    assert tagger(products[1]) == ("modern", "rug")  # not in the file: guessed
    shop = Shop.load(raw, title_nouns=file)
    goal = next(goal for goal in shop.goals() if goal.asin == "B000000001")
    assert shop.reward(goal, "B000000001", {}).title_score == 0.5  # one of two, as repeats count once


@pytest.mark.parametrize("line", ['{"asin": 1}', '{"asin": "B", "nouns": "mat"}', "[]", "{"])
def test_malformed_file(tmp_path: Path, line: str) -> None:
    file = tmp_path / "nouns.jsonl"
    file.write_text('{"asin": "B000000001", "nouns": ["mat"]}\n' + line, encoding="utf-8")
    with pytest.raises(CatalogError, match=r"nouns.jsonl:2: expected"):
        title_nouns(file)


@pytest.mark.skipif(importlib.util.find_spec("spacy") is not None, reason="the message where spaCy is absent")
def test_spacy_missing() -> None:
    with pytest.raises(ImportError, match="needs spaCy: pip install spacy"):
        title_nouns("spacy")
