from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trl_agent_envs.webshop.new_folder import new_folder, remove_leftovers


def hidden(target: Path) -> list[Path]:
    return [entry for entry in target.parent.iterdir() if entry.name.startswith(".")]


def test_appears_as_a_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "folder"
    with new_folder(target) as folder:
        (folder / "a").write_text("1")
        assert not target.exists()
    assert (target / "a").read_text() == "1"
    assert hidden(target) == []


def test_leaves_nothing_when_the_block_fails(tmp_path: Path) -> None:
    def fill() -> None:
        with new_folder(tmp_path / "folder") as folder:
            (folder / "a").write_text("1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_may_stand_there(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with new_folder(tmp_path / "folder") as folder:
        (folder / "a").touch()
    assert (tmp_path / "folder" / "a").exists()


def test_what_stands_there_is_kept_or_replaced(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    (target / "old").touch()
    with pytest.raises(FileExistsError, match="exists already"), new_folder(target):
        raise AssertionError("not reached")
    with pytest.raises(ZeroDivisionError), new_folder(target, replace=True):
        raise ZeroDivisionError
    assert [entry.name for entry in target.iterdir()] == ["old"]
    with new_folder(target, replace=True) as folder:
        (folder / "new").touch()
    assert [entry.name for entry in target.iterdir()] == ["new"]
    assert hidden(target) == []


def test_the_first_of_two_stays(tmp_path: Path) -> None:
    target = tmp_path / "folder"

    def fill() -> None:
        with new_folder(target) as second:
            (second / "second").touch()
            with new_folder(target) as first:
                (first / "first").touch()

    with pytest.raises(FileExistsError, match="exists already"):
        fill()
    assert [entry.name for entry in target.iterdir()] == ["first"]
    assert hidden(target) == []


_WORKER = """
import sys, time
from pathlib import Path
from trl_agent_envs.webshop.new_folder import new_folder
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "a").touch()
    time.sleep(60)
"""


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "nothing happened for 30 seconds"
        time.sleep(0.01)


@pytest.mark.skipif(os.name != "posix", reason="locks are those of POSIX")
def test_a_killed_process_s_folder_is_removed_and_a_running_one_s_is_not(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    worker = subprocess.Popen([sys.executable, "-c", _WORKER, str(target)])
    try:
        wait_for(lambda: list(tmp_path.glob(".folder.building-*/a")))
        remove_leftovers(target)
        assert len(hidden(target)) == 1
    finally:
        worker.kill()
        worker.wait()
    assert len(hidden(target)) == 1
    assert not target.exists()
    with new_folder(target) as folder:
        assert hidden(target) == [folder]
