from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import make_trajectory
from trl_agent.batch import EpisodeTensors, collate, split_by_tokens
from trl_agent.trajectory import Segment, Trajectory, Turn


def _episodes():
    shapes = [[(3, 2), (2, 1)], [(6, 3)], [(4, 2), (5, 2), (1, 1)]]
    cuts = [(), (), (1,)]
    return [
        EpisodeTensors.from_trajectory(make_trajectory(shape, seed=seed, new_segment_at=cut))
        for seed, (shape, cut) in enumerate(zip(shapes, cuts, strict=True))
    ]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("multiple", [None, 16])
def test_every_action_token_is_found_again(side, multiple):
    episodes = _episodes()
    batch = collate(episodes, pad_token_id=0, padding_side=side, pad_to_multiple_of=multiple)
    assert batch.input_ids.shape == (4, 9 if multiple is None else 16)
    expected = [
        episode.trajectory.segments[s].input_ids[t]
        for episode in episodes
        for s, t in episode.trajectory.action_positions()
    ]
    assert batch.action_ids.tolist() == expected
    assert batch.episode_ids.tolist() == [0] * 3 + [1] * 3 + [2] * 5
    torch.testing.assert_close(batch.logprobs, torch.cat([e.logprobs for e in episodes]))
    rows = [segment.input_ids for e in episodes for segment in e.trajectory.segments]
    for row, mask, positions, ids in zip(
        batch.input_ids, batch.attention_mask, batch.position_ids, rows, strict=True
    ):
        assert row[mask].tolist() == ids
        assert positions[mask].tolist() == list(range(len(ids)))
    last = batch.input_ids[batch.last_rows, batch.last_cols]
    assert last.tolist() == [e.trajectory.segments[-1].input_ids[-1] for e in episodes]


def test_split_by_episode():
    batch = collate(_episodes(), pad_token_id=0)
    parts = batch.split_by_episode(torch.arange(11))
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9, 10]]


def test_turns_order_the_tokens_even_when_segments_do_not():
    """A turn may act in an earlier segment's row; tokens follow the turns."""
    trajectory = Trajectory(terminated=True)
    trajectory.segments = [Segment(), Segment()]
    for segment in trajectory.segments:
        segment.append_context([5])
    for segment, token in ((1, 11), (0, 12), (1, 13)):
        start, end = trajectory.segments[segment].append_action([token], [-1.0])
        trajectory.turns.append(Turn("", "", segment, start, end))
    batch = collate([EpisodeTensors.from_trajectory(trajectory)], pad_token_id=0)
    assert batch.action_ids.tolist() == [11, 12, 13]


def test_pad_token_inside_a_sequence_stays_a_token():
    trajectory = Trajectory(terminated=True, segments=[Segment()])
    trajectory.segments[0].append_context([7, 0, 8])
    start, end = trajectory.segments[0].append_action([0], [-1.0])
    trajectory.turns.append(Turn("", "", 0, start, end))
    batch = collate([EpisodeTensors.from_trajectory(trajectory)], pad_token_id=0)
    assert batch.attention_mask.all()
    assert batch.action_ids.tolist() == [0]


def test_optional_fields_and_weights():
    first, second = _episodes()[:2]
    first = replace(first, ref_logprobs=torch.zeros(3), weight=0.5)
    assert collate([first, second], 0).ref_logprobs is None
    batch = collate([first, replace(second, ref_logprobs=torch.ones(3))], 0)
    assert batch.ref_logprobs.tolist() == [0, 0, 0, 1, 1, 1]
    assert batch.weights.tolist() == [0.5, 0.5, 0.5, 1, 1, 1]


def test_what_is_not_computed_yet_is_nan():
    assert collate(_episodes(), 0).advantages.isnan().all()


def test_masked_logprobs_do_not_reach_the_batch():
    trajectory = make_trajectory([(3, 2), (4, 1)])
    segment = trajectory.segments[0]
    segment.logprobs = [
        value if counts else float("nan")
        for value, counts in zip(segment.logprobs, segment.action_mask, strict=True)
    ]
    assert collate([EpisodeTensors.from_trajectory(trajectory)], 0).logprobs.isfinite().all()


def test_no_action_tokens():
    trajectory = Trajectory(terminated=True, segments=[Segment()])
    trajectory.segments[0].append_context([4, 5])
    batch = collate([EpisodeTensors.from_trajectory(trajectory)], 0)
    assert batch.num_action_tokens == 0
    assert batch.action_rows.dtype == torch.long
    assert batch.last_cols.tolist() == [1]


def test_errors_say_what_is_wrong():
    with pytest.raises(ValueError, match="at least one episode"):
        collate([], 0)
    bare = Trajectory(terminated=True, segments=[Segment()], episode=12)
    with pytest.raises(ValueError, match="episode 12"):
        collate([EpisodeTensors.from_trajectory(bare)], 0)
    start, end = bare.segments[0].append_action([3], [-1.0])
    bare.turns.append(Turn("", "", 0, start, end))
    with pytest.raises(ValueError, match="at least one context token"):
        collate([EpisodeTensors.from_trajectory(bare)], 0)
    with pytest.raises(ValueError, match="padding_side"):
        collate(_episodes(), 0, padding_side="up")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"values has shape \(2,\), expected \(3,\)"):
        replace(_episodes()[0], values=torch.zeros(2))


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 50), max_size=20), max_tokens=st.integers(1, 200))
def test_split_by_tokens_holds_its_bound_and_loses_nothing(lengths, max_tokens):
    groups = split_by_tokens(lengths, max_tokens)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= max_tokens


def test_split_by_tokens_by_hand():
    assert split_by_tokens([3, 10, 3, 9, 50], 20) == [[4], [1, 3], [0, 2]]
    assert split_by_tokens([], 20) == []
    with pytest.raises(ValueError, match="max_tokens"):
        split_by_tokens([1], 0)
