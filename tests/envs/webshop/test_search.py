from __future__ import annotations

import math
import random

import numpy as np
import pytest

from trl_agent_envs.webshop import Shop
from trl_agent_envs.webshop.search import SearchIndex, stored_length, top
from trl_agent_envs.webshop.tokens import stem, tokenize


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Women's Running Shoes, size 7.5", ["women", "run", "shoe", "size", "7.5"]),
        ("the CAT and a hat", ["cat", "hat"]),
        ("usb-c 3/4 foo:bar user@example.com", ["usb", "c", "3", "4", "foo:bar", "user", "example.com"]),
        ("日本語 🙂 ★ №5 café ²", ["日", "本", "語", "🙂", "★", "5", "café"]),
        ("__ a_b", ["a_b"]),
        ("👨‍💼 ok", ["👨‍💼", "ok"]),
        ("x" * 300, ["x" * 255, "x" * 45]),
        ("\ud800\x00", []),
    ],
)
def test_tokens(text: str, tokens: list[str]) -> None:
    assert tokenize(text) == tokens


@pytest.mark.parametrize(
    ("word", "expected"),
    [("is", "is"), ("caresses", "caress"), ("ponies", "poni"), ("assembly", "assembl"), ("incredibly",
    "incred"),
     ("dermatology", "dermatolog"), ("trekking", "trek"), ("falling", "fall"), ("sky", "sky"), ("news",
     "new")],
)  # fmt: skip
def test_stems(word: str, expected: str) -> None:
    assert stem(word) == expected


def _one_byte(length: int) -> int:
    """Independent reading of the format: then 24 + eight numbers at each power of two."""
    kept = [*range(32), *(24 + (mantissa << exponent) for exponent in range(20) for mantissa in range(8, 16))]
    return max(value for value in kept if value <= length)


def test_stored_length() -> None:
    assert [stored_length(n) for n in (0, 39, 40, 41, 42, 57, 60, 107, 200)] == [
        0,
        39,
        40,
        40,
        42,
        56,
        60,
        104,
        200,
    ]
    assert all(stored_length(n) == _one_byte(n) for n in range(3000))


def _bm25(texts: list[str], query: str) -> list[float]:
    documents = [tokenize(text) for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    totals = []
    for document in documents:
        total = 0.0
        for term in tokenize(query):
            df = sum(term in other for other in documents)
            f = document.count(term)
            if f:
                norm = 0.9 * (1 - 0.4 + 0.4 * stored_length(len(document)) / mean)
                total += math.log(1 + (len(documents) - df + 0.5) / (df + 0.5)) * f / (f + norm)
        totals.append(total)
    return totals


def test_scores_against_a_plain_loop() -> None:
    rng = random.Random(0)
    words = ["red", "shoe", "running", "lamp", "wool", "rug", "soft", "size", "table", "tea"]
    texts = [" ".join(rng.choices(words, k=rng.randint(1, 90))) for _ in range(60)]
    ids = [f"d{rng.random()}" for _ in texts]
    index = SearchIndex(ids, texts)
    for query in ("red shoes", "lamp lamp rug unknown", "tea", "soft wool rugs size table"):
        expected = _bm25(texts, query)
        best = sorted((score for score in expected if score > 0), reverse=True)
        for k in (1, 5, 50):
            found = index.search(query, k)
            assert [score for _, score in found] == pytest.approx(best[:k], rel=1e-5)
            assert [expected[i] for i, _ in found] == pytest.approx(best[:k], rel=1e-5)


@pytest.mark.parametrize("kinds", [2, 5, 1000])
@pytest.mark.parametrize("blocks", [1, 3, 40, 200])
def test_the_best_scores_against_a_full_sort(kinds: int, blocks: int) -> None:
    """Few kinds of scores make many ties; what is 0 is never found."""
    rng = np.random.default_rng(kinds + blocks)
    for share in (0.0, 0.001, 0.02, 0.5, 1.0):
        scores = rng.integers(1, kinds + 1, blocks * 512).astype(np.float32)
        scores[rng.random(len(scores)) >= share] = 0
        expected = sorted(np.flatnonzero(scores).tolist(), key=lambda place: (-scores[place], place))
        for k in (1, 50, 10_000):
            assert top(scores, k).tolist() == expected[:k]


def test_equal_scores_are_ordered_by_id() -> None:
    ids = [f"{(i * 37) % 100:03}" for i in range(100)]
    index = SearchIndex(ids, ["same text"] * 100)
    assert [ids[i] for i, _ in index.search("text", 7)] == sorted(ids)[:7]


def test_nothing_to_find() -> None:
    index = SearchIndex(["a"], ["red rug"])
    assert index.search("") == index.search("the") == index.search("unheard") == []
    with pytest.raises(ValueError, match="k must be at least 1"):
        index.search("rug", 0)
    with pytest.raises(ValueError, match="at least one"):
        SearchIndex([], [])


def test_shop_search(strict: Shop) -> None:
    assert [asin for asin, _ in strict.search("running shoes")] == ["B000000004", "B000000003"]
    assert [asin for asin, _ in strict.search("rug", k=1)] == ["B000000002"]  # the shorter text


def test_special_searches(strict: Shop, original: Shop) -> None:
    assert [p.asin for p in strict.find(["<q>", "running", "shoes"])] == ["B000000003", "B000000004"]
    assert [p.asin for p in strict.find(["<c>", "grocery"])] == ["B000000005"]
    assert [p.asin for p in strict.find(["<a>", "non", "slip"])] == ["B000000001", "B000000002"]
    assert strict.find(["<c>"]) == ()
    assert len(strict.find(["<r>"])) == 6
    assert strict.find(["<r>"]) == strict.find(["<r>"])
    with pytest.raises(ValueError, match="failed"):
        original.find(["<a>", "non", "slip"])
    with pytest.raises(ValueError, match="failed"):
        original.find(["<c>"])
