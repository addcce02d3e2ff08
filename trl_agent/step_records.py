"""Trajectories <-> step records, the plain form in which episodes are stored and exchanged."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from trl_agent.action_format import (
    ActionFormat,
    add_instruction,
    check_action_format,
    format_answer,
    parse_action,
)
from trl_agent.chat import ChatFormat
from trl_agent.context import Context, ContextPolicy, Span
from trl_agent.trajectory import Trajectory, Turn
from trl_agent_envs.records import EpisodeRecord, StepRecord

_ENDS = ("truncation_cause", "error")


def trajectory_to_steps(trajectory: Trajectory) -> EpisodeRecord:
    """Return an episode's turns as step records: observation, action, reward.

    The first step keeps the system prompt in ``extra["system_prompt"]``; the last one the episode's score and,
    where it was truncated or failed, ``extra["truncation_cause"]`` and ``extra["error"]``. Tokens and logprobs
    are left out: they mean nothing without the policy that sampled them.

    A step's `response` is what a model should learn to say: the whole answer, reasoning and tags included. Where
    that is more than the action (`Turn.answer`), what the environment got is in ``extra["action"]``, "" if the
    answer said no action.

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
        if turn.answer is not None:
            extra["action"] = turn.action
        if k == last:
            extra |= {
                name: getattr(trajectory, name) for name in _ENDS if getattr(trajectory, name) is not None
            }
        steps.append(
            StepRecord(
                prompt=turn.observation,
                response=turn.action if turn.answer is None else turn.answer,
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
    context_policy: ContextPolicy = "full",
    context_window: int | None = None,
    action_format: ActionFormat = "plain",
) -> Trajectory:
    """Return a recorded episode as an offline trajectory, tokenized by `chat`, with logprobs of 0.

    Args:
        steps: one whole episode, in order.
        max_length: most tokens of a segment; turns from the first one on that does not fit are left out (then
            the trajectory is truncated, "token_limit").
        context_policy, context_window: as the rollout's, so that the policy sees the same here and there.
        action_format: "tagged" puts bare actions in tags (see `answer_of`) and tells the policy of the format.

    Raises:
        ValueError: no steps, or options out of range.
    """
    check_action_format(action_format)
    if not steps:
        raise ValueError("an episode without steps cannot be turned into a trajectory")
    record = EpisodeRecord(steps)
    extra = steps[-1].extra
    cause = extra.get("truncation_cause")
    system_prompt = system_prompt_of(steps[0], action_format) if use_system_prompt else None
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
    context = Context(
        chat,
        max_length=sys.maxsize if max_length is None else max_length,
        policy=context_policy,
        window=context_window,
        system_prompt=system_prompt,
    )
    spans = context.replay([(step.prompt, answer_of(step, action_format)) for step in steps])
    if len(spans) < len(steps):
        trajectory.terminated, trajectory.truncated = False, True
        trajectory.truncation_cause = "token_limit"
    trajectory.segments = context.segments
    trajectory.turns = [_turn(step, span, action_format) for step, span in zip(steps, spans)]
    return trajectory


def answer_of(step: StepRecord, action_format: ActionFormat) -> str:
    """Return what the policy is to say in a recorded step.

    That is the response as it stands, but where the format is "tagged" a response that has no tags (a
    demonstration without reasoning) is put in tags. A response known to be a whole answer
    (``extra["action"]``) is never changed.
    """
    if "action" in step.extra:
        return step.response
    return format_answer(step.response, action_format)


def system_prompt_of(step: StepRecord, action_format: ActionFormat) -> str | None:
    """Return the system prompt of an episode, given its first step, with what the format needs said."""
    return add_instruction(step.extra.get("system_prompt"), action_format)


def _turn(step: StepRecord, span: Span, action_format: ActionFormat) -> Turn:
    answer = answer_of(step, action_format)
    action = step.extra.get("action", parse_action(answer, action_format) or "")
    return Turn(
        step.prompt,
        action,
        *span,
        reward=step.reward,
        action_error=step.extra.get("action_error"),
        answer=answer if answer != action else None,
    )
