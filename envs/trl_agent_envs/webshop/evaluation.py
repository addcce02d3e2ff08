"""How well a policy shops: success and score on many goals, by department and by part of the reward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from trl_agent_envs.outcomes import Summary, bootstrap_interval, summarize_outcomes
from trl_agent_envs.records import EpisodeRecord, RecordError, StepRecord

from .env import WebShopEnv
from .reward import RewardInfo
from .sampling import spread_goals
from .session import ActionError, Session
from .shop import Shop

Policy = Callable[[str, dict[str, Any]], str]
"""Observation and info -> action. The info of an episode's first call holds "system_prompt"."""

PARTS = ("r_type", "r_att", "r_option", "r_price")
"""The parts of the reward (see `RewardInfo`)."""


@dataclass(frozen=True)
class Outcome:
    """How one episode ended.

    asin, department: of the product that was asked for. turns: actions. errors: those that did nothing.
    reward: parts of the purchase's reward, None if nothing was bought.
    """

    goal_id: int
    asin: str
    department: str
    score: float
    success: bool
    turns: int
    errors: int
    reward: RewardInfo | None


@dataclass(frozen=True)
class Part:
    """Mean over the n episodes it is defined for, in [0, 1], with its 95 % bootstrap interval."""

    n: int
    mean: float
    ci: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        return {"n": self.n, "mean": self.mean, "ci": list(self.ci)}


@dataclass(frozen=True)
class Evaluation:
    """Outcomes summed up. Intervals resample products, so that several goals of one count as what they are.

    overall: all episodes. departments: the episodes whose product is of each.
    bought: share of the episodes in which something was bought.
    parts: part of the reward -> its mean over purchases (r_option: over those that had options to meet).
    turns, errors: actions an episode, and those of them that did nothing.
    """

    outcomes: tuple[Outcome, ...]
    overall: Summary
    departments: dict[str, Summary]
    bought: Part
    parts: dict[str, Part]
    turns: float
    errors: float

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> Evaluation:
        """Sum up outcomes.

        Raises:
            ValueError: there are none.
        """
        if not outcomes:
            raise ValueError("there is no episode to sum up")
        by_department: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            by_department[outcome.department].append(outcome)
        purchases = [(outcome.asin, outcome.reward) for outcome in outcomes if outcome.reward is not None]
        parts = {}
        for name in PARTS:
            values = [(asin, getattr(reward, name)) for asin, reward in purchases]
            parts[name] = _part([(asin, float(value)) for asin, value in values if value is not None])
        return cls(
            outcomes=tuple(outcomes),
            overall=_summary(outcomes),
            departments={name: _summary(by_department[name]) for name in sorted(by_department)},
            bought=_part([(outcome.asin, float(outcome.reward is not None)) for outcome in outcomes]),
            parts={name: part for name, part in parts.items() if part.n},
            turns=float(np.mean([outcome.turns for outcome in outcomes])),
            errors=float(np.mean([outcome.errors for outcome in outcomes])),
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON, without the single outcomes."""
        return {
            **self.overall.to_dict(),
            "departments": {name: summary.to_dict() for name, summary in self.departments.items()},
            "bought": self.bought.to_dict(),
            "parts": {name: part.to_dict() for name, part in self.parts.items()},
            "turns": self.turns,
            "errors": self.errors,
        }

    def table(self) -> str:
        """As text for people, in per cent, with 95 % intervals."""
        lines = [f"{'department':<14}{'n':>6}  {'success':<26}{'score'}"]
        for name, row in {"all": self.overall, **self.departments}.items():
            success = _percent(row.success, row.success_ci)
            lines.append(f"{name:<14}{row.n:>6}  {success:<26}{_percent(row.score, row.score_ci)}")
        lines += ["", f"{'part':<14}{'n':>6}  mean"]
        for name, part in {"bought": self.bought, **self.parts}.items():
            lines.append(f"{name:<14}{part.n:>6}  {_percent(part.mean, part.ci)}")
        lines += ["", f"{self.turns:.1f} turns an episode, {self.errors:.2f} of them did nothing"]
        return "\n".join(lines)


def _summary(outcomes: Sequence[Outcome]) -> Summary:
    return summarize_outcomes(
        ((outcome.score, outcome.success) for outcome in outcomes), [outcome.asin for outcome in outcomes]
    )


def _part(values: Sequence[tuple[str, float]]) -> Part:
    if not values:
        return Part(0, float("nan"), (float("nan"), float("nan")))
    numbers = [value for _, value in values]
    interval = bootstrap_interval(numbers, clusters=[asin for asin, _ in values])
    return Part(len(numbers), float(np.mean(numbers)), interval)


def _percent(mean: float, interval: tuple[float, float]) -> str:
    return f"{mean:.1%} [{interval[0]:.1%}, {interval[1]:.1%}]"


def evaluate(
    policy: Policy,
    env: gym.Env[str, str],
    n: int = 200,
    seed: int = 0,
    on_episode: Callable[[EpisodeRecord], None] | None = None,
) -> Evaluation:
    """Play `n` goals of the environment's split and sum up how it went.

    The goals are one of each product before a second of any (`sampling.spread_goals`); the same seed gives the
    same ones. A split with fewer goals is played whole.

    Args:
        policy: what to play; called once a turn.
        env: a `WebShopEnv` (wrappers are played through).
        n: episodes, at least 1.
        seed: chooses the goals.
        on_episode: is given each episode as step records, for example `StepRecordWriter.write_episode`.

    Raises:
        TypeError: `env` is no WebShop, or the policy returns something other than text.
        ValueError: `n` is below 1.
    """
    shop_env = env.unwrapped
    if not isinstance(shop_env, WebShopEnv):
        raise TypeError(f"evaluate plays a WebShopEnv, got {type(shop_env).__name__}")
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    outcomes = []
    for number, goal_id in enumerate(spread_goals(shop_env.goals, shop_env.goal_ids, n, seed)):
        episode, errors = _play(policy, env, goal_id, number)
        outcomes.append(_outcome(shop_env.session, len(episode), errors))
        if on_episode is not None:
            on_episode(episode)
    return Evaluation.of(outcomes)


def _play(policy: Policy, env: gym.Env[str, str], goal_id: int, number: int) -> tuple[EpisodeRecord, int]:
    """Play one episode; return its steps, and how many actions did nothing."""
    observation, info = env.reset(options={"goal_id": goal_id})
    extra: dict[str, Any] = {"system_prompt": info["system_prompt"]}
    steps, errors, over = EpisodeRecord(), 0, False
    while not over:
        prompt, action = observation, policy(observation, info)
        if not isinstance(action, str):
            raise TypeError(f"a policy must return the action as text, got {type(action).__name__}")
        observation, reward, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        if info["action_error"] is not None:
            errors += 1
            extra["action_error"] = info["action_error"]
        if over and not terminated:
            extra["truncation_cause"] = info.get("truncation_cause", "turn_limit")
        score = info["score"] if over else None
        steps.append(StepRecord(prompt, action, float(reward), over, number, goal_id, score, extra))
        extra = {}
    return steps, errors


def _outcome(session: Session, turns: int, errors: int) -> Outcome:
    goal, reward = session.goal, session.reward
    return Outcome(
        goal_id=goal.goal_id,
        asin=goal.asin,
        department=session.shop.catalog[goal.asin].category,
        score=0.0 if reward is None else reward.total,
        success=reward is not None and reward.success,
        turns=turns,
        errors=errors,
        reward=reward,
    )


def score_episodes(
    episodes: Iterable[EpisodeRecord], shop: Shop, goal_set: str = "synthetic", source: str = "records"
) -> Evaluation:
    """Sum up recorded episodes by playing their actions again.

    Args:
        episodes: with a goal id each, as `read_episodes` yields them.
        shop: the shop they were played in, with the same data, `compat`, price seed and title nouns.
        goal_set: the set their goal ids are of.
        source: how messages name the records, for example the file.

    Raises:
        RecordError: an episode has no goal id or one that the shop does not have, was played for another
            instruction, or ends with another score than the one recorded. The message names the episode.
    """
    goals = shop.goals(goal_set)
    outcomes = []
    for number, episode in enumerate(episodes):
        where = f"{source}: episode {number} (goal {episode.goal_id})"
        goal_id = episode.goal_id
        if not isinstance(goal_id, int) or not 0 <= goal_id < len(goals):
            raise RecordError(
                f"{where}: goal_id must be a whole number in [0, {len(goals) - 1}] to be scored"
            )
        goal = goals[goal_id]
        if goal.instruction.strip() not in episode[0].prompt:
            raise RecordError(
                f"{where}: the first prompt does not ask for {goal.instruction!r}; give the data, the goal set "
                "and the price seed of the run"
            )
        session = Session(shop, goal)
        errors = sum(not _repeat(session, step) for step in episode)
        outcome = _outcome(session, len(episode), errors)
        if episode.score is not None and abs(episode.score - outcome.score) > 1e-6:
            raise RecordError(
                f"{where}: the recorded score is {episode.score:.4f}, played again it is {outcome.score:.4f}; "
                "give the data, compat, price seed and title nouns of the run"
            )
        outcomes.append(outcome)
    if not outcomes:
        raise RecordError(f"{source}: holds no episode")
    return Evaluation.of(outcomes)


def _repeat(session: Session, step: StepRecord) -> bool:
    """Do a recorded action again; return whether it did something.

    Where a model's answer is more than an action, ``extra["action"]`` is what the environment got ("" if there
    was none in it).
    """
    action = step.extra.get("action", step.response)
    try:
        session.act(action if isinstance(action, str) else "")
    except ActionError:
        return False
    return True
