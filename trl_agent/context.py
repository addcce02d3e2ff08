"""What the policy sees of an episode at each turn: a segment that grows, and when another one takes its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from trl_agent.chat import ChatFormat
from trl_agent.trajectory import Segment

ContextPolicy = Literal["full", "window"]

ELIDED = "[earlier observation left out]"
"""Stands where an old observation stood."""

Span = tuple[int, int, int]
"""Segment, start, end of an action's tokens."""


class Context:
    """Builds the segments of one episode, turn by turn: `observe`, then `act`, and so on.

    "full": one segment, which holds everything. "window": the last observations are whole and `ELIDED` stands
    in the place of older ones; every action stays, reasoning included, and so does the system prompt. When an
    observation is elided the context is another one, so a new segment begins; its earlier actions are the
    tokens that were sampled, as context (`action_mask` False), so each is trained on once, where it was
    sampled.

    Old observations are elided in chunks: at least `window` are whole and at most ``2 * window - 1``, then all
    but the last `window` go at once. So a segment lasts `window` turns and its KV cache is of use for them;
    eliding one at each turn would encode, and train on, the whole window anew at every turn. ``window=1`` keeps
    exactly one. A segment that gets too long for the next turn is rewritten early.

    Args:
        max_length: most tokens of a segment.
        window: observations kept whole; None with "full".
        max_episode_tokens: most tokens of all segments together, rewritten contexts included: what the policy
            reads and writes in an episode.
        max_new_tokens: a segment with room for less than this is rewritten ("window"), not filled up.

    Raises:
        ValueError: see `check_context`.
    """

    def __init__(
        self,
        chat: ChatFormat,
        *,
        max_length: int,
        policy: ContextPolicy = "full",
        window: int | None = None,
        max_episode_tokens: int | None = None,
        max_new_tokens: int = 1,
        system_prompt: str | None = None,
    ) -> None:
        check_context(policy, window, max_length, max_episode_tokens)
        self.chat = chat
        self.max_length = max_length
        self.window = window
        self.max_episode_tokens = max_episode_tokens
        self.max_new_tokens = max_new_tokens
        self.system_prompt = system_prompt
        self.segments: list[Segment] = []
        self._contexts: list[list[int]] = []  # of each turn, what precedes its action, observation whole
        self._actions: list[list[int]] = []
        self._finished: list[bool] = []
        self._elided = 0  # observations left out of the last segment

    @property
    def segment(self) -> Segment:
        """The segment that the next action is sampled in. There is one after the first `observe`."""
        return self.segments[-1]

    @property
    def room(self) -> int:
        """Tokens that the next action may have."""
        return self._room_after(len(self.segment), 0)

    def observe(self, observation: str, room: int = 1) -> bool:
        """Take in an observation if that leaves at least `room` tokens for what follows.

        Returns:
            False if it does not fit; then nothing has changed.
        """
        ids = self._render(observation, len(self._contexts))
        length = len(self.segment) if self.segments else 0
        whole = len(self._contexts) + 1 - self._elided
        can_append = self._room_after(length + len(ids), len(ids)) >= room and (
            self.window is None or whole < 2 * self.window
        )
        crowded = room > 0 and length + len(ids) + self.max_new_tokens > self.max_length
        if (can_append and not crowded) or not self._rewrite(ids, room):
            if not can_append:
                return False
            if not self.segments:
                self.segments.append(Segment())
            self.segment.append_context(ids)
        self._contexts.append(ids)
        return True

    def act(self, ids: Sequence[int], logprobs: Sequence[float], finished: bool) -> Span:
        """Take in the tokens sampled after the last observation.

        Args:
            finished: whether they end in a stop token.
        """
        start, end = self.segment.append_action(list(ids), list(logprobs))
        self._actions.append(list(ids))
        self._finished.append(finished)
        return len(self.segments) - 1, start, end

    def replay(self, steps: Sequence[tuple[str, str]]) -> list[Span]:
        """Take in a recorded episode of (observation, answer) texts, with logprobs of 0: nobody recorded them.

        Returns:
            Where the answers are. The first turn that does not fit and all after it are left out.
        """
        spans: list[Span] = []
        for observation, answer in steps:
            ids = self.chat.encode_action(answer)
            if not self.observe(observation, len(ids)):
                break
            spans.append(self.act(ids, [0.0] * len(ids), True))
        return spans

    def _render(self, observation: str, turn: int) -> list[int]:
        if turn == 0:
            return self.chat.start(observation, self.system_prompt)
        return self.chat.next(observation, self._finished[turn - 1])

    def _rewrite(self, ids: list[int], room: int) -> bool:
        """Begin a new segment in which only the last `window` observations are whole, `ids` the last of them.

        Returns:
            False if that would leave nothing more out than the segment before, or is too long.
        """
        elided = len(self._contexts) + 1 - self.window if self.window is not None else 0
        if elided <= self._elided:
            return False
        segment = Segment()
        for turn, whole in enumerate([*self._contexts, ids]):
            segment.append_context(self._render(ELIDED, turn) if turn < elided else whole)
            if turn < len(self._actions):
                segment.append_context(self._actions[turn])
        if self._room_after(len(segment), len(segment)) < room:
            return False
        self.segments.append(segment)
        self._elided = elided
        return True

    def _room_after(self, length: int, added: int) -> int:
        """Tokens left in a segment that has `length` of them, once `added` more are in the episode."""
        room = self.max_length - length
        if self.max_episode_tokens is not None:
            used = sum(map(len, self.segments)) + added
            room = min(room, self.max_episode_tokens - used)
        return room


def check_context(
    policy: str, window: int | None, max_length: int | None = None, max_episode_tokens: int | None = None
) -> None:
    """Check that the options of a context are in range and that each of them changes something.

    Raises:
        ValueError: naming the option, its value and what is allowed.
    """
    if policy not in ("full", "window"):
        raise ValueError(f"context_policy={policy!r} is out of range: it must be one of ('full', 'window')")
    if policy == "full" and window is not None:
        raise ValueError(f"context_window={window!r} is not used by context_policy='full': leave it None")
    if policy == "window" and not (isinstance(window, int) and window >= 1):
        raise ValueError(
            f"context_window={window!r} is out of range: with context_policy='window' it must be an integer "
            "of at least 1, the number of observations kept whole"
        )
    if max_episode_tokens is None:
        return
    if not (isinstance(max_episode_tokens, int) and max_episode_tokens >= 2):
        raise ValueError(
            f"max_episode_tokens={max_episode_tokens!r} is out of range: it must be None or at least 2"
        )
    if policy == "full" and max_length is not None and max_episode_tokens >= max_length:
        raise ValueError(
            f"max_episode_tokens={max_episode_tokens} changes nothing: with context_policy='full' an episode is "
            f"one segment, which max_length={max_length} bounds already"
        )
