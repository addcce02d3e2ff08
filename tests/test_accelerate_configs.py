"""Each accelerate_configs YAML is launched here on a tiny script, or its first line says "needs a GPU"."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).resolve().parents[1] / "accelerate_configs"
CONFIGS = sorted(FOLDER.glob("*.yaml"))
LAUNCHED_HERE = {"cpu.yaml": 1, "cpu_2proc_gloo.yaml": 2}
NEEDS_GPU = "# needs a GPU"

# Every rank adds its number; only a process group of `world_size` ranks gives each the right sum.
TINY_SCRIPT = """
import json, pathlib, sys
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
total = accelerator.reduce(torch.tensor([accelerator.process_index + 1.0]), reduction="sum")
pathlib.Path(sys.argv[1], f"{accelerator.process_index}.json").write_text(json.dumps({
    "world_size": accelerator.num_processes, "sum": total.item(), "precision": accelerator.mixed_precision,
}))
accelerator.end_training()
"""


def load(path: Path) -> dict[str, Any]:
    config = yaml.safe_load(path.read_text())
    assert isinstance(config, dict)
    return config


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def test_the_folder_is_found() -> None:
    assert {path.name for path in CONFIGS} >= LAUNCHED_HERE.keys()
    assert not [path for path in FOLDER.iterdir() if path.suffix != ".yaml"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_is_launched_here_or_says_that_it_needs_a_gpu(path: Path) -> None:
    marked = path.read_text().splitlines()[0] == NEEDS_GPU
    assert marked != (path.name in LAUNCHED_HERE), (
        f"{path.name}: add it to LAUNCHED_HERE, or make its first line {NEEDS_GPU!r}, but not both"
    )


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_key_is_one_that_accelerate_reads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser

    flags = set(vars(launch_command_parser().parse_args(["script.py"])))
    config = load(path)
    ClusterConfig.from_yaml_file(str(path))  # raises on unknown top-level keys
    nested = {key for section in ("deepspeed_config", "fsdp_config") for key in config.get(section, {})}
    assert nested <= flags, f"{path.name}: accelerate has no option for {sorted(nested - flags)}"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LAUNCHED_HERE))
def test_starts_as_many_processes_as_it_says(name: str, tmp_path: Path) -> None:
    world_size = LAUNCHED_HERE[name]
    assert load(FOLDER / name)["num_processes"] == world_size
    script = tmp_path / "tiny.py"
    script.write_text(TINY_SCRIPT)
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(FOLDER / name)]
    command += ["--main_process_port", str(free_port()), str(script), str(tmp_path)]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    total = world_size * (world_size + 1) / 2
    seen = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    expected = {"world_size": world_size, "sum": total, "precision": "no"}
    assert seen == {f"{rank}.json": expected for rank in range(world_size)}
