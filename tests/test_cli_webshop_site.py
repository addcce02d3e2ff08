"""`trl-agent webshop serve` and `convert`: from the command line to demonstrations that the recipes read."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.envs.webshop.original_site import Person
from trl_agent.cli import main
from trl_agent.demonstrations import read_demonstrations
from trl_agent_envs.webshop import Shop

ROOT = Path(__file__).resolve().parents[1]
TARGET = 17


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop.load()


@contextmanager
def served(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The command, running; yields the process, the address it prints, and what it prints before that."""
    command = [sys.executable, "-m", "trl_agent.cli", "webshop", "serve", "--port", "0", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "envs")])}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        before = ""
        for line in process.stdout:
            if match := re.fullmatch(
                r"Open (http://127\.0\.0\.1:\d+)/ in a browser; Ctrl-C ends it.\n", line
            ):
                break
            before += line
        else:
            raise AssertionError(f"it ended: {before} {process.communicate(timeout=60)}")
        yield process, match[1], before
    finally:
        process.kill()
        process.communicate(timeout=60)


def buy(address: str, shop: Shop) -> None:
    """Buy what goal `TARGET` asks for, with its options, by the forms of the pages."""
    goal = shop.goals("synthetic")[TARGET]
    assert isinstance(goal.options, dict)
    with httpx2.Client(follow_redirects=True) as client:
        page = client.get(f"{address}/fixed_{TARGET}")
        forms: list[tuple[str, dict[str, str]]] = [
            ("search", {"search_query": shop.catalog[goal.asin].title}),
            ("click", {"value": goal.asin.lower()}),
            *[("choose", {name: value}) for name, value in goal.options.items()],
            ("click", {"value": "buy now"}),
        ]
        for kind, fields in forms:
            page = client.post(f"{page.url}/{kind}", data=fields)
            assert page.status_code == 200
        assert "Thank you for shopping with us!" in page.text


def test_what_is_bought_on_the_site_is_a_demonstration(tmp_path: Path, shop: Shop) -> None:
    with served("--record", str(tmp_path)) as (process, address, before):
        buy(address, shop)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert before.startswith(f"visits that end are added to {tmp_path / 'demonstrations.jsonl'}\n")
    assert (out, err) == ("", ""), "Ctrl-C ends it quietly"
    (episode,) = read_demonstrations(tmp_path / "demonstrations.jsonl")
    assert (episode.goal_id, episode.score, episode.success) == (TARGET, 1.0, True)
    assert episode[0].response.startswith("search[")
    assert episode[-1].response == "click[buy now]"


def test_a_killed_server_loses_nothing_that_ended(tmp_path: Path, shop: Shop) -> None:
    with served("--record", str(tmp_path)) as (process, address, _):
        buy(address, shop)
        process.kill()
    file = tmp_path / "demonstrations.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[: len(whole) // 2])  # as if the second one was being written
    with served("--record", str(tmp_path), "--observation_mode", "text_rich") as (process, address, before):
        buy(address, shop)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert before.startswith(f"cut off an unfinished episode ({len(whole) // 2} bytes)\n")
    first, second = read_demonstrations(file)
    assert [step.response for step in first] == [step.response for step in second]
    assert "[button]" in second[0].prompt


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that the command ends with."""
    assert main(["webshop", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_serve_names_what_is_wrong_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    serve = "trl-agent webshop serve: "
    assert refused(capsys, "serve", "--data_dir", str(tmp_path / "nowhere")).startswith(f"{serve}data_dir ")
    unwritable = refused(capsys, "serve", "--record", str(tmp_path / "file"))
    assert unwritable.startswith(f"{serve}cannot record into {tmp_path / 'file'}: ")
    assert refused(capsys, "serve", "--split", "nonsense").startswith(f"{serve}split must be one of train, ")
    assert (
        refused(capsys, "serve", "--max_turns", "0")
        == f"{serve}max_turns must be a whole number of at least 1, got 0"
    )
    assert refused(capsys, "serve", "--port", "65536") == f"{serve}port must be in [0, 65535], got 65536"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        busy = refused(capsys, "serve", "--port", port, "--record", str(tmp_path / "new"))
    assert busy == f"{serve}cannot listen on 127.0.0.1 port {port}: Address already in use"


def test_serve_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.startswith("trl_agent_envs.webshop.site"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    line = refused(capsys, "serve")
    assert line == "trl-agent webshop serve: needs starlette; run pip install 'trl-agent[site]'"


def log_of(shop: Shop, *, buys: bool) -> str:
    goal = shop.goals("synthetic")[TARGET]
    person = Person(shop, goal, f"worker-{buys}")
    person.search(*shop.catalog[goal.asin].title.lower().split())
    person.open(goal.asin)
    if buys:
        person.buy()
    return person.text()


def test_convert_writes_demonstrations_and_says_what_was_left_out(
    tmp_path: Path, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = [tmp_path / f"{name}.jsonl" for name in ("bought", "left", "broken")]
    logs[0].write_text(log_of(shop, buys=True))
    logs[1].write_text(log_of(shop, buys=False))
    logs[2].write_text(log_of(shop, buys=True).replace('"page": "done"', '"page": "cart"'))
    out = tmp_path / "new" / "out.jsonl"
    names = [str(log) for log in logs]
    assert main(["webshop", "convert", *names, "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        f"1 of 3 visits converted to {out}",
        "1 left out: the visit ends without a purchase",
        "1 left out: a line is malformed",
    ]
    left, broken = captured.err.splitlines()
    assert left == f"{logs[1]}:3: the visit ends without a purchase"
    assert broken.startswith(f"{logs[2]}:4:page: 'cart' (str), expected one of index, ")
    (episode,) = read_demonstrations(out)
    assert episode.goal_id == TARGET
    assert [path.name for path in out.parent.iterdir()] == ["out.jsonl"]


def test_convert_strict_stops_and_leaves_the_file_that_was_there(
    tmp_path: Path, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "out.jsonl"
    log.write_text(log_of(shop, buys=True) + log_of(shop, buys=False))
    out.write_text("mine\n")
    line = refused(capsys, "convert", str(log), "--out", str(out), "--strict")
    assert line == f"trl-agent webshop convert: {log}:7: the visit ends without a purchase"
    line = refused(capsys, "convert", str(tmp_path / "none.jsonl"), "--out", str(out))
    assert "none.jsonl" in line
    below_a_file = refused(capsys, "convert", str(log), "--out", str(out / "deeper.jsonl"))
    assert "deeper.jsonl" not in below_a_file
    assert str(out) in below_a_file
    assert out.read_text() == "mine\n"
    assert {path.name for path in tmp_path.iterdir()} == {"log.jsonl", "out.jsonl"}


def test_convert_fails_where_nothing_can_be_converted(
    tmp_path: Path, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "out.jsonl"
    log.write_text(json.dumps({"page": "index"}) + "\n")
    assert main(["webshop", "convert", str(log), "--out", str(out)]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("0 of 1 visits converted\n")
    assert captured.err.splitlines()[-1] == (
        f"trl-agent webshop convert: no visit could be converted; {out} is not written"
    )
    assert not out.exists()
