import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from tests.tiny_task import WORDS, EchoEnv, demonstration, model, tokenizer, trainer
from trl_agent import checkpoint
from trl_agent.batch import EpisodeTensors
from trl_agent.chat import ChatFormat
from trl_agent.checkpoint import CheckpointError
from trl_agent.curve import read_metrics
from trl_agent.ppo_trainer import AgentPPOTrainer, episode_seed
from trl_agent.trajectory import Segment, Trajectory

LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}


def weights(made: AgentPPOTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in made.actor.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def without_times(rows: list[dict]) -> list[dict]:
    return [{k: v for k, v in row.items() if not k.startswith("seconds/")} for row in rows]


# ------------------------------------------------------------------------------------- learning


def test_a_tiny_model_learns_the_task(tmp_path):
    made = trainer(
        tmp_path,
        env_kwargs={"words": 1},
        max_updates=20,
        episodes_per_update=32,
        num_envs=32,
        max_new_tokens=1,
        num_ppo_epochs=3,
        micro_batch_tokens=4096,
        learning_rate=1e-2,
        kl_coef=0.0,
        target_kl=None,
        ent_coef=0.0,
    )
    made.train()
    scores = [row["env/score"] for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert sum(scores[:3]) / 3 < 0.2
    assert max(scores[-5:]) > 0.5


def mixing(tmp_path, **kwargs):
    chat = ChatFormat(tokenizer())
    made = trainer(
        tmp_path,
        env_kwargs={"words": 1},
        offline_trajectories=[demonstration(chat, word) for word in WORDS] * 4,
        bc_coef=1.0,
        kl_coef=0.0,
        **kwargs,
    )
    return made, tmp_path / "metrics.jsonl"


def test_bc_on_offline_trajectories_learns_too(tmp_path):
    made, file = mixing(tmp_path, offline_share=0.75, max_updates=12, learning_rate=1e-2)
    made.train()
    losses = [row["loss/bc_avg"] for row in read_metrics(file)]
    assert losses[-1] < losses[0] / 2


def test_offline_share_and_smoothing_follow_their_schedules(tmp_path):
    made, file = mixing(
        tmp_path,
        episodes_per_update=6,
        offline_share=0.5,
        offline_share_end=0.0,
        bc_label_smoothing=0.3,
        bc_label_smoothing_end=0.1,
        max_updates=3,
    )
    made.train()
    rows = read_metrics(file)
    # 6 of 12, then 0.25 of all = 2 beside 6, then none
    assert [row["offline/share"] for row in rows] == [0.5, 0.25, 0.0]
    assert [row["bc_label_smoothing"] for row in rows] == pytest.approx([0.3, 0.2, 0.1])
    assert "offline/score" in rows[1]
    assert "offline/score" not in rows[2]
    # the smoothed loss is not the likelihood, and is reported apart from it
    assert rows[0]["loss/bc_avg"] > rows[0]["loss/bc_nll_avg"]


def test_smoothing_follows_success_also_after_a_resume(tmp_path):
    options = {
        "save_strategy": "steps",
        "episodes_per_update": 8,
        "bc_label_smoothing_by": "success",
        "learning_rate": 1e-2,
    }
    made, file = mixing(tmp_path, max_updates=8, save_steps=4, **options)
    made.train()
    rows = read_metrics(file)
    assert rows[0]["bc_label_smoothing"] == 0.1
    for before, row in pairwise(rows):
        assert row["bc_label_smoothing"] == pytest.approx(0.1 * (1 - before["env/success"]))
    assert any(row["env/success"] > 0 for row in rows[:-1])
    again, _ = mixing(tmp_path, max_updates=8, save_steps=4, **options)
    again.train(resume_from_checkpoint=tmp_path / "checkpoint-4")
    assert read_metrics(file)[4]["bc_label_smoothing"] == rows[4]["bc_label_smoothing"]


def test_bc_tokens_may_be_weighed_by_their_probability(tmp_path):
    made, file = mixing(tmp_path, bc_weighting="p(1-p)", bc_label_smoothing=0.0, max_updates=1)
    made.train()
    (row,) = read_metrics(file)
    assert 0 < row["loss/bc_avg"] < row["loss/bc_nll_avg"] / 4  # p (1 - p) is at most 1/4


# ------------------------------------------------------------------------------------- before the first step


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0), (0.6, 0.8)])
def test_ratio_is_one_and_kl_is_zero_before_the_first_step(tmp_path, temperature, top_p):
    ratios = []

    class Watch(AgentPPOTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
            ratios.append(outputs["val/ratio"])
            return loss, outputs

    made = trainer(
        tmp_path,
        cls=Watch,
        temperature=temperature,
        top_p=top_p,
        max_updates=1,
        num_mini_batches=1,
        num_ppo_epochs=1,
        micro_batch_tokens=64,
    )
    metrics = made.train()
    assert len(ratios) > 1
    assert all((ratio - 1).abs().max() < 1e-5 for ratio in ratios)
    assert metrics["objective/kl"] == 0
    assert metrics["val/sampler_gap"] < 1e-5


# ------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize(
    "settings",
    [
        {
            "kl_control": "auto",
            "target_kl": 0.1,
            "kl_horizon": 10,
            "lr_scheduler_type": "linear",
            "cliprange_end": 0.1,
        },
        {"optim": "muon", "critic": "separate", "critic_lr_multiplier": 2.0},
    ],
    ids=["adamw", "muon"],
)
def test_four_updates_are_two_and_two_resumed_to_the_last_bit(tmp_path, settings):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    settings |= {"save_strategy": "steps", "save_steps": 2, "max_updates": 4}

    class StopAfterTwo(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 2

    first = trainer(whole, **settings)
    first.train()
    trainer(halves, callbacks=[StopAfterTwo()], **settings).train()
    torch.manual_seed(123)
    resumed = trainer(halves, **settings)
    resumed.train(resume_from_checkpoint=True)

    assert same(weights(first), weights(resumed))
    files = ("optimizer.pt", "rng_state.pt")
    for name in files:
        one, other = (checkpoint.load_tensors(d / "checkpoint-4" / name) for d in (whole, halves))
        assert repr(one) == repr(other)
    assert without_times(read_metrics(whole / "metrics.jsonl")) == without_times(
        read_metrics(halves / "metrics.jsonl")
    )
    assert resumed.kl_controller.value == first.kl_controller.value
    assert resumed.ledger.tokens_trained == first.ledger.tokens_trained
    assert [path.name for path in checkpoint.checkpoints(halves)] == ["checkpoint-2", "checkpoint-4"]


def test_an_unfinished_run_is_neither_overwritten_nor_mixed(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 1, "max_updates": 1}
    trainer(tmp_path, **settings).train()
    with pytest.raises(CheckpointError, match=r"resume_from_checkpoint=True.*overwrite_output_dir"):
        trainer(tmp_path, **settings).train()
    with pytest.raises(CheckpointError, match="seed=5, not 6"):
        trainer(tmp_path, seed=6, **settings).train(resume_from_checkpoint=True)
    with pytest.raises(CheckpointError, match="not the one that the run"):
        trainer(tmp_path, model=model(seed=9), **settings).train(resume_from_checkpoint=True)
    with pytest.raises(CheckpointError, match="cannot be loaded into LlamaForCausalLM"):
        trainer(tmp_path, model=model(hidden_size=16), kl_coef=0.0, **settings).train(
            resume_from_checkpoint=True
        )
    trainer(tmp_path, overwrite_output_dir=True, save_strategy="no", max_updates=1).train()
    assert checkpoint.checkpoints(tmp_path) == []
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1


def test_a_full_disk_ends_the_run_with_the_last_checkpoint_whole(tmp_path, monkeypatch):
    settings = {"save_strategy": "steps", "save_steps": 1}
    trainer(tmp_path, max_updates=1, **settings).train()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    made = trainer(tmp_path, max_updates=2, **settings)
    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(
        CheckpointError, match=r"checkpoint-2 could not be written.*disk is full.*checkpoint-1 is complete"
    ):
        made.train(resume_from_checkpoint=True)
    monkeypatch.undo()
    trainer(tmp_path, max_updates=2, **settings).train(resume_from_checkpoint=True)
    assert (tmp_path / "checkpoint-2").is_dir()


# ------------------------------------------------------------------------------------- what is written


def test_checkpoints_load_in_plain_transformers(tmp_path):
    made = trainer(tmp_path, max_updates=3, save_strategy="steps", save_steps=1, save_total_limit=2)
    made.train()
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["checkpoint-2", "checkpoint-3"]
    for name in ("checkpoint-3", "final"):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        assert same(loaded.state_dict(), made.actor.policy.state_dict())
        assert loaded.generation_config.eos_token_id == 2
        assert AutoTokenizer.from_pretrained(tmp_path / name).chat_template == tokenizer().chat_template
        assert (tmp_path / name / "value_head.safetensors").is_file()


def test_callbacks_see_the_run_and_metrics_are_written(tmp_path):
    events = []

    class Note(TrainerCallback):
        pass

    for event in (
        "init_end",
        "train_begin",
        "step_begin",
        "step_end",
        "log",
        "evaluate",
        "save",
        "train_end",
    ):

        def note(self, args, state, control, event=event, **kwargs):
            events.append((event, state.global_step))

        setattr(Note, f"on_{event}", note)

    made = trainer(
        tmp_path,
        callbacks=[Note()],
        save_strategy="steps",
        save_steps=2,
        eval_steps=2,
        eval_episodes=3,
        max_updates=2,
    )
    made.train()
    assert events == [
        ("init_end", 0),
        ("train_begin", 0),
        ("step_begin", 0),
        ("step_end", 1),
        ("log", 1),
        ("step_begin", 1),
        ("step_end", 2),
        ("log", 2),
        ("log", 2),
        ("evaluate", 2),
        ("save", 2),
        ("train_end", 2),
    ]
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 2]
    assert rows[2]["eval_n"] == 3
    assert rows[1]["episode"] == 16
    assert rows[1]["env_steps"] == made.ledger.env_steps > 16
    assert all(math.isfinite(v) for row in rows for v in row.values())


@pytest.mark.slow
def test_report_to_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    trainer(tmp_path, report_to="tensorboard", max_updates=1).train()
    assert list(tmp_path.rglob("events.out.tfevents*"))


# ------------------------------------------------------------------------------------- subclasses and options


def test_a_subclass_overrides_one_method(tmp_path):
    class Shorter(AgentPPOTrainer):
        def compute_rewards(self, episode, kl):
            return super().compute_rewards(episode, kl) - 0.5

    plain = trainer(tmp_path / "plain", max_updates=1, kl_coef=0.0).train()
    changed = trainer(tmp_path / "changed", cls=Shorter, max_updates=1, kl_coef=0.0).train()
    difference = plain["objective/rlhf_reward"] - changed["objective/rlhf_reward"]
    assert difference == pytest.approx(0.5 * plain["env/action_tokens"])


def test_reward_functions_add_to_the_environment_s(tmp_path):
    made = trainer(
        tmp_path, reward_funcs=[lambda t: 2.0 * t.turns[-1].num_tokens], max_updates=1, kl_coef=0.0
    )
    metrics = made.train()
    assert metrics["objective/rlhf_reward"] > 2.0
    assert metrics["env/return"] <= 1.0


def test_a_goal_s_other_episodes_are_the_baseline(tmp_path):
    made = trainer(
        tmp_path, episodes_per_update=8, episodes_per_goal=4, whiten_advantages=False, gamma=1.0, lam=1.0
    )
    played = made.collect(1)
    assert [t.seed for t in played] == [episode_seed(made.args.seed, 1, e // 4) for e in range(8)]
    assert len({t.seed for t in played}) == 2
    lengths = [t.num_action_tokens for t in played]
    totals = [float(e) for e in (0, 1, 0, 1, 1, 1, 1, 1)]
    episodes = [
        replace(EpisodeTensors.from_trajectory(t), values=torch.zeros(n), rewards=torch.eye(n)[-1] * total)
        for t, n, total in zip(played, lengths, totals)
    ]
    estimated = made.estimate_advantages(episodes, [0.0] * 8)
    expected = [-2 / 3, 2 / 3, -2 / 3, 2 / 3, 0, 0, 0, 0]
    for episode, advantage in zip(estimated, expected):
        torch.testing.assert_close(episode.advantages, torch.full_like(episode.advantages, advantage))


def test_every_micro_batch_split_gives_the_same_step(tmp_path):
    steps = [
        trainer(tmp_path / str(i), max_updates=1, micro_batch_tokens=tokens, per_device_train_batch_size=rows)
        for i, (tokens, rows) in enumerate([(10_000, 64), (64, 64), (10_000, 1)])
    ]
    losses = [made.train()["loss/policy_avg"] for made in steps]
    assert losses == pytest.approx([losses[0]] * 3, abs=1e-6)
    for made in steps[1:]:
        for one, other in zip(weights(steps[0]).values(), weights(made).values(), strict=True):
            torch.testing.assert_close(one, other, atol=2e-5, rtol=0)


@pytest.mark.parametrize("normalization", ["token", "episode"])
def test_the_loss_is_the_mean_over_tokens_or_episodes(tmp_path, normalization):
    """Against an independent loop, at a policy that has moved."""
    made = trainer(tmp_path, loss_normalization=normalization, ent_coef=0.1, num_ppo_epochs=1, kl_coef=0.0)
    seen = []
    original = made.compute_loss
    made.compute_loss = lambda m, batch, *rest: seen.append(batch) or original(m, batch, *rest)
    made._update(1)
    batch = next(b for b in seen if b.num_episodes > 1)
    loss, _ = original(made.model, batch, True)
    with torch.no_grad():
        out = made._forward(made.model, batch)
    per_episode: dict[int, list[float]] = {}
    for i, episode in enumerate(batch.episode_ids.tolist()):
        ratio = math.exp(out.logprobs[i] - batch.logprobs[i])
        advantage = batch.advantages[i].item()
        policy = max(-advantage * ratio, -advantage * min(max(ratio, 0.8), 1.2))
        near = min(max(out.values[i].item(), batch.values[i].item() - 0.2), batch.values[i].item() + 0.2)
        target = batch.returns[i].item()
        value = 0.5 * max((out.values[i].item() - target) ** 2, (near - target) ** 2)
        per_episode.setdefault(episode, []).append(policy + 0.5 * value - 0.1 * out.entropy[i].item())
    if normalization == "token":
        expected = sum(map(sum, per_episode.values())) / batch.num_action_tokens
    else:
        expected = sum(sum(x) / len(x) for x in per_episode.values()) / len(per_episode)
    assert loss.item() == pytest.approx(expected, abs=1e-5)


def test_no_action_token_gives_a_finite_loss_and_no_step(tmp_path):
    class KeepNothing(AgentPPOTrainer):
        def select(self, trajectories):
            return []

    made = trainer(tmp_path, cls=KeepNothing, max_updates=1)
    before = weights(made)
    metrics = made.train()
    assert same(before, weights(made))
    assert all(math.isfinite(value) for value in metrics.values())

    segment = Segment()
    segment.append_context([4, 5, 6])
    empty = EpisodeTensors.from_trajectory(Trajectory(segments=[segment], terminated=True))
    batch = made.collate([replace(empty, ref_logprobs=torch.zeros(0))])
    loss = made.compute_loss(made.model, batch)
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is None or not p.grad.any() for p in made.actor.parameters())


def test_the_epochs_stop_when_the_policy_has_moved(tmp_path):
    settings = {"max_updates": 1, "num_ppo_epochs": 4, "learning_rate": 1e-2}
    free = trainer(tmp_path / "free", target_kl=None, **settings).train()
    held = trainer(tmp_path / "held", target_kl=1e-3, **settings).train()
    assert free["policy/epochs"] == 4
    assert free["policy/stopped_by_kl"] == 0
    assert held["policy/epochs"] < 4
    assert held["policy/stopped_by_kl"] == 1


@pytest.mark.parametrize("action_format", ["plain", "tagged"])
def test_episodes_of_many_segments_are_learned_from(tmp_path, action_format):
    made = trainer(
        tmp_path,
        env_kwargs={"words": 3},
        context_policy="window",
        context_window=1,
        max_episode_tokens=400,
        action_format=action_format,
        max_turns=3,
        max_updates=1,
        num_ppo_epochs=1,
        num_mini_batches=1,
    )
    before, seen, collect = weights(made), [], made.collect
    made.collect = lambda update: seen.extend(collect(update)) or seen
    metrics = made.train()
    assert metrics["val/sampler_gap"] < 1e-5
    assert metrics["val/ratio"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["objective/kl"] == pytest.approx(0.0, abs=1e-5)
    assert all(math.isfinite(value) for value in metrics.values())
    assert not same(before, weights(made))
    for trajectory in seen:
        assert [turn.segment for turn in trajectory.turns] == [0, 1, 2]
        assert sum(sum(s.action_mask) for s in trajectory.segments) == trajectory.num_action_tokens
        if action_format == "tagged":  # a model that knows no tags: no turn reaches the environment
            assert (trajectory.truncation_cause, trajectory.score) == ("turn_limit", 0.0)
            assert all(turn.action_error and turn.answer is not None for turn in trajectory.turns)


def test_truncated_and_failed_episodes_are_learned_from(tmp_path):
    class Fails(EchoEnv):
        def step(self, action):
            if self.np_random.random() < 0.3:
                raise RuntimeError("the shop is closed")
            return super().step(action)

    metrics = trainer(tmp_path / "t", env_kwargs={"truncate": True}, max_updates=1).train()
    assert metrics["env/truncated_turn_limit"] == 1
    metrics = trainer(tmp_path / "f", env_factory=Fails, max_updates=1, max_env_retries=10).train()
    assert 0 < metrics["env/truncated_env_error"] < 1
    assert all(math.isfinite(value) for value in metrics.values())


# ------------------------------------------------------------------------------------- adapters, critics, precision


def test_lora_trains_the_adapter_only_and_the_reference_is_the_base(tmp_path):
    base = model()
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    made = trainer(
        tmp_path,
        model=base,
        peft_config=LoraConfig(**LORA),
        max_updates=2,
        save_strategy="steps",
        save_steps=1,
    )
    assert made.ref_model is None
    made.train()
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert rows[0]["objective/kl"] == 0
    assert rows[1]["objective/kl"] != 0
    after = made.actor.policy.unload().state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    loaded = PeftModel.from_pretrained(model(), tmp_path / "final")
    moved = [tensor.abs().max() for name, tensor in loaded.named_parameters() if "lora_B" in name]
    assert min(moved) > 0


def test_lora_resumes_to_the_last_bit(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 1, "max_updates": 2}
    first = trainer(tmp_path, peft_config=LoraConfig(**LORA), **settings)
    first.train()
    (tmp_path / "checkpoint-2").rename(tmp_path / "kept")
    resumed = trainer(tmp_path, peft_config=LoraConfig(**LORA), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert same(weights(first), weights(resumed))


def test_the_reference_of_a_policy_with_a_trained_adapter_is_that_policy(tmp_path):
    policy = get_peft_model(model(), LoraConfig(**LORA))
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    made = trainer(tmp_path, model=policy, max_updates=2)
    fingerprint = made.reference.fingerprint()
    made.train()
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert rows[0]["objective/kl"] == 0
    assert rows[1]["objective/kl"] != 0
    assert made.reference.fingerprint() == fingerprint
    names = {path.name for path in (tmp_path / "final").iterdir()}
    assert "adapter_model.safetensors" in names
    assert "trl_agent_reference" not in names


def test_a_separate_critic_leaves_the_policy_s_trunk_alone(tmp_path):
    made = trainer(
        tmp_path, critic="separate", value_model=model(seed=3), vf_coef=0.0, ent_coef=0.0, max_updates=1
    )
    before = weights(made)
    made.train()
    after = weights(made)
    trunk = [name for name in before if name.startswith("value_model.")]
    assert trunk
    assert all(torch.equal(before[name], after[name]) for name in trunk)
    assert (tmp_path / "final" / "value_model.safetensors").is_file()


def test_the_precision_asked_for_is_the_precision_used(tmp_path):
    low = trainer(tmp_path / "low", bf16=True, max_updates=1)
    assert low.accelerator.mixed_precision == "bf16"
    metrics = low.train()
    assert all(math.isfinite(value) for value in metrics.values())
    assert 0 < metrics["val/sampler_gap"] < 0.1
    full = trainer(tmp_path / "full", max_updates=1)
    assert full.accelerator.mixed_precision == "no"
    with pytest.raises(ValueError, match=r"weights are bfloat16.*bf16=True"):
        trainer(tmp_path / "no", model=model().to(torch.bfloat16))
    pure = trainer(tmp_path / "pure", model=model().to(torch.bfloat16), bf16=True, max_updates=1).train()
    assert pure["objective/kl"] == 0


def test_gradient_checkpointing_changes_nothing(tmp_path):
    plain = trainer(tmp_path / "plain", max_updates=1)
    plain.train()
    saving = trainer(tmp_path / "saving", max_updates=1, gradient_checkpointing=True)
    assert saving.actor.policy.is_gradient_checkpointing
    saving.train()
    for one, other in zip(weights(plain).values(), weights(saving).values(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_a_user_s_optimizer_gets_the_value_head(tmp_path):
    policy = model()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    made = trainer(tmp_path, model=policy, optimizers=(optimizer, None), max_updates=1)
    before = weights(made)
    made.train()
    after = weights(made)
    assert not torch.equal(before["value_head.bias"], after["value_head.bias"])
    assert not torch.equal(before["policy.lm_head.weight"], after["policy.lm_head.weight"])


# ------------------------------------------------------------------------------------- errors and endings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env_id": "x:Y-v0"}, "exactly one of env_id and env_factory"),
        ({"env_factory": None}, "exactly one of env_id and env_factory"),
        ({"bc_coef": 0.5}, "belong together"),
        ({"offline_trajectories": [Trajectory()]}, "belong together"),
        ({"reward_model": torch.nn.Identity()}, "reward_funcs"),
        ({"kl_coef": 0.0, "ref_model": torch.nn.Identity()}, "does not use it"),
        ({"value_model": torch.nn.Identity()}, "separate"),
        ({"optim": "galore_adamw", "optim_args": "rank=2"}, "not supported|requires|need"),
    ],
)
def test_contradictory_arguments_are_refused(tmp_path, settings, message):
    with pytest.raises((ValueError, ImportError), match=message):
        trainer(tmp_path, **settings)


def test_an_interrupt_closes_the_environments(tmp_path):
    closed = []

    class Interrupted(EchoEnv):
        def step(self, action):
            raise KeyboardInterrupt

        def close(self):
            closed.append(True)

    made = trainer(tmp_path, env_factory=Interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.train()
    assert len(closed) == 4
    assert made._pools == {}


def test_evaluation_on_goals_is_in_order_and_repeats(tmp_path):
    made = trainer(tmp_path, eval_env_kwargs={"words": 1})
    played = made.play([3, 1, 4, 1, 5], greedy=True)
    assert [t.goal_id for t in played] == [3, 1, 4, 1, 5]
    assert [t.turns[0].observation for t in played] == [f"say {WORDS[i]}" for i in (3, 1, 4, 1, 5)]
    assert played[1].turns[0].action == played[3].turns[0].action
    assert made._pools == {}
    sampled = [[t.turns[0].action for t in made.play(range(6), greedy=False)] for _ in range(2)]
    assert sampled[0] == sampled[1]
    metrics = made.evaluate([0, 1], metric_key_prefix="test")
    assert metrics["test_n"] == 2
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["test_n"] == 2


def test_seeds_depend_on_the_three_numbers():
    seeds = {episode_seed(a, b, c) for a in range(3) for b in range(3) for c in range(3)}
    assert len(seeds) == 27
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_the_package_imports_lightly():
    import subprocess
    import sys

    code = (
        "import sys, trl_agent; assert 'torch' not in sys.modules; assert 'AgentPPOTrainer' in dir(trl_agent)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
    import trl_agent

    assert trl_agent.AgentPPOTrainer is AgentPPOTrainer
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        trl_agent.Nothing  # noqa: B018
