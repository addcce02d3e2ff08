"""Cloning as a user runs it: a small run with the precision that the machine gets by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

SMALL_RUN = {
    "num_demonstrations": 24,
    "num_train_epochs": 1,
    "num_envs": 8,
    "max_turns": 4,
    "dev_episodes": 4,
    "test_episodes": 6,
}


def run(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    small = [part for name, value in SMALL_RUN.items() for part in (f"--{name}", str(value))]
    return subprocess.run(
        [
            sys.executable,
            str(ROOT / "recipes" / "sft_webshop.py"),
            *small,
            "--output_dir",
            str(folder),
            *flags,
        ],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'envs'}"},
        check=False,
    )


@pytest.mark.parametrize("flags", [[], ["--bf16", "false"]])
def test_a_clone_is_trained_and_scored_in_either_precision(tmp_path: Path, flags: list[str]) -> None:
    """A CPU with bfloat16 uses it without being told, which Transformers refuses unless `use_cpu` is said, too."""
    done = run(tmp_path / "out", *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["bc"]["greedy"]["n"] == 6
    AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "final")
