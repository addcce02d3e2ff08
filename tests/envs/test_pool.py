"""EnvPool: what holds on every back end, then what each one owes on its own."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_envs
import pytest

from trl_agent_envs import EnvEvent, EnvPool, EnvPoolError
from trl_agent_envs.pool_kill import TOKEN_VARIABLE

HERE = Path(__file__).parent
ENVS = {"inline": "fake/Count-v0", "process": "fake/Count-v0", "async": "fake/AsyncCount-v0"}
BACKENDS = list(ENVS)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the process back end needs POSIX")


def children(pid: int | None = None) -> set[int]:
    """Processes that descend from this one, by Linux's /proc (zombies included)."""
    pid = pid or os.getpid()
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found |= {int(stat.parent.name)} | children(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


def make(backend: str, num_envs: int = 2, **kwargs: Any) -> EnvPool:
    kwargs = {"step_timeout": 20.0, **kwargs}
    return EnvPool(ENVS[backend], num_envs=num_envs, backend=backend, **kwargs)  # type: ignore[arg-type]


def collect(pool: EnvPool, count: int) -> list[EnvEvent]:
    events: list[EnvEvent] = []
    while len(events) < count:
        events += pool.wait()
    return sorted(events, key=lambda event: event.slot)


def start(pool: EnvPool) -> list[EnvEvent]:
    for slot in range(pool.num_envs):
        pool.submit_reset(slot, seed=slot)
    return collect(pool, pool.num_envs)


def step(pool: EnvPool, slot: int, action: str) -> EnvEvent:
    pool.submit_step(slot, action)
    (event,) = collect(pool, 1)
    assert event.slot == slot
    return event


@pytest.mark.parametrize("backend", BACKENDS)
class TestEveryBackend:
    def test_an_episode_is_what_the_environment_plays_alone(self, backend: str) -> None:
        env = fake_envs.CountEnv()
        observation, info = env.reset(seed=1, options={"goal_id": 2})
        with make(backend) as pool:
            pool.submit_reset(1, seed=1, options={"goal_id": 2})
            (event,) = collect(pool, 1)
            assert (event.slot, event.kind, event.observation, event.info) == (1, "reset", observation, info)
            assert event.state_key == env.state_key()
            assert not event.done
            for last in (False, True):
                observation, reward, terminated, truncated, info = env.step("add")
                event = step(pool, 1, "add")
                assert (event.kind, event.observation, event.reward) == ("step", observation, reward)
                assert (event.terminated, event.truncated) == (terminated, truncated) == (last, False)
                assert {**event.info, "pid": 0} == {**info, "pid": 0}
                assert event.state_key == env.state_key()
                assert event.truncation_cause is None
                assert event.error is None
                assert event.seconds >= 0.0

    def test_any_unicode_comes_through(self, backend: str) -> None:
        with make(backend, 1) as pool:
            start(pool)
            text = "é\u2028\x00😀\ud800"
            assert step(pool, 0, text).info["action_error"] == f"unknown action {text!r}"

    @pytest.mark.parametrize("action", ["raise:bang", "exit:bang"])
    def test_a_step_that_raises_ends_its_own_episode_only(self, backend: str, action: str) -> None:
        with make(backend) as pool:
            start(pool)
            event = step(pool, 0, action)
            assert (event.terminated, event.truncated, event.truncation_cause) == (False, True, "env_error")
            assert event.error is not None
            assert "bang" in event.error.splitlines()[0]
            assert "fake_envs.py" in event.error or "exit" in event.error
            assert (event.observation, event.reward, event.info, event.state_key) == ("", 0.0, {}, None)
            assert not step(pool, 1, "add").done
            with pytest.raises(EnvPoolError, match="submit_reset"):
                pool.submit_step(0, "add")
            pool.submit_reset(0, seed=0)
            assert not collect(pool, 1)[0].done
            assert not step(pool, 0, "add").done

    def test_truncation_keeps_the_environments_cause(self, backend: str) -> None:
        with make(backend, 3) as pool:
            start(pool)
            assert step(pool, 0, "truncate:").truncation_cause == "turn_limit"
            assert step(pool, 1, "truncate:token_limit").truncation_cause == "token_limit"
            both = step(pool, 2, "both")
            assert (both.terminated, both.truncated, both.truncation_cause) == (True, False, None)

    def test_lockstep_returns_all_slots_in_order(self, backend: str) -> None:
        with make(backend, 3, schedule="lockstep") as pool:
            for slot in (2, 0, 1):
                pool.submit_reset(slot, seed=slot)
            assert [event.slot for event in pool.wait()] == [0, 1, 2]
            pool.submit_step(2, "add")
            pool.submit_step(0, "sleep:0.05")
            assert [event.slot for event in pool.wait()] == [0, 2]

    def test_an_overrun_step_is_a_timeout_and_the_slot_lives_on(self, backend: str) -> None:
        with make(backend, step_timeout=0.4, reset_timeout=60.0) as pool:
            start(pool)
            event = step(pool, 0, "sleep:0.8")
            assert (event.truncated, event.truncation_cause) == (True, "env_timeout")
            assert event.error is not None
            assert "step_timeout" in event.error
            pool.submit_reset(0)
            assert collect(pool, 1)[0].error is None
            assert step(pool, 1, "add").error is None

    def test_the_steps_of_an_episode_share_a_deadline(self, backend: str) -> None:
        with make(backend, 1, episode_timeout=1.0) as pool:
            pool.submit_reset(0, options={"goal_id": 100})
            collect(pool, 1)
            events = [step(pool, 0, "sleep:0.4")]
            while not events[-1].done:
                events.append(step(pool, 0, "sleep:0.4"))
            assert len(events) <= 3
            assert events[-1].truncation_cause == "env_timeout"
            assert events[-1].error is not None
            assert "episode_timeout" in events[-1].error
            pool.submit_reset(0)
            collect(pool, 1)
            assert step(pool, 0, "sleep:0.1").error is None  # a new episode, a new deadline

    def test_calls_reach_the_environment(self, backend: str) -> None:
        with make(backend, 1) as pool:
            with pytest.raises(EnvPoolError, match="submit_reset"):
                pool.call(0, "state_key")
            (event,) = start(pool)
            assert pool.call(0, "state_key") == event.state_key
            assert pool.call(0, "oracle_action") == "add"
            assert pool.call(0, "sample_action", random.Random(5)) == f"say {random.Random(5).randrange(10)}"
            with pytest.raises(EnvPoolError, match="private"):
                pool.call(0, "_observation")
            with pytest.raises(
                EnvPoolError, match=r"'fail' of fake/\w+-v0 \(slot 0\) failed: ValueError: no such luck"
            ):
                pool.call(0, "fail")
            start(pool)
            with pytest.raises(EnvPoolError, match="no_such_method"):
                pool.call(0, "no_such_method")
            start(pool)

    def test_misuse_is_an_error_that_says_what_to_do(self, backend: str) -> None:
        with make(backend, 1) as pool:
            with pytest.raises(EnvPoolError, match="no slot has a reset or step in flight"):
                pool.wait()
            with pytest.raises(EnvPoolError, match="0 <= slot < 1"):
                pool.submit_reset(1)
            with pytest.raises(EnvPoolError, match="submit_reset"):
                pool.submit_step(0, "add")
            pool.submit_reset(0)
            with pytest.raises(EnvPoolError, match="busy"):
                pool.submit_reset(0)
            with pytest.raises(EnvPoolError, match="busy"):
                pool.call(0, "state_key")
            collect(pool, 1)
            with pytest.raises(TypeError, match="slot 0 got an action of type int"):
                pool.submit_step(0, 3)  # type: ignore[arg-type]
            assert step(pool, 0, "add").error is None
        pool.close()
        for use in (pool.wait, lambda: pool.submit_reset(0), lambda: pool.call(0, "state_key")):
            with pytest.raises(EnvPoolError, match="closed"):
                use()

    def test_an_exception_inside_the_block_closes_the_pool(self, backend: str) -> None:
        pool = make(backend)
        with pytest.raises(KeyboardInterrupt), pool:  # noqa: PT012 - the block is what is tested
            start(pool)
            pool.submit_step(0, "sleep:0.2")
            raise KeyboardInterrupt
        with pytest.raises(EnvPoolError, match="closed"):
            pool.wait()


@pytest.mark.parametrize("backend", ["process", "async"])  # an inline step is over when its submit returns
def test_wait_gives_up_after_its_timeout(backend: str) -> None:
    with make(backend, 1, step_timeout=30.0) as pool:
        start(pool)
        pool.submit_step(0, "sleep:0.3")
        assert pool.wait(timeout=0.0) == []
        assert pool.wait(timeout=0.01) == []
        assert pool.num_pending == 1
        assert collect(pool, 1)[0].error is None
        assert pool.num_pending == 0


class TestRetries:
    @pytest.mark.parametrize("backend", ["inline", "process"])
    def test_a_failing_reset_is_retried_with_a_new_environment(self, backend: Any, tmp_path: Path) -> None:
        kwargs = {
            "tally": str(tmp_path / "tally"),
            "failures": 2,
            "how": "raise" if backend == "inline" else "die",
        }
        with EnvPool("fake/BrokenReset-v0", kwargs, 1, backend=backend, max_retries=2) as pool:
            pool.submit_reset(0, seed=4, options={"goal_id": 5})
            (event,) = collect(pool, 1)
            assert event.error is None
            assert event.info["goal_id"] == 5
        assert (tmp_path / "tally").stat().st_size == 3

    @pytest.mark.parametrize("backend", ["inline", "process"])
    def test_then_one_clear_error(self, backend: Any, tmp_path: Path) -> None:
        kwargs = {"tally": str(tmp_path / "tally"), "failures": 2}
        with EnvPool("fake/BrokenReset-v0", kwargs, 1, backend=backend, max_retries=1) as pool:
            pool.submit_reset(0, seed=4)
            expected = (
                r"BrokenReset-v0 could not be reset in 2 tries \(slot 0, seed=4, .*env_error: ZeroDivision"
            )
            with pytest.raises(EnvPoolError, match=expected):
                pool.wait()
            pool.submit_reset(0)  # the third reset works, and so does the slot
            assert collect(pool, 1)[0].error is None

    def test_a_constructor_that_fails_is_the_last_cause(self) -> None:
        with EnvPool("fake/BrokenInit-v0", num_envs=1, max_retries=0) as pool:
            pool.submit_reset(0)
            with pytest.raises(EnvPoolError, match=r"in 1 tries .*OSError: the catalogue is missing"):
                pool.wait()

    def test_events_at_hand_survive_the_error(self, tmp_path: Path) -> None:
        kwargs = {"tally": str(tmp_path / "tally"), "failures": 1}
        with EnvPool("fake/BrokenReset-v0", kwargs, 2, max_retries=0) as pool:
            pool.submit_reset(0)
            pool.submit_reset(1)
            with pytest.raises(EnvPoolError, match="slot 0"):
                pool.wait()
            assert [event.slot for event in pool.wait()] == [1]

    def test_episodes_that_fail_in_a_row_raise(self) -> None:
        with make("inline", 1, max_consecutive_failures=2) as pool:
            for _ in range(2):
                start(pool)
                assert step(pool, 0, "raise").truncation_cause == "env_error"
            start(pool)
            assert step(pool, 0, "both").terminated  # one that ends well starts the count anew
            for _ in range(2):
                start(pool)
                step(pool, 0, "raise")
            start(pool)
            pool.submit_step(0, "raise:the last straw")
            with pytest.raises(EnvPoolError, match=r"3 episodes of fake/Count-v0 in a row .*the last straw"):
                pool.wait()

    def test_a_failure_the_environment_reports_counts_too(self) -> None:
        with make("inline", 1, max_consecutive_failures=1) as pool:
            start(pool)
            event = step(pool, 0, "truncate:env_error")
            assert (event.truncation_cause, event.error) == ("env_error", None)
            start(pool)
            pool.submit_step(0, "truncate:env_error")
            with pytest.raises(EnvPoolError, match="reported by the environment itself"):
                pool.wait()

    def test_by_default_every_slot_may_fail_max_retries_times(self) -> None:
        with make("inline", 2, max_retries=1) as pool:
            for _ in range(2):
                pool.submit_reset(0)
                collect(pool, 1)
                step(pool, 0, "raise")
            pool.submit_reset(0)
            collect(pool, 1)
            pool.submit_step(0, "raise")
            with pytest.raises(EnvPoolError, match="max_consecutive_failures=2"):
                pool.wait()


class TestWhichEnvironment:
    def test_the_class_names_the_back_end(self) -> None:
        assert EnvPool("fake/Count-v0").backend == "inline"
        assert EnvPool("fake/Plain-v0").backend == "process"
        pool = EnvPool("fake/AsyncCount-v0")
        assert pool.backend == "async"
        pool.close()
        assert EnvPool(fake_envs.make_count).backend == "inline"
        assert EnvPool(fake_envs.make_in_process).backend == "process"
        assert EnvPool(fake_envs.CountEnv).backend == "inline"
        assert "fake/Count-v0" in repr(EnvPool("fake/Count-v0"))
        assert len(EnvPool("fake/Count-v0", num_envs=5)) == 5

    def test_a_module_in_the_id_is_imported(self) -> None:
        with EnvPool("fake_envs:fake/Count-v0", {"target": 1}, 1) as pool:
            start(pool)
            assert step(pool, 0, "add").terminated

    @pytest.mark.parametrize("factory", [fake_envs.make_count, lambda target: fake_envs.CountEnv(target)])
    def test_a_factory_gets_the_arguments(self, factory: Any) -> None:
        with EnvPool(factory, {"target": 1}, 1) as pool:
            start(pool)
            assert step(pool, 0, "add").terminated

    def test_gymnasium_wrappers_stay_in_place(self) -> None:
        with EnvPool("fake/Limited-v0", {"target": 9}, 1) as pool:
            (event,) = start(pool)
            assert event.state_key is not None  # reached past the wrappers
            assert not step(pool, 0, "add").done
            event = step(pool, 0, "add")
            assert (event.truncated, event.truncation_cause) == (True, "turn_limit")

    def test_any_gymnasium_environment_of_text_will_do(self) -> None:
        with EnvPool("fake/Plain-v0", num_envs=1, backend="inline") as pool:
            assert start(pool)[0].state_key is None
            assert step(pool, 0, "hello").observation == "hello"

    @pytest.mark.parametrize(
        ("env", "kwargs", "text"),
        [
            ("fake/Nothing-v0", {}, "no environment 'fake/Nothing-v0' is registered"),
            ("fake/Count-v7", {}, "no environment 'fake/Count-v7' is registered"),
            ("no_such_package:Env-v0", {}, "cannot import 'no_such_package'"),
            ("fake/NoModule-v0", {}, "entry point 'fake_envs_missing:Env'"),
            (3, {}, "env is a int"),
            ("fake/Count-v0", {"num_envs": 0}, "num_envs=0, expected an integer of at least 1"),
            ("fake/Count-v0", {"max_retries": -1}, "max_retries=-1"),
            (
                "fake/Count-v0",
                {"step_timeout": 0},
                "step_timeout=0, expected a finite number of seconds above 0",
            ),
            ("fake/Count-v0", {"reset_timeout": float("nan")}, "reset_timeout=nan"),
            ("fake/Count-v0", {"step_timeout": float("inf")}, "step_timeout=inf"),
            ("fake/Count-v0", {"episode_timeout": "1"}, "episode_timeout='1'"),
            ("fake/Count-v0", {"schedule": "fast"}, "schedule='fast'"),
            ("fake/Count-v0", {"backend": "thread"}, "backend='thread'"),
            ("fake/Count-v0", {"max_consecutive_failures": 0}, "max_consecutive_failures=0"),
        ],
    )
    def test_bad_arguments_are_refused_at_once(self, env: Any, kwargs: dict[str, Any], text: str) -> None:
        with pytest.raises(EnvPoolError) as caught:
            EnvPool(env, **kwargs)
        assert text in str(caught.value)


class TestInline:
    @pytest.mark.parametrize(
        ("action", "text"),
        [
            ("bad:observation", "observation"),
            ("bad:reward", "reward"),
            ("bad:terminated", "terminated"),
            ("bad:truncated", "truncated"),
            ("bad:info", "info"),
            ("nan", "finite"),
            ("truncate:tired", "truncation_cause"),
        ],
    )
    def test_a_result_against_the_contract_is_the_environments_error(self, action: str, text: str) -> None:
        with make("inline", 1) as pool:
            start(pool)
            event = step(pool, 0, action)
            assert event.truncation_cause == "env_error"
            assert event.error is not None
            assert text in event.error.splitlines()[0]

    def test_an_environment_that_cannot_close_is_only_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        with EnvPool(fake_envs.StubbornEnv, num_envs=1) as pool:
            start(pool)
        assert "cannot close" in caplog.text

    def test_a_reset_that_overran_is_tried_again(self, tmp_path: Path) -> None:
        kwargs = {"tally": str(tmp_path / "tally"), "failures": 1, "how": "sleep:0.3"}
        with EnvPool("fake/BrokenReset-v0", kwargs, 1, reset_timeout=0.2, max_retries=1) as pool:
            assert start(pool)[0].error is None
        assert (tmp_path / "tally").stat().st_size == 2

    def test_ctrl_c_in_a_step_frees_the_slot(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(self: object, argument: str) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(fake_envs.CountEnv, "_do_hang", interrupted)
        with make("inline", 1) as pool:
            start(pool)
            with pytest.raises(KeyboardInterrupt):
                pool.submit_step(0, "hang")
            assert pool.num_pending == 0
            start(pool)


class TestProcess:
    @pytest.mark.parametrize("action", ["hang", "spin"])
    def test_what_hangs_is_killed_and_nobody_waits_for_it(self, action: str) -> None:
        with make("process", step_timeout=1.5) as pool:
            start(pool)
            pool.submit_step(0, action)
            pool.submit_step(1, "add")
            (other,) = pool.wait()
            assert other.slot == 1
            workers = children()
            (event,) = collect(pool, 1)
            assert (event.slot, event.truncation_cause) == (0, "env_timeout")
            assert "killed" in (event.error or "")
            assert len(children()) == len(workers) - 1
            assert step(pool, 1, "add").error is None
            pool.submit_reset(0)
            assert collect(pool, 1)[0].error is None

    def test_a_death_is_reported_with_its_exit_status(self) -> None:
        with make("process", 2) as pool:
            start(pool)
            event = step(pool, 0, "die:7")
            assert event.truncation_cause == "env_error"
            assert "ended by itself with exit status 7" in (event.error or "")
            event = step(pool, 1, "add")
            os.kill(event.info["pid"], signal.SIGSEGV)  # between two steps
            pool.submit_step(1, "add")
            event = collect(pool, 1)[0]
            assert event.truncation_cause == "env_error"
            assert "died of SIGSEGV" in (event.error or "")
            start(pool)

    def test_a_child_in_a_session_of_its_own_ends_with_the_environment(self) -> None:
        with make("process", 3, step_timeout=2.0) as pool:
            start(pool)
            leaked = [int(step(pool, slot, "leak").observation) for slot in range(3)]
            assert all(map(alive, leaked))
            assert step(pool, 0, "hang").truncation_cause == "env_timeout"
            assert not alive(leaked[0])
            assert step(pool, 1, "die").truncation_cause == "env_error"
            assert not alive(leaked[1])
            assert alive(leaked[2])
        assert not any(map(alive, leaked))

    def test_an_info_that_does_not_pickle_is_named(self) -> None:
        with make("process", 1) as pool:
            start(pool)
            event = step(pool, 0, "lock")
            assert event.truncation_cause == "env_error"
            assert "info['handle'], a lock, cannot be sent" in (event.error or "")

    def test_what_hangs_on_close_is_killed(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("trl_agent_envs.pool_process._CLOSE_TIMEOUT", 0.2)
        with EnvPool(fake_envs.ClingingEnv, num_envs=1, backend="process") as pool:
            start(pool)
        assert "1 environments did not close" in caplog.text

    def test_what_does_not_pickle_on_the_way_in_is_named(self) -> None:
        with pytest.raises(EnvPoolError, match="cannot be pickled for backend='process'"):
            EnvPool(lambda: fake_envs.CountEnv(), backend="process")
        with make("process", 1) as pool:
            with pytest.raises(EnvPoolError, match="the reset of slot 0 cannot be pickled"):
                pool.submit_reset(0, options={"f": lambda: 0})
            start(pool)

    def test_a_call_that_hangs_is_killed(self) -> None:
        with make("process", 1, step_timeout=0.5) as pool:
            start(pool)
            with pytest.raises(EnvPoolError, match=r"'hang' .* no answer within 0.5 s"):
                pool.call(0, "hang")
            start(pool)

    @pytest.mark.slow
    def test_a_worker_imports_no_deep_learning(self, tmp_path: Path) -> None:
        script = tmp_path / "train.py"
        script.write_text(
            "import torch, sys\n"  # what a recipe does at its top
            "from trl_agent_envs import AgentEnv, EnvPool\n"
            "if __name__ == '__main__':\n"
            "    with EnvPool('fake_envs:fake/Count-v0', num_envs=1, backend='process') as pool:\n"
            "        pool.submit_reset(0); pool.wait()\n"
            "        pid = pool._backend._workers[0].process.pid\n"
            "        sys.stdout.write(open(f'/proc/{pid}/maps').read())\n"
        )
        maps = run_script(script)
        assert "python" in maps
        assert "torch" not in maps

    @pytest.mark.slow
    def test_an_environment_of_the_main_script_works(self, tmp_path: Path) -> None:
        body = (
            "import sys\n"
            "import gymnasium as gym\n"
            "from fake_envs import CountEnv\n"
            "from trl_agent_envs import EnvPool\n"
            "class MyEnv(CountEnv): pass\n"
            "gym.register('My-v0', entry_point=MyEnv)\n"
            "def main():\n"
            "    with EnvPool('My-v0', {'target': 1}, 1, backend='process', max_retries=0) as pool:\n"
            "        pool.submit_reset(0); pool.wait(); pool.submit_step(0, 'add')\n"
            "        sys.stdout.write(pool.wait()[0].observation)\n"
        )
        script = tmp_path / "mine.py"
        script.write_text(body + "if __name__ == '__main__':\n    main()\n")
        assert run_script(script).startswith("count 1 of 1")
        script.write_text(body + "main()\n")
        result = run_process(script)
        assert result.returncode != 0
        assert '`if __name__ == "__main__":`' in result.stderr

    @pytest.mark.parametrize(
        "how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL]
    )
    def test_no_worker_survives_its_parent(self, how: signal.Signals, tmp_path: Path) -> None:
        script = tmp_path / "victim.py"
        script.write_text(
            # a suite that a shell runs in the background has SIGINT ignored, and its children too
            "import signal, sys\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "from trl_agent_envs import EnvPool\n"
            "pool = EnvPool('fake_envs:fake/Count-v0', num_envs=2, backend='process')\n"
            "for slot in range(2): pool.submit_reset(slot)\n"
            "events = []\n"
            "while len(events) < 2: events += pool.wait()\n"
            "pool.submit_step(0, 'leak')\n"
            "leaked = pool.wait()[0].observation\n"
            "pids = [str(worker.process.pid) for worker in pool._backend._workers]\n"
            "pool.submit_step(0, 'spin')\n"
            "pool.submit_step(1, 'hang')\n"
            "sys.stdout.write(' '.join([leaked, *pids]) + '\\n')\n"
            "sys.stdout.flush()\n"
            "pool.wait()\n"
        )
        victim = subprocess.Popen(command(script), stdout=subprocess.PIPE, text=True, env=environment())
        assert victim.stdout is not None
        pids = [int(pid) for pid in victim.stdout.readline().split()]
        assert len(pids) == 3
        assert all(map(alive, pids))
        victim.send_signal(how)
        victim.wait(30)
        victim.stdout.close()
        for pid in pids:
            wait_for_end(pid)

    def test_a_forgotten_pool_is_closed_with_the_interpreter(self, tmp_path: Path) -> None:
        script = tmp_path / "careless.py"
        script.write_text(
            "import sys\n"
            "from trl_agent_envs import EnvPool\n"
            "pool = EnvPool('fake_envs:fake/Count-v0', num_envs=1, backend='process')\n"
            "pool.submit_reset(0); pool.wait()\n"
            "sys.stdout.write(str(pool._backend._workers[0].process.pid))\n"
            "raise ValueError('oops')\n"
        )
        result = run_process(script)
        assert "oops" in result.stderr
        assert not alive(int(result.stdout))


class TestAsync:
    def test_what_hangs_is_cancelled_and_closed_and_nobody_waits_for_it(self) -> None:
        fake_envs.AsyncCountEnv.closed.clear()
        with make("async", 3, step_timeout=0.5) as pool:
            start(pool)
            pool.submit_step(0, "hang")
            pool.submit_step(1, "deaf")
            pool.submit_step(2, "add")
            assert [event.slot for event in pool.wait()] == [2]
            events = collect(pool, 2)
            assert [event.truncation_cause for event in events] == ["env_timeout", "env_timeout"]
            assert "cancelled" in (events[0].error or "")
            start(pool)
        assert len(fake_envs.AsyncCountEnv.closed) == 5

    def test_a_blocked_loop_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("trl_agent_envs.pool_async._BLOCKED_AFTER", 0.1)
        with make("async", 2, step_timeout=0.1) as pool:
            start(pool)
            pool.submit_step(0, "block:1")
            with pytest.raises(EnvPoolError, match="blocks the asyncio loop"):
                pool.wait()

    def test_gymnasiums_time_limit_holds(self) -> None:
        with EnvPool("fake/AsyncLimited-v0", {"target": 9}, 1) as pool:
            for _ in range(2):
                start(pool)
                assert not step(pool, 0, "add").done
                assert step(pool, 0, "add").truncation_cause == "turn_limit"

    def test_coroutines_may_be_called(self) -> None:
        with make("async", 1, step_timeout=0.3) as pool:
            start(pool)
            assert pool.call(0, "aoracle") == "add"
            with pytest.raises(EnvPoolError, match=r"no answer within 0.3 s"):
                pool.call(0, "astep", "hang")

    def test_an_environment_without_coroutines_is_refused(self) -> None:
        with EnvPool("fake/Count-v0", num_envs=1, backend="async", max_retries=0) as pool:
            pool.submit_reset(0)
            with pytest.raises(EnvPoolError, match="CountEnv has no areset, astep, aclose"):
                pool.wait()

    def test_a_constructor_that_hangs_is_given_up(self) -> None:
        with EnvPool(fake_envs.SlowInitEnv, num_envs=1, reset_timeout=0.1, max_retries=0) as pool:
            pool.submit_reset(0)
            with pytest.raises(EnvPoolError, match="env_timeout: the reset ran for"):
                pool.wait()

    def test_no_thread_is_left(self) -> None:
        import threading

        before = threading.active_count()
        with make("async", 1) as pool:
            start(pool)
        assert threading.active_count() == before


def command(script: Path) -> list[str]:
    return [sys.executable, str(script)]


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(HERE), *(entry for entry in sys.path if entry)])
    return {**os.environ, "PYTHONPATH": path}


def run_process(script: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(script), env=environment(), capture_output=True, text=True, timeout=60)


def run_script(script: Path) -> str:
    result = run_process(script)
    assert result.returncode == 0, result.stderr
    return result.stdout


def wait_for_end(pid: int) -> None:
    """Wait until a process that is no child of ours has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    import select

    try:
        ended = select.select([descriptor], [], [], 20)[0]
    finally:
        os.close(descriptor)
    assert ended or not alive(pid), f"process {pid} is still alive"


def test_workers_carry_the_mark_that_finds_them() -> None:
    with make("process", 1) as pool:
        start(pool)
        pid = pool._backend._workers[0].process.pid  # type: ignore[attr-defined]
        assert f"{TOKEN_VARIABLE}=".encode() in Path(f"/proc/{pid}/environ").read_bytes()
