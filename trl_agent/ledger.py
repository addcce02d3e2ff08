"""What a run costs: device hours, tokens, environment steps, memory, money."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch


@dataclass
class CostLedger:
    """Counts what one run uses, over all devices and across resumed parts.

    num_devices: devices that are held for as long as the run lasts.
    price_per_hour: price of one device hour, or None.
    seconds: wall-clock seconds per phase ("rollout", "train", ...).
    device_seconds: wall-clock seconds of the run times devices.
    env_steps, episodes, tokens_generated, tokens_trained: global sums. `tokens_trained` counts every token of
        a row each time it takes part in a backward pass, padding left out.
    peak_memory_mb: largest allocation on any device (MiB); on CPU the largest resident size of the process.
    """

    num_devices: int = 1
    price_per_hour: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    device_seconds: float = 0.0
    episodes: int = 0
    env_steps: int = 0
    tokens_generated: int = 0
    tokens_trained: int = 0
    peak_memory_mb: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count device time while inside."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.device_seconds += (time.perf_counter() - start) * self.num_devices
            self.note_memory()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the wall-clock time inside to `seconds[name]`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def note_memory(self) -> None:
        """Raise `peak_memory_mb` to what this process has used so far."""
        self.peak_memory_mb = max(self.peak_memory_mb, peak_memory_mb())

    def summary(self) -> dict[str, float]:
        """Return the report's "cost" entry; "money" only with a price."""
        hours = self.device_seconds / 3600
        cost: dict[str, float] = {
            "device_hours": hours,
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "tokens_generated": self.tokens_generated,
            "tokens_trained": self.tokens_trained,
            "peak_memory_mb": self.peak_memory_mb,
        }
        if self.price_per_hour is not None:
            cost["money"] = hours * self.price_per_hour
        return cost

    def state_dict(self) -> dict[str, Any]:
        """Everything but what describes the machine the run continues on."""
        state = asdict(self)
        del state["num_devices"], state["price_per_hour"]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, dict(value) if name == "seconds" else value)


def peak_memory_mb() -> float:
    """Return the most memory (MiB) this process held: allocated on the accelerator, or resident on CPU."""
    if torch.accelerator.is_available() and torch.accelerator.current_accelerator() is not None:
        stats = torch.accelerator.memory_stats()
        return float(stats.get("allocated_bytes.all.peak", 0)) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
