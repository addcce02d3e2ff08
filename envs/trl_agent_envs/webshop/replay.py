"""A visit's actions as step records: they are done again in a fresh session, which shows what was seen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from trl_agent_envs.core import TruncationCause
from trl_agent_envs.records import EpisodeRecord, StepRecord

from .env import SYSTEM_PROMPT
from .goals import Goal
from .pages import ObservationMode
from .session import ActionError, Session
from .shop import Shop

_NOT_IN_A_QUERY = re.compile(r"[\[\]\r\n]")


class ReplayError(ValueError):
    """The actions cannot be done one after the other in this shop; the message says which and why."""


def search_action(query: str) -> str:
    """Return the action that searches for `query`.

    Brackets and line breaks, which an action cannot hold, become spaces; the search gives them no meaning.
    """
    return f"search[{_NOT_IN_A_QUERY.sub(' ', query)}]"


def replay(
    shop: Shop,
    goal: Goal,
    actions: Sequence[str],
    *,
    observation_mode: ObservationMode = "text",
    episode: int | str | None = None,
    goal_id: int | str | None = None,
    truncation_cause: TruncationCause | None = None,
) -> EpisodeRecord:
    """Do `actions` with `goal` and return them as one episode, as `WebShopEnv` would have shown it.

    Args:
        episode, goal_id: what the records name; None leaves them out.
        truncation_cause: why the episode ends without a purchase; None demands one.

    Raises:
        ReplayError: there is no action, one cannot be done, or the last one is not a purchase where no
            `truncation_cause` is given.
    """
    if not actions:
        raise ReplayError("there is no action to record")
    session = Session(shop, goal)
    steps = EpisodeRecord()
    for index, action in enumerate(actions):
        prompt = session.observation(observation_mode)
        try:
            session.act(action)
        except ActionError as error:
            raise ReplayError(f"action {index + 1} cannot be done: {error}") from error
        score = 0.0 if session.reward is None else session.reward.total
        last = index == len(actions) - 1
        extra: dict[str, Any] = {"system_prompt": SYSTEM_PROMPT} if index == 0 else {}
        if last and session.reward is None and truncation_cause is not None:
            extra["truncation_cause"] = truncation_cause
        steps.append(StepRecord(prompt, action, score, last, episode, goal_id, score, extra))
    if session.reward is None and truncation_cause is None:
        raise ReplayError("the last action is not a purchase")
    return steps
