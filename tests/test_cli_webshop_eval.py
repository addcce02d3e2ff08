"""`trl-agent webshop eval` and `score`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trl_agent.cli import main


def as_json(capsys: pytest.CaptureFixture[str], *command: str) -> dict[str, Any]:
    assert main(["webshop", *command, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_eval_and_score_of_what_it_wrote_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "run.jsonl")
    played = as_json(capsys, "eval", "--policy", "random", "--n", "12", "--seed", "3", "--output", file)
    assert played["n"] == 12
    assert set(played["parts"]) <= {"r_type", "r_att", "r_option", "r_price"}
    assert sum(department["n"] for department in played["departments"].values()) == 12
    assert as_json(capsys, "score", file) == played
    assert as_json(capsys, "eval", "--policy", "random", "--n", "12", "--seed", "3") == played
    assert main(["webshop", "score", file]) == 0
    assert capsys.readouterr().out.startswith("department")
    assert main(["webshop", "score", file, "--price_seed", "9"]) == 1
    assert "does not ask for" in capsys.readouterr().err


def test_options_reach_the_shop(capsys: pytest.CaptureFixture[str]) -> None:
    few = as_json(capsys, "eval", "--policy", "oracle", "--n", "5", "--max_turns", "1", "--split", "dev")
    assert (few["turns"], few["bought"]["mean"]) == (1.0, 0.0)
    human = as_json(
        capsys, "eval", "--policy", "oracle", "--n", "5", "--goals", "human", "--compat", "original"
    )
    assert human["n"] == 5


def test_a_policy_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_policy.py").write_text("def act(observation, info):\n    return 'search[tea]'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", __import__("sys").path[:])
    found = as_json(capsys, "eval", "--policy", "my_policy:act", "--n", "2")
    assert (found["turns"], found["success"]) == (15.0, 0.0)
    assert main(["webshop", "eval", "--policy", "my_policy:missing"]) == 1
    assert "my_policy has no function 'missing'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ["eval", "--policy", "best"],
            "--policy must be oracle, random, first or MODULE:FUNCTION, got 'best'",
        ),
        (["eval", "--policy", "no_such_module:act"], "no_such_module"),
        (["eval", "--policy", "oracle", "--split", "validation"], "split must be one of train, dev, test"),
        (["eval", "--policy", "oracle", "--data_dir", "/no/such/folder"], "'/no/such/folder' does not exist"),
        (["score", "/no/such/file.jsonl"], "/no/such/file.jsonl"),
    ],
)
def test_what_is_wrong_is_one_line(
    command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["webshop", *command]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith(f"trl-agent webshop {command[0]}: ")
    assert error.count("\n") == 1


def test_no_episodes_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["webshop", "eval", "--policy", "oracle", "--n", "0"])
    assert "must be at least 1, got 0" in capsys.readouterr().err
