"""The commit that a benchmark's figures belong to."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit() -> str:
    """Return the hash of the checked-out commit, "unknown" outside a repository."""
    root = Path(__file__).resolve().parents[1]
    result = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return result.stdout.strip() or "unknown"
