"""How good a policy is: success rate and mean score with bootstrap intervals, on chosen goals."""

from __future__ import annotations

from collections.abc import Iterable

from trl_agent.trajectory import Trajectory
from trl_agent_envs.outcomes import Summary, bootstrap_interval, summarize_outcomes

__all__ = ["Summary", "bootstrap_interval", "summarize", "summarize_outcomes"]


def summarize(trajectories: Iterable[Trajectory]) -> Summary:
    """Summarize episodes. One that an environment's failure ended counts as it stands: it did not succeed."""
    return summarize_outcomes((trajectory.score, trajectory.success) for trajectory in trajectories)
