"""Demonstrations: episodes of a scripted expert or crowd, collected, written and read as step records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from tqdm import tqdm

from trl_agent.action_format import ActionFormat
from trl_agent.chat import ChatFormat
from trl_agent.context import Context, ContextPolicy
from trl_agent.step_records import answer_of, system_prompt_of
from trl_agent.trajectory import Segment
from trl_agent_envs.records import EpisodeRecord, StepRecord, StepRecordWriter, read_episodes


class Actor(Protocol):
    """Someone who knows an environment from the inside and acts in it."""

    def start_episode(self, episode: int) -> None:
        """Get ready for an episode that was just reset."""

    def act(self, env: Any) -> str:
        """Return the next action, given the unwrapped environment."""


Reset = tuple[int | None, dict[str, Any] | None]
"""Seed and options of one `env.reset`."""


def seeded_resets(number: int, seed: int) -> list[Reset]:
    """Resets whose i-th environment seed depends on (seed, i) only."""
    return [(int(np.random.SeedSequence([seed, i]).generate_state(1)[0] >> 1), None) for i in range(number)]


def play_scripted(
    env: gym.Env[str, str], actor: Actor, resets: Sequence[Reset], *, progress: str | None = None
) -> list[EpisodeRecord]:
    """Let `actor` play one episode per reset.

    Args:
        progress: label of the progress bar; None shows none.
    """
    rows = tqdm(resets, desc=progress, disable=None if progress else True)
    return [_play(env, actor, index, *reset) for index, reset in enumerate(rows)]


def _play(
    env: gym.Env[str, str], actor: Actor, index: int, seed: int | None, options: dict[str, Any] | None
) -> EpisodeRecord:
    observation, info = env.reset(seed=seed, options=options)
    actor.start_episode(index)
    steps = EpisodeRecord()
    extra = {"system_prompt": info["system_prompt"]} if info.get("system_prompt") else {}
    done = False
    while not done:
        action = actor.act(env.unwrapped)
        prompt = observation
        observation, reward, terminated, truncated, info = env.step(action)
        done = terminated or truncated
        score = float(info.get("score", 0.0))
        steps.append(
            StepRecord(prompt, action, float(reward), done, index, info.get("goal_id"), score, dict(extra))
        )
        extra = {}
    return steps


def write_demonstrations(path: str | Path, episodes: Iterable[Sequence[StepRecord]]) -> None:
    """Write episodes as step records, replacing the file."""
    with StepRecordWriter(path, append=False) as writer:
        for steps in episodes:
            writer.write_episode(steps)


def read_demonstrations(path: str | Path) -> list[EpisodeRecord]:
    """Read a file of step records.

    Raises:
        RecordError: naming file, line and field.
        ValueError: the file holds no episode.
    """
    episodes = list(read_episodes(path))
    if not episodes:
        raise ValueError(f"{path} holds no episode")
    return episodes


def encode_demonstrations(
    episodes: Iterable[EpisodeRecord],
    chat: ChatFormat,
    *,
    use_system_prompt: bool,
    max_length: int,
    context_policy: ContextPolicy = "full",
    context_window: int | None = None,
    action_format: ActionFormat = "plain",
    keep: Callable[[EpisodeRecord], bool] = lambda episode: True,
) -> list[list[Segment]]:
    """Tokenize the episodes for which `keep` is true, as a policy with these options would have seen them.

    Args:
        max_length: most tokens of a segment; an episode with a turn that does not fit is left out.
        action_format: "tagged" puts bare actions in tags, see `step_records.answer_of`.

    Returns:
        Each kept episode's segments.
    """
    kept = []
    for episode in episodes:
        if not keep(episode):
            continue
        context = Context(
            chat,
            max_length=max_length,
            policy=context_policy,
            window=context_window,
            system_prompt=system_prompt_of(episode[0], action_format) if use_system_prompt else None,
        )
        spans = context.replay([(step.prompt, answer_of(step, action_format)) for step in episode])
        if len(spans) == len(episode):
            kept.append(context.segments)
    return kept
