"""The `trl-agent` command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trl_agent import __version__
from trl_agent.cli import main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"trl-agent {__version__}\n"


def test_without_a_sub_command_it_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: trl-agent" in capsys.readouterr().err


def test_an_unknown_flag_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--no-such-flag"])
    assert stop.value.code == 2
    assert "--no-such-flag" in capsys.readouterr().err


def test_help_does_not_import_torch() -> None:
    code = "import sys, trl_agent.cli as c; c.build_parser().format_help(); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["webshop"],
        *[["webshop", name] for name in ("splits", "serve", "convert", "index", "generate", "eval", "score")],
    ],
)
def test_every_sub_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    assert "usage: trl-agent " + " ".join(command) in capsys.readouterr().out


def test_webshop_splits_lists_and_counts_the_same_goals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["webshop", "splits", "--json"]) == 0
    ids = json.loads(capsys.readouterr().out)
    assert list(ids) == ["train", "dev", "test"]
    everything = [goal_id for members in ids.values() for goal_id in members]
    assert sorted(everything) == list(range(len(everything)))
    assert main(["webshop", "splits"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["split", "goals", "products"]
    assert {row[0]: int(row[1]) for row in rows[1:]} == {
        split: len(members) for split, members in ids.items()
    }


def test_webshop_splits_names_a_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["webshop", "splits", "--data_dir", str(tmp_path / "nowhere")]) == 1
    assert "nowhere" in capsys.readouterr().err
