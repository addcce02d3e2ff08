import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from trl_agent import checkpoint
from trl_agent.checkpoint import (
    CheckpointError,
    checkpoints,
    claim_output_dir,
    load_tensors,
    remove_old,
    rng_state,
    set_rng_state,
    truncate_metrics,
    write_atomically,
    write_json_atomically,
)


def writer(text: str):
    return lambda folder: (folder / "file").write_text(text)


def content(path: Path) -> str:
    return (path / "file").read_text()


def test_written_replaced_and_listed_in_order(tmp_path):
    for update in (9, 10, 2):
        write_atomically(tmp_path / f"checkpoint-{update}", writer(str(update)))
    write_atomically(tmp_path / "checkpoint-9", writer("again"))
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-2", "checkpoint-9", "checkpoint-10"]
    assert content(tmp_path / "checkpoint-9") == "again"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    remove_old(tmp_path, 2)
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-9", "checkpoint-10"]
    remove_old(tmp_path, None)
    assert len(checkpoints(tmp_path)) == 2
    assert checkpoints(tmp_path / "nowhere") == []


def test_a_full_disk_is_said_and_loses_nothing(tmp_path, monkeypatch):
    write_atomically(tmp_path / "checkpoint-1", writer("good"))

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for target in ("checkpoint-2", "checkpoint-1"):
        with pytest.raises(
            CheckpointError, match=r"disk is full.*checkpoint-1 is complete.*resume_from_checkpoint"
        ):
            write_atomically(tmp_path / target, writer("bad"))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
    assert content(tmp_path / "checkpoint-1") == "good"


@pytest.mark.slow
def test_safetensors_and_torch_running_out_of_space(tmp_path):
    """A real limit on the size of files, in a process of its own."""
    code = f"""
import resource, torch
from pathlib import Path
from safetensors.torch import save_file
from trl_agent.checkpoint import CheckpointError, write_atomically
target = Path({str(tmp_path)!r}) / "checkpoint-1"
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
big = torch.zeros(100_000)
for write in (lambda f: save_file({{"a": big}}, f / "m.safetensors"), lambda f: torch.save(big, f / "o.pt")):
    try:
        write_atomically(target, write)
    except CheckpointError as error:
        assert "could not be written" in str(error) and "No earlier checkpoint" in str(error), error
    else:
        raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=_environment(), timeout=120)
    assert list(tmp_path.iterdir()) == []


def test_kill_minus_nine_while_writing(tmp_path):
    write_atomically(tmp_path / "checkpoint-1", writer("good"))
    code = f"""
import time
from pathlib import Path
from trl_agent.checkpoint import write_atomically
def slow(folder):
    (folder / "file").write_text("half")
    Path({str(tmp_path)!r}, "begun").touch()
    time.sleep(60)
write_atomically(Path({str(tmp_path)!r}) / "checkpoint-2", slow)
"""
    process = subprocess.Popen([sys.executable, "-c", code], env=_environment())
    try:
        for _ in range(1200):
            if (tmp_path / "begun").exists():
                break
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert claim_output_dir(tmp_path, resume=True) == tmp_path / "checkpoint-1"
    assert content(tmp_path / "checkpoint-1") == "good"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun", "checkpoint-1"]


def test_kill_between_the_two_renames_of_a_replacement(tmp_path):
    write_atomically(tmp_path / "checkpoint-1", writer("old"))
    (tmp_path / "checkpoint-1").rename(tmp_path / ".replaced-checkpoint-1")
    assert claim_output_dir(tmp_path, resume=True) == tmp_path / "checkpoint-1"
    assert content(tmp_path / "checkpoint-1") == "old"


def test_a_folder_with_a_run_in_it_is_claimed_knowingly(tmp_path):
    assert claim_output_dir(tmp_path / "new") is None
    (tmp_path / "mine.txt").write_text("not ours")
    assert claim_output_dir(tmp_path) is None
    with pytest.raises(CheckpointError, match="no checkpoint-<update> to resume from"):
        claim_output_dir(tmp_path, resume=True)
    write_atomically(tmp_path / "checkpoint-3", writer("3"))
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(
        CheckpointError, match=r"unfinished run \(checkpoint-3, metrics.jsonl\).*overwrite_output_dir"
    ):
        claim_output_dir(tmp_path)
    with pytest.raises(CheckpointError, match="exclude each other"):
        claim_output_dir(tmp_path, resume=True, overwrite=True)
    with pytest.raises(CheckpointError, match="no folder"):
        claim_output_dir(tmp_path, resume=tmp_path / "checkpoint-4")
    assert claim_output_dir(tmp_path, resume=True) == tmp_path / "checkpoint-3"
    (tmp_path / "final").mkdir()
    with pytest.raises(CheckpointError, match="a finished run"):
        claim_output_dir(tmp_path)
    assert claim_output_dir(tmp_path, overwrite=True) is None
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_random_generators_go_through_a_file(tmp_path):
    import random

    import numpy as np

    state = rng_state()
    torch.save([state], tmp_path / "rng.pt")
    first = (random.random(), np.random.rand(), torch.rand(1).item(), random.gauss(0, 1))
    set_rng_state(load_tensors(tmp_path / "rng.pt")[0])
    assert (random.random(), np.random.rand(), torch.rand(1).item(), random.gauss(0, 1)) == first


def test_files_that_run_code_or_are_damaged_are_refused(tmp_path):
    torch.save({"path": Path("x")}, tmp_path / "object.pt")
    (tmp_path / "damaged.pt").write_bytes(b"PK\x03\x04 nothing")
    for name in ("object.pt", "damaged.pt", "missing.pt"):
        with pytest.raises(CheckpointError, match=f"{name} cannot be read"):
            load_tensors(tmp_path / name)


def test_metrics_past_the_checkpoint_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    truncate_metrics(path, 3)
    assert not path.exists()
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(6)) + '{"step": 6, "lo')
    truncate_metrics(path, 3)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 1, 2, 3]


def test_json_is_replaced_whole(tmp_path):
    path = tmp_path / "report.json"
    write_json_atomically(path, {"a": 1})
    write_json_atomically(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert list(tmp_path.iterdir()) == [path]
    assert checkpoint.METRICS_FILE == "metrics.jsonl"


def _environment() -> dict[str, str]:
    root = Path(__file__).parents[1]
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'envs'}"}
