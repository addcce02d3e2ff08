"""What people do on the site becomes step records: whole episodes, whatever happens to the server."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.envs.webshop.conftest import six_products
from tests.envs.webshop.site_visitor import Visitor, site_of
from trl_agent_envs.records import StepRecordWriter, read_episodes
from trl_agent_envs.webshop import Shop
from trl_agent_envs.webshop.env import WebShopEnv
from trl_agent_envs.webshop.site import Recorder, RecorderError, Site
from trl_agent_envs.webshop.site.recorder import FILE_NAME

BUY_RUG = ["search[persian rug]", "click[b000000001]", "click[black]", "click[description]", "click[< prev]",
           "click[round]", "click[buy now]"]  # fmt: skip


def visit(site: Site, actions: list[str], start: str = "/fixed_0") -> Visitor:
    visitor = Visitor(site, start)
    for action in actions:
        visitor.do(action)
    return visitor


@pytest.mark.parametrize("mode", ["text", "text_rich"])
def test_a_purchase_is_recorded_as_the_environment_plays_it(strict: Shop, tmp_path: Path, mode: Any) -> None:
    recorder = Recorder(tmp_path / "new" / "folder", mode)
    goal_id = next(goal.goal_id for goal in strict.goals("synthetic") if goal.asin == "B000000001")
    visit(site_of(six_products(), recorder=recorder), BUY_RUG, f"/fixed_{goal_id}")
    recorder.close()
    (episode,) = read_episodes(tmp_path / "new" / "folder" / FILE_NAME)
    env = WebShopEnv(data_dir=six_products(), split="all", observation_mode=mode)
    observation, info = env.reset(options={"goal_id": goal_id})
    assert episode[0].extra == {"system_prompt": info["system_prompt"]}
    for step, action in zip(episode, BUY_RUG, strict=True):
        assert (step.prompt, step.response, step.goal_id) == (observation, action, goal_id)
        observation, reward, done, _, info = env.step(action)
        assert (step.reward, step.done, step.score) == (reward, done, info["score"])
    assert episode.score is not None
    assert episode.score > 0


def test_what_was_refused_and_who_left_is_not_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    site = site_of(six_products(), recorder=recorder)
    visit(site, BUY_RUG[:3])  # leaves
    visitor = visit(site, BUY_RUG[:2])
    visitor.post(f"{visitor.address}/click", [("value", "no such button")])
    visitor.get(visitor.address.rsplit("/", 1)[0] + "/0")
    visitor.do("click[buy now]")
    visitor.post(f"{visitor.address}/click", [("value", "buy now")])
    (episode,) = read_episodes(recorder.path)
    assert [step.response for step in episode] == [*BUY_RUG[:2], "click[buy now]"]


def test_a_visit_at_its_limit_is_recorded_as_cut_short(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    visit(site_of(six_products(), recorder=recorder, max_turns=3), BUY_RUG[:3])
    (episode,) = read_episodes(recorder.path)
    assert [step.done for step in episode] == [False, False, True]
    assert episode[-1].extra == {"truncation_cause": "turn_limit"}
    assert (episode.score, episode[-1].reward) == (0.0, 0.0)


def test_the_id_that_opens_a_visit_is_not_in_the_file(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    visitor = visit(site_of(six_products(), recorder=recorder), BUY_RUG)
    assert visitor.visit not in recorder.path.read_text()
    assert visitor.client.cookies["webshop_owner"] not in recorder.path.read_text()


def test_visits_that_end_at_once_are_all_recorded_whole(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    site = site_of(six_products(), recorder=recorder)
    ready = threading.Barrier(6)

    def shop() -> None:
        visitor = visit(site, BUY_RUG[:-1])
        ready.wait(timeout=60)
        visitor.do(BUY_RUG[-1])

    threads = [threading.Thread(target=shop) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    episodes = list(read_episodes(recorder.path))
    assert len({episode[0].episode for episode in episodes}) == 6
    assert all([step.response for step in episode] == BUY_RUG for episode in episodes)


def test_what_a_killed_server_left_is_cut_off_and_the_rest_kept(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    site = site_of(six_products(), recorder=recorder)
    visit(site, BUY_RUG)
    whole = recorder.path.read_bytes()
    visit(site, BUY_RUG[:2] + BUY_RUG[-1:])
    both = recorder.path.read_bytes()
    recorder.close()
    for length in [*range(len(whole), len(both), 400), len(both) - 1]:
        recorder.path.write_bytes(both[:length])
        again = Recorder(tmp_path)
        assert again.cut == length - len(whole)
        visit(site_of(six_products(), recorder=again), BUY_RUG)
        again.close()
        assert recorder.path.read_bytes().startswith(whole)
        assert len(list(read_episodes(recorder.path))) == 2
    recorder.path.write_bytes(both)
    again = Recorder(tmp_path)
    again.close()
    assert (again.cut, recorder.path.read_bytes()) == (0, both)


@pytest.mark.parametrize("content", ["shopping list\n", '{"prompt": "x"}\n', "[1]\n", "\x00\n{}\n"])
def test_a_file_of_something_else_is_refused_and_kept(tmp_path: Path, content: str) -> None:
    file = tmp_path / FILE_NAME
    file.write_text(content)
    with pytest.raises(RecorderError, match=rf"{FILE_NAME}:1:\(row\): is not a step record"):
        Recorder(tmp_path)
    assert file.read_text() == content


def test_one_server_a_folder(tmp_path: Path) -> None:
    first = Recorder(tmp_path)
    with pytest.raises(RecorderError, match="another server records into"):
        Recorder(tmp_path)
    first.close()
    first.close()
    Recorder(tmp_path).close()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RecorderError, match=r"cannot record into .*file/sub: Not a directory"):
        Recorder(tmp_path / "file" / "sub")
    (tmp_path / "taken" / FILE_NAME).mkdir(parents=True)
    with pytest.raises(RecorderError, match=r"cannot record into .*taken: Is a directory"):
        Recorder(tmp_path / "taken")


def test_a_failing_disk_is_told_and_the_next_visit_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(tmp_path)
    site = site_of(six_products(), recorder=recorder)

    def full(self: Any, steps: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(StepRecordWriter, "write_episode", full)
        visitor = visit(site, BUY_RUG)
    assert visitor.page.visible.startswith("Thank you")
    assert visitor.page.note == "This visit could not be recorded: [Errno 28] No space left on device"
    assert "No space left on device" in caplog.text
    visit(site, BUY_RUG)
    assert len(recorder.path.read_text().splitlines()) == len(BUY_RUG)
    assert all(json.loads(line)["prompt"] for line in recorder.path.read_text().splitlines())
