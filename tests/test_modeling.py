from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, TaskType, get_peft_model
from torch import nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaModel,
    T5Config,
    T5ForConditionalGeneration,
)

from tests.fakes import VOCAB_SIZE, make_trajectory, tiny_gpt2, tiny_llama, tiny_llama_config
from trl_agent.batch import EpisodeTensors, collate
from trl_agent.losses import policy_loss, value_loss
from trl_agent.modeling import ActorCritic
from trl_agent.trajectory import Segment, Trajectory

MODELS = {"llama": tiny_llama, "gpt2": tiny_gpt2}


def _episodes():
    shapes = [[(6, 3), (9, 2)], [(4, 2)], [(12, 4), (7, 1), (5, 3)], [(3, 5), (2, 2)]]
    result = []
    for seed, shape in enumerate(shapes):
        cut = (2,) if seed == 2 else ()
        trajectory = make_trajectory(shape, seed=seed, new_segment_at=cut, truncated=seed == 1)
        n = trajectory.num_action_tokens
        generator = torch.Generator().manual_seed(seed)
        values, advantages = torch.randn(2, n, generator=generator)
        episode = EpisodeTensors.from_trajectory(trajectory)
        result.append(
            replace(
                episode, values=values, advantages=advantages, returns=values + advantages, rewards=values
            )
        )
    return result


def _forward(model, batch, **kwargs):
    return model(
        batch.input_ids,
        batch.attention_mask,
        batch.position_ids,
        batch.action_rows,
        batch.action_cols,
        batch.last_rows,
        batch.last_cols,
        **kwargs,
    )


def _with_random_head(model):
    torch.manual_seed(5)
    nn.init.normal_(model.value_head.weight, std=0.3)
    return model


def _loss(model, batch, temperature=0.6):
    out = _forward(model, batch, temperature=temperature)
    # old log-probabilities near the new ones, so that some tokens clip and some do not
    old = out.logprobs.detach() + 0.3 * torch.sin(7.0 * batch.advantages)
    policy = policy_loss(out.logprobs, old, batch.advantages, 0.2, 0.28).per_token
    value = value_loss(out.values, batch.values, batch.returns, 0.2)
    return (policy + 0.1 * value - 0.01 * out.entropy).sum()


def _loss_and_grads(model, batches, total):
    model.zero_grad()
    losses = [_loss(model, batch) / total for batch in batches]
    for loss in losses:
        loss.backward()
    return sum(loss.item() for loss in losses), {n: p.grad for n, p in model.named_parameters()}


def _assert_same(a, b):
    assert a[0] == pytest.approx(b[0], abs=1e-5)
    for name, grad in a[1].items():
        torch.testing.assert_close(grad, b[1][name], atol=2e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_equals_the_models_own_logits(name, temperature):
    """An independent loop: one unpadded row at a time through the whole model."""
    lm = MODELS[name]()
    model = _with_random_head(ActorCritic(copy.deepcopy(lm), chunk_size=4))
    episodes = _episodes()
    out = _forward(model, collate(episodes, 0), temperature=temperature)
    logprobs, entropies, values, last = [], [], [], []
    for episode in episodes:
        rows = [torch.tensor([segment.input_ids]) for segment in episode.trajectory.segments]
        outputs = [lm(row, output_hidden_states=True) for row in rows]
        for s, t in episode.trajectory.action_positions():
            log_p = torch.log_softmax(outputs[s].logits[0, t - 1] / temperature, -1)
            logprobs.append(log_p[rows[s][0, t]])
            entropies.append(-(log_p.exp() * log_p).sum())
            values.append(model.value_head(outputs[s].hidden_states[-1][0, t - 1])[0])
        last.append(model.value_head(outputs[-1].hidden_states[-1][0, -1])[0])
    for ours, expected in zip(
        (out.logprobs, out.entropy, out.values, out.last_values),
        (logprobs, entropies, values, last),
        strict=True,
    ):
        torch.testing.assert_close(ours, torch.stack(expected), atol=1e-5, rtol=1e-4)
        assert ours.dtype == torch.float32
    assert (out.entropy >= 0).all()


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradient_do_not_depend_on_how_a_batch_is_laid_out(name):
    model = _with_random_head(ActorCritic(MODELS[name]()))
    episodes = _episodes()
    total = sum(e.num_action_tokens for e in episodes)
    reference = _loss_and_grads(model, [collate(episodes, 0)], total)
    layouts = {
        "left": [collate(episodes, 0, "left")],
        "more padding": [collate(episodes, 0, "right", 64)],
        "more padding, left": [collate(episodes, 0, "left", 64)],
        "another pad token": [collate(episodes, 9, "right", 64)],
        "order": [collate(episodes[::-1], 0)],
        "one by one": [collate([e], 0) for e in episodes],
        "uneven split": [collate(episodes[:3], 0, "left"), collate(episodes[3:], 0)],
    }
    for batches in layouts.values():
        _assert_same(_loss_and_grads(model, batches, total), reference)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_no_action_token_gives_a_loss_of_zero_and_zero_gradients(name, critic):
    trajectory = Trajectory(terminated=True, segments=[Segment()])
    trajectory.segments[0].append_context([4, 5, 6])
    model = ActorCritic(MODELS[name](), critic=critic)
    model_out = _forward(model, collate([EpisodeTensors.from_trajectory(trajectory)], 0))
    loss = (model_out.logprobs + model_out.entropy + model_out.values).sum()
    loss.backward()
    assert loss.item() == 0.0
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name  # else data parallelism would wait for it
        assert parameter.grad.abs().max() == 0


def test_nan_at_masked_positions_never_reaches_the_loss():
    episodes = _episodes()
    for episode in episodes:
        for segment in episode.trajectory.segments:
            segment.logprobs = [
                value if counts else float("nan")
                for value, counts in zip(segment.logprobs, segment.action_mask, strict=True)
            ]
    model = ActorCritic(tiny_llama())
    loss, grads = _loss_and_grads(model, [collate(episodes, 0)], 1)
    assert loss == loss
    assert all(grad.isfinite().all() for grad in grads.values())


def test_logits_exist_at_action_positions_only_and_by_the_chunk(monkeypatch):
    """No tensor of B * T * V elements, nor N * V where chunks are on, is ever made."""
    from torch.utils._python_dispatch import TorchDispatchMode

    import trl_agent.token_logprobs as token_logprobs

    monkeypatch.setattr(token_logprobs, "DENSE_ELEMENTS", 0)
    vocab = 5000
    model = ActorCritic(tiny_llama(vocab_size=vocab), chunk_size=4)
    batch = collate(_episodes(), 0)
    model.check_logits()
    hidden_size, row_counts = 32, set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for item in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(item, torch.Tensor) and item.dim() >= 2 and item.shape[-1] == vocab:
                    row_counts.add(item.shape[:-1].numel())
            return result

    with Watch():
        _loss(model, batch).backward()
    assert batch.num_action_tokens > 4
    assert row_counts - {hidden_size} == {4, batch.num_action_tokens % 4}  # weight.t() is (hidden_size, V)


@pytest.mark.parametrize("tie", [False, True])
def test_output_layer_gets_its_gradient(tie):
    lm = tiny_llama(tie_word_embeddings=tie)
    dense_lm = copy.deepcopy(lm)
    batch = collate(_episodes(), 0)
    _forward(ActorCritic(lm, critic="none", chunk_size=3), batch).logprobs.sum().backward()
    logits = dense_lm(batch.input_ids, attention_mask=batch.attention_mask).logits.log_softmax(-1)
    logits[batch.action_rows, batch.action_cols - 1, batch.action_ids].sum().backward()
    torch.testing.assert_close(lm.lm_head.weight.grad, dense_lm.lm_head.weight.grad, atol=1e-4, rtol=1e-4)
    embedding, dense_embedding = lm.model.embed_tokens.weight, dense_lm.model.embed_tokens.weight
    torch.testing.assert_close(embedding.grad, dense_embedding.grad, atol=1e-4, rtol=1e-4)
    assert (lm.lm_head.weight is embedding) == tie


LORA = {
    "attention": LoraConfig(target_modules=["q_proj", "v_proj"], r=4, task_type=TaskType.CAUSAL_LM),
    "lm_head": LoraConfig(target_modules=["q_proj", "lm_head"], r=4, task_type=TaskType.CAUSAL_LM),
    "modules_to_save": LoraConfig(
        target_modules=["q_proj"], modules_to_save=["lm_head"], r=4, task_type=TaskType.CAUSAL_LM
    ),
}


@pytest.mark.parametrize("kind", LORA)
def test_peft(kind):
    base = tiny_llama()
    batch = collate(_episodes(), 0)
    plain = _forward(ActorCritic(copy.deepcopy(base)), batch)
    peft_model = get_peft_model(base, LORA[kind])
    for name, parameter in peft_model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    model = ActorCritic(peft_model, chunk_size=5)
    out = _forward(model, batch)
    own = peft_model(batch.input_ids, attention_mask=batch.attention_mask).logits.log_softmax(-1)
    torch.testing.assert_close(
        out.logprobs, own[batch.action_rows, batch.action_cols - 1, batch.action_ids], atol=1e-5, rtol=1e-4
    )
    assert (out.logprobs - plain.logprobs).abs().max() > 1e-3
    with torch.no_grad(), peft_model.disable_adapter():
        reference = _forward(model, batch)
    torch.testing.assert_close(reference.logprobs, plain.logprobs, atol=1e-5, rtol=1e-4)
    out.logprobs.sum().backward()
    trained = {n for n, p in peft_model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    wanted = {n for n, p in peft_model.named_parameters() if p.requires_grad}
    assert trained == wanted
    assert all("lora" in n or "modules_to_save" in n for n in wanted)


def test_value_head_starts_at_zero_in_fp32_and_trains_the_trunk_only_when_shared():
    batch = collate(_episodes(), 0)
    shared = ActorCritic(tiny_llama().bfloat16())
    assert shared.value_head.weight.dtype == torch.float32
    out = _forward(shared, batch)
    assert out.values.abs().max() == 0
    assert out.last_values.abs().max() == 0
    assert out.values.dtype == torch.float32
    separate = _with_random_head(ActorCritic(tiny_llama(), critic="separate"))
    _forward(separate, batch).values.sum().backward()
    assert all(p.grad is None or p.grad.abs().max() == 0 for p in separate.policy.parameters())
    assert separate.value_model.layers[0].self_attn.q_proj.weight.grad.abs().sum() > 0
    own = _with_random_head(ActorCritic(tiny_llama(), critic="separate", value_model=tiny_gpt2()))
    _forward(own, batch).values.sum().backward()
    assert own.value_model.transformer.wte.weight.grad.abs().sum() > 0


def test_what_is_not_asked_for_is_none():
    batch = collate(_episodes(), 0)
    out = _forward(ActorCritic(tiny_llama(), critic="none"), batch, with_entropy=False)
    assert out.entropy is out.values is out.last_values is None
    model = ActorCritic(tiny_llama())
    out = model(
        batch.input_ids, batch.attention_mask, batch.position_ids, batch.action_rows, batch.action_cols
    )
    assert out.values.shape == (batch.num_action_tokens,)
    assert out.last_values is None


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_value_head_is_saved_and_loaded(tmp_path, critic):
    batch = collate(_episodes(), 0)
    first = _with_random_head(ActorCritic(tiny_llama(seed=1), critic=critic))
    first.save_value_head(tmp_path / "critic")
    second = ActorCritic(tiny_llama(seed=1 if critic == "shared" else 2), critic=critic)
    second.load_value_head(tmp_path / "critic")
    a, b = _forward(first, batch), _forward(second, batch)
    torch.testing.assert_close(a.values, b.values, atol=0, rtol=0)


def test_missing_value_head_is_named(tmp_path):
    ActorCritic(tiny_llama()).save_value_head(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"value_model\.safetensors.*another critic"):
        ActorCritic(tiny_llama(), critic="separate").load_value_head(tmp_path)


def test_bf16_autocast():
    batch = collate(_episodes(), 0)
    model = _with_random_head(ActorCritic(tiny_llama(initializer_range=0.05)))
    exact = _forward(model, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = _forward(model, batch)
        loss = out.logprobs.sum() + out.values.sum() + out.entropy.sum()
    loss.backward()
    assert {out.logprobs.dtype, out.values.dtype, out.entropy.dtype} == {torch.float32}
    torch.testing.assert_close(out.logprobs, exact.logprobs, atol=0.05, rtol=0.02)
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_gradient_checkpointing_changes_nothing():
    batch = collate(_episodes(), 0)
    model = _with_random_head(ActorCritic(tiny_llama(), critic="separate"))
    model.train()
    plain = _loss_and_grads(model, [batch], 1)
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    _assert_same(_loss_and_grads(model, [batch], 1), plain)
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing


SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}


@pytest.mark.parametrize(
    "lm",
    [
        pytest.param(
            lambda: Gemma2ForCausalLM(
                Gemma2Config(**SHAPE, head_dim=8, final_logit_softcapping=2.0, attn_implementation="eager")
            ),
            id="softcap",
        ),
        pytest.param(lambda: GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=4.0)), id="scale"),
    ],
)
def test_models_that_transform_their_logits(lm):
    torch.manual_seed(0)
    policy = lm()
    batch = collate(_episodes(), 0)
    out = _forward(ActorCritic(policy), batch)
    own = policy(batch.input_ids, attention_mask=batch.attention_mask).logits.log_softmax(-1)
    torch.testing.assert_close(
        out.logprobs, own[batch.action_rows, batch.action_cols - 1, batch.action_ids], atol=1e-5, rtol=1e-4
    )


def test_an_unknown_transformation_is_refused_by_name():
    class Odd(type(tiny_llama())):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            out.logits = out.logits * 3.0
            return out

    model = ActorCritic(Odd(tiny_llama_config()))
    with pytest.raises(ValueError, match="Odd: logits"):
        _forward(model, collate(_episodes(), 0))


def test_models_that_cannot_be_driven_are_refused_by_name():
    with pytest.raises(ValueError, match="AutoModelForCausalLM"):
        ActorCritic(LlamaModel(tiny_llama_config()))
    t5 = T5ForConditionalGeneration(
        T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    )
    with pytest.raises(ValueError, match="encoder-decoder"):
        ActorCritic(t5)
    prefix = get_peft_model(
        tiny_llama(), PrefixTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=2)
    )
    with pytest.raises(ValueError, match="prompt learning"):
        ActorCritic(prefix)
    with pytest.raises(ValueError, match="critic"):
        ActorCritic(tiny_llama(), critic="both")
    with pytest.raises(ValueError, match="does not use it"):
        ActorCritic(tiny_llama(), value_model=tiny_llama())


def test_greedy_temperature_is_refused():
    with pytest.raises(ValueError, match="temperature"):
        _forward(ActorCritic(tiny_llama()), collate(_episodes(), 0), temperature=0.0)
