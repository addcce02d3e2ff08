"""Session logs of the original's site as step records: what was done is worked out from the pages shown."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from trl_agent_envs.records import EpisodeRecord

from .goals import Goal, without_price
from .log_lines import LogError, LogLine, read_log
from .pages import ObservationMode
from .replay import ReplayError, replay
from .retracing import NotReplayable, Retracing
from .shop import Shop

_SCORE_TOLERANCE = 1e-6


@dataclass
class Conversion:
    """What became of the logs.

    episodes: how many were converted. skipped: reason -> how many visits. problems: one line for each that
    was skipped, and for each malformed line, with file and line. other_lists: pages of converted visits that
    list other products here. other_scores: converted purchases that have another score here. after_purchase:
    pages left out because their visitor had bought already.
    """

    episodes: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    other_lists: int = 0
    other_scores: int = 0
    after_purchase: int = 0


def convert_logs(
    paths: Iterable[str | os.PathLike[str]],
    shop: Shop,
    conversion: Conversion,
    *,
    observation_mode: ObservationMode = "text",
    strict: bool = False,
) -> Iterator[EpisodeRecord]:
    """Yield one episode for each visit in the logs that ends in a purchase and can be done again in `shop`.

    A visit is what one session name did, up to its first purchase. An episode's score is the shop's own; where
    the log has another, its first step keeps that in ``extra["logged_score"]``. `conversion` is filled in.

    Args:
        strict: raise for the first visit that cannot be converted instead of leaving it out.

    Raises:
        LogError, NotReplayable: with `strict`.
        OSError: a file cannot be read.
    """
    goal_ids = _GoalIds(shop)
    for path in paths:
        for name, lines in _visits(path).items():
            malformed = [line for line in lines if isinstance(line, LogError)]
            pages = [line for line in lines if isinstance(line, LogLine)]
            try:
                if malformed:
                    raise malformed[0]
                steps = _convert(name, pages, shop, goal_ids, conversion, observation_mode)
            except (LogError, NotReplayable) as error:
                if strict:
                    raise
                reason = error.reason if isinstance(error, NotReplayable) else "a line is malformed"
                conversion.skipped[reason] += 1
                conversion.problems += [str(line) for line in malformed] or [str(error)]
                continue
            conversion.episodes += 1
            yield steps


def _visits(path: str | os.PathLike[str]) -> dict[str, list[LogLine | LogError]]:
    """Return the lines of each session name. A line that cannot be read belongs to the session before it."""
    visits: dict[str, list[LogLine | LogError]] = {}
    current = ""
    for line in read_log(path):
        if isinstance(line, LogLine):
            current = line.session
        visits.setdefault(current, []).append(line)
    return visits


def _convert(
    name: str,
    lines: Sequence[LogLine],
    shop: Shop,
    goal_ids: _GoalIds,
    conversion: Conversion,
    observation_mode: ObservationMode,
) -> EpisodeRecord:
    bought = next((index for index, line in enumerate(lines) if line.page == "done"), None)
    if bought is None:
        raise NotReplayable("the visit ends without a purchase", lines[-1].where)
    pages, last = lines[: bought + 1], lines[bought]
    goal = pages[0].goal
    if any(page.goal != goal for page in pages):
        raise NotReplayable("the goal changes within the visit", last.where)
    goal_id = goal_ids.find(goal)
    if goal.asin not in shop.catalog:
        raise NotReplayable("the catalogue lacks the product asked for", last.where, goal.asin)
    goal = dataclasses.replace(goal, goal_id=0 if goal_id is None else goal_id)
    retracing = Retracing(shop, goal)
    for page in pages:
        retracing.show(page)
    try:
        steps = replay(
            shop,
            goal,
            retracing.actions,
            observation_mode=observation_mode,
            episode=name or None,
            goal_id=goal_id,
        )
    except ReplayError as error:
        raise NotReplayable("what was done cannot be done again", last.where, str(error)) from error
    conversion.after_purchase += len(lines) - len(pages)  # done with the score in sight
    conversion.other_lists += retracing.other_lists
    if last.reward is not None and abs(last.reward - (steps.score or 0.0)) > _SCORE_TOLERANCE:
        conversion.other_scores += 1
        steps[0].extra["logged_score"] = last.reward
    return steps


class _GoalIds:
    """Which of a shop's goals a log's goal is: same product, wishes and words, whatever the price limit."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._ids: dict[str, dict[object, int]] = {}

    def find(self, goal: Goal) -> int | None:
        """Return the goal's id, or None where the shop has no such goal."""
        goal_set = "synthetic" if isinstance(goal.options, dict) else "human"
        if goal_set not in self._ids:
            try:
                self._ids[goal_set] = {_key(known): known.goal_id for known in self._shop.goals(goal_set)}
            except ValueError:  # the catalogue has no instructions of this set
                self._ids[goal_set] = {}
        return self._ids[goal_set].get(_key(goal))


def _key(goal: Goal) -> object:
    options = tuple(sorted(goal.options.items())) if isinstance(goal.options, dict) else goal.options
    return goal.asin, goal.attributes, options, without_price(goal.instruction)
