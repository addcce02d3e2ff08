"""The optimization of one update: epochs of minibatches, each a step, over all processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from trl_agent._compat import set_gradient_sync
from trl_agent.batch import EpisodeTensors, MiniBatch, split_by_tokens
from trl_agent.metrics import MetricSums
from trl_agent.ppo_config import AgentPPOConfig
from trl_agent.processes import gather_rows, global_sums, minibatch_shares

Loss = Callable[[MiniBatch, float], tuple[Tensor, dict[str, Tensor]]]
"""(micro batch, sum of the token weights of its minibatch) -> loss, (N,) tensors by metric name."""

DRIFT = "policy/approxkl_avg"
"""The metric that is a KL per token: summed over an episode, and compared with `target_kl`."""


class PPOUpdate:
    """Runs the minibatch steps of one update.

    A minibatch is cut from a permutation of all processes' episodes; each process works on those
    it owns, in micro batches of bounded size, and gradients are added up in the last one. All
    processes do as many passes as the one with the most.

    Args:
        collate: episodes -> micro batch on the device.
        compute_loss, compute_bc_loss: for online and offline episodes.
        idle_loss: a loss of 0 that touches every parameter.
    """

    def __init__(
        self,
        args: AgentPPOConfig,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        collate: Callable[[Sequence[EpisodeTensors]], MiniBatch],
        compute_loss: Loss,
        compute_bc_loss: Loss,
        idle_loss: Callable[[], Tensor],
    ) -> None:
        self.args = args
        self.accelerator = accelerator
        self.model = model
        self.optimizer = optimizer
        self.collate = collate
        self.compute_loss = compute_loss
        self.compute_bc_loss = compute_bc_loss
        self.idle_loss = idle_loss
        self.tokens_trained = 0

    def run(
        self, update: int, episodes: list[EpisodeTensors], offline: list[EpisodeTensors], sums: MetricSums
    ) -> None:
        """Do the epochs; stop when the policy has moved `target_kl` nats an episode from the rollout's.

        Args:
            episodes, offline: this process's.
            sums: where metrics are added.
        """
        epochs = 0
        for epoch in range(self.args.num_ppo_epochs):
            if not all(
                self._minibatch([episodes[i] for i in mine], [offline[i] for i in demonstrations], sums)
                for mine, demonstrations in self._shares(update, epoch, len(episodes), len(offline))
            ):
                break
            epochs += 1
        sums.add("policy/epochs", epochs, 1)
        sums.add("policy/stopped_by_kl", epochs < self.args.num_ppo_epochs, 1)

    def _shares(
        self, update: int, epoch: int, num_episodes: int, num_offline: int
    ) -> Iterator[tuple[list[int], list[int]]]:
        """Yield local indices of episodes and of offline episodes, for each minibatch."""
        rows = gather_rows(self.accelerator, [num_episodes, num_offline])
        rank, num = self.accelerator.process_index, self.args.num_mini_batches
        online, offline = (
            minibatch_shares([int(row[k]) for row in rows], rank, num, self.args.seed, update, epoch, k)
            for k in (0, 1)
        )
        yield from zip(online, offline, strict=True)

    def _minibatch(
        self, episodes: list[EpisodeTensors], offline: list[EpisodeTensors], sums: MetricSums
    ) -> bool:
        """Forward, backward and one optimizer step; False (and no step) if the policy moved too far."""
        parts = [(False, group) for group in micro_batches(episodes, self.args)]
        parts += [(True, group) for group in micro_batches(offline, self.args)]
        counts = [len(parts), _total_weight(episodes), _total_weight(offline), len(episodes)]
        rows = gather_rows(self.accelerator, counts)
        num_passes = int(max(row[0] for row in rows))
        if num_passes == 0:
            return True
        items, offline_items, num_episodes = (sum(row[k] for row in rows) for k in (1, 2, 3))
        drift = 0.0
        for index in range(num_passes):
            with self._last_pass(index == num_passes - 1):
                if index >= len(parts):
                    self.accelerator.backward(self.idle_loss())
                    continue
                is_offline, group = parts[index]
                if is_offline:
                    self._pass(self.compute_bc_loss, [offline[i] for i in group], offline_items, sums)
                else:
                    drift += self._pass(self.compute_loss, [episodes[i] for i in group], items, sums)
        return self._step(drift, num_episodes, sums)

    def _pass(self, loss_of: Loss, episodes: list[EpisodeTensors], items: float, sums: MetricSums) -> float:
        """Forward and backward of one micro batch; return its `DRIFT`, summed."""
        loss, outputs = loss_of(self.collate(episodes), items)
        # DDP takes the mean of the processes' gradients, and we want their sum
        self.accelerator.backward(loss * self.accelerator.num_processes)
        self.tokens_trained += sum(episode.trajectory.num_tokens for episode in episodes)
        drift = 0.0
        totals = torch.stack([values.float().sum() for values in outputs.values()]).tolist()
        for (name, values), total in zip(outputs.items(), totals, strict=True):
            if name == DRIFT:
                drift = total
                sums.add(name, total, len(episodes))
            else:
                sums.add(name, total, values.numel())
        return drift

    def _step(self, drift: float, num_episodes: float, sums: MetricSums) -> bool:
        """Clip, step the optimizer and clear the gradients, unless the policy has moved too far already."""
        args = self.args
        (drift,) = global_sums(self.accelerator, [drift])
        if args.target_kl is not None and num_episodes and drift / num_episodes > args.target_kl:
            self.optimizer.zero_grad()
            return False
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), args.max_grad_norm or math.inf)
        finite = math.isfinite(float(norm))
        if finite:
            sums.add("policy/grad_norm", float(norm), 1)
        # with loss scaling the optimizer skips such a step itself, and lowers the scale
        if finite or args.fp16:
            self.optimizer.step()
        sums.add("policy/skipped_steps", not finite, 1)
        self.optimizer.zero_grad()
        return True

    @contextmanager
    def _last_pass(self, last: bool) -> Iterator[None]:
        """Exchange gradients between processes in the last pass of a minibatch only."""
        set_gradient_sync(self.accelerator, last)
        with nullcontext() if last else self.accelerator.no_sync(self.model):
            yield


def micro_batches(episodes: Sequence[EpisodeTensors], args: AgentPPOConfig) -> list[list[int]]:
    """Group episodes (as indices) by `micro_batch_tokens` and `per_device_train_batch_size`."""
    groups = split_by_tokens([episode.padded_length for episode in episodes], args.micro_batch_tokens)
    size = args.per_device_train_batch_size
    return [group[i : i + size] for group in groups for i in range(0, len(group), size)]


def _total_weight(episodes: Sequence[EpisodeTensors]) -> float:
    return sum(episode.weight * episode.num_action_tokens for episode in episodes)
