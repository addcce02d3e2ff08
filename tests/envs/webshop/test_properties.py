"""What holds for every action, every record and every order of episodes."""

from __future__ import annotations

import copy
import gc
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.envs.webshop.conftest import six_products
from trl_agent_envs.webshop import CatalogError, RawCatalog
from trl_agent_envs.webshop.env import WebShopEnv
from trl_agent_envs.webshop.session import parse_action
from trl_agent_envs.webshop.synthetic import generate

COMPAT = ("strict", "original")
MODES = ("text", "text_rich")
THIRTY = generate(30, seed=0)

any_text = st.text(alphabet=st.characters(exclude_categories=()), max_size=40)
"""All of Unicode: control characters, NUL and lone surrogates too."""

awkward = st.sampled_from(
    ["<a>", "<c>", "<r>", "<q>", "<a> x", "<c> beauty", "next >", "< prev", "buy now", "search_results", "[",
     "]", "[[]]", "][", "\ud800", "\x00", "\r\n", "\x1b[31m", "İ", "ß", "[button]", '"7"', "search", "12\" red",
     "b000000001", "\u2028"]
)  # fmt: skip
words = st.one_of(any_text, awkward, st.lists(awkward, max_size=4).map(" ".join))
long_words = st.builds(
    lambda piece, times: piece * (times // max(1, len(piece))), words, st.sampled_from([3000, 100_000])
)


def _wrap(text: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    forms = ["{}", "search[{}]", "click[{}]", "Click[{}]", "search[click[{}]]", "buy[{}]", "click[{}", "{}]x"]
    return st.builds(lambda form, inner: form.replace("{}", inner), st.sampled_from(forms), text)


actions = _wrap(words)
long_actions = _wrap(long_words)


def make(**kwargs: Any) -> WebShopEnv:
    return WebShopEnv(**({"data_dir": six_products(), "split": "all", "max_turns": 1000} | kwargs))


@pytest.fixture(scope="module")
def envs() -> dict[tuple[str, str], WebShopEnv]:
    return {(c, m): make(compat=c, observation_mode=m) for c in COMPAT for m in MODES}


def _seen(env: WebShopEnv) -> tuple[Any, ...]:
    return (
        env._observation,
        env.session.observation(env.observation_mode),
        env.state_key(),
        env.session.clickables,
        env.session.page.kind,
        env.session.reward,
    )


def _is_possible(env: WebShopEnv, action: str) -> bool:
    """Whether the description of the shop says that `action` does something now."""
    if len(action) < 1000:
        match = re.match(r"(.+)\[(.+)\]", action)
        parsed = match.groups() if match else None
    else:  # the pattern takes quadratic time; `test_session.py` shows that this is the same
        parsed = parse_action(action)
    if parsed is None or (env.session.page.kind == "done" and env.shop.compat.over_when_done):
        return False
    value = parsed[1].lower()
    if parsed[0] == "search":
        return True
    return parsed[0] == "click" and value in env.session.clickables and value != "search"


def _check(env: WebShopEnv, tried: list[str], walk: int) -> None:
    env.reset(seed=walk)
    rng = random.Random(walk)
    failed_before = False
    for action in [*[env.sample_action(rng) or "search[a]" for _ in range(walk)], *tried]:
        before, possible = _seen(env), _is_possible(env, action)
        observation, reward, terminated, truncated, info = env.step(action)
        error = info["action_error"]
        assert not truncated
        if error is None:
            assert possible
            assert info["available_actions"]["clickables"] == list(env.session.clickables)
            assert terminated == (env.session.page.kind == "done")
            continue
        assert isinstance(error, str)
        assert 0 < len(error) < 600
        error.encode()  # can be shown and logged, whatever was in the action
        assert _seen(env) == before
        assert (observation, reward) == (before[0], 0.0)
        assert info["available_actions"]["clickables"] == list(before[3])
        if possible:
            # only in the original: a special search, and what it has closed until a search succeeds
            assert not env.shop.compat.special_searches
            assert failed_before or re.match(r"search\[<[ac]>[ \]]", action.lower())
            failed_before = True


@given(
    st.lists(actions, min_size=1, max_size=6),
    st.integers(0, 6),
    st.sampled_from(COMPAT),
    st.sampled_from(MODES),
)
@example(["search[<a> x]", "click[next >]", "click[b000000001]", "click[black]"], 1, "original", "text_rich")
@settings(max_examples=400, deadline=None)
def test_any_action_is_survived_and_changes_nothing_if_invalid(
    envs: dict[tuple[str, str], WebShopEnv], tried: list[str], walk: int, compat: str, mode: str
) -> None:
    _check(envs[compat, mode], tried, walk)


@given(long_actions, st.integers(0, 4), st.sampled_from(COMPAT))
@example("[" * 100_000, 0, "strict")
@example("search[" + "a[" * 50_000, 1, "original")
@example("search[" + "red rug " * 12_000 + "]", 2, "strict")
@example("🙂[" * 25_000 + "]", 2, "strict")
@example("\U00014647" * 1000, 0, "strict")  # an error quotes it with ten characters each
@settings(max_examples=25, deadline=None)
def test_so_is_a_long_one(
    envs: dict[tuple[str, str], WebShopEnv], action: str, walk: int, compat: str
) -> None:
    _check(envs[compat, "text"], [action], walk)


@pytest.mark.parametrize("action", [None, 3, b"search[a]", ["search[a]"], object()])
def test_what_is_no_text_is_refused(action: Any) -> None:
    env = make()
    env.reset(seed=0)
    before = _seen(env)
    *_, info = env.step(action)
    assert f"not {type(action).__name__}" in info["action_error"]
    assert _seen(env) == before


# --- records

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=6,
)
# what comes near to being right
near = st.sampled_from(
    [[], {}, "", "$", "$1.2.3", "$-5", "$5 - $3", "$1e5", "$٣", "-", [""], ["", "\n"], {"": []}, {"Size": []},
     {"Size": None}, {"Size": [{"value": ""}]}, {"Size": [{"value": "buy now"}, {"value": "< prev"}]},
     {"Size": [{"value": "a[b]"}]}, {"A": [{"value": "x"}], "a": [{"value": "y"}]},
     {"Size": [{"value": "\ud800\n"}]}, {"Size": [{}]}, {"Size": ["7"]}, {"Size": [{"value": 7}]}]
)  # fmt: skip
DELETED = object()


def _places(raw: RawCatalog) -> Iterator[tuple[Any, Any, str]]:
    """Every field of every kind of record: what holds it, its key there, and how a message names the record."""
    for key in raw.products[2]:
        yield raw.products[2], key, "record 2"
    for asin, record in raw.attributes.items():
        for key in record:
            yield record, key, f"record {asin}"
    for asin, wishes in raw.human.items():
        for key in wishes[0]:
            yield wishes[0], key, f"record {asin}[0]"


def _play(raw: RawCatalog) -> None:
    """Shop in it in every way: whatever was loaded can be listed, opened, read, chosen from and bought."""
    env = WebShopEnv(data_dir=raw, split="all", observation_mode="text_rich", max_turns=1000)
    rng = random.Random(0)
    for goal in env.goals[:12]:
        env.reset(options={"goal_id": goal.goal_id})
        for _ in range(6):
            action = env.sample_action(rng)
            if action is None:
                break
            observation, *_, info = env.step(action)
            assert info["action_error"] is None, action
            assert isinstance(env.session.observation("text") + observation, str)
        for product in env.shop.catalog.products[:6]:
            chosen = {name: values[0] for name, values in product.options.items() if values}
            assert 0.0 <= env.shop.reward(goal, product.asin, chosen).total <= 1.0
            env.shop.search(product.title)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_changed_record_is_refused_by_name_or_can_be_shopped_in(data: st.DataObject) -> None:
    raw = copy.deepcopy(six_products())
    holder, key, name = data.draw(st.sampled_from(list(_places(raw))), label="field")
    value = data.draw(st.one_of(st.just(DELETED), near, json_values), label="value")
    if value is DELETED:
        del holder[key]
    else:
        holder[key] = value
    try:
        _play(raw)
    except CatalogError as problem:
        message = str(problem)
        assert message.startswith(f"six: {name}"), message
        assert re.search(rf"key ['\"]{key}", message), message  # a name with a quote stands in the other kind
        assert len(message) < 1000


KEPT_OUT = {
    "asin": "text", "name": "text", "full_description": "text", "category": "text", "query": "text",
    "product_category": "text", "small_description": "texts", "customization_options": "options",
    "pricing": "price", "images": "list",
}  # fmt: skip
WRONG_TYPES: list[Any] = [None, True, 7, 1.5, "plain", ["a"], [7], {"a": 1}, {"a": ["b"]}]


def _may_load(kind: str, value: Any) -> bool:
    """Whether the original's loader takes `value` where `kind` belongs."""
    if kind == "text":
        return isinstance(value, str)
    if kind == "price":
        return value is None
    if kind == "options":  # the original reads nothing from what is false
        return not value
    texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return texts or (kind == "texts" and isinstance(value, str))


@pytest.mark.parametrize("value", WRONG_TYPES, ids=lambda value: json.dumps(value))
@pytest.mark.parametrize("key", sorted(KEPT_OUT))
def test_every_key_with_every_wrong_type(key: str, value: Any) -> None:
    raw = six_products()
    raw.products[2][key] = value
    if _may_load(KEPT_OUT[key], value):
        _play(raw)
    else:
        with pytest.raises(CatalogError, match=rf"^six: record 2.*: key '{key}"):
            _play(raw)


# --- episodes


def _transcript(env: WebShopEnv, seed: int, length: int) -> Iterator[Any]:
    rng = random.Random(seed)
    yield env.reset(seed=seed)
    for _ in range(length):
        if (action := env.sample_action(rng)) is None:
            return
        yield action, env.step(action), env.state_key()


@pytest.fixture(scope="module")
def thirty_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The thirty products as files, so that all environments of the process share their shop."""
    folder = tmp_path_factory.mktemp("thirty")
    contents = {
        "items_shuffle": THIRTY.products,
        "items_ins_v2": THIRTY.attributes,
        "items_human_ins": THIRTY.human,
    }
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(st.integers(0, 10_000), min_size=4, max_size=4),
    st.sampled_from(COMPAT),
    st.sampled_from(MODES),
)
@settings(max_examples=60, deadline=None)
def test_interleaved_episodes_are_those_played_alone(
    thirty_files: Path, order: list[int], seeds: list[int], compat: str, mode: str
) -> None:
    """Four environments of one shop: options, keywords, visits and goals stay in the episode they are of."""
    apart = [make(data_dir=THIRTY, compat=compat, observation_mode=mode) for _ in seeds]
    assert len({id(env.shop) for env in apart}) == 4
    alone = [list(_transcript(env, seed, 14)) for env, seed in zip(apart, seeds)]
    envs = [make(data_dir=thirty_files, compat=compat, observation_mode=mode) for _ in seeds]
    assert len({id(env.shop) for env in envs}) == 1
    running = [_transcript(env, seed, 14) for env, seed in zip(envs, seeds)]
    together: list[list[Any]] = [[] for _ in running]
    for which in [*order, *[i for i in range(4) for _ in range(20)]]:
        together[which] += [step for step in [next(running[which], None)] if step is not None]
    assert together == alone


@given(st.integers(0, 10_000), st.sampled_from(COMPAT))
@settings(max_examples=15, deadline=None)
def test_nothing_is_left_of_what_was_before(seed: int, compat: str) -> None:
    used = _used(compat)
    fresh = make(data_dir=THIRTY, compat=compat)
    assert list(_transcript(used, seed, 14)) == list(_transcript(fresh, seed, 14))


_after_thousands: dict[str, WebShopEnv] = {}


def _used(compat: str) -> WebShopEnv:
    """An environment that has played three thousand episodes."""
    if compat not in _after_thousands:
        env = make(data_dir=THIRTY, compat=compat)
        for seed in range(3000):
            for _ in _transcript(env, seed, 4):
                pass
        _after_thousands[compat] = env
    return _after_thousands[compat]


# --- memory


def _growth(env: WebShopEnv, episodes: int, start: int) -> int:
    """How many more blocks of memory Python's allocator holds after `episodes` more episodes."""
    gc.collect()
    before = sys.getallocatedblocks()
    for seed in range(start, start + episodes):
        rng = random.Random(seed)
        env.reset(seed=seed)
        for _ in range(4):
            env.step(env.sample_action(rng) or "click[back to search]")
    gc.collect()
    return sys.getallocatedblocks() - before


def test_a_leak_would_be_seen() -> None:
    """The measure of the next test, on an environment that keeps its visits as the original does."""

    class Leaking(WebShopEnv):
        def reset(self, **kwargs: Any) -> Any:
            found = super().reset(**kwargs)
            kept.append(self.session)
            return found

    kept: list[Any] = []
    env = Leaking(data_dir=THIRTY, split="all")
    _growth(env, 300, 0)
    assert _growth(env, 300, 1000) > 300


@pytest.mark.slow
def test_memory_is_flat_over_a_hundred_thousand_episodes() -> None:
    env = make(data_dir=THIRTY, observation_mode="text_rich")
    _growth(env, 10_000, 0)  # caches fill
    growth = _growth(env, 100_000, 10_000)
    assert growth < 20_000, f"{growth} blocks more after 100,000 episodes; one an episode would be 100,000"
