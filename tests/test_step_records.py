"""Trajectories become step records and come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes_env import CountEnv, bpe_tokenizer
from trl_agent.chat import ChatFormat
from trl_agent.rollout import EpisodeRequest, run_scripted
from trl_agent.step_records import steps_to_trajectory, trajectory_to_steps
from trl_agent.trajectory import Trajectory
from trl_agent_envs.pool import EnvPool
from trl_agent_envs.records import StepRecord, StepRecordWriter, read_episodes

CHAT = ChatFormat(bpe_tokenizer())


def played(limit: int | None = None) -> list[Trajectory]:
    with EnvPool(CountEnv, {"limit": limit}, num_envs=2, schedule="lockstep") as pool:
        asked = [EpisodeRequest(e, 0, options={"goal_id": e}) for e in range(3)]
        return run_scripted(pool, "random", asked)


@pytest.mark.parametrize("limit", [None, 2])
def test_round_trip_through_a_file(tmp_path: Path, limit: int | None) -> None:
    trajectories = played(limit)
    with StepRecordWriter(tmp_path / "steps.jsonl") as writer:
        for trajectory in trajectories:
            writer.write_episode(trajectory_to_steps(trajectory))
    for steps, before in zip(read_episodes(tmp_path / "steps.jsonl"), trajectories):
        after = steps_to_trajectory(steps, CHAT)
        assert after.source == "offline"
        assert [(t.observation, t.action, t.reward, t.action_error) for t in after.turns] == [
            (t.observation, t.action, t.reward, t.action_error) for t in before.turns
        ]
        for name in ("score", "success", "goal_id", "terminated", "truncated", "truncation_cause", "error"):
            assert getattr(after, name) == getattr(before, name)
        assert (after.episode, after.system_prompt) == (before.episode, "Repeat the number.")
        (segment,) = after.segments
        assert len(segment.input_ids) == len(segment.action_mask) == len(segment.logprobs)
        for turn in after.turns:
            assert segment.input_ids[turn.start : turn.end] == CHAT.encode_action(turn.action)
        assert sum(segment.action_mask) == after.num_action_tokens


def test_a_record_without_extras() -> None:
    steps = [StepRecord("a", "b", 0.0, False), StepRecord("c", "d", 1.0, True)]
    trajectory = steps_to_trajectory(steps, CHAT)
    assert (trajectory.terminated, trajectory.score, trajectory.system_prompt) == (True, 0.0, None)
    assert [turn.reward for turn in trajectory.turns] == [0.0, 1.0]


def test_too_long_a_record_is_cut_between_turns() -> None:
    steps = [StepRecord(f"number {k}", f"{k}", 0.5, k == 3) for k in range(4)]
    whole = steps_to_trajectory(steps, CHAT)
    cut = steps_to_trajectory(steps, CHAT, max_length=whole.turns[2].end - 1)
    assert len(cut.turns) == 2
    assert len(cut.segments[0]) == cut.turns[1].end
    assert (cut.terminated, cut.truncation_cause) == (False, "token_limit")
    assert steps_to_trajectory(steps, CHAT, max_length=1).segments == []


def test_nothing_to_convert() -> None:
    with pytest.raises(ValueError, match="no turns"):
        trajectory_to_steps(Trajectory())
    with pytest.raises(ValueError, match="without steps"):
        steps_to_trajectory([], CHAT)
