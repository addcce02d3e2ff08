"""Segments under both context policies, against the window written down by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes_env import bpe_tokenizer
from trl_agent.chat import ChatFormat
from trl_agent.context import ELIDED, Context, check_context

CHAT = ChatFormat(bpe_tokenizer())
STOP = CHAT.stop_token_ids[0]


def play(context: Context, observations: list[str], actions: list[list[int]]) -> list[tuple[int, int, int]]:
    """Observe and act until something does not fit."""
    spans = []
    for index, (observation, ids) in enumerate(zip(observations, actions)):
        if not context.observe(observation):
            break
        ids = ids[: context.room]
        logprobs = [-(index + 1 + t / 1000) for t in range(len(ids))]
        spans.append(context.act(ids, logprobs, ids[-1] == STOP))
    return spans


def shown(context: Context, segment: int) -> list[str]:
    """The observations a segment shows, E for one left out."""
    text = CHAT.tokenizer.decode(context.segments[segment].input_ids, skip_special_tokens=False)
    pages = [part.split("<|im_end|>")[0] for part in text.split("<|im_start|>user\n")[1:]]
    return ["E" if page == ELIDED else page for page in pages]


def test_full_is_one_segment() -> None:
    context = Context(CHAT, max_length=1000)
    spans = play(context, [f"number {n}" for n in range(5)], [[30 + n, STOP] for n in range(5)])
    assert len(context.segments) == 1
    assert shown(context, 0) == [f"number {n}" for n in range(5)]
    assert [s for s, _, _ in spans] == [0] * 5


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        # one segment a turn
        (1, ["0", "E1", "EE2", "EEE3", "EEEE4", "EEEEE5"]),
        # between 2 and 3 whole: a segment lasts two turns, the first one three
        (2, ["012", "EE234", "EEEE45"]),
        (3, ["01234", "EEE345"]),
        (4, ["012345"]),
    ],
)
def test_old_observations_go_in_chunks(window: int, expected: list[str]) -> None:
    context = Context(CHAT, max_length=1000, policy="window", window=window, system_prompt="Rules.")
    play(context, [str(n) for n in range(6)], [[30 + n, STOP] for n in range(6)])
    assert ["".join(shown(context, s)) for s in range(len(context.segments))] == expected
    for segment in context.segments:
        text = CHAT.tokenizer.decode(segment.input_ids, skip_special_tokens=False)
        assert text.startswith("<|im_start|>system\nRules.<|im_end|>")


def test_a_rewritten_context_token_by_token() -> None:
    cut, whole = [40, 41], [50, STOP]
    context = Context(CHAT, max_length=1000, policy="window", window=1)
    play(context, ["zero", "one", "two"], [cut, whole, cut])
    assert context.segments[2].input_ids == [
        *CHAT.start(ELIDED),
        *cut,
        *CHAT.next(ELIDED, finished=False),  # the end of the cut action is the context's
        *whole,
        *CHAT.next("two", finished=True),
        *cut,
    ]
    assert context.segments[2].action_mask[-2:] == [True, True]
    assert sum(context.segments[2].action_mask) == 2


@settings(max_examples=150, deadline=None)
@given(
    window=st.one_of(st.none(), st.integers(1, 4)),
    words=st.lists(st.integers(0, 25), min_size=1, max_size=12),
    lengths=st.lists(st.integers(1, 8), min_size=12, max_size=12),
    cut=st.lists(st.booleans(), min_size=12, max_size=12),
    max_length=st.integers(20, 400),
    max_episode_tokens=st.one_of(st.none(), st.integers(10, 800)),
    max_new_tokens=st.integers(1, 8),
)
def test_every_sampled_token_counts_exactly_once(
    window: int | None,
    words: list[int],
    lengths: list[int],
    cut: list[bool],
    max_length: int,
    max_episode_tokens: int | None,
    max_new_tokens: int,
) -> None:
    if window is None and max_episode_tokens is not None:
        max_episode_tokens = min(max_episode_tokens, max_length - 1)
    context = Context(
        CHAT,
        max_length=max_length,
        policy="full" if window is None else "window",
        window=window,
        max_episode_tokens=max_episode_tokens,
        max_new_tokens=max_new_tokens,
    )
    # tokens with numbers of their own, so that each can be found again
    actions = [
        [100 + 8 * turn + t for t in range(n)] + ([] if cut[turn] else [STOP])
        for turn, n in enumerate(lengths)
    ]
    spans = play(context, [f"{n}" + " more" * count for n, count in enumerate(words)], actions)
    assert spans == sorted(spans)
    masked = [
        (s, t)
        for s, segment in enumerate(context.segments)
        for t, counts in enumerate(segment.action_mask)
        if counts
    ]
    assert masked == [(s, t) for s, start, end in spans for t in range(start, end)]
    sampled = 0
    for turn, (s, start, end) in enumerate(spans):
        segment = context.segments[s]
        assert segment.input_ids[start:end] == actions[turn][: end - start]
        assert segment.logprobs[start:end] == [-(turn + 1 + t / 1000) for t in range(end - start)]
        sampled += end - start
    assert sum(sum(segment.action_mask) for segment in context.segments) == sampled
    for s, segment in enumerate(context.segments):
        assert len(segment.input_ids) == len(segment.action_mask) == len(segment.logprobs) <= max_length
        assert all(lp == 0.0 for lp, counts in zip(segment.logprobs, segment.action_mask) if not counts)
        if window is not None:
            pages = shown(context, s)
            elided = pages.count("E")
            assert pages[:elided] == ["E"] * elided
            assert min(window, len(pages)) <= len(pages) - elided <= 2 * window - 1
            assert segment.action_mask.count(True) > 0  # each was begun for an action
    if max_episode_tokens is not None:
        assert sum(map(len, context.segments)) <= max_episode_tokens


def test_a_long_page_makes_the_window_move_early() -> None:
    long = "more " * 30
    room = len(CHAT.start(long)) + len(CHAT.next(long, True)) + 10
    context = Context(CHAT, max_length=room, policy="window", window=1, max_new_tokens=4)
    play(context, [long] * 4, [[30, STOP]] * 4)
    assert len(context.segments) == 4
    # three whole ones would be allowed, but the second leaves no room for a whole action
    context = Context(CHAT, max_length=room, policy="window", window=2, max_new_tokens=4)
    spans = play(context, [long] * 3, [[30, STOP]] * 3)
    assert [s for s, _, _ in spans] == [0, 0]  # two whole ones and a third left out do not fit: over
    context = Context(CHAT, max_length=room + 40, policy="window", window=2, max_new_tokens=4)
    spans = play(context, [long] * 4, [[30, STOP]] * 4)
    assert [s for s, _, _ in spans][:3] == [0, 0, 1]
    assert shown(context, 1)[0] == "E"


def test_an_observation_that_does_not_fit_changes_nothing() -> None:
    context = Context(CHAT, max_length=200, policy="window", window=1)
    play(context, ["zero", "one"], [[30, STOP], [31, STOP]])
    before = [list(segment.input_ids) for segment in context.segments]
    assert not context.observe("more " * 300)
    assert [segment.input_ids for segment in context.segments] == before
    assert context.observe("two")


def test_the_tokens_of_an_episode_are_bounded() -> None:
    options: dict[str, Any] = {"max_length": 1000, "policy": "window", "window": 1}
    free = Context(CHAT, **options)
    play(free, ["zero", "one", "two"], [[30, STOP]] * 3)
    total = sum(map(len, free.segments))
    bound = Context(CHAT, **options, max_episode_tokens=total - 1)
    spans = play(bound, ["zero", "one", "two"], [[30, STOP]] * 3)
    assert [end - start for _, start, end in spans] == [2, 2, 1]
    tight = Context(CHAT, **options, max_episode_tokens=total - 2)
    assert len(play(tight, ["zero", "one", "two"], [[30, STOP]] * 3)) == 2


def test_recorded_steps_are_replayed_as_they_would_be_played() -> None:
    steps = [(f"number {n}", f"{n}") for n in range(5)]
    replayed = Context(CHAT, max_length=500, policy="window", window=2)
    spans = replayed.replay(steps)
    played = Context(CHAT, max_length=500, policy="window", window=2)
    actions = [CHAT.encode_action(answer) for _, answer in steps]
    assert spans == play(played, [observation for observation, _ in steps], actions)
    assert [s.input_ids for s in replayed.segments] == [s.input_ids for s in played.segments]
    assert [s.action_mask for s in replayed.segments] == [s.action_mask for s in played.segments]
    assert all(set(segment.logprobs) == {0.0} for segment in replayed.segments)
    short = Context(CHAT, max_length=spans[0][2])
    assert len(short.replay(steps)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all", None), "context_policy='all'.*'window'"),
        (("full", 3), "context_window=3 is not used by context_policy='full'"),
        (("window", None), "context_window=None.*at least 1"),
        (("window", 0), "context_window=0.*at least 1"),
        (("window", 2, 100, 1), "max_episode_tokens=1.*at least 2"),
        (("full", None, 100, 100), "max_episode_tokens=100 changes nothing.*max_length=100"),
    ],
)
def test_options_out_of_range_are_named(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_context(*arguments)
    check_context("full", None, 100, 99)
    check_context("window", 1, 100, 1000)
