from __future__ import annotations

import pickle
import random
from collections import Counter
from typing import Any

import gymnasium as gym
import pytest

from trl_agent_envs.checker import check_agent_env
from trl_agent_envs.webshop import Compat, RawCatalog
from trl_agent_envs.webshop.env import WebShopEnv
from trl_agent_envs.webshop.synthetic import generate

ID = "trl_agent_envs:trl_agent/WebShop-v0"
KEYS = {"score", "success", "goal_id", "available_actions", "action_error"}
THIRTY = generate(30, seed=0)


def make(**kwargs: Any) -> WebShopEnv:
    return WebShopEnv(**({"data_dir": THIRTY, "split": "all"} | kwargs))


@pytest.fixture(scope="module")
def shared() -> WebShopEnv:
    return make(observation_mode="text_rich", max_turns=1000)


def play(env: WebShopEnv, walk: int, **reset: Any) -> list[Any]:
    rng = random.Random(walk)
    seen: list[Any] = [env.reset(**reset)]
    while (action := env.sample_action(rng)) is not None:
        seen += [action, env.step(action), env.state_key()]
    return seen


@pytest.mark.parametrize(
    "kwargs", [{}, {"observation_mode": "text_rich"}, {"compat": "original", "max_turns": 4}]
)
def test_contract(kwargs: Any) -> None:
    check_agent_env(make(**kwargs))


def test_make_by_id() -> None:
    env = gym.make(ID, split="dev")
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert info.keys() == KEYS | {"system_prompt"}
    assert observation.startswith("WebShop [SEP] Instruction: [SEP] ")
    assert info["available_actions"] == {"has_search_bar": True, "clickables": ["search"]}
    *_, info = env.step("search[shoes]")
    assert info.keys() == KEYS
    assert WebShopEnv.metadata["backend"] == "inline"


@pytest.mark.parametrize("mode", ["text", "text_rich"])
@pytest.mark.parametrize("compat", ["strict", "original"])
def test_same_seed_and_actions_give_the_same_episode(mode: Any, compat: str) -> None:
    env, other = (make(observation_mode=mode, compat=compat) for _ in range(2))
    for seed in range(20):
        first = play(env, seed, seed=seed)
        play(other, seed + 1, seed=seed + 100)  # what happened before leaves no trace
        assert play(other, seed, seed=seed) == first == play(env, seed, seed=seed)
        assert pickle.loads(pickle.dumps(first)) == first


def test_oracle_meets_every_goal(shared: WebShopEnv) -> None:
    for goal in shared.goals:
        shared.reset(options={"goal_id": goal.goal_id})
        turns = 0
        while (action := shared.oracle_action()) is not None:
            _, reward, terminated, truncated, info = shared.step(action)
            turns += 1
        assert (reward, terminated, truncated, info["score"], info["success"]) == (
            1.0,
            True,
            False,
            1.0,
            True,
        )
        assert turns <= 8
        assert info["reward_info"]["r_type"] == 1.0


def test_oracle_recovers_from_any_page(shared: WebShopEnv) -> None:
    rng = random.Random(1)
    for seed in range(60):
        shared.reset(seed=seed)
        for _ in range(rng.randrange(12)):
            action = shared.sample_action(rng)
            if action is not None and action != "click[buy now]":
                shared.step(action)
        for _ in range(40):
            if (action := shared.oracle_action()) is None:
                break
            info = shared.step(action)[-1]
        assert info["score"] == 1.0


def test_human_goals() -> None:
    env = make(goals="human")
    for goal in env.goals:
        env.reset(options={"goal_id": goal.goal_id})
        while (action := env.oracle_action()) is not None:
            *_, info = env.step(action)
        assert info["goal_id"] == goal.goal_id
        assert info["score"] == 1.0


def test_turn_limit() -> None:
    env = make(max_turns=3)
    env.reset(seed=0)
    results = [env.step(action) for action in ("nothing", "search[a]", "search[b]")]
    assert [(terminated, truncated) for _, _, terminated, truncated, _ in results] == [(False, False)] * 2 + [
        (False, True)
    ]
    assert results[-1][-1]["truncation_cause"] == "turn_limit"
    assert env.oracle_action() is None
    again = env.step("search[c]")
    assert again[:4] == (results[-1][0], 0.0, False, True)
    assert "over" in again[-1]["action_error"]
    assert "truncation_cause" not in env.reset()[1]


def test_buying_with_the_last_turn_is_no_truncation() -> None:
    env = make(max_turns=3)
    env.reset(options={"goal_id": 0})
    env.step("search[a]")
    asin = env.shop.catalog.products[0].asin
    title = env.shop.catalog.products[0].title
    env.reset(options={"goal_id": 0})
    env.step(f"search[{title}]")
    env.step(f"click[{asin}]")
    _, _, terminated, truncated, info = env.step("click[buy now]")
    assert (terminated, truncated) == (True, False)
    after = env.step("click[buy now]")
    assert after[1:4] == (0.0, True, False)
    assert after[-1]["score"] == info["score"]


def test_goals_are_drawn_evenly_over_products() -> None:
    env = make(split="train")
    env.reset(seed=0)
    products = {env.goals[goal_id].asin for pool in env._pools for goal_id in pool.tolist()}
    drawn = Counter(env.goals[env.reset()[1]["goal_id"]].asin for _ in range(100 * len(products)))
    assert drawn.keys() == products
    assert max(drawn.values()) < 150
    assert min(drawn.values()) > 60


def test_goal_id_option() -> None:
    env = make(split="dev")
    assert env.reset(options={"goal_id": 5})[1]["goal_id"] == 5
    for wrong in (-1, len(env.goals), "5", 1.0, True, None.__class__):
        with pytest.raises(ValueError, match=r"goal_id must be a whole number in \[0, "):
            env.reset(options={"goal_id": wrong})
    with pytest.raises(ValueError, match="may hold goal_id only, got 'goal'"):
        env.reset(options={"goal": 5})


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"goals": "all"}, "goals must be one of synthetic, human"),
        ({"split": "val"}, "split must be one of train, dev, test, all"),
        ({"observation_mode": "html"}, "observation_mode must be one of text, text_rich"),
        ({"compat": "loose"}, 'compat must be "strict", "original"'),
        ({"max_turns": 0}, "max_turns must be a whole number of at least 1"),
        ({"max_turns": 2.5}, "max_turns must be"),
        ({"data_dir": "/no/such/folder"}, "does not exist"),
        ({"title_nouns": "/no/such/file"}, "title_nouns '/no/such/file' is not a file"),
    ],
)
def test_wrong_arguments_are_named(kwargs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**kwargs)


def test_before_reset() -> None:
    with pytest.raises(RuntimeError, match="reset"):
        make().step("search[a]")


def test_every_listed_clickable_works(shared: WebShopEnv) -> None:
    rng = random.Random(0)
    for seed in range(40):
        _, info = shared.reset(seed=seed)
        for _ in range(10):
            action = shared.sample_action(rng)
            if action is None:
                break
            *_, info = shared.step(action)
            assert info["action_error"] is None, action


def test_options_that_no_action_can_name_are_left_alone(raw: RawCatalog) -> None:
    odd = ["a[b", "", "x\ny", "c]d"]
    raw.products[0]["customization_options"] = {"Size": [{"value": value} for value in odd]}
    env = make(data_dir=raw, max_turns=1000)
    rng = random.Random(0)
    clicked = set()
    for goal in [goal for goal in env.goals if goal.asin == "B000000001"] * 5:
        env.reset(options={"goal_id": goal.goal_id})
        env.step("search[persian]")
        env.step("click[b000000001]")
        for _ in range(10):
            action = env.sample_action(rng)
            if action is None:
                break
            clicked.add(action)
            assert env.step(action)[-1]["action_error"] is None, action
        env.reset(options={"goal_id": goal.goal_id})
        turns = 0
        while (action := env.oracle_action()) is not None:
            assert env.step(action)[-1]["action_error"] is None, action
            turns += 1
            assert turns < 10
    assert "click[c]d]" in clicked


def test_info_is_the_callers_own(shared: WebShopEnv) -> None:
    shared.reset(seed=0)
    *_, info = shared.step("search[a red rug]")
    info["available_actions"]["clickables"].clear()
    *_, again = shared.step("nonsense")
    assert again["available_actions"]["clickables"]


def test_one_catalogue_for_all_environments(tmp_path: Any) -> None:
    first, second = WebShopEnv(split="train"), WebShopEnv(split="test", observation_mode="text_rich")
    assert first.shop is second.shop
    assert WebShopEnv(compat="original").shop.catalog is first.shop.catalog
    assert WebShopEnv(compat=Compat()).shop is first.shop


def test_records_in_memory_are_accepted(raw: RawCatalog) -> None:
    env = WebShopEnv(data_dir=raw, split="all")
    assert len(env.shop.catalog) == 6
