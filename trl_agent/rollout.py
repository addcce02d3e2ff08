"""EnvPool + generation -> trajectories: the only caller of `env.step` in training.

An episode ends when the environment says so, after `max_turns` turns ("turn_limit"), when the next
observation leaves no room for an action within `max_length` or `max_episode_tokens` ("token_limit"), or when the
environment fails ("env_error", "env_timeout"; what was played is kept, with the error's text). An action that the
token limit cuts ends nothing: the environment gets the text there is. Where an episode was truncated, the
observation that followed its last action is appended as context if it fits, so that the bootstrap value sees it.

An answer that says no action in the format asked for (`action_format`) never reaches the environment: the turn
has an `action_error`, no reward, and the observation is shown again below a note. It is a turn like any other to
`max_turns` and the token limits; a limit of the environment's own does not see it.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Literal

from trl_agent.action_format import (
    NO_ACTION,
    RETRY_NOTE,
    ActionFormat,
    add_instruction,
    check_action_format,
    parse_action,
)
from trl_agent.chat import ChatFormat
from trl_agent.context import Context, ContextPolicy
from trl_agent.generation.protocol import (
    GenerationBackend,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
)
from trl_agent.trajectory import Trajectory, TruncationCause, Turn
from trl_agent_envs.core import SUCCESS_SCORE
from trl_agent_envs.pool import EnvEvent, EnvPool

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with (episodes ended, episodes asked for) each time one ends."""

ScriptedPolicy = Literal["oracle", "random"] | Callable[[str, dict[str, Any]], str]
"""The environment's `oracle_action` or `sample_action`, or a function of the observation and `info`."""
_PATIENCE = 0.1  # share of the last generation's time that a ready slot waits for others to join its batch


@dataclass(frozen=True)
class EpisodeRequest:
    """One episode to play.

    episode, update: with the base seed and the turn they seed every draw of the policy.
    seed, options: what the environment's `reset` gets.
    """

    episode: int
    update: int
    seed: int | None = None
    options: dict[str, Any] | None = None


def collect(
    pool: EnvPool,
    backend: GenerationBackend,
    chat: ChatFormat,
    requests: Sequence[EpisodeRequest],
    sampling: SamplingParams,
    *,
    base_seed: int,
    max_length: int,
    max_turns: int | None = None,
    context_policy: ContextPolicy = "full",
    context_window: int | None = None,
    max_episode_tokens: int | None = None,
    action_format: ActionFormat = "plain",
    use_system_prompt: bool = True,
    progress: Progress | None = None,
) -> list[Trajectory]:
    """Play one episode per request with the policy behind `backend`.

    All slots that wait for an action get it from one call of the back end. Whether that call waits for slow
    environments is the pool's schedule. How episodes end: see the module.

    Args:
        requests: more than there are slots are queued.
        max_length: most tokens of a segment.
        max_turns: None = as many as the environment allows.
        context_policy, context_window, max_episode_tokens: what the policy sees of the past, see `Context`.
        action_format: how an answer says its action, see `action_format.py`.
        use_system_prompt: False leaves out the rules that `reset` gives in ``info["system_prompt"]``, and what
            a policy is told of the action format.

    Returns:
        Trajectories in the order of the requests. One whose first observation does not fit has no turns.

    Raises:
        EnvPoolError: the environment fails more often than the pool tolerates.
    """
    if max_length < 2:
        raise ValueError(f"max_length must be at least 2 tokens, got {max_length}")
    _check_max_turns(max_turns)
    check_action_format(action_format)
    new_context = partial(
        Context,
        chat,
        max_length=max_length,
        policy=context_policy,
        window=context_window,
        max_episode_tokens=max_episode_tokens,
        max_new_tokens=sampling.max_new_tokens,
    )
    new_context()  # options out of range are refused before anything is played
    played = _Played(pool, requests, progress)
    episodes: dict[int, _Episode] = {}
    repeats: list[EnvEvent] = []
    patience = 0.0
    try:
        while played.pending:
            waiting: list[int] = []
            for event in _ready_events(pool, patience, repeats):
                slot = event.slot
                if event.kind == "reset":
                    index = played.index_of(slot)
                    trajectory = _new_trajectory(requests[index], event, use_system_prompt, action_format)
                    context = new_context(system_prompt=trajectory.system_prompt)
                    key = ("rollout", id(played), index)
                    episodes[slot] = _Episode(key, trajectory, context, max_turns, action_format)
                if episodes[slot].observe(event):
                    waiting.append(slot)
                else:
                    ended = episodes.pop(slot)
                    backend.release(ended.key)
                    played.end(slot, ended.trajectory)
            repeats = []
            if waiting:
                asked = [episodes[slot].request(base_seed, sampling) for slot in waiting]
                began = monotonic()
                results = backend.generate(asked, sampling)
                patience = _PATIENCE * (monotonic() - began)
                for slot, result in zip(waiting, results):
                    action = episodes[slot].act(result)
                    if action is None:
                        repeats.append(episodes[slot].repetition(slot))
                    else:
                        pool.submit_step(slot, action)
    finally:
        for episode in episodes.values():
            backend.release(episode.key)
    return played.trajectories


def run_scripted(
    pool: EnvPool,
    policy: ScriptedPolicy,
    requests: Sequence[EpisodeRequest],
    *,
    base_seed: int = 0,
    max_turns: int | None = None,
    progress: Progress | None = None,
) -> list[Trajectory]:
    """Play one episode per request without a model: baselines and demonstrations.

    Args:
        policy: "oracle" = the environment's `oracle_action`; "random" = its `sample_action`, seeded by
            (base_seed, update, episode, turn); or a function of the observation and `info`.

    Returns:
        Trajectories without segments, in the order of the requests.

    Raises:
        ValueError: the environment has no such action.
        EnvPoolError: as `collect`.
    """
    _check_max_turns(max_turns)
    played = _Played(pool, requests, progress)
    trajectories: dict[int, Trajectory] = {}
    while played.pending:
        for event in pool.wait():
            slot, index = event.slot, played.index_of(event.slot)
            if event.kind == "reset":
                trajectories[slot] = _new_trajectory(requests[index], event, True)
            trajectory = trajectories[slot]
            _note_event(trajectory, event)
            if event.done or len(trajectory.turns) == max_turns:
                _note_end(trajectory, event, None if event.done else "turn_limit")
                played.end(slot, trajectory)
                continue
            key = (base_seed, requests[index].update, requests[index].episode, len(trajectory.turns))
            action = _scripted_action(pool, policy, event, key)
            trajectory.turns.append(Turn(event.observation, action, 0, 0, 0, state_key=event.state_key))
            pool.submit_step(slot, action)
    return played.trajectories


class _Played:
    """Which request runs in which slot, and what has ended."""

    def __init__(self, pool: EnvPool, requests: Sequence[EpisodeRequest], progress: Progress | None) -> None:
        self.pool = pool
        self.requests = requests
        self.progress = progress
        self._queue = deque(range(len(requests)))
        self._running: dict[int, int] = {}
        self._ended: dict[int, Trajectory] = {}
        for slot in range(min(pool.num_envs, len(requests))):
            self._next(slot)

    @property
    def pending(self) -> bool:
        return len(self._ended) < len(self.requests)

    @property
    def trajectories(self) -> list[Trajectory]:
        return [self._ended[index] for index in range(len(self.requests))]

    def index_of(self, slot: int) -> int:
        """Which request runs in `slot`."""
        return self._running[slot]

    def end(self, slot: int, trajectory: Trajectory) -> None:
        """Take an episode's result and start the next one in its slot."""
        self._ended[self._running.pop(slot)] = trajectory
        if self.progress is not None:
            self.progress(len(self._ended), len(self.requests))
        self._next(slot)

    def _next(self, slot: int) -> None:
        if self._queue:
            index = self._queue.popleft()
            self._running[slot] = index
            request = self.requests[index]
            self.pool.submit_reset(slot, seed=request.seed, options=request.options)


@dataclass
class _Episode:
    """One running episode: its conversation so far and what it waits for."""

    key: Hashable
    trajectory: Trajectory
    context: Context
    max_turns: int | None
    action_format: ActionFormat
    shown: str = ""  # the observation that waits for an action
    state_key: str | None = None

    def __post_init__(self) -> None:
        self.trajectory.segments = self.context.segments

    def observe(self, event: EnvEvent) -> bool:
        """Take in what the environment returned. True: it waits for an action; False: the episode is over."""
        trajectory = self.trajectory
        _note_event(trajectory, event)
        cause: TruncationCause | None = None
        if not event.done and self.max_turns is not None and len(trajectory.turns) >= self.max_turns:
            cause = "turn_limit"
        ending = event.done or cause is not None
        if not event.terminated and event.error is None:
            fits = self.context.observe(event.observation, room=0 if ending else 1)
            if not fits and not ending:
                cause = "token_limit"
                self._warn_of_no_turns(event.observation)
        if event.done or cause is not None:
            _note_end(trajectory, event, cause)
            return False
        self.shown, self.state_key = event.observation, event.state_key
        return True

    def request(self, base_seed: int, sampling: SamplingParams) -> GenerationRequest:
        trajectory = self.trajectory
        return GenerationRequest(
            key=self.key,
            input_ids=self.context.segment.input_ids,
            rng_key=(base_seed, trajectory.update, trajectory.episode, len(trajectory.turns)),
            max_new_tokens=min(sampling.max_new_tokens, self.context.room),
        )

    def act(self, result: GenerationResult) -> str | None:
        """Take in the sampled tokens; return the action's text, or None if they say no action."""
        answer = self.context.chat.decode_action(result.token_ids)
        action = parse_action(answer, self.action_format)
        span = self.context.act(result.token_ids, result.logprobs, result.finished)
        turn = Turn(self.shown, action or "", *span, state_key=self.state_key)
        if self.action_format != "plain":
            turn.answer = answer
        self.trajectory.turns.append(turn)
        return action

    def repetition(self, slot: int) -> EnvEvent:
        """The last observation once more, as if the environment had returned it for an answer without action."""
        shown = self.shown if self.shown.startswith(RETRY_NOTE) else f"{RETRY_NOTE}\n\n{self.shown}"
        trajectory = self.trajectory
        info = {"action_error": NO_ACTION, "score": trajectory.score, "success": trajectory.success}
        return EnvEvent(slot, "step", shown, 0.0, False, False, info, self.state_key, None, None, 0.0)

    def _warn_of_no_turns(self, observation: str) -> None:
        context, trajectory = self.context, self.trajectory
        if not trajectory.turns:
            logger.warning(
                "Episode %d ends before its first turn: its first observation takes %d tokens, which leaves "
                "no room for an action within max_length=%d, max_episode_tokens=%s. Raise max_length (and "
                "max_episode_tokens) or shorten the observation.",
                trajectory.episode,
                len(context.chat.start(observation, context.system_prompt)),
                context.max_length,
                context.max_episode_tokens,
            )


def _ready_events(pool: EnvPool, patience: float, repeats: Sequence[EnvEvent] = ()) -> list[EnvEvent]:
    """Events of the slots that are ready, and of those that get ready within `patience` seconds.

    `repeats` are ready already, so under the free schedule they wait for no more than that.

    A row more in a batch costs little and a batch of its own costs much, so the first slot gives the others a
    moment. A slow environment still holds nobody up for longer than that.
    """
    events = list(repeats)
    if not events:
        events = pool.wait()
    elif pool.num_pending:
        events += pool.wait(timeout=None if pool.schedule == "lockstep" else patience)
        events.sort(key=lambda event: event.slot)
    deadline = monotonic() + patience
    while pool.schedule == "free" and pool.num_pending and (left := deadline - monotonic()) > 0:
        events += pool.wait(timeout=left)
    return events


def _new_trajectory(
    request: EpisodeRequest, event: EnvEvent, use_system_prompt: bool, action_format: ActionFormat = "plain"
) -> Trajectory:
    rules = event.info.get("system_prompt")
    return Trajectory(
        episode=request.episode,
        update=request.update,
        seed=request.seed,
        goal_id=event.info.get("goal_id"),
        system_prompt=add_instruction(rules, action_format) if use_system_prompt else None,
    )


def _note_event(trajectory: Trajectory, event: EnvEvent) -> None:
    """Write what the environment returned for the last action into its turn, and the score so far."""
    if event.kind == "step" and trajectory.turns:
        trajectory.turns[-1].reward = event.reward
        trajectory.turns[-1].action_error = event.info.get("action_error")
    # A failed environment returns no info; the score it had reported stands.
    trajectory.score = float(event.info.get("score", trajectory.score))
    trajectory.success = bool(event.info.get("success", trajectory.score >= SUCCESS_SCORE))
    trajectory.goal_id = event.info.get("goal_id", trajectory.goal_id)


def _note_end(trajectory: Trajectory, event: EnvEvent, cause: TruncationCause | None) -> None:
    """Write how the episode ended: by the environment, or (`cause`) by the rollout."""
    trajectory.terminated = event.terminated
    trajectory.truncated = not event.terminated
    if trajectory.truncated:
        trajectory.truncation_cause = cause or event.truncation_cause or "turn_limit"
    trajectory.error = event.error


def _scripted_action(
    pool: EnvPool,
    policy: ScriptedPolicy,
    event: EnvEvent,
    key: Iterable[int],
) -> str:
    if callable(policy):
        return policy(event.observation, event.info)
    if policy == "oracle":
        action = pool.call(event.slot, "oracle_action")
    elif policy == "random":
        # A new generator a turn: one handed to another process would not advance here.
        action = pool.call(event.slot, "sample_action", random.Random("/".join(map(str, key))))
    else:
        raise ValueError(f"policy is {policy!r}, expected 'oracle', 'random' or a function")
    if action is None:
        method = "oracle_action" if policy == "oracle" else "sample_action"
        raise ValueError(
            f"{pool.env_name} has no {method} (it returned None), so there is no {policy} policy: implement "
            f"{method} in the environment or pass a function of (observation, info)"
        )
    return str(action)


def _check_max_turns(max_turns: int | None) -> None:
    if max_turns is not None and max_turns < 1:
        raise ValueError(f"max_turns must be at least 1 or None, got {max_turns}")
