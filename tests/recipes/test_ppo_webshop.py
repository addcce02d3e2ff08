"""The recipe as a user runs it: a whole small run, a resumed one, and what it says to bad input."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trl_agent.model_loading import SHOP_BASE

ROOT = Path(__file__).parents[2]
SMALL_RUN = {
    "max_updates": 2,
    "episodes_per_update": 8,
    "num_envs": 8,
    "max_turns": 4,
    "num_demonstrations": 24,
    "bc_epochs": 1,
    "dev_episodes": 4,
    "test_episodes": 6,
    "eval_episodes": 4,
    "eval_steps": 1,
    "save_steps": 1,
}
SMALL = [part for name, value in SMALL_RUN.items() for part in (f"--{name}", str(value))]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (SHOP_BASE / "config.json").exists(), reason="the packaged base model is not there"
    ),
]


def run(*flags: str, expect: int | None = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'envs'}"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "recipes" / "ppo_webshop.py"), *flags],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    if expect is not None:
        assert done.returncode == expect, done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "out"
    run(*SMALL, "--output_dir", str(folder), "--price_per_hour", "2.5")
    return folder


def test_report_has_every_policy_and_the_cost(finished: Path) -> None:
    report = json.loads((finished / "report.json").read_text())
    for policy in ("random", "bc", "ppo"):
        for how in ("greedy", "sampled"):
            row = report[policy][how]
            assert row["n"] == 6
            assert row["success_ci"][0] <= row["success"] <= row["success_ci"][1]
            assert row["score_ci"][0] <= row["score"] <= row["score_ci"][1]
    assert report["cost"].keys() >= {
        "device_hours", "env_steps", "tokens_generated", "tokens_trained", "peak_memory_mb", "money",
    }  # fmt: skip
    assert report["cost"]["money"] == pytest.approx(2.5 * report["cost"]["device_hours"])
    assert report["seed"] == 42
    assert set(report["cloning"]["arms"]) <= {"all", "successful"}


def test_output_folder_holds_what_the_report_names(finished: Path) -> None:
    assert (finished / "curve.png").stat().st_size > 10_000
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert {1, 2} <= {row["step"] for row in rows}
    for name in ("demonstrations", "bc-greedy", "bc-sampled", "ppo-greedy", "ppo-sampled"):
        first = json.loads((finished / "trajectories" / f"{name}.jsonl").read_text().splitlines()[0])
        assert first.keys() >= {"prompt", "response", "reward", "done"}


def test_final_model_loads_in_plain_transformers(finished: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(finished / "final")
    model = AutoModelForCausalLM.from_pretrained(finished / "final")
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    assert model.generate(ids, max_new_tokens=3).shape[1] > ids.shape[1]


def test_a_finished_run_is_not_overwritten(finished: Path) -> None:
    done = run(*SMALL, "--output_dir", str(finished), expect=1)
    assert "overwrite_output_dir" in done.stderr
    assert (finished / "report.json").exists()


def test_resume_reads_the_clone_back_and_goes_on(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "resumed"
    shutil.copytree(finished, folder)
    for gone in ("final", "checkpoint-2"):
        shutil.rmtree(folder / gone)
    run(*SMALL, "--output_dir", str(folder), "--resume_from_checkpoint", "true")
    again, first = (json.loads((path / "report.json").read_text()) for path in (folder, finished))
    assert again["ppo"]["greedy"] == first["ppo"]["greedy"]
    assert again["cloning"] == first["cloning"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--env_id", "trl_agent_envs:trl_agent/Nothing-v0"], "Nothing"),
        (["--data_dir", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--no_such_flag", "1"], "no_such_flag"),
        (["--gamma", "1.5"], "gamma"),
        (["--bc_epochs", "-1"], "bc_epochs"),
    ],
)
def test_bad_input_is_named(flags: list[str], said: str, tmp_path: Path) -> None:
    done = run(*SMALL, "--output_dir", str(tmp_path / "out"), *flags, expect=None)
    assert done.returncode != 0
    assert said in done.stderr.splitlines()[-1] or said in done.stderr[-1500:]
