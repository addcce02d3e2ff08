"""What a run shows and writes while it goes on: the metrics file, a bar over episodes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trl_agent.checkpoint import METRICS_FILE


class MetricsWriter(TrainerCallback):
    """Appends what the trainer logs to `metrics.jsonl` in the output folder, one JSON object a line.

    Only the first process writes. Each line holds "step" (the update) and is flushed. NaN and infinity, which
    JSON does not have, become null.
    """

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or not logs:
            return
        folder = Path(str(args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        row = {"step": state.global_step, **{name: _json_number(value) for name, value in logs.items()}}
        with open(folder / METRICS_FILE, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


@contextmanager
def episode_bar(label: str, *, enabled: bool = True) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar over episodes while inside; yield the `progress` that `rollout.collect` takes (or None)."""
    if not enabled:
        yield None
        return
    with tqdm(desc=label, unit="episode", leave=False, dynamic_ncols=True) as bar:

        def progress(ended: int, asked: int) -> None:
            bar.total = asked
            bar.update(ended - bar.n)

        yield progress


def _json_number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
