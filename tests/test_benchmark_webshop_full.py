"""The full-size benchmark, at a size that takes seconds: its keys are what outside checks read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
KEYS = {"full_index_s", "full_index_peak_mb", "full_start_s", "full_search_p95_ms", "full_rss_mb"}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc")
def test_it_runs_and_prints_its_keys(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "benchmarks/webshop_full.py",
        "--num_products",
        "600",
        "--folder",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["benchmark"] == "webshop_full"
    assert said["figures"]["full_products"] == 600
    assert set(said["figures"]) >= KEYS
    assert all(said["figures"][key] > 0 for key in KEYS)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["data_600", "store_600"]
