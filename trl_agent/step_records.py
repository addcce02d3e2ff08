"""Trajectories <-> step records, the plain form in which episodes are stored and exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trl_agent.chat import ChatFormat
from trl_agent.trajectory import Trajectory, Turn
from trl_agent_envs.records import EpisodeRecord, StepRecord

_ENDS = ("truncation_cause", "error")


def trajectory_to_steps(trajectory: Trajectory) -> EpisodeRecord:
    """Return an episode's turns as step records: observation, action, reward.

    The first step keeps the system prompt in ``extra["system_prompt"]``; the last one the episode's score and,
    where it was truncated or failed, ``extra["truncation_cause"]`` and ``extra["error"]``. Tokens and logprobs
    are left out: they mean nothing without the policy that sampled them.

    Raises:
        ValueError: the trajectory has no turns, so there is no step to record.
    """
    if not trajectory.turns:
        raise ValueError(f"episode {trajectory.episode} has no turns, so there is nothing to record")
    last = len(trajectory.turns) - 1
    steps = EpisodeRecord()
    for k, turn in enumerate(trajectory.turns):
        extra: dict[str, Any] = {}
        if k == 0 and trajectory.system_prompt is not None:
            extra["system_prompt"] = trajectory.system_prompt
        if turn.action_error is not None:
            extra["action_error"] = turn.action_error
        if k == last:
            extra |= {
                name: getattr(trajectory, name) for name in _ENDS if getattr(trajectory, name) is not None
            }
        steps.append(
            StepRecord(
                prompt=turn.observation,
                response=turn.action,
                reward=turn.reward,
                done=k == last,
                episode=trajectory.episode,
                goal_id=trajectory.goal_id,
                score=trajectory.score if k == last else None,
                extra=extra,
            )
        )
    return steps


def steps_to_trajectory(
    steps: Sequence[StepRecord],
    chat: ChatFormat,
    *,
    use_system_prompt: bool = True,
    max_length: int | None = None,
) -> Trajectory:
    """Return a recorded episode as an offline trajectory, tokenized by `chat`, with logprobs of 0.

    Args:
        steps: one whole episode, in order.
        max_length: turns from the first one on that would end beyond this many tokens are left out (then the
            trajectory is truncated, "token_limit").

    Raises:
        ValueError: no steps.
    """
    if not steps:
        raise ValueError("an episode without steps cannot be turned into a trajectory")
    record = EpisodeRecord(steps)
    extra = steps[-1].extra
    cause = extra.get("truncation_cause")
    system_prompt = steps[0].extra.get("system_prompt") if use_system_prompt else None
    score = record.score if record.score is not None else 0.0
    trajectory = Trajectory(
        score=score,
        success=record.success,
        goal_id=record.goal_id,
        terminated=cause is None,
        truncated=cause is not None,
        truncation_cause=cause,
        error=extra.get("error"),
        source="offline",
        episode=steps[0].episode if isinstance(steps[0].episode, int) else 0,
        system_prompt=system_prompt,
    )
    segment = chat.encode_episode([(step.prompt, step.response) for step in steps], system_prompt)
    spans = _spans(segment.action_mask)
    if max_length is not None and len(segment) > max_length:
        spans = [span for span in spans if span[1] <= max_length]
        end = spans[-1][1] if spans else 0
        for tokens in (segment.input_ids, segment.action_mask, segment.logprobs):
            del tokens[end:]
        trajectory.terminated, trajectory.truncated = False, True
        trajectory.truncation_cause = "token_limit"
    trajectory.segments = [segment] if spans else []
    trajectory.turns = [
        Turn(s.prompt, s.response, 0, start, end, s.reward, action_error=s.extra.get("action_error"))
        for s, (start, end) in zip(steps, spans)
    ]
    return trajectory


def _spans(mask: Sequence[bool]) -> list[tuple[int, int]]:
    """Runs of True as [start, end). Context always separates two actions, so a run is one action."""
    spans: list[tuple[int, int]] = []
    start: int | None = None
    for t, counts in enumerate([*mask, False]):
        if counts and start is None:
            start = t
        elif not counts and start is not None:
            spans.append((start, t))
            start = None
    return spans
