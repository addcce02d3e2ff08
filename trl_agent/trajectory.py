"""Turn, Segment, Trajectory: what an episode is, and the index convention that everything else relies on.

Index convention. For one segment of `T` tokens:

- ``input_ids[t]`` is token t; ``action_mask[t]`` is True when the policy sampled it;
- ``logprobs[t]`` belongs to ``input_ids[t]``: log p(input_ids[t] | input_ids[:t]), in nats, under the policy and
  temperature that sampled it; 0.0 where `action_mask` is False;
- ``values[t]`` is V of the state before token t is chosen. A model computes both from its hidden state at t - 1;
- the value after the last token (the bootstrap of a truncated episode) comes from the hidden state at T - 1.

A reward earned by a turn sits on that turn's last action token. An episode is a list of segments: a segment only
grows, token by token; when the context is rewritten a new one starts. Turns order the segments, so credit flows
across them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

TruncationCause = Literal["turn_limit", "token_limit", "env_error", "env_timeout"]
Source = Literal["online", "offline"]


@dataclass
class Turn:
    """One observation and the action that answered it.

    observation: the text the environment showed.
    action: the text handed to `env.step`, never re-tokenized. "" if the policy's answer said no action: no step.
    segment: which of the trajectory's segments holds the action's tokens.
    start, end: the action's tokens are ``segments[segment].input_ids[start:end]`` (end-of-turn token included).
    reward: what the environment returned for this action.
    state_key: the environment's key of the state acted in, if it has one.
    action_error: why the action did nothing, or None.
    answer: all that the policy said, where that is more than the action (reasoning, tags); None = the action.
    """

    observation: str
    action: str
    segment: int
    start: int
    end: int
    reward: float = 0.0
    state_key: str | None = None
    action_error: str | None = None
    answer: str | None = None

    @property
    def num_tokens(self) -> int:
        return self.end - self.start


@dataclass
class Segment:
    """`T` tokens in the order the model saw them. The three lists have the same length."""

    input_ids: list[int] = field(default_factory=list)
    action_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.input_ids)

    def append_context(self, ids: list[int]) -> None:
        """Add tokens that the policy did not sample."""
        self.input_ids.extend(ids)
        self.action_mask.extend([False] * len(ids))
        self.logprobs.extend([0.0] * len(ids))

    def append_action(self, ids: list[int], logprobs: list[float]) -> tuple[int, int]:
        """Add sampled tokens; return their span [start, end)."""
        if len(ids) != len(logprobs):
            raise ValueError(f"{len(ids)} action tokens but {len(logprobs)} logprobs")
        start = len(self.input_ids)
        self.input_ids.extend(ids)
        self.action_mask.extend([True] * len(ids))
        self.logprobs.extend(logprobs)
        return start, len(self.input_ids)


@dataclass
class Trajectory:
    """One episode.

    score: the environment's final number, in [0, 1]; success: whether the goal was reached.
    terminated, truncated: as the environment (or the rollout, for token limits) ended it; never both.
    truncation_cause: set when truncated. error: the environment's failure, as text, if one ended the episode.
    source: "online" if the current policy sampled it, "offline" if it comes from a file or pool.
    episode, update, seed: where it came from, so that it can be replayed.
    system_prompt: what preceded the first observation, if anything did.
    """

    turns: list[Turn] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    score: float = 0.0
    success: bool = False
    goal_id: int | str | None = None
    terminated: bool = False
    truncated: bool = False
    truncation_cause: TruncationCause | None = None
    error: str | None = None
    source: Source = "online"
    episode: int = 0
    update: int = 0
    seed: int | None = None
    system_prompt: str | None = None

    @property
    def num_action_tokens(self) -> int:
        return sum(turn.num_tokens for turn in self.turns)

    @property
    def num_tokens(self) -> int:
        return sum(len(segment) for segment in self.segments)

    @property
    def turn_ends(self) -> list[int]:
        """Index of each turn's last token among the episode's action tokens (turns without tokens left out)."""
        ends, total = [], 0
        for turn in self.turns:
            total += turn.num_tokens
            if turn.num_tokens:
                ends.append(total - 1)
        return ends

    @property
    def turn_rewards(self) -> list[float]:
        """Rewards at `turn_ends`. A turn without tokens passes its reward to the turn before it (else after)."""
        rewards: list[float] = []
        carried = 0.0
        for turn in self.turns:
            if turn.num_tokens:
                rewards.append(turn.reward + carried)
                carried = 0.0
            elif rewards:
                rewards[-1] += turn.reward
            else:
                carried += turn.reward
        return rewards

    def action_positions(self) -> Iterator[tuple[int, int]]:
        """Yield (segment, t) of every action token, in the order of the turns."""
        for turn in self.turns:
            for t in range(turn.start, turn.end):
                yield turn.segment, t

    def action_logprobs(self) -> list[float]:
        """Sampling logprobs of the action tokens, in the order of `action_positions`."""
        return [self.segments[s].logprobs[t] for s, t in self.action_positions()]
