"""`webshop/evaluation.py`: sums by hand, spreading over products, records played again."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from trl_agent_envs.records import EpisodeRecord, RecordError, StepRecord, StepRecordWriter, read_episodes
from trl_agent_envs.webshop import Goal, RawCatalog, RewardInfo, Shop
from trl_agent_envs.webshop.env import WebShopEnv
from trl_agent_envs.webshop.evaluation import Evaluation, Outcome, evaluate, score_episodes
from trl_agent_envs.webshop.policies import POLICIES
from trl_agent_envs.webshop.synthetic import generate

SIXTY = generate(60, seed=0)


def make(**kwargs: Any) -> WebShopEnv:
    return WebShopEnv(**({"data_dir": SIXTY, "split": "all"} | kwargs))


def reward(total: float, r_att: float, r_option: float | None) -> RewardInfo:
    return RewardInfo(total, 1.0, r_att, r_option, total > 0.5, 1.0, True, True, 0.4, 0.4, 0.2)


def outcome(asin: str, department: str, info: RewardInfo | None, turns: int = 3, errors: int = 0) -> Outcome:
    score = 0.0 if info is None else info.total
    return Outcome(0, asin, department, score, score == 1.0, turns, errors, info)


def test_sums_by_hand() -> None:
    result = Evaluation.of(
        [
            outcome("A", "tea", reward(1.0, 1.0, None), turns=4, errors=1),
            outcome("B", "rugs", reward(0.5, 0.5, 0.0), turns=5),
            outcome("C", "rugs", None, turns=15, errors=3),
            outcome("D", "rugs", reward(0.75, 1.0, 0.5), turns=4),
        ]
    )
    assert (result.overall.n, result.overall.success, result.overall.score) == (4, 0.25, 2.25 / 4)
    assert list(result.departments) == ["rugs", "tea"]
    assert (result.departments["rugs"].n, result.departments["rugs"].success) == (3, 0.0)
    assert result.departments["rugs"].score == pytest.approx(1.25 / 3)
    assert (result.bought.n, result.bought.mean) == (4, 0.75)
    parts = {name: (part.n, part.mean) for name, part in result.parts.items()}
    assert parts == {
        "r_type": (3, 1.0),
        "r_att": (3, pytest.approx(2.5 / 3)),
        "r_option": (2, 0.25),
        "r_price": (3, pytest.approx(2 / 3)),
    }
    assert (result.turns, result.errors) == (7.0, 1.0)
    as_json = result.to_dict()
    assert as_json["score"] == 2.25 / 4
    assert as_json["parts"]["r_option"] == {"n": 2, "mean": 0.25, "ci": [0.0, 0.5]}
    lines = result.table().splitlines()
    assert lines[1].split() == ["all", "4", "25.0%", "[0.0%,", "75.0%]", "56.2%", "[18.8%,", "87.5%]"]


def test_nothing_bought_and_nothing_played() -> None:
    result = Evaluation.of([outcome("A", "tea", None)])
    assert (result.bought.mean, result.parts) == (0.0, {})
    with pytest.raises(ValueError, match="no episode"):
        Evaluation.of([])


def test_goals_of_one_product_are_resampled_together() -> None:
    """Fifty episodes of each of two products, all good or all bad: nobody knows what a third would do."""
    info = reward(1.0, 1.0, None)
    result = Evaluation.of([outcome("A", "tea", info)] * 50 + [outcome("B", "tea", None)] * 50)
    assert result.overall.success_ci == (0.0, 1.0)
    assert result.bought.ci == (0.0, 1.0)


def test_the_ceiling_and_the_rule_of_thumb() -> None:
    env = make()
    best = evaluate(POLICIES["oracle"](env, 0), env, n=40)
    assert (best.overall.n, best.overall.success, best.errors) == (40, 1.0, 0.0)
    assert {name: part.mean for name, part in best.parts.items()} == dict.fromkeys(best.parts, 1.0)
    rule = evaluate(POLICIES["first"](env, 0), env, n=40)
    assert rule.parts["r_option"].mean == 0.0  # it chooses none
    assert rule.turns == 3.0
    assert [o.goal_id for o in rule.outcomes] == [o.goal_id for o in best.outcomes]


def test_goals_are_spread_over_products() -> None:
    env = make(split="train")
    products = {env.goals[goal_id].asin for goal_id in env.goal_ids}
    played = evaluate(POLICIES["first"](env, 0), env, n=len(products)).outcomes
    assert Counter(o.asin for o in played) == dict.fromkeys(products, 1)
    other = evaluate(POLICIES["first"](env, 0), env, n=len(products), seed=1).outcomes
    assert [o.goal_id for o in other] != [o.goal_id for o in played]
    few = evaluate(POLICIES["first"](env, 0), make(split="test"), n=100_000)
    assert few.overall.n == len(make(split="test").goal_ids)  # no more than there are


def test_a_policy_reads_observation_and_info() -> None:
    class Counting(gym.Wrapper[str, str, str, str]):
        steps = 0

        def step(self, action: str) -> Any:
            self.steps += 1
            return super().step(action)

    env = Counting(make(max_turns=4))
    calls: list[tuple[str, dict[str, Any]]] = []

    def policy(observation: str, info: dict[str, Any]) -> str:
        calls.append((observation, info))
        return "wait"

    result = evaluate(policy, env, n=3)
    assert (result.turns, result.errors, result.bought.mean) == (4.0, 4.0, 0.0)
    assert env.steps == len(calls) == 12
    assert ["system_prompt" in info for _, info in calls] == [True, False, False, False] * 3
    assert all(observation.startswith("WebShop [SEP]") for observation, _ in calls)
    assert "not an action" in calls[1][1]["action_error"]


def test_what_cannot_be_evaluated() -> None:
    env = make()
    with pytest.raises(TypeError, match="must return the action as text, got NoneType"):
        evaluate(lambda observation, info: None, env)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        evaluate(POLICIES["oracle"](env, 0), env, n=0)
    with pytest.raises(TypeError, match="plays a WebShopEnv, got CartPoleEnv"):
        evaluate(POLICIES["oracle"](env, 0), gym.make("CartPole-v1"))


@pytest.mark.parametrize("name", list(POLICIES))
@pytest.mark.parametrize("compat", ["strict", "original"])
def test_records_give_the_same_figures(name: str, compat: str, tmp_path: Path) -> None:
    env = make(compat=compat, observation_mode="text_rich")
    with StepRecordWriter(tmp_path / "run.jsonl") as writer:
        played = evaluate(POLICIES[name](env, 5), env, n=30, on_episode=writer.write_episode)
    episodes = list(read_episodes(tmp_path / "run.jsonl"))
    assert all("system_prompt" in episode[0].extra for episode in episodes)
    assert score_episodes(episodes, env.shop) == played
    cut = [episode for episode, o in zip(episodes, played.outcomes) if o.reward is None]
    assert all(episode[-1].extra["truncation_cause"] == "turn_limit" for episode in cut)


@pytest.fixture
def bought(raw: RawCatalog) -> tuple[Shop, Goal, EpisodeRecord]:
    """A visit to the shop of six products, in which the model thinks aloud."""
    shop = Shop.load(raw)
    goal = next(goal for goal in shop.goals() if goal.asin == "B000000005")
    rows = [
        ("<action>search[tea]</action>", {"action": "search[tea]"}),
        ("well ...", {"action": ""}),
        ("click[b000000005]", {}),
        ("click[buy now]", {}),
    ]
    steps = [
        StepRecord(
            f"WebShop [SEP] {goal.instruction}", text, 0.0, i == 3, goal_id=goal.goal_id, extra=dict(extra)
        )
        for i, (text, extra) in enumerate(rows)
    ]
    return shop, goal, EpisodeRecord(steps)


def test_whole_answers_are_read_as_what_the_shop_got(bought: tuple[Shop, Goal, EpisodeRecord]) -> None:
    shop, goal, episode = bought
    result = score_episodes([episode], shop)
    assert (result.overall.success, result.turns, result.errors) == (1.0, 4.0, 1.0)
    assert result.outcomes[0].reward == shop.reward(goal, goal.asin, {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"goal_id": None}, r"run: episode 0 \(goal None\): goal_id must be a whole number in \[0, 9\]"),
        ({"goal_id": "x"}, r"goal_id must be a whole number"),
        ({"goal_id": 10}, r"\(goal 10\): goal_id must be a whole number in \[0, 9\]"),
        ({"prompt": "Buy a boat"}, r"does not ask for 'Find me tea.*price seed of the run"),
        ({"score": 0.25}, r"the recorded score is 0.2500, played again it is 1.0000; give the data, compat"),
    ],
)
def test_records_of_another_shop(
    bought: tuple[Shop, Goal, EpisodeRecord], changes: dict[str, Any], message: str
) -> None:
    shop, _, episode = bought
    changed = EpisodeRecord(dataclasses.replace(step, **changes) for step in episode)
    with pytest.raises(RecordError, match=message):
        score_episodes([changed], shop, source="run")


def test_an_empty_file_of_records(strict: Shop) -> None:
    with pytest.raises(RecordError, match="run: holds no episode"):
        score_episodes([], strict, source="run")
