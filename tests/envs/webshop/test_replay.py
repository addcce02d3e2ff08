"""Actions done again give what the environment gave."""

from __future__ import annotations

import random
from typing import Any

import pytest

from trl_agent_envs.records import EpisodeRecord, StepRecord
from trl_agent_envs.webshop import Shop
from trl_agent_envs.webshop.env import WebShopEnv
from trl_agent_envs.webshop.replay import ReplayError, replay, search_action
from trl_agent_envs.webshop.session import Session
from trl_agent_envs.webshop.synthetic import generate

FORTY = generate(40, seed=0)


def played(env: WebShopEnv, rng: random.Random, max_steps: int) -> tuple[list[str], EpisodeRecord]:
    """Random actions, and the episode as a loop over the environment writes it down."""
    prompt, info = env.reset(seed=rng.randrange(1000))
    actions: list[str] = []
    steps = EpisodeRecord()
    extra: dict[str, Any] = {"system_prompt": info["system_prompt"]}
    for _ in range(max_steps):
        action = env.sample_action(rng)
        if action is None:
            break
        actions.append(action)
        observation, reward, done, _, info = env.step(action)
        steps.append(StepRecord(prompt, action, reward, done, "e", info["goal_id"], info["score"], extra))
        prompt, extra = observation, {}
    return actions, steps


@pytest.mark.parametrize("mode", ["text", "text_rich"])
def test_a_replay_is_what_the_environment_gave(mode: Any) -> None:
    env = WebShopEnv(data_dir=FORTY, split="all", observation_mode=mode, max_turns=1000)
    bought = 0
    for seed in range(40):
        actions, steps = played(env, random.Random(seed), 30)
        goal = env.session.goal
        ended = steps[-1].done
        bought += ended
        if not ended:
            with pytest.raises(ReplayError, match="the last action is not a purchase"):
                replay(env.shop, goal, actions)
            last = steps.pop()
            extra = last.extra | {"truncation_cause": "turn_limit"}
            steps.append(StepRecord(last.prompt, last.response, 0.0, True, "e", last.goal_id, 0.0, extra))
        found = replay(
            env.shop,
            goal,
            actions,
            observation_mode=mode,
            episode="e",
            goal_id=goal.goal_id,
            truncation_cause="turn_limit",
        )
        assert found == steps
    assert 5 < bought < 40


def test_what_cannot_be_done_is_named(strict: Shop) -> None:
    goal = strict.goals("synthetic")[0]
    with pytest.raises(ReplayError, match="no action to record"):
        replay(strict, goal, [])
    with pytest.raises(ReplayError, match=r"action 2 cannot be done: 'buy now' cannot be clicked"):
        replay(strict, goal, ["search[rug]", "click[buy now]"])


@pytest.mark.parametrize("query", ["red shoes", "a [b] c", "]", "x\r\ny", "[[", "q]["])
def test_any_query_with_words_becomes_an_action(strict: Shop, query: str) -> None:
    session = Session(strict, strict.goals("synthetic")[0])
    session.act(search_action(query))
    words = query.replace("[", " ").replace("]", " ").replace("\r", " ").replace("\n", " ")
    assert session.keywords == words.split(" ")
