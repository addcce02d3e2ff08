"""Trajectories become step records and come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes_env import CountEnv, bpe_tokenizer
from trl_agent.action_format import INSTRUCTION
from trl_agent.chat import ChatFormat
from trl_agent.rollout import EpisodeRequest, run_scripted
from trl_agent.step_records import steps_to_trajectory, trajectory_to_steps
from trl_agent.trajectory import Trajectory, Turn
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


def test_answers_with_reasoning_are_kept_whole(tmp_path: Path) -> None:
    """What a model should learn to say is the response; what the environment got is beside it."""
    turns = [
        Turn("number 1", "1", 0, 0, 0, 0.5, answer="one, so <action>1</action>"),
        Turn("number 2", "", 0, 0, 0, 0.0, action_error="no action", answer="two"),
    ]
    before = Trajectory(turns=turns, score=0.5, terminated=True, system_prompt="Rules.")
    with StepRecordWriter(tmp_path / "steps.jsonl") as writer:
        writer.write_episode(trajectory_to_steps(before))
    (steps,) = read_episodes(tmp_path / "steps.jsonl")
    assert [step.response for step in steps] == ["one, so <action>1</action>", "two"]
    assert [step.extra["action"] for step in steps] == ["1", ""]
    after = steps_to_trajectory(steps, CHAT, action_format="tagged")
    assert [(t.action, t.answer, t.action_error) for t in after.turns] == [
        (t.action, t.answer, t.action_error) for t in turns
    ]
    assert after.system_prompt == f"Rules.\n\n{INSTRUCTION}"
    (segment,) = after.segments
    assert [segment.input_ids[t.start : t.end] for t in after.turns] == [
        CHAT.encode_action(step.response) for step in steps
    ]


def test_bare_demonstrations_get_tags_where_the_format_has_them() -> None:
    steps = [StepRecord("a", "b", 0.0, False), StepRecord("c", "so <action>d</action>", 1.0, True)]
    tagged = steps_to_trajectory(steps, CHAT, action_format="tagged")
    assert [(t.action, t.answer) for t in tagged.turns] == [
        ("b", "<action>b</action>"),
        ("d", "so <action>d</action>"),
    ]
    plain = steps_to_trajectory(steps, CHAT)
    assert [(t.action, t.answer) for t in plain.turns] == [("b", None), ("so <action>d</action>", None)]
    with pytest.raises(ValueError, match="action_format='xml'"):
        steps_to_trajectory(steps, CHAT, action_format="xml")  # type: ignore[arg-type]


def test_records_are_seen_through_the_window() -> None:
    steps = [StepRecord(f"number {k}", f"{k}", 0.5, k == 3) for k in range(4)]
    trajectory = steps_to_trajectory(steps, CHAT, context_policy="window", context_window=1)
    assert [turn.segment for turn in trajectory.turns] == [0, 1, 2, 3]
    assert [sum(s.action_mask) for s in trajectory.segments] == [t.num_tokens for t in trajectory.turns]
    assert trajectory.terminated


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
