"""Multi-turn agent PPO on TRL's PPOTrainer. Read `AgentPPOTrainer.train` first: it is the algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from accelerate.utils import DistributedType, gather_object
from peft import PeftConfig, PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback

from trl_agent import resume
from trl_agent._compat import PPOTrainer, disable_dropout_in_model
from trl_agent.advantages import bootstrap, discounts, gae, leave_one_out, whiten
from trl_agent.batch import EpisodeTensors, MiniBatch, collate
from trl_agent.callbacks import MetricsWriter, episode_bar
from trl_agent.chat import ChatFormat
from trl_agent.checkpoint import (
    FINAL,
    METRICS_FILE,
    CheckpointError,
    claim_output_dir,
    remove_old,
    rng_state,
    truncate_metrics,
    write_atomically,
)
from trl_agent.evaluation import summarize
from trl_agent.extra_rewards import RewardFunc, add_rewards
from trl_agent.generation.protocol import GenerationBackend, SamplingParams
from trl_agent.generation.transformers_backend import TransformersBackend
from trl_agent.ledger import CostLedger, peak_memory_mb
from trl_agent.losses import bc_loss, policy_loss, value_loss
from trl_agent.metrics import MetricSums, count_objective, count_rollout, explained_variance, moments
from trl_agent.modeling import ActorCritic, ActorCriticOutput
from trl_agent.ppo_config import AgentPPOConfig
from trl_agent.ppo_update import PPOUpdate, micro_batches
from trl_agent.processes import gather_rows, on_main, owned, permutation
from trl_agent.reference import Reference, freeze_adapter_copy
from trl_agent.rewards import kl_estimate, token_rewards
from trl_agent.rollout import EpisodeRequest, collect
from trl_agent.schedules import AdaptiveKL, FixedKL, Schedule
from trl_agent.trajectory import Trajectory
from trl_agent.trl_setup import (
    NoValueModel,
    add_missing_parameters,
    arguments_for_trl,
    check_weights,
    make_optimizer,
    precision_of,
)
from trl_agent_envs.pool import EnvPool

_DATA_PARALLEL = (
    DistributedType.NO,
    DistributedType.MULTI_CPU,
    DistributedType.MULTI_GPU,
    DistributedType.MULTI_XPU,
    DistributedType.MULTI_NPU,
)
_EVALUATION = 0  # the "update" of evaluation episodes; training updates count from 1


class AgentPPOTrainer(PPOTrainer):
    """Trains a language model to act in a text environment by PPO.

    One update, in data order; each step is a method to override, and most call one pure function:

    1. `collect` plays episodes with the current policy (`rollout.collect`);
    2. `select` chooses what to learn from and adds offline trajectories;
    3. `compute_rewards` makes one episode's per-token rewards (`rewards.token_rewards`);
    4. `estimate_advantages` makes advantages and returns (`advantages.gae`);
    5. `collate` pads episodes into a micro batch (`batch.collate`);
    6. `compute_loss` (`losses.policy_loss`, `value_loss`) and, for offline trajectories,
       `compute_bc_loss` (`losses.bc_loss`).

    Each process plays and learns from a contiguous block of an update's episodes. Episode e of
    update u has its seed from (seed, u, e // episodes_per_goal) alone, minibatches are drawn from all processes'
    episodes, and losses are sums over action tokens divided by their number over all processes,
    so under ``schedule="lockstep"`` the number of processes changes nothing but rounding.

    Args:
        args: the configuration.
        processing_class: tokenizer with a chat template and a pad token.
        model: the policy; its weights are fp32 unless `bf16` is set.
        env_id: Gymnasium id ("my_pkg:MyEnv-v0"); or `env_factory`: a callable that returns an
            environment. Exactly one of them.
        env_kwargs: arguments of the environment.
        eval_env_kwargs: what differs from `env_kwargs` in evaluation, such as the split.
        offline_trajectories: for the BC term; need `bc_coef` above 0.
        reward_model: not supported yet; use `reward_funcs`.
        reward_funcs: each maps a trajectory to a reward added to its last turn, or to one reward
            a turn. The environment's reward is always there.
        value_model: the critic's trunk when ``critic="separate"``; None copies the policy's.
        ref_model: reference policy; None = the policy as it is now (one base copy under PEFT).
        peft_config: wrap the policy in this adapter.
        callbacks: Transformers callbacks.
        optimizers: optimizer (parameters it lacks, such as the value head's, are added) and
            learning-rate scheduler.

    Raises:
        ValueError: arguments that contradict each other, a tokenizer or model that cannot be
            used, weights in another precision than the one asked for.
    """

    _tag_names = ["trl", "ppo", "trl-agent"]  # noqa: RUF012 - TRL declares it so
    args: AgentPPOConfig
    # set by TRL's constructor; here for type checkers
    model: Any
    ref_model: Any
    optimizer: Any
    lr_scheduler: Any
    processing_class: Any
    state: Any

    def __init__(
        self,
        args: AgentPPOConfig,
        *,
        processing_class: PreTrainedTokenizerBase,
        model: PreTrainedModel | PeftModel,
        env_id: str | None = None,
        env_kwargs: dict[str, Any] | None = None,
        env_factory: Callable[[], Any] | None = None,
        eval_env_kwargs: dict[str, Any] | None = None,
        offline_trajectories: Sequence[Trajectory] | None = None,
        reward_model: nn.Module | None = None,
        reward_funcs: Sequence[RewardFunc] | None = None,
        value_model: nn.Module | None = None,
        ref_model: PreTrainedModel | None = None,
        peft_config: PeftConfig | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
    ) -> None:
        _check_arguments(args, env_id, env_factory, offline_trajectories, reward_model, ref_model)
        self.chat = ChatFormat(processing_class)
        self._env: str | Callable[[], Any] = env_id if env_id is not None else env_factory  # type: ignore[assignment]
        self._env_kwargs = dict(env_kwargs or {})
        self._eval_env_kwargs = {**self._env_kwargs, **(eval_env_kwargs or {})}
        self.offline_trajectories = list(offline_trajectories or [])
        self.reward_funcs = list(reward_funcs or [])
        self._critic_trunk = value_model
        self._pools: dict[str, EnvPool] = {}
        self._in_train = False
        self._tokens_trained = 0
        self._last_success = 0.0
        if isinstance(model, PeftModel) and args.kl_coef > 0 and ref_model is None:
            freeze_adapter_copy(model)
        with precision_of(args):
            super().__init__(
                args=arguments_for_trl(args, model),
                processing_class=processing_class,
                model=model,  # type: ignore[arg-type]
                # TRL would copy the policy; without a KL there is nothing to copy it for
                ref_model=ref_model if args.kl_coef > 0 else nn.Identity(),  # type: ignore[arg-type]
                reward_model=nn.Identity(),  # type: ignore[arg-type]
                train_dataset=[{}]
                * args.episodes_per_update,  # a placeholder: episodes come from environments
                value_model=NoValueModel(),  # type: ignore[arg-type]
                optimizers=optimizers,
                callbacks=[MetricsWriter(), *(callbacks or [])],
                peft_config=peft_config,
            )
        self.args = args
        self.state.epoch = None  # there are no epochs of data
        self._check_accelerator()
        self.actor: ActorCritic = self.accelerator.unwrap_model(self.model)
        self.reference = self._make_reference(ref_model)
        self.kl_controller: FixedKL | AdaptiveKL = FixedKL(args.kl_coef)
        if args.kl_control == "auto":
            assert args.target_kl is not None
            self.kl_controller = AdaptiveKL(args.kl_coef, args.target_kl, args.kl_horizon)
        self.ledger = CostLedger(self.accelerator.num_processes, args.price_per_hour)
        self.generation: GenerationBackend = TransformersBackend(
            self.actor.policy, pad_token_id=self.chat.pad_token_id, stop_token_ids=self.chat.stop_token_ids
        )
        self.control = self.callback_handler.on_init_end(args, self.state, self.control)

    # ---------------------------------------------------------------- the algorithm

    def train(self, resume_from_checkpoint: bool | str | Path | None = None) -> dict[str, float]:  # type: ignore[override]
        """Train for `max_updates` updates and write `final/`.

        Args:
            resume_from_checkpoint: True continues from the newest checkpoint in `output_dir`, a
                path from that one; None asks the configuration.

        Returns:
            The last update's metrics.

        Raises:
            CheckpointError: `output_dir` holds an earlier run, a checkpoint does not fit, or one
                cannot be written.
        """
        metrics: dict[str, float] = {}
        try:
            self._begin(resume_from_checkpoint)
            with self.ledger.running():
                while (
                    self.state.global_step < self.args.max_updates and not self.control.should_training_stop
                ):
                    metrics = self._update(self.state.global_step + 1)
            self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
            self.save_model(str(self.output_dir / FINAL))
        finally:
            self.close()
        return metrics

    def _update(self, update: int) -> dict[str, float]:
        self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)
        sums = MetricSums()
        with self.ledger.phase("rollout"):
            trajectories = self.collect(update)
        count_rollout(trajectories, sums)
        with self.ledger.phase("train"):
            chosen = self.select(trajectories)
            offline = [EpisodeTensors.from_trajectory(t) for t in chosen if t.source == "offline"]
            episodes, kls, last_values = self._score([t for t in chosen if t.source == "online"], sums)
            if self.offline_trajectories:
                sums.add("offline/share", len(offline), len(chosen))
                sums.add("offline/score", sum(e.trajectory.score for e in offline), len(offline))
            rewards = [self.compute_rewards(e, kl) for e, kl in zip(episodes, kls, strict=True)]
            episodes = [replace(e, rewards=r) for e, r in zip(episodes, rewards, strict=True)]
            episodes = self.estimate_advantages(episodes, last_values)
            count_objective(episodes, kls, self.kl_controller.value, sums)
            sums.add_largest("val/explained_variance", explained_variance(self.accelerator, episodes))
            self._optimize(update, episodes, offline, sums)
            self.generation.on_weights_changed()
        return self._report(self._end_update(update, trajectories, sums))

    def collect(self, update: int) -> list[Trajectory]:
        """Play this process's episodes of an update with the current policy.

        Returns:
            Trajectories in the order of their episode numbers.
        """
        args = self.args
        requests = [
            EpisodeRequest(
                episode=e,
                update=update,
                seed=episode_seed(args.seed, update, e // args.episodes_per_goal),
                options=None,
            )
            for e in self._owned_of(args.episodes_per_update)
        ]
        return self._play(self._pool("train"), requests, self.sampling_params)

    def select(self, trajectories: list[Trajectory]) -> list[Trajectory]:
        """Choose what to learn from: here all of `trajectories` that have action tokens, and this
        process's part of the offline trajectories drawn for this update.

        An override may drop trajectories; it keeps the order.
        """
        return [t for t in trajectories if t.num_action_tokens] + self._draw_offline()

    def compute_rewards(self, episode: EpisodeTensors, kl: Tensor | None) -> Tensor:
        """Return one episode's per-token rewards: each turn's reward on its last action token, minus
        kl_coef times the KL to the reference on every token.

        Args:
            episode: with logprobs, ref_logprobs and values; N action tokens.
            kl: (N,) nats per token, or None without a reference.

        Returns:
            (N,) fp32.
        """
        trajectory = add_rewards(episode.trajectory, self.reward_funcs)
        return token_rewards(
            trajectory.turn_rewards,
            trajectory.turn_ends,
            trajectory.num_action_tokens,
            kl,
            self.kl_controller.value,
        )

    def estimate_advantages(
        self, episodes: list[EpisodeTensors], last_values: list[float]
    ) -> list[EpisodeTensors]:
        """Return the episodes with advantages and returns, whitened over all processes.

        Args:
            episodes: this process's, with rewards and values.
            last_values: V after each episode's last token; used for truncated ones only.
        """
        args = self.args
        if args.episodes_per_goal > 1:
            episodes = self._less_goal_baseline(episodes)
        estimated = []
        for episode, last_value in zip(episodes, last_values, strict=True):
            t = episode.trajectory
            gammas, lams = discounts(
                t.turn_ends, t.num_action_tokens, args.gamma, args.lam, args.discount_per
            )
            after = bootstrap(last_value, terminated=t.terminated, truncated=t.truncated)
            advantages, returns = gae(episode.rewards, episode.values, after, gammas, lams)
            estimated.append(replace(episode, advantages=advantages, returns=returns))
        if not args.whiten_advantages:
            return estimated
        mean, var = moments(self.accelerator, [episode.advantages for episode in estimated])
        return [replace(e, advantages=whiten(e.advantages, mean, var)) for e in estimated]

    def _less_goal_baseline(self, episodes: list[EpisodeTensors]) -> list[EpisodeTensors]:
        """Take the mean total reward of the other episodes of its goal off each episode's last reward.

        Off the reward and not off the advantages: gamma and lam shrink both alike, so the sign stays right in early
        turns, too.
        """
        mine = [(e.trajectory.episode, float(e.rewards.sum())) for e in episodes]
        every = gather_object(mine)  # a goal's episodes may be spread over processes
        groups = [episode // self.args.episodes_per_goal for episode, _ in every]
        baselines = leave_one_out([total for _, total in every], groups)
        by_episode = {episode: baseline for (episode, _), baseline in zip(every, baselines)}
        return [
            replace(e, rewards=torch.cat([e.rewards[:-1], e.rewards[-1:] - by_episode[e.trajectory.episode]]))
            for e in episodes
        ]

    def collate(self, episodes: Sequence[EpisodeTensors]) -> MiniBatch:
        """Pad some episodes into one micro batch, on this process's device."""
        # few different shapes: a CPU builds bfloat16 kernels for each one, and keeps them
        multiple = 64 if self.args.use_cpu and self.args.bf16 else None
        return collate(episodes, self.chat.pad_token_id, pad_to_multiple_of=multiple).to(
            self.accelerator.device
        )

    def compute_loss(  # type: ignore[override]
        self,
        model: nn.Module,
        inputs: MiniBatch,
        return_outputs: bool = False,
        num_items_in_batch: float | Tensor | None = None,
    ) -> Any:
        """Return this micro batch's part of the minibatch's PPO loss.

        Args:
            model: the (wrapped) `ActorCritic`.
            inputs: micro batch of online episodes.
            return_outputs: also return the metrics' sums over the tokens.
            num_items_in_batch: sum of the token weights in the whole minibatch, over all micro
                batches and processes; None = of this micro batch.
        """
        args, batch = self.args, inputs
        low, high = self.cliprange
        output = self._forward(model, batch)
        assert output.values is not None
        assert output.entropy is not None
        policy = policy_loss(output.logprobs, batch.logprobs, batch.advantages, low, high)
        value = value_loss(output.values, batch.values, batch.returns, args.cliprange_value)
        per_token = policy.per_token + args.vf_coef * value - args.ent_coef * output.entropy
        loss = (per_token * batch.weights).sum() / _at_least_one(num_items_in_batch, batch)
        if not return_outputs:
            return loss
        new_logprobs = torch.where(policy.valid, output.logprobs.detach(), batch.logprobs)
        drift = torch.where(policy.valid, kl_estimate(batch.logprobs, new_logprobs, "k3"), 0.0)
        return loss, {
            "loss/policy_avg": policy.per_token.detach(),
            "loss/value_avg": value.detach(),
            "policy/entropy_avg": output.entropy.detach(),
            "policy/clipfrac_avg": policy.clipped,
            "val/ratio": policy.ratio,
            "policy/approxkl_avg": drift,
        }

    def compute_bc_loss(
        self, model: nn.Module, inputs: MiniBatch, num_items_in_batch: float | Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return this micro batch's part of bc_coef times the BC loss on offline trajectories, and the
        metrics' (N,) tensors. Arguments as in `compute_loss`.
        """
        smoothing = self.bc_label_smoothing
        output = self._forward(model, inputs, temperature=1.0, with_entropy=False, with_mean=smoothing > 0)
        assert output.values is not None
        per_token = bc_loss(output.logprobs, output.mean_logprobs, smoothing, self.args.bc_weighting)
        loss = (per_token * inputs.weights).sum() / _at_least_one(num_items_in_batch, inputs)
        # the critic's part is 0, but every parameter must take part in every backward pass under DDP
        loss = self.args.bc_coef * loss + 0.0 * output.values.sum()
        return loss, {"loss/bc_avg": per_token.detach(), "loss/bc_nll_avg": -output.logprobs.detach()}

    # ---------------------------------------------------------------- one update's parts

    def _score(
        self, trajectories: Sequence[Trajectory], sums: MetricSums
    ) -> tuple[list[EpisodeTensors], list[Tensor | None], list[float]]:
        """One pass without gradient: values, reference logprobs, KL per token, V after the end."""
        episodes = [EpisodeTensors.from_trajectory(t) for t in trajectories]
        kls: list[Tensor | None] = [None] * len(episodes)
        last_values = [0.0] * len(episodes)
        for group in micro_batches(episodes, self.args):
            scored = self._score_micro_batch([episodes[i] for i in group], sums)
            for i, (episode, kl, last_value) in zip(group, scored, strict=True):
                episodes[i], kls[i], last_values[i] = episode, kl, last_value
        return episodes, kls, last_values

    def _score_micro_batch(
        self, episodes: list[EpisodeTensors], sums: MetricSums
    ) -> list[tuple[EpisodeTensors, Tensor | None, float]]:
        batch = self.collate(episodes)
        self.model.eval()
        ref: Tensor | None = None
        with torch.no_grad(), self.accelerator.autocast():
            output = self._forward(self.actor, batch, with_last=True, with_entropy=False)
            if self.reference is not None:
                ref = self.reference.logprobs(batch, self.args.temperature)
        assert output.values is not None
        assert output.last_values is not None
        scored = []
        for k, (episode, now, values) in enumerate(
            zip(
                episodes,
                batch.split_by_episode(output.logprobs.cpu()),
                batch.split_by_episode(output.values.cpu()),
                strict=True,
            )
        ):
            sums.add_largest("val/sampler_gap", _largest_gap(episode.logprobs, now))
            # a sampler that gave no logprob for a token: take ours
            logprobs = torch.where(torch.isfinite(episode.logprobs), episode.logprobs, now)
            weight = 1.0 / episode.num_action_tokens if self.args.loss_normalization == "episode" else 1.0
            episode = replace(episode, logprobs=logprobs, values=values, weight=weight)
            kl = None
            if ref is not None:
                mine = batch.split_by_episode(ref.cpu())[k]
                episode = replace(episode, ref_logprobs=mine)
                # both sides from this pass, so that the sampler's rounding is no KL
                kl = kl_estimate(now, mine, self.args.kl_estimator)
            scored.append((episode, kl, float(output.last_values[k])))
        return scored

    def _optimize(
        self, update: int, episodes: list[EpisodeTensors], offline: list[EpisodeTensors], sums: MetricSums
    ) -> None:
        """The epochs of minibatch steps."""
        optimization = PPOUpdate(
            self.args,
            self.accelerator,
            self.model,
            self.optimizer,
            collate=self.collate,
            compute_loss=lambda batch, items: self.compute_loss(self.model, batch, True, items),
            compute_bc_loss=lambda batch, items: self.compute_bc_loss(self.model, batch, items),
            idle_loss=self._idle_loss,
        )
        self.model.train()
        optimization.run(update, episodes, offline, sums)
        self.model.eval()
        self._tokens_trained = optimization.tokens_trained

    def _end_update(
        self, update: int, trajectories: Sequence[Trajectory], sums: MetricSums
    ) -> dict[str, float]:
        """Add up over processes, move the counters and the KL coefficient; return the metrics."""
        counts = [
            len(trajectories),
            sum(len(t.turns) for t in trajectories),
            sum(t.num_action_tokens for t in trajectories),
            self._tokens_trained,
        ]
        rows = gather_rows(self.accelerator, [*counts, peak_memory_mb()])
        episodes, env_steps, generated, trained = (int(sum(row[k] for row in rows)) for k in range(4))
        ledger = self.ledger
        ledger.episodes += episodes
        ledger.env_steps += env_steps
        ledger.tokens_generated += generated
        ledger.tokens_trained += trained
        ledger.peak_memory_mb = max(ledger.peak_memory_mb, *(row[4] for row in rows))
        metrics = sums.reduce(self.accelerator)
        metrics["lr"] = self.lr_scheduler.get_last_lr()[0]
        metrics["kl_coef"] = self.kl_controller.value
        metrics["cliprange_low"], metrics["cliprange_high"] = self.cliprange
        if self.offline_trajectories:
            metrics["bc_label_smoothing"] = self.bc_label_smoothing
        self._last_success = metrics.get("env/success", 0.0)
        metrics["episode"] = ledger.episodes
        metrics["env_steps"] = ledger.env_steps
        metrics["tokens_generated"] = ledger.tokens_generated
        metrics["tokens_trained"] = ledger.tokens_trained
        metrics.update({f"seconds/{name}": seconds for name, seconds in ledger.seconds.items()})
        self.lr_scheduler.step()
        if self.reference is not None and "objective/kl" in metrics:
            self.kl_controller.update(metrics["objective/kl"], episodes)
        self.state.global_step = update
        self.state.episode = ledger.episodes
        return metrics

    def _report(self, metrics: dict[str, float]) -> dict[str, float]:
        """Tell the callbacks; log, evaluate and save as they decide."""
        self.control = self.callback_handler.on_step_end(self.args, self.state, self.control)
        if self.control.should_log:
            self.log(dict(metrics))
        if self.control.should_evaluate:
            self.evaluate()
        if self.control.should_save:
            self._save_checkpoint()
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        return metrics

    # ---------------------------------------------------------------- evaluation

    def play(self, goal_ids: Sequence[int | str] | None = None, *, greedy: bool = True) -> list[Trajectory]:
        """Play evaluation episodes with the current policy, in environments made with `eval_env_kwargs`.

        Args:
            goal_ids: one episode each; None plays `eval_episodes` seeded ones.
            greedy: the likeliest token each time, else as sampled in training.

        Returns:
            All processes' trajectories, in the order of the goals, on every process.
        """
        num = (self.args.eval_episodes or 0) if goal_ids is None else len(goal_ids)  # never None by now
        requests = [
            EpisodeRequest(
                episode=e,
                update=_EVALUATION,
                seed=episode_seed(self.args.seed, _EVALUATION, e),
                options=None if goal_ids is None else {"goal_id": goal_ids[e]},
            )
            for e in self._owned_of(num)
        ]
        sampling = replace(self.sampling_params, temperature=0.0) if greedy else self.sampling_params
        try:
            return gather_object(self._play(self._pool("eval"), requests, sampling))
        finally:
            if not self._in_train:
                self.close()

    def evaluate(  # type: ignore[override]
        self,
        goal_ids: Sequence[int | str] | None = None,
        *,
        greedy: bool = True,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Play as `play` does and log success rate and mean score with 95 % intervals.

        Returns:
            `{prefix}_n`, `_success`, `_success_low`, `_success_high`, `_score`, `_score_low`, `_score_high`.
        """
        with self.ledger.phase("evaluation"):
            summary = summarize(self.play(goal_ids, greedy=greedy))
        metrics = summary.to_metrics(metric_key_prefix)
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    # ---------------------------------------------------------------- checkpoints

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write policy, tokenizer and value head to `output_dir`, all or nothing."""
        folder = Path(output_dir or self.output_dir)
        self._on_main(
            lambda: write_atomically(
                folder, lambda to: resume.write_model(to, self.actor, self.processing_class)
            )
        )

    def _save_checkpoint(self, model: Any = None, trial: Any = None) -> None:
        """Write `checkpoint-<update>`, all or nothing, and remove the oldest ones."""
        folder = self.output_dir
        rng = gather_object([rng_state()])
        target = folder / f"checkpoint-{self.state.global_step}"
        self._on_main(lambda: write_atomically(target, lambda to: self._write_checkpoint(to, rng)))
        self._on_main(lambda: remove_old(folder, self.args.save_total_limit))

    def _write_checkpoint(self, folder: Path, rng: list[Any]) -> None:
        resume.write_model(folder, self.actor, self.processing_class)
        resume.write_training(
            folder,
            optimizer=self.optimizer,
            scheduler=self.lr_scheduler,
            scaler=self.accelerator.scaler,
            rng=rng,
            trainer_state=self.state,
            agent_state={
                "update": self.state.global_step,
                "seed": self.args.seed,
                "kl_controller": self.kl_controller.state_dict(),
                "last_success": self._last_success,
                "ledger": self.ledger.state_dict(),
                "reference": self._fingerprint(),
            },
        )

    def _load_checkpoint(self, folder: Path) -> None:
        agent_state = resume.read_agent_state(folder)
        resume.check_same_run(folder, agent_state, self.args.seed, self._fingerprint())
        resume.load_model(folder, self.actor)
        saved = resume.load_training(
            folder,
            optimizer=self.optimizer,
            scheduler=self.lr_scheduler,
            scaler=self.accelerator.scaler,
            rank=self.accelerator.process_index,
        )
        self.kl_controller.load_state_dict(agent_state["kl_controller"])
        self._last_success = float(agent_state.get("last_success", 0.0))
        self.ledger.load_state_dict(agent_state["ledger"])
        self.state.global_step = saved.global_step
        self.state.episode = saved.episode
        self.state.log_history = saved.log_history
        self.generation.on_weights_changed()

    def _fingerprint(self) -> float | None:
        return None if self.reference is None else self.reference.fingerprint()

    def _begin(self, resume_from_checkpoint: bool | str | Path | None) -> None:
        wanted = (
            self.args.resume_from_checkpoint if resume_from_checkpoint is None else resume_from_checkpoint
        )
        folder = self.output_dir
        found = self._on_main(
            lambda: claim_output_dir(folder, resume=wanted or False, overwrite=self.args.overwrite_output_dir)
        )
        self.state.max_steps = self.args.max_updates
        self.state.compute_steps(self.args, self.args.max_updates)
        if found is not None:
            self._load_checkpoint(found)
            self._on_main(lambda: truncate_metrics(folder / METRICS_FILE, self.state.global_step))
        self._in_train = True
        self.control = self.callback_handler.on_train_begin(self.args, self.state, self.control)
        if self.args.eval_on_start and found is None:
            self.evaluate()

    # ---------------------------------------------------------------- small parts

    @property
    def output_dir(self) -> Path:
        """Where the run writes."""
        return Path(str(self.args.output_dir))

    @property
    def sampling_params(self) -> SamplingParams:
        """How the rollout samples."""
        args = self.args
        return SamplingParams(args.temperature, args.top_p, args.top_k, args.max_new_tokens)

    @property
    def cliprange(self) -> tuple[float, float]:
        """Lower and upper clip range of the current update."""
        end = self.args.cliprange_end
        if end is None:
            return self.args.clip
        now = Schedule("linear", self.args.cliprange, end)(self.progress)
        return now, now

    @property
    def progress(self) -> float:
        """How far the run is: 0 in the first update, 1 in the last."""
        return float(self.state.global_step / max(self.args.max_updates - 1, 1))

    @property
    def bc_label_smoothing(self) -> float:
        """Label smoothing of the current update's BC term."""
        args = self.args
        done = self.progress if args.bc_label_smoothing_by == "progress" else self._last_success
        return Schedule("linear", args.bc_label_smoothing, args.bc_label_smoothing_end)(done)

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Put the actor-critic in the place of TRL's wrapper, and build what trains it. TRL calls this."""
        args = self.args
        if self._critic_trunk is not None:
            disable_dropout_in_model(self._critic_trunk)
        self.model = ActorCritic(self.policy_model, critic=args.critic, value_model=self._critic_trunk)
        if args.gradient_checkpointing:
            kwargs = {
                "use_reentrant": False,
                **cast(dict[str, Any], args.gradient_checkpointing_kwargs or {}),
            }
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)
        check_weights(self.model, args)
        if self.optimizer is None:
            self.optimizer = make_optimizer(self.model, args)
        else:
            add_missing_parameters(self.optimizer, self.model, args)
        self.create_scheduler(num_training_steps=args.max_updates, optimizer=self.optimizer)

    def close(self) -> None:
        """End all environments. They start again when needed."""
        self._in_train = False
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    def _make_reference(self, ref_model: PreTrainedModel | None) -> Reference | None:
        if self.args.kl_coef == 0:
            self.ref_model = None
            return None
        if self.ref_model is None:
            return Reference(self.actor)
        frozen = ActorCritic(self.ref_model, critic="none").requires_grad_(False).eval()
        return Reference(self.actor, frozen.to(self.accelerator.device))

    def _check_accelerator(self) -> None:
        if self.accelerator.distributed_type not in _DATA_PARALLEL:
            raise ValueError(
                f"{self.accelerator.distributed_type} is not supported: launch with data parallelism "
                "(DDP) or one process"
            )
        if self.accelerator.mixed_precision != self.args.precision:
            raise RuntimeError(
                f"precision {self.args.precision!r} was asked for but Accelerate uses "
                f"{self.accelerator.mixed_precision!r}; make the trainer before any other Accelerator"
            )

    def _pool(self, kind: str) -> EnvPool:
        if kind not in self._pools:
            args = self.args
            self._pools[kind] = EnvPool(
                self._env,
                self._eval_env_kwargs if kind == "eval" else self._env_kwargs,
                num_envs=args.num_envs,
                step_timeout=args.step_timeout,
                episode_timeout=args.episode_timeout,
                max_retries=args.max_env_retries,
                schedule=args.schedule,
            )
        return self._pools[kind]

    def _play(
        self, pool: EnvPool, requests: Sequence[EpisodeRequest], sampling: SamplingParams
    ) -> list[Trajectory]:
        self.model.eval()
        shown = self.accelerator.is_main_process and not self.args.disable_tqdm
        with torch.no_grad(), self.accelerator.autocast(), episode_bar("episodes", enabled=shown) as progress:
            return collect(
                pool,
                self.generation,
                self.chat,
                requests,
                sampling,
                base_seed=self.args.seed,
                max_turns=self.args.max_turns,
                max_length=self.args.max_length,
                context_policy=self.args.context_policy,
                context_window=self.args.context_window,
                max_episode_tokens=self.args.max_episode_tokens,
                action_format=self.args.action_format,
                progress=progress,
                use_system_prompt=self.args.use_system_prompt,
            )

    def _on_main(self, action: Callable[[], Any]) -> Any:
        return on_main(self.accelerator, action, CheckpointError)

    def _owned_of(self, num: int) -> range:
        return owned(num, self.accelerator.process_index, self.accelerator.num_processes)

    def _draw_offline(self) -> list[Trajectory]:
        """This process's part of the offline trajectories of the update that is about to be made."""
        pool, share, end = self.offline_trajectories, self.args.offline_share, self.args.offline_share_end
        if not pool:
            return []
        if end is not None:
            share = Schedule("linear", share, end)(self.progress)
        num = min(len(pool), max(share > 0, round(self.args.episodes_per_update * share / (1 - share))))
        drawn = permutation(len(pool), self.args.seed, self.state.global_step + 1, 2**31)[:num]
        return [replace(pool[drawn[i]], source="offline") for i in self._owned_of(num)]

    def _forward(
        self,
        model: nn.Module,
        batch: MiniBatch,
        *,
        temperature: float | None = None,
        with_last: bool = False,
        with_entropy: bool = True,
        with_mean: bool = False,
    ) -> ActorCriticOutput:
        last = (batch.last_rows, batch.last_cols) if with_last else (None, None)
        return model(
            batch.input_ids,
            batch.attention_mask,
            batch.position_ids,
            batch.action_rows,
            batch.action_cols,
            *last,
            temperature=self.args.temperature if temperature is None else temperature,
            with_entropy=with_entropy,
            with_mean=with_mean,
        )

    def _idle_loss(self) -> Tensor:
        """A loss of 0 that touches every parameter, for a process with fewer micro batches than another."""
        device = self.accelerator.device
        none = torch.zeros(0, dtype=torch.long, device=device)
        output = self.model(
            torch.full((1, 2), self.chat.pad_token_id, device=device),
            torch.ones(1, 2, dtype=torch.bool, device=device),
            torch.tensor([[0, 1]], device=device),
            none,
            none,
            temperature=self.args.temperature,
            with_entropy=False,
        )
        loss: Tensor = output.logprobs.sum() + output.values.sum()
        return loss


def _check_arguments(
    args: AgentPPOConfig,
    env_id: str | None,
    env_factory: Callable[[], Any] | None,
    offline_trajectories: Sequence[Trajectory] | None,
    reward_model: nn.Module | None,
    ref_model: nn.Module | None,
) -> None:
    if (env_id is None) == (env_factory is None):
        raise ValueError("give exactly one of env_id and env_factory")
    if reward_model is not None:
        raise ValueError("reward_model is not supported yet; pass a function in reward_funcs")
    if bool(offline_trajectories) != (args.bc_coef > 0):
        raise ValueError(
            f"offline_trajectories and bc_coef belong together: got {len(offline_trajectories or [])} "
            f"trajectories and bc_coef={args.bc_coef}"
        )
    if ref_model is not None and args.kl_coef == 0:
        raise ValueError("a ref_model is given but kl_coef=0 does not use it")


def episode_seed(seed: int, update: int, episode: int) -> int:
    """Return the environment's seed for an episode, in [0, 2**31): a hash of the three numbers."""
    return int(np.random.SeedSequence([seed, update, episode]).generate_state(1)[0] >> 1)


def _at_least_one(num_items: float | Tensor | None, batch: MiniBatch) -> float | Tensor:
    """The normaliser of a loss; 1 where nothing is to be normalised, so that 0 / 0 cannot happen."""
    items = float(batch.weights.sum()) if num_items is None else num_items
    return items if items > 0 else 1.0


def _largest_gap(logprobs: Tensor, recomputed: Tensor) -> float:
    """Largest difference (nats) between the sampler's and the trainer's log-probability of a token."""
    gap = (logprobs - recomputed).abs()
    return float(torch.where(torch.isfinite(gap), gap, 0.0).max()) if gap.numel() else 0.0
