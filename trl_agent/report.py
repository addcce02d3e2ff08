"""The report of a run: `report.json`, a table for people, and the learning curve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trl_agent.checkpoint import METRICS_FILE, write_json_atomically
from trl_agent.curve import read_metrics, save_learning_curve
from trl_agent.evaluation import Summary

Results = Mapping[str, Summary]
"""How a policy did, "greedy" and "sampled"."""


def write_report(
    output_dir: Path,
    results: Mapping[str, Results | None],
    *,
    seconds: Mapping[str, float],
    seed: int,
    cost: Mapping[str, float],
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write `report.json` and `curve.png` into `output_dir`; return the report.

    Args:
        results: policy name ("random", "bc", "ppo") -> its results; None where there are none.
        seconds: wall-clock seconds of each phase.
        cost: of `CostLedger.summary`.
        extra: further entries.
    """
    report: dict[str, Any] = {
        name: {how: summary.to_dict() for how, summary in result.items()}
        for name, result in results.items()
        if result is not None
    }
    report.update({"seconds": dict(seconds), "seed": seed, "cost": dict(cost), **(extra or {})})
    write_json_atomically(output_dir / "report.json", report)
    metrics = output_dir / METRICS_FILE
    if metrics.exists():
        lines = {name: result["greedy"].success for name, result in results.items() if result is not None}
        save_learning_curve(
            read_metrics(metrics),
            output_dir / "curve.png",
            baselines={f"{name} (test, greedy)": height for name, height in lines.items()},
            title=f"seed {seed}",
        )
    return report


def table(report: Mapping[str, Any]) -> str:
    """Return the results as text, one policy a line."""
    head = f"{'policy':<8} {'how':<8} {'n':>5}  {'success':<22} {'score':<22}"
    lines = [head, "-" * len(head)]
    for name in ("random", "bc", "ppo"):
        for how in ("greedy", "sampled") if name in report else ():
            if name == "random" and how == "greedy":
                continue  # the same episodes
            row = report[name][how]
            cells = " ".join(
                f"{row[key]:.3f} [{row[f'{key}_ci'][0]:.3f}, {row[f'{key}_ci'][1]:.3f}]".ljust(22)
                for key in ("success", "score")
            )
            lines.append(f"{name:<8} {how:<8} {row['n']:>5}  {cells}")
    return "\n".join(lines)
