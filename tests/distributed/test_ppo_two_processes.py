"""Two processes over gloo do what one does, to rounding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trl_agent.checkpoint import checkpoints
from trl_agent.curve import read_metrics

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 270  # seconds, each of the two runs
SCRIPT = Path(__file__).with_name("train_script.py")


def run(folder: Path, world_size: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    launcher = [sys.executable]
    if world_size > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={world_size}"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'envs'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, str(SCRIPT), str(folder), str(world_size), str(TIMEOUT)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return read_metrics(folder / "metrics.jsonl"), json.loads((folder / "result.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_give_what_one_gives(tmp_path: Path) -> None:
    """Ranks end at different turns and have different numbers of micro batches; nothing hangs."""
    alone, state = run(tmp_path / "one", 1)
    together, other = run(tmp_path / "two", 2)
    assert len(alone) == len(together) == 5
    for one, two in zip(alone, together, strict=True):
        assert one.keys() == two.keys()
        for name in one:
            if not name.startswith("seconds/"):
                assert two[name] == pytest.approx(one[name], abs=1e-5, rel=1e-5), name
    for name, total in state["state"].items():
        assert other["state"][name] == pytest.approx(total, abs=1e-4), name
    for name in ("episodes", "env_steps", "tokens_generated", "tokens_trained"):
        assert other["ledger"][name] == state["ledger"][name] > 0
    assert [path.name for path in checkpoints(tmp_path / "two")] == [f"checkpoint-{i}" for i in (1, 2, 3)]
    assert "a finished run" in other["refused"]
