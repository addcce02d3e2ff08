"""Step records: what is written is read again, and every malformed row is named by file, line and field."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_agent_envs.records import (
    EpisodeRecord,
    RecordError,
    StepRecord,
    StepRecordWriter,
    read_episodes,
    read_step_records,
)

ROW = {"prompt": "p", "response": "r", "reward": 0.5, "done": True}

any_text = st.text(st.characters(exclude_categories=()), max_size=20)  # lone surrogates and controls included
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=5,
)
names = st.none() | st.integers() | any_text


def canonical(value: Any) -> Any:
    """JSON cannot tell a pair of surrogates from the character that it encodes: read both as the latter."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    if isinstance(value, list):
        return [canonical(item) for item in value]
    if isinstance(value, dict):
        return {canonical(key): canonical(item) for key, item in value.items()}
    return value


def canonical_step(step: StepRecord) -> StepRecord:
    values = {name: canonical(getattr(step, name)) for name in StepRecord.__dataclass_fields__}
    return StepRecord(**values)


@st.composite
def episodes(draw: st.DrawFn) -> list[StepRecord]:
    count = draw(st.integers(1, 4))
    episode, goal = draw(names), draw(names)
    extra = st.dictionaries(
        any_text.filter(lambda key: key not in StepRecord.__dataclass_fields__), json_values, max_size=2
    )
    return [
        StepRecord(
            prompt=draw(any_text),
            response=draw(any_text),
            reward=draw(st.floats(allow_nan=False, allow_infinity=False)),
            done=t == count - 1,
            episode=episode,
            goal_id=goal,
            score=draw(st.none() | st.floats(0, 1)),
            extra=draw(extra),
        )
        for t in range(count)
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(episodes(), max_size=3), st.sampled_from(["a.jsonl", "a.jsonl.gz"]))
def test_whatever_is_written_is_read_again(written: list[list[StepRecord]], name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new" / name
        with StepRecordWriter(path) as writer:
            for steps in written:
                writer.write_episode(steps)
        expected = [[canonical_step(step) for step in steps] for steps in written]
        assert [list(episode) for episode in read_episodes(path)] == expected
        assert list(read_step_records(path)) == [step for steps in expected for step in steps]


def write(folder: Path, *rows: Any, name: str = "rows.jsonl") -> Path:
    path = folder / name
    path.write_bytes(
        b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)
    )
    return path


@pytest.mark.parametrize(
    ("row", "field", "text"),
    [
        ({**ROW, "prompt": 3}, "prompt", "3 (int), expected a string"),
        ({**ROW, "response": None}, "response", "None (NoneType), expected a string"),
        ({**ROW, "reward": "1"}, "reward", "'1' (str), expected a finite number"),
        ({**ROW, "reward": True}, "reward", "True (bool), expected a finite number"),
        ({**ROW, "reward": float("nan")}, "reward", "nan (float), expected a finite number"),
        ({**ROW, "reward": 10**400}, "reward", "expected a finite number"),
        ({**ROW, "done": 1}, "done", "1 (int), expected true or false"),
        ({**ROW, "episode": 1.5}, "episode", "1.5 (float), expected an integer, a string or null"),
        ({**ROW, "goal_id": [1]}, "goal_id", "[1] (list), expected an integer, a string or null"),
        ({**ROW, "goal_id": True}, "goal_id", "True (bool), expected"),
        ({**ROW, "score": 1.5}, "score", "1.5 (float), expected a number in [0, 1] or null"),
        ({**ROW, "score": "high"}, "score", "'high' (str), expected a number in [0, 1] or null"),
        ({key: ROW[key] for key in ("response", "reward", "done")}, "prompt", "missing, expected a string"),
        (
            {key: ROW[key] for key in ("prompt", "response", "reward")},
            "done",
            "missing, expected true or false",
        ),
        ([1, 2], "(row)", "[1, 2] (list), expected a JSON object"),
        (b'{"prompt": "p", ', "(row)", "not JSON"),
        (b'{"prompt": "\xff"}', "(row)", "not UTF-8 at byte 12"),
        (b"[" * 100_000, "(row)", "not JSON"),
    ],
)
def test_a_malformed_row_is_named_by_file_line_and_field(
    tmp_path: Path, row: Any, field: str, text: str
) -> None:
    path = write(tmp_path, ROW, b"", row, ROW)
    steps = read_step_records(path)
    assert next(steps).prompt == "p"
    with pytest.raises(RecordError) as caught:
        next(steps)
    assert str(caught.value).startswith(f"{path}:3:{field}: ")
    assert text in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(ROW)), json_values)
def test_any_other_type_in_a_field_is_an_error_that_names_it(field: str, value: Any) -> None:
    kinds = {"prompt": str, "response": str, "done": bool, "reward": (int, float)}
    good = isinstance(value, kinds[field]) and (field == "done" or not isinstance(value, bool))
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), {**ROW, field: value})
        if good:
            assert len(list(read_step_records(path))) == 1
        else:
            with pytest.raises(RecordError, match=f"rows.jsonl:1:{field}: "):
                list(read_step_records(path))


def test_a_file_that_ends_within_an_episode_names_its_last_line(tmp_path: Path) -> None:
    path = write(tmp_path, ROW, {**ROW, "done": False}, {**ROW, "done": False})
    episodes = read_episodes(path)
    assert len(next(episodes)) == 1
    with pytest.raises(
        RecordError, match=r"rows.jsonl:3:done: the file ends within the episode that began at line 2"
    ):
        next(episodes)


@pytest.mark.parametrize("key", ["episode", "goal_id"])
def test_a_missing_done_shows_by_a_new_episode_or_goal(tmp_path: Path, key: str) -> None:
    path = write(tmp_path, {**ROW, key: 1, "done": False}, {**ROW, "done": False}, {**ROW, key: 2})
    with pytest.raises(RecordError, match=f"rows.jsonl:3:{key}: 2 .int. in the episode that began at line 1"):
        list(read_episodes(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"none.jsonl:1:\(row\): cannot be read"):
        list(read_step_records(tmp_path / "none.jsonl"))
    with pytest.raises(RecordError, match=r"plain.jsonl.gz:1:\(row\): cannot be read"):
        list(read_step_records(write(tmp_path, ROW, name="plain.jsonl.gz")))
    whole = gzip.compress(b"".join(json.dumps({**ROW, "x": i}).encode() + b"\n" for i in range(2000)))
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RecordError, match=r"cut.jsonl.gz:\d+:\(row\): cannot be read"):
        list(read_step_records(tmp_path / "cut.jsonl.gz"))


def test_reading_holds_one_episode_at_a_time(tmp_path: Path) -> None:
    path = write(tmp_path, ROW, b"this is no record")
    assert next(read_episodes(path))[0] == StepRecord("p", "r", 0.5, True)


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbf" + json.dumps(ROW).encode() + b"\r", b"\r", ROW)
    assert len(list(read_step_records(path))) == 2


def test_an_episode_knows_its_score_goal_and_success() -> None:
    steps = EpisodeRecord(
        [
            StepRecord("a", "b", 0.0, False, score=0.25),
            StepRecord("a", "b", 0.0, False, goal_id="g7"),
            StepRecord("a", "b", 1.0, True, score=1.0 - 1e-10),
            StepRecord("a", "b", 1.0, True),
        ]
    )
    assert (steps.score, steps.goal_id, steps.success) == (1.0 - 1e-10, "g7", True)
    assert EpisodeRecord(steps[:1]).success is False
    assert (EpisodeRecord().score, EpisodeRecord().goal_id, EpisodeRecord().success) == (None, None, False)


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([], "an episode without a step"),
        ([StepRecord("p", "r", 0.0, False)], "step 0 of the episode to write:done: False, expected True"),
        ([StepRecord("p", "r", 0.0, True)] * 2, "step 0 of the episode to write:done: True, expected False"),
        ([StepRecord("p", "r", float("inf"), True)], ":reward: inf (float), expected a finite number"),
        ([StepRecord("p", 3, 0.0, True)], ":response: 3 (int), expected a string"),
        (
            [StepRecord("p", "r", 0.0, True, extra={"score": 1})],
            ":extra: key 'score', expected strings other than",
        ),
        ([StepRecord("p", "r", 0.0, True, extra={1: 1})], ":extra: key 1"),
        ([StepRecord("p", "r", 0.0, True, extra={"x": {1, 2}})], ":extra: Object of type set"),
        ([StepRecord("p", "r", 0.0, True, extra={"x": float("nan")})], ":extra: Out of range float"),
    ],
)
def test_a_bad_episode_is_refused_and_nothing_is_written(
    tmp_path: Path, steps: list[StepRecord], text: str
) -> None:
    path = tmp_path / "out.jsonl"
    with StepRecordWriter(path) as writer:
        writer.write_episode([StepRecord("p", "r", 0.0, True)])
        with pytest.raises(RecordError) as caught:
            writer.write_episode(steps)
    assert text in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(list(read_episodes(path))) == 1


def test_each_episode_is_in_the_file_when_write_returns(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with StepRecordWriter(path) as writer:
        for count in (1, 2, 3):
            writer.write_episode([StepRecord("p", "r", 0.0, True)])
            assert len(list(read_episodes(path))) == count


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_a_second_writer_adds_or_starts_anew(tmp_path: Path, name: str) -> None:
    for append, count in ((True, 1), (True, 2), (False, 1)):
        with StepRecordWriter(tmp_path / name, append=append) as writer:
            writer.write_episode([StepRecord("p", "r", 0.0, True)])
        assert len(list(read_episodes(tmp_path / name))) == count


@pytest.mark.parametrize("tail", [b'{"prompt": "p"', json.dumps({**ROW, "done": False}).encode() + b"\n"])
def test_nothing_is_added_to_a_file_that_ends_within_an_episode(tmp_path: Path, tail: bytes) -> None:
    path = write(tmp_path, ROW)
    with path.open("ab") as file:
        file.write(tail)
    with pytest.raises(RecordError, match=r"rows.jsonl:2:"):
        StepRecordWriter(path)


def test_an_interrupted_write_leaves_no_half_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    with StepRecordWriter(path) as writer:
        writer.write_episode([StepRecord("p", "r", 0.0, True)])
        file = writer._file

        class FullDisk:
            def write(self, data: bytes) -> int:
                if len(data) < 100:
                    raise OSError(28, "No space left on device")
                return file.write(data[:50])

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

        monkeypatch.setattr(writer, "_file", FullDisk())
        with pytest.raises(OSError, match="No space left"):
            writer.write_episode([StepRecord("p" * 100, "r", 0.0, True)])
        monkeypatch.undo()
        writer.write_episode([StepRecord("q", "r", 0.0, True)])
    assert [episode[0].prompt for episode in read_episodes(path)] == ["p", "q"]
    assert os.path.getsize(path) < 200
