"""The `trl-agent` command."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trl_agent.cli import main, package_version


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"trl-agent {package_version()}\n"


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
