import dataclasses

import pytest
from trl import TrlParser

from trl_agent.ppo_config import AgentPPOConfig


def test_without_an_accelerator_it_runs_on_the_cpu_in_fp32(tmp_path):
    config = AgentPPOConfig(output_dir=str(tmp_path))
    assert config.use_cpu
    assert config.precision == "no"
    assert config.device.type == "cpu"


def test_the_launcher_s_precision_is_heard(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert AgentPPOConfig(output_dir=str(tmp_path)).precision == "bf16"
    assert AgentPPOConfig(output_dir=str(tmp_path), bf16=False).precision == "no"


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("gamma", 1.5, r"\[0, 1\]"),
        ("temperature", 0.0, "above 0"),
        ("top_p", 0.0, r"\(0, 1\]"),
        ("episodes_per_update", 0, "at least 1"),
        ("cliprange", 1.0, r"\(0, 1\)"),
        ("kl_estimator", "k9", "k1"),
        ("schedule", "chaos", "lockstep"),
        ("learning_rate", float("nan"), "at least 0"),
        ("max_turns", 0, "at least 1"),
        ("eval_strategy", "epoch", "steps"),
        ("lr_scheduler_type", "reduce_lr_on_plateau", "schedule"),
        ("target_kl", -1.0, "above 0"),
        ("num_envs", "many", "at least 1"),
        ("context_policy", "recent", "window"),
        ("max_episode_tokens", 1, "at least 2"),
        ("action_format", "xml", "tagged"),
    ],
)
def test_a_value_out_of_range_is_named(tmp_path, field, value, allowed):
    with pytest.raises(ValueError, match=rf"^{field}={value!r} .*{allowed}"):
        AgentPPOConfig(output_dir=str(tmp_path), **{field: value})


@pytest.mark.parametrize(
    ("field", "value", "advice"),
    [
        ("max_steps", 3, "max_updates"),
        ("response_length", 7, "max_new_tokens"),
        ("whiten_rewards", True, "whiten_advantages"),
        ("gradient_accumulation_steps", 4, "micro_batch_tokens"),
        ("dataloader_num_workers", 2, "default"),
        ("neftune_noise_alpha", 0.1, "default"),
        ("reward_model_path", "x", "default"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(tmp_path, field, value, advice):
    with pytest.raises(ValueError, match=f"{field}={value!r} is not used.*{advice}"):
        AgentPPOConfig(output_dir=str(tmp_path), **{field: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kl_control": "auto", "kl_coef": 0.0}, "kl_coef above 0"),
        ({"cliprange_end": 0.1, "cliprange_high": 0.3}, "cliprange_end"),
        ({"bf16": True, "fp16": True}, "at most one"),
        ({"context_window": 3}, "context_window=3 is not used"),
        ({"context_policy": "window"}, "context_window=None is out of range"),
        ({"max_length": 512, "max_episode_tokens": 512}, "max_episode_tokens=512 changes nothing"),
        ({"fp16": True}, "needs a GPU"),
    ],
)
def test_contradictions_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        AgentPPOConfig(output_dir=str(tmp_path), **settings)


def test_a_copy_with_one_change(tmp_path):
    config = AgentPPOConfig(output_dir=str(tmp_path), optim="muon", eval_steps=5, cliprange_high=0.28)
    assert config.clip == (0.2, 0.28)
    assert config.eval_strategy == "steps"
    copied = dataclasses.replace(config, gamma=0.5)
    assert (copied.gamma, copied.optim) == (0.5, "muon")


@pytest.mark.parametrize(
    ("updates", "given", "expected"), [(2, None, 8), (10, None, 40), (99, None, 100), (2, 64, 64)]
)
def test_an_evaluation_is_as_long_as_the_run_deserves(tmp_path, updates, given, expected):
    config = AgentPPOConfig(output_dir=str(tmp_path), max_updates=updates, eval_episodes=given)
    assert config.eval_episodes == expected


def test_the_command_line(tmp_path):
    parser = TrlParser(AgentPPOConfig)
    (config,) = parser.parse_args_and_config(
        [
            "--output_dir",
            str(tmp_path),
            "--optim",
            "muon",
            "--bf16",
            "true",
            "--kl_control",
            "auto",
            "--top_p",
            "0.9",
            "--context_policy",
            "window",
            "--context_window",
            "3",
            "--action_format",
            "tagged",
        ]
    )
    assert (config.context_policy, config.context_window, config.action_format) == ("window", 3, "tagged")
    assert (config.optim, config.bf16, config.kl_control, config.top_p) == ("muon", True, "auto", 0.9)
