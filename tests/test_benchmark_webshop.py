"""`benchmarks/webshop.py` prints a table and the promised keys."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROMISED = {
    "steps_per_s_text", "steps_per_s_text_rich", "resets_per_s", "start_cold_s", "start_cached_s", "rss_mb",
    "extra_env_mb", "worker_pss_mb",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads memory from Linux's /proc")
def test_quick_run() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/webshop.py", "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    *table, last = done.stdout.splitlines()
    found = json.loads(last)
    assert found["benchmark"] == "webshop"
    assert found.keys() == {"benchmark", "commit", "ratios", "figures"}
    assert found["figures"].keys() >= PROMISED
    assert all(found["figures"][key] > 0 for key in PROMISED - {"extra_env_mb"})
    assert {line.split()[0] for line in table if line} >= PROMISED
