"""Trajectories to padded tensors: what one forward pass of the actor-critic sees.

Per-token quantities live on action tokens only, flat `(N,)`, ordered episode by episode and turn by turn.
Padded `(B, T)` tensors hold token ids and nothing else, so no value of a masked position exists that could
leak into a loss. `B` counts rows: one row a segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

from trl_agent.trajectory import Trajectory

PaddingSide = Literal["right", "left"]


@dataclass(frozen=True)
class EpisodeTensors:
    """One episode and what was computed for its `N` action tokens, in turn order. All tensors are `(N,)`
    fp32.

    logprobs: at rollout, in nats. ref_logprobs: under the reference, or None without one.
    values: V before each token. rewards: per token, KL penalty included. returns = advantages + values.
    weight: factor on this episode's tokens in a loss; the caller chooses what it means.

    Use `from_trajectory`, then `dataclasses.replace` as values, rewards and advantages become known.
    """

    trajectory: Trajectory
    logprobs: Tensor
    ref_logprobs: Tensor | None
    values: Tensor
    rewards: Tensor
    advantages: Tensor
    returns: Tensor
    weight: float = 1.0

    def __post_init__(self) -> None:
        num_tokens = self.trajectory.num_action_tokens
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor) and value.shape != (num_tokens,):
                raise ValueError(
                    f"episode {self.trajectory.episode}: {item.name} has shape {tuple(value.shape)}, "
                    f"expected ({num_tokens},), one entry per action token"
                )

    @classmethod
    def from_trajectory(cls, trajectory: Trajectory) -> EpisodeTensors:
        """Take the sampling logprobs; everything not computed yet is NaN, so that using it by mistake
        shows.
        """
        logprobs = torch.tensor(trajectory.action_logprobs(), dtype=torch.float32)
        unknown = torch.full_like(logprobs, float("nan"))
        return cls(trajectory, logprobs, None, unknown, unknown, unknown, unknown)

    @property
    def num_action_tokens(self) -> int:
        return self.trajectory.num_action_tokens

    @property
    def padded_length(self) -> int:
        """Tokens this episode occupies in a batch of its own: rows times the longest row."""
        segments = self.trajectory.segments
        return len(segments) * max((len(segment) for segment in segments), default=0)


@dataclass(frozen=True)
class MiniBatch:
    """`E` episodes as `B` rows (segments) of `T` tokens with `N` action tokens.

    input_ids: (B, T) long. attention_mask: (B, T) bool, True at real tokens. position_ids: (B, T) long,
        counted from each row's first real token.
    action_rows, action_cols: (N,) long, where the action tokens are, episode by episode, turn by turn.
    episode_ids: (N,) long, index into the episodes collated.
    logprobs, advantages, returns, values, rewards: (N,) as in `EpisodeTensors`; ref_logprobs: (N,) or None.
    weights: (N,), each episode's weight.
    last_rows, last_cols: (E,) long, last real position of each episode's last segment. The hidden state there
        gives the bootstrap value of a truncated episode.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    action_rows: Tensor
    action_cols: Tensor
    episode_ids: Tensor
    logprobs: Tensor
    ref_logprobs: Tensor | None
    advantages: Tensor
    returns: Tensor
    values: Tensor
    rewards: Tensor
    weights: Tensor
    last_rows: Tensor
    last_cols: Tensor

    @property
    def num_action_tokens(self) -> int:
        return self.action_rows.numel()

    @property
    def num_episodes(self) -> int:
        return self.last_rows.numel()

    @property
    def action_ids(self) -> Tensor:
        """(N,) long: the sampled tokens."""
        return self.input_ids[self.action_rows, self.action_cols]

    def to(self, device: torch.device | str) -> MiniBatch:
        """Copy every tensor to `device`."""
        moved = {
            item.name: value.to(device, non_blocking=True)
            for item in fields(self)
            if isinstance(value := getattr(self, item.name), Tensor)
        }
        return replace(self, **moved)

    def split_by_episode(self, flat: Tensor) -> list[Tensor]:
        """Cut a flat `(N,)` tensor into one tensor per episode, in the order collated."""
        counts = torch.bincount(self.episode_ids, minlength=self.num_episodes)
        return list(torch.split(flat, counts.tolist()))


def collate(
    episodes: Sequence[EpisodeTensors],
    pad_token_id: int,
    padding_side: PaddingSide = "right",
    pad_to_multiple_of: int | None = None,
) -> MiniBatch:
    """Pad the segments of `episodes` into one batch, on CPU.

    Args:
        episodes: at least one.
        pad_token_id: fills the padding; never used to tell padding from tokens.
        padding_side: where the padding goes. Right lets causal models skip the attention mask.
        pad_to_multiple_of: round T up, for tensor cores.

    Raises:
        ValueError: no episode, an episode without tokens, or an action token with nothing before it (a
            model has no hidden state to predict it from).
    """
    if not episodes:
        raise ValueError("collate needs at least one episode, got none")
    if padding_side not in ("right", "left"):
        raise ValueError(f'padding_side must be "right" or "left", got {padding_side!r}')
    first_row = _first_rows(episodes)
    rows = [segment.input_ids for episode in episodes for segment in episode.trajectory.segments]
    length = max(map(len, rows))
    if pad_to_multiple_of is not None:
        length = -(-length // pad_to_multiple_of) * pad_to_multiple_of
    pads = [length - len(row) if padding_side == "left" else 0 for row in rows]
    input_ids, attention_mask, position_ids = _pad(rows, pads, length, pad_token_id)
    action_rows, action_cols, episode_ids = _action_positions(episodes, first_row, pads)
    last_rows = [first + len(e.trajectory.segments) - 1 for first, e in zip(first_row, episodes, strict=True)]
    ref_logprobs = [e.ref_logprobs for e in episodes if e.ref_logprobs is not None]
    return MiniBatch(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=position_ids,
        action_rows=torch.tensor(action_rows, dtype=torch.long),
        action_cols=torch.tensor(action_cols, dtype=torch.long),
        episode_ids=torch.tensor(episode_ids, dtype=torch.long),
        logprobs=torch.cat([e.logprobs for e in episodes]),
        ref_logprobs=torch.cat(ref_logprobs) if len(ref_logprobs) == len(episodes) else None,
        advantages=torch.cat([e.advantages for e in episodes]),
        returns=torch.cat([e.returns for e in episodes]),
        values=torch.cat([e.values for e in episodes]),
        rewards=torch.cat([e.rewards for e in episodes]),
        weights=torch.cat([torch.full_like(e.logprobs, e.weight) for e in episodes]),
        last_rows=torch.tensor(last_rows, dtype=torch.long),
        last_cols=torch.tensor([pads[row] + len(rows[row]) - 1 for row in last_rows], dtype=torch.long),
    )


def split_by_tokens(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group items so that each group, padded to its longest, holds at most `max_tokens` tokens.

    Items of similar length share a group, so padding is small. An item longer than `max_tokens` gets a
    group of its own. The groups depend on the lengths alone: equal lengths keep their order.

    Args:
        lengths: tokens per item (`EpisodeTensors.padded_length` for an episode).
        max_tokens: bound on count times longest, at least 1.

    Returns:
        Groups of indices into `lengths`, longest first; every index exactly once.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    groups: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if not groups or (len(groups[-1]) + 1) * longest > max_tokens:
            groups.append([])
            longest = lengths[index]
        groups[-1].append(index)
    return groups


def _first_rows(episodes: Sequence[EpisodeTensors]) -> list[int]:
    """Row of each episode's first segment."""
    first_row, total = [], 0
    for episode in episodes:
        trajectory = episode.trajectory
        if not trajectory.segments or any(len(segment) == 0 for segment in trajectory.segments):
            raise ValueError(
                f"episode {trajectory.episode}: every episode needs segments with tokens in them"
            )
        first_row.append(total)
        total += len(trajectory.segments)
    return first_row


def _pad(
    rows: Sequence[list[int]], pads: Sequence[int], length: int, pad_token_id: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return input_ids, attention_mask, position_ids, each (B, T). `pads` counts the padding left of each
    row.
    """
    padded = [
        [pad_token_id] * left + row + [pad_token_id] * (length - left - len(row))
        for left, row in zip(pads, rows)
    ]
    columns = torch.arange(length)
    starts = torch.tensor(pads).unsqueeze(1)
    ends = starts + torch.tensor([len(row) for row in rows]).unsqueeze(1)
    attention_mask = (columns >= starts) & (columns < ends)
    # Padding continues the count on the right and repeats 0 on the left: both are legal absolute positions.
    position_ids = (columns - starts).clamp(min=0)
    return torch.tensor(padded, dtype=torch.long), attention_mask, position_ids


def _action_positions(
    episodes: Sequence[EpisodeTensors], first_row: Sequence[int], pads: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    rows: list[int] = []
    cols: list[int] = []
    episode_ids: list[int] = []
    for index, episode in enumerate(episodes):
        for segment, t in episode.trajectory.action_positions():
            if t == 0:
                raise ValueError(
                    f"episode {episode.trajectory.episode}, segment {segment}: its first token is an action "
                    "token; put at least one context token (the prompt, or a beginning-of-sequence token) "
                    "before it"
                )
            row = first_row[index] + segment
            rows.append(row)
            cols.append(pads[row] + t)
            episode_ids.append(index)
    return rows, cols, episode_ids
