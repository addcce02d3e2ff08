"""A built catalogue is the same shop as the one in memory."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_agent_envs.webshop import Catalog, CatalogError, RawCatalog, Shop, splits
from trl_agent_envs.webshop.catalog import HumanInstruction, Product
from trl_agent_envs.webshop.env import WebShopEnv
from trl_agent_envs.webshop.product_splits import product_splits
from trl_agent_envs.webshop.product_text import product_text, read_product_text
from trl_agent_envs.webshop.sampling import spread_goals
from trl_agent_envs.webshop.sources import open_source
from trl_agent_envs.webshop.splits import split_ids
from trl_agent_envs.webshop.store import Store
from trl_agent_envs.webshop.store_build import build_store
from trl_agent_envs.webshop.store_format import MANIFEST, StoreError
from trl_agent_envs.webshop.synthetic import generate

DATA = os.environ.get("WEBSHOP_DATA")
_real = pytest.param(
    "real",
    marks=pytest.mark.skipif(
        not DATA, reason="needs the real WebShop data: set WEBSHOP_DATA to a folder holding data/"
    ),
)

Pair = tuple[Shop, Shop]


def in_memory(source: str | Path | RawCatalog, **kwargs: Any) -> Shop:
    return Shop(Catalog.load(source), **kwargs)


@pytest.fixture(scope="module", params=["embedded", "six", _real])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """(in memory, built) of the same catalogue."""
    sources: dict[str, Any] = {
        "embedded": generate(),
        "six": request.getfixturevalue("make_six")(),
        "real": f"{DATA}/data",
    }
    source = sources[request.param]
    folder = build_store(source, tmp_path_factory.mktemp("store") / "built")
    return in_memory(source), Shop.load(folder)


def some_queries(catalog: Catalog, number: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    words = [word for product in catalog for word in product.search_text.split()]
    return [" ".join(rng.choices(words, k=rng.randint(1, 15))) for _ in range(number)]


def test_products(pair: Pair) -> None:
    memory, built = (shop.catalog for shop in pair)
    assert built.source == memory.source
    assert len(built) == len(memory)
    assert list(built) == memory.products
    assert built.products[-1] == memory.products[-1]
    assert built.products[1:3] == memory.products[1:3]
    for product in memory:
        assert product.asin in built
        assert built[product.asin] == product
    assert "B0" not in built
    assert 7 not in built
    with pytest.raises(KeyError, match="has no product 'B0'"):
        built["B0"]
    with pytest.raises(IndexError, match="no product at place"):
        built.products[len(built)]
    # an instruction list that is empty once checked is as good as none
    assert dict(built.human) == {asin: wishes for asin, wishes in memory.human.items() if wishes}
    assert len(built.human) == len(dict(built.human))
    assert dict(pair[1].prices) == pair[0].prices


def test_search_is_the_same_to_the_last_bit(pair: Pair) -> None:
    memory, built = pair
    for number, query in enumerate(some_queries(memory.catalog, 600, seed=0)):
        k = (1, 10, 50, 100_000)[number % 4]
        assert built.search(query, k) == memory.search(query, k), query
    assert built.search("zzzz") == built.search("") == []


def test_special_searches_are_the_same(pair: Pair) -> None:
    memory, built = pair
    rng = random.Random(1)
    labels = {p.query for p in memory.catalog} | {p.category for p in memory.catalog}
    labels |= {name for p in memory.catalog for name in p.attributes}
    values = [*rng.sample(sorted(labels), min(60, len(labels))), "nothing has this"]
    for mark, value in itertools.product(("<q>", "<c>", "<a>"), values):
        words = [mark, *value.split(" ")]
        assert list(built.find(words)) == list(memory.find(words))
        assert built.find(words)[10:20] == memory.find(words)[10:20]
    assert built.find(["<r>", "x"]) == memory.find(["<r>", "x"])
    assert built.find(["<c>"]) == ()


def test_goals_and_splits_are_the_same(pair: Pair) -> None:
    memory, built = pair
    for goal_set in ("synthetic", "human"):
        goals = memory.goals(goal_set)
        assert built.goals(goal_set) == goals
        assert built.goals(goal_set) is built.goals(goal_set)
        assert splits(goal_set, built) == splits(goal_set, memory)
        ids = split_ids(goal_set, "all", built)
        assert spread_goals(built.goals(goal_set), ids, 100) == spread_goals(list(goals), ids, 100)
    assert product_splits(built.catalog) == product_splits(memory.catalog)
    with pytest.raises(ValueError, match="goals must be one of synthetic, human; got 'all'"):
        built.goals("all")


@pytest.mark.parametrize("compat", ["strict", "original"])
def test_episodes_are_the_same(
    compat: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    raw = generate(120)
    folder = build_store(raw, tmp_path_factory.mktemp("store") / "built")
    envs = [
        WebShopEnv(source, split="train", compat=compat, observation_mode="text_rich")
        for source in (raw, folder)
    ]
    for seed in range(60):
        rng = random.Random(seed)
        first, second = (env.reset(seed=seed) for env in envs)
        assert first == second
        while (action := envs[0].sample_action(rng)) is not None:
            assert envs[1].oracle_action() == envs[0].oracle_action()
            assert envs[0].step(action) == envs[1].step(action)
            assert envs[0].state_key() == envs[1].state_key()


def test_rewards_are_the_same(pair: Pair) -> None:
    memory, built = pair
    rng = random.Random(2)
    products = memory.catalog.products
    for goal in rng.sample(list(memory.goals()), min(200, len(memory.goals()))):
        asin = rng.choice([goal.asin, rng.choice(products).asin])
        options = goal.options if isinstance(goal.options, dict) else {}
        assert built.reward(goal, asin, options) == memory.reward(goal, asin, options)


def test_the_embedded_shop_ranks_as_a_plain_scan(pair: Pair) -> None:
    """Against a sort of all scores, by score and then by id, that shares no code with `search`."""
    _, built = pair
    index = built.index
    for query in some_queries(built.catalog, 20, seed=3):
        scored = [(-score, asin) for asin, score in built.search(query, k=len(built.catalog))]
        assert scored == sorted(scored)
        assert built.search(query, k=7) == [(asin, -score) for score, asin in scored[:7]]
    assert index.mean_length > 1


def test_large_arrays_are_mapped_not_read(tmp_path: Path) -> None:
    store = Store(build_store(generate(50), tmp_path / "built"))
    table = store.tables["synthetic"]
    postings = store.index._postings
    for array in (postings.docs, postings.scores, postings.offsets, table.order, table.members):
        base: Any = array
        while isinstance(base, np.ndarray | memoryview):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        assert isinstance(base, mmap.mmap)
    assert isinstance(store.catalog.products._block.obj, np.ndarray)  # type: ignore[attr-defined]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
def test_an_open_store_costs_one_file_descriptor(tmp_path: Path) -> None:
    """Every map keeps one; a process that opens many catalogues would run out of them."""
    folder = build_store(generate(50), tmp_path / "built")
    before = len(os.listdir("/proc/self/fd"))
    kept = [Store(folder) for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) - before == len(kept)


def test_many_products_are_split_by_the_words_of_their_titles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trl_agent_envs.webshop.product_splits.MANY_PRODUCTS", 99)
    raw = generate(400)
    for record in raw.products[::2]:
        record["name"] = "Plain Wool Rug 7 x 9"
    memory, built = in_memory(raw), Shop.load(build_store(raw, tmp_path / "built"))
    of_product = product_splits(built.catalog)
    assert of_product == product_splits(memory.catalog)
    assert len({of_product[record["asin"]] for record in raw.products[::2]}) == 1
    others = [of_product[record["asin"]] for record in raw.products[1::2]]
    assert 130 < others.count("train") < 190
    assert others.count("dev") > 5
    assert others.count("test") > 5


@pytest.fixture
def built(tmp_path: Path) -> Path:
    return build_store(generate(40), tmp_path / "built")


def test_another_price_seed_is_refused_and_can_be_built(tmp_path: Path, built: Path) -> None:
    with pytest.raises(
        StoreError, match=r"built with price_seed 0, asked for is 3; .* --out DIR --price_seed 3"
    ):
        Shop.load(built, price_seed=3)
    other = build_store(generate(40), tmp_path / "other", price_seed=3)
    assert Shop.load(other, price_seed=3).goals() == in_memory(generate(40), price_seed=3).goals()


def test_another_version_is_refused(built: Path) -> None:
    facts = json.loads((built / MANIFEST).read_text())
    for version in (0, facts["version"] + 1, "1", None):
        (built / MANIFEST).write_text(json.dumps(facts | {"version": version}))
        with pytest.raises(StoreError, match=r"built in format .* reads \d+; build it again: .* --overwrite"):
            Shop.load(built)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 1}', '{"version": 1, "files": {}}'])
def test_a_damaged_manifest_is_refused(built: Path, text: str) -> None:
    (built / MANIFEST).write_text(text)
    with pytest.raises(StoreError, match="build it again"):
        Shop.load(built)


def test_every_truncated_or_missing_file_is_named(tmp_path: Path, built: Path) -> None:
    for file in sorted(built.iterdir()):
        if file.name == MANIFEST:
            continue
        copy = tmp_path / "copy"
        shutil.copytree(built, copy)
        content = (copy / file.name).read_bytes()
        (copy / file.name).write_bytes(content[:-1])
        with pytest.raises(
            StoreError, match=rf"{file.name}: has \d+ bytes instead of {len(content)}; build it"
        ):
            Shop.load(copy)
        (copy / file.name).unlink()
        with pytest.raises(StoreError, match=f"{file.name}: is missing; build it again"):
            Shop.load(copy)
        shutil.rmtree(copy)


@pytest.mark.parametrize(
    "section",
    [None, {}, {"type": "<i8", "offset": 0, "length": 10**9}, {"type": "O", "offset": 0, "length": 1}],
)
def test_a_section_that_is_none_is_refused(built: Path, section: Any) -> None:
    facts = json.loads((built / MANIFEST).read_text())
    facts["sections"]["prices"] = section
    (built / MANIFEST).write_text(json.dumps(facts))
    with pytest.raises(StoreError, match=r"webshop_store.json: is damaged .* build it again"):
        Shop.load(built)


def test_a_shop_without_human_goals(tmp_path: Path, raw: RawCatalog) -> None:
    raw.human.clear()
    shop = Shop.load(build_store(raw, tmp_path / "built"))
    assert dict(shop.catalog.human) == {}
    with pytest.raises(ValueError, match="six has no human goals"):
        shop.goals("human")


def test_a_shop_without_a_searchable_word(tmp_path: Path, raw: RawCatalog) -> None:
    for record in raw.products:
        record |= {
            "name": "the",
            "full_description": "",
            "small_description": [],
            "customization_options": "",
        }
    memory, built = in_memory(raw), Shop.load(build_store(raw, tmp_path / "built"))
    assert built.search("the rug") == memory.search("the rug") == []
    assert built.goals() == memory.goals()


_text = st.text(alphabet=st.characters(), max_size=5)
_texts = st.lists(_text, max_size=3).map(tuple)
_products = st.builds(
    Product,
    *[_text] * 6,
    _texts,
    st.lists(st.floats(0, 1e9), min_size=1, max_size=2).map(tuple),
    _text,
    st.dictionaries(_text, _texts, max_size=3),
    _texts,
    st.none() | _text,
    _texts,
    _text,
)
_wishes = st.lists(st.builds(HumanInstruction, _text, _texts, _texts), max_size=2).map(tuple)


@settings(max_examples=200, deadline=None)
@given(_products, _wishes)
def test_a_product_comes_back_as_it_was(product: Product, wishes: tuple[HumanInstruction, ...]) -> None:
    text = product_text(product, wishes).encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")
    found, found_wishes = read_product_text(text)
    assert (found, found_wishes) == (product, wishes)
    assert list(found.options) == list(product.options)


def test_sources_are_the_same_whichever_way_they_come() -> None:
    assert list(open_source("synthetic:30").products()) == list(open_source(generate(30)).products())
    for wrong in ("synthetic:", "synthetic:0", "synthetic:-1", "synthetic:1e3", "synthetic:99999999"):
        with pytest.raises(CatalogError, match=r"needs a number of products N from 1 to 24010000, got"):
            open_source(wrong)
