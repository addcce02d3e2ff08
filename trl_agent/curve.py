"""The learning curve of a run, as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Read `metrics.jsonl`. A half line at the end, of a run that is writing or was killed, is left out."""
    rows = []
    for line in Path(path).read_text(encoding="utf-8").split("\n")[:-1]:
        rows.append(json.loads(line))
    return rows


def save_learning_curve(
    rows: Sequence[Mapping[str, Any]],
    path: str | Path,
    *,
    panels: Mapping[str, Sequence[str]] | None = None,
    baselines: Mapping[str, float] | None = None,
    title: str = "",
) -> None:
    """Draw metrics over updates into a PNG.

    Args:
        rows: logged metrics, each with "step".
        path: where the picture goes.
        panels: panel title -> names of the metrics in it; names that no row has, and panels without any, are left
            out.
        baselines: label -> height of a horizontal line in the first panel (random or BC success, say).
        title: of the picture.
    """
    panels = panels or {
        "success rate": ["env/success", "eval_success"],
        "score": ["env/score", "eval_score"],
        "KL to the reference (nats per episode)": ["objective/kl"],
        "entropy (nats per token)": ["policy/entropy_avg"],
    }
    known = {name for row in rows for name, value in row.items() if value is not None}
    panels = {label: names for label, names in panels.items() if known & set(names)} or panels
    figure = Figure(figsize=(4.5 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for index, (axis, (label, names)) in enumerate(zip(axes, panels.items(), strict=True)):
        for name in names:
            points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
            if points:
                axis.plot(*zip(*points, strict=True), marker="." if len(points) < 30 else None, label=name)
        lines = (baselines or {}).items() if index == 0 else ()
        for style, (line, height) in zip(cycle(("--", ":", "-.")), lines):
            axis.axhline(height, linestyle=style, color="grey", linewidth=1, label=line)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_title(label)
        axis.set_xlabel("update")
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=8)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
