"""Numbers that change while training runs: schedules of the progress, controllers of the measured KL."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

ScheduleKind = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class Schedule:
    """A number as a function of the training progress.

    kind: "constant" stays at `start` (then `end` must be None), "linear" and "cosine" go from `start` to
    `end`.
    """

    kind: ScheduleKind
    start: float
    end: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "linear", "cosine"):
            raise ValueError(f'kind must be "constant", "linear" or "cosine", got {self.kind!r}')
        if (self.end is None) != (self.kind == "constant"):
            raise ValueError(
                f"a {self.kind} schedule with end={self.end}: constant takes no end, others need one"
            )

    def __call__(self, progress: float) -> float:
        """Return the number at `progress`, the done part of the training; clamped to [0, 1]."""
        if self.end is None:
            return self.start
        done = min(max(progress, 0.0), 1.0)
        if self.kind == "cosine":
            done = 0.5 * (1.0 - math.cos(math.pi * done))
        return self.start + (self.end - self.start) * done


class FixedKL:
    """A KL coefficient that stays as it is."""

    def __init__(self, kl_coef: float) -> None:
        self.value = kl_coef

    def update(self, kl: float, num_samples: int) -> None:
        """Do nothing; here so that either controller can be used."""

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = float(state["value"])


class AdaptiveKL:
    """A KL coefficient steered so that the measured KL approaches a target.

    e = clip(kl / target - 1, -0.2, 0.2) and value *= 1 + e * num_samples / horizon.

    Args:
        kl_coef: where it starts.
        target: wanted KL, in the unit that `update` is given.
        horizon: samples over which a full error changes the coefficient by about 20 %.

    Source: Ziegler et al. 2019 (arXiv:1909.08593), section 2.2 (K_beta = 1 / horizon); TRL's former
    AdaptiveKLController.
    """

    def __init__(self, kl_coef: float, target: float, horizon: float) -> None:
        if target <= 0 or horizon <= 0:
            raise ValueError(f"target and horizon must be above 0, got target={target}, horizon={horizon}")
        self.value = kl_coef
        self.target = target
        self.horizon = horizon

    def update(self, kl: float, num_samples: int) -> None:
        """Adjust `value` to a measured KL. `num_samples` = episodes it was measured on, all ranks together.

        Raises:
            ValueError: `kl` is not finite.
        """
        if not math.isfinite(kl):
            raise ValueError(f"measured KL is {kl}; the policy or reference log-probabilities are broken")
        error = min(max(kl / self.target - 1.0, -0.2), 0.2)
        self.value *= 1.0 + error * num_samples / self.horizon

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = float(state["value"])
