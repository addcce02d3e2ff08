"""Generation with kept caches against plain forward passes over the whole conversation."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from trl_agent.generation import GenerationRequest, GenerationResult, SamplingParams, TransformersBackend
from trl_agent.generation.sampling import row_uniforms

VOCABULARY = 61
STOP = 5


def llama(**changes: Any) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "attention_dropout": 0.3,
    }
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **changes}))


def qwen() -> Any:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            initializer_range=0.2,
        )
    )


def gpt2() -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=256, initializer_range=0.2
        )
    )


MODELS = {"llama": llama, "qwen": qwen, "gpt2": gpt2}


def backend(model: Any, **changes: Any) -> TransformersBackend:
    return TransformersBackend(model, **{"pad_token_id": 0, "stop_token_ids": [STOP], **changes})


def play(
    engine: TransformersBackend, contexts: Sequence[Sequence[list[int]]], sampling: SamplingParams
) -> tuple[list[list[int]], list[list[GenerationResult]]]:
    """Play conversations turn by turn: contexts[i][k] comes before action k of conversation i."""
    histories: list[list[int]] = [[] for _ in contexts]
    results: list[list[GenerationResult]] = [[] for _ in contexts]
    for turn in range(max(map(len, contexts))):
        active = [i for i, context in enumerate(contexts) if turn < len(context)]
        for i in active:
            histories[i] += contexts[i][turn]
        requests = [GenerationRequest(("c", i), list(histories[i]), (0, 1, i, turn)) for i in active]
        for i, result in zip(active, engine.generate(requests, sampling)):
            histories[i] += result.token_ids
            results[i].append(result)
    return histories, results


def contexts(seed: int, count: int = 5, turns: int = 4) -> list[list[list[int]]]:
    rng = random.Random(seed)
    return [
        [
            [rng.randrange(6, VOCABULARY) for _ in range(rng.randint(1, 30))]
            for _ in range(rng.randint(1, turns))
        ]
        for _ in range(count)
    ]


def plain_logprobs(model: Any, ids: list[int], temperature: float) -> torch.Tensor:
    """Log p(ids[t] | ids[:t]) of one unpadded forward pass, at index t - 1."""
    model.eval()
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0].float() / temperature
    return torch.log_softmax(logits, -1)[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


def check_logprobs(
    model: Any, context: Sequence[list[int]], results: Sequence[GenerationResult], temperature: float
) -> None:
    ids: list[int] = []
    for new, result in zip(context, results):
        ids += new
        start = len(ids)
        ids += result.token_ids
        expected = plain_logprobs(model, ids, temperature)[start - 1 :]
        torch.testing.assert_close(torch.tensor(result.logprobs), expected, atol=1e-5, rtol=0)


def token_ids(results: Sequence[Sequence[GenerationResult]]) -> list[list[list[int]]]:
    return [[result.token_ids for result in row] for row in results]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_a_plain_forward_pass(name: str, temperature: float) -> None:
    model = MODELS[name]()
    talk = contexts(1)
    _, results = play(backend(model), talk, SamplingParams(temperature=temperature, max_new_tokens=8))
    for context, row in zip(talk, results):
        check_logprobs(model, context, row, temperature)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("greedy", [True, False])
def test_kept_caches_change_nothing(name: str, greedy: bool) -> None:
    model = MODELS[name]()
    sampling = SamplingParams(temperature=0.0 if greedy else 1.0, max_new_tokens=8)
    kept = play(backend(model), contexts(2), sampling)
    for other in (backend(model, keep_cache=False), backend(model, max_prefill_tokens=16, max_batch_rows=3)):
        again = play(other, contexts(2), sampling)
        assert again[0] == kept[0]
        for row, expected in zip(again[1], kept[1]):
            for one, two in zip(row, expected):
                assert one.logprobs == pytest.approx(two.logprobs, abs=1e-5)


def test_a_sample_does_not_depend_on_the_batch() -> None:
    model, talk, sampling = llama(), contexts(3, count=7), SamplingParams(max_new_tokens=8)
    together, _ = play(backend(model), talk, sampling)
    engine = backend(model)
    for i, context in enumerate(talk):
        history: list[int] = []
        for turn, new in enumerate(context):
            history += new
            request = GenerationRequest(("alone", i), list(history), (0, 1, i, turn))
            history += engine.generate([request], sampling)[0].token_ids
        assert history == together[i]


def test_only_new_tokens_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    engine = backend(model)
    engine.generate([GenerationRequest("warm", [1, 2], (0,))], SamplingParams(max_new_tokens=1))
    widths: list[int] = []
    forward = model.model.embed_tokens.forward

    def spy(ids: torch.Tensor) -> torch.Tensor:
        widths.append(ids.shape[1])
        return forward(ids)

    monkeypatch.setattr(model.model.embed_tokens, "forward", spy)
    ids = list(range(6, 46))
    first = engine.generate([GenerationRequest("a", ids, (0, 0))], SamplingParams(max_new_tokens=3))[0]
    assert widths == [40, *[1] * (len(first.token_ids) - 1)]
    widths.clear()
    ids = [*ids, *first.token_ids, 7, 8, 9]
    second = engine.generate([GenerationRequest("a", ids, (0, 1))], SamplingParams(max_new_tokens=3))[0]
    # The last sampled token was never fed, so it comes with the three new ones.
    assert widths == [4, *[1] * (len(second.token_ids) - 1)]


def test_actions_end_at_a_stop_token_or_at_their_limit() -> None:
    model = llama()
    requests = [
        GenerationRequest(i, [6 + i, 9], (4, i), max_new_tokens=None if i % 2 else 3) for i in range(40)
    ]
    results = backend(model).generate(requests, SamplingParams(max_new_tokens=40))
    assert any(result.finished for result in results)
    assert any(not result.finished for result in results)
    for request, result in zip(requests, results):
        limit = request.max_new_tokens or 40
        assert len(result.token_ids) == len(result.logprobs) <= limit
        assert result.finished == (result.token_ids[-1] == STOP)
        assert STOP not in result.token_ids[:-1]
        assert result.finished or len(result.token_ids) == limit
        check_logprobs(model, [list(request.input_ids)], [result], 1.0)


def test_rows_that_finish_early_leave_the_batch_and_keep_their_caches() -> None:
    """Rows are moved while others still decode; the next turn must find each one's own cache."""
    model, rng = llama(), random.Random(5)
    talk = [
        [[rng.randrange(6, VOCABULARY) for _ in range(rng.randint(2, 12))] for _ in range(4)]
        for _ in range(24)
    ]
    sampling = SamplingParams(max_new_tokens=24)
    histories, results = play(backend(model), talk, sampling)
    lengths = {len(result.token_ids) for row in results for result in row}
    assert len(lengths) > 8  # ragged enough for rows to be dropped again and again
    assert play(backend(model, keep_cache=False), talk, sampling)[0] == histories
    for context, row in zip(talk, results):
        check_logprobs(model, context, row, 1.0)


def test_the_oldest_cache_makes_room_and_is_encoded_again() -> None:
    model, sampling = llama(), SamplingParams(max_new_tokens=6)
    talk = contexts(6, count=9)
    expected, _ = play(backend(model), talk, sampling)
    engine = backend(model, max_batch_rows=2, max_kept_rows=3)
    assert play(engine, talk, sampling)[0] == expected
    assert engine._arena is not None
    assert engine._arena.num_rows == 3


def test_a_subset_of_the_conversations_goes_on_in_any_order() -> None:
    model, rng, sampling = llama(), random.Random(7), SamplingParams(max_new_tokens=6)
    engine, plain = backend(model), backend(model, keep_cache=False)
    histories: dict[int, list[int]] = {}
    for turn in range(25):
        chosen = rng.sample(range(8), rng.randint(1, 8))
        requests = []
        for i in chosen:
            if i in histories and rng.random() < 0.2:
                engine.release(i)
                del histories[i]
            new = [rng.randrange(6, VOCABULARY) for _ in range(rng.randint(1, 9))]
            histories[i] = [*histories.get(i, []), *new]
            requests.append(GenerationRequest(i, list(histories[i]), (turn, i)))
        results = engine.generate(requests, sampling)
        assert [r.token_ids for r in results] == [r.token_ids for r in plain.generate(requests, sampling)]
        for i, result in zip(chosen, results):
            histories[i] += result.token_ids


def test_a_context_that_was_rewritten_is_encoded_from_where_it_differs() -> None:
    model, sampling = llama(), SamplingParams(max_new_tokens=4)
    engine = backend(model)
    engine.generate([GenerationRequest("a", [7, 8, 9, 10, 11], (0,))], sampling)
    request = GenerationRequest("a", [7, 8, 30, 31], (1,))
    result = engine.generate([request], sampling)[0]
    assert result.token_ids == backend(model).generate([request], sampling)[0].token_ids
    check_logprobs(model, [[7, 8, 30, 31]], [result], 1.0)
    # The same context again: its last token is encoded once more.
    assert engine.generate([request], sampling)[0].token_ids == result.token_ids


def test_changed_weights_are_used_and_the_memory_is_given_back() -> None:
    model, sampling = llama(), SamplingParams(temperature=0.0, max_new_tokens=6)
    engine = backend(model)
    request = GenerationRequest("a", [7, 8, 9, 10, 11], (0,))
    before = engine.generate([request], sampling)[0]
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    engine.on_weights_changed()
    assert engine._arena is not None
    assert all(layer.keys is None for layer in engine._arena.layers)
    after = engine.generate([request], sampling)[0]
    assert after.token_ids == backend(model).generate([request], sampling)[0].token_ids
    assert after.token_ids != before.token_ids


def test_training_mode_is_restored_module_by_module_and_dropout_is_off() -> None:
    model = llama()
    model.train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    request = GenerationRequest("a", [7, 8, 9], (0,))
    result = backend(model).generate([request], SamplingParams(max_new_tokens=8))[0]
    assert [module.training for module in model.modules()] == modes
    check_logprobs(model, [[7, 8, 9]], [result], 1.0)
    assert not any(weight.grad is not None for weight in model.parameters())


def test_adapters_are_in_force() -> None:
    model = get_peft_model(
        llama(), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5)
    talk = contexts(8, count=3)
    histories, results = play(backend(model), talk, SamplingParams(max_new_tokens=8))
    for context, row in zip(talk, results):
        check_logprobs(model, context, row, 1.0)
    with model.disable_adapter():
        assert play(backend(model), talk, SamplingParams(max_new_tokens=8))[0] != histories


def test_top_p_and_top_k_leave_out_the_tail_and_keep_the_logprobs() -> None:
    model = llama()
    for sampling in (SamplingParams(top_p=0.5, max_new_tokens=6), SamplingParams(top_k=2, max_new_tokens=6)):
        results = backend(model).generate([GenerationRequest(i, [9, 10], (i,)) for i in range(20)], sampling)
        for result in results:
            check_logprobs(model, [[9, 10]], [result], 1.0)
            ids = [9, 10]
            for token in result.token_ids:
                with torch.no_grad():
                    probs = model(torch.tensor([ids])).logits[0, -1].softmax(-1)
                better = probs[probs > probs[token]]
                assert float(better.sum()) < sampling.top_p + 1e-6
                assert not sampling.top_k or len(better) < sampling.top_k
                ids.append(token)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            lambda: MistralForCausalLM(
                MistralConfig(
                    vocab_size=VOCABULARY,
                    hidden_size=32,
                    intermediate_size=48,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    sliding_window=8,
                    initializer_range=0.2,
                )
            ),
            "DynamicSlidingWindowLayer",
        ),
        (
            lambda: MambaForCausalLM(
                MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8)
            ),
            "takes no",
        ),
        (
            lambda: BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=2)),
            "takes no position_ids",
        ),
    ],
    ids=["sliding-window", "recurrent", "alibi"],
)
def test_models_whose_cache_cannot_be_kept_are_run_by_reencoding(
    model: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    policy, talk = model(), contexts(9, count=4, turns=3)
    with caplog.at_level(logging.WARNING):
        _, results = play(backend(policy), talk, SamplingParams(max_new_tokens=5))
    assert reason in caplog.text
    for context, row in zip(talk, results):
        check_logprobs(policy, context, row, 1.0)


def test_a_model_that_misreads_the_cache_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    class Forgetful(LlamaForCausalLM):
        def forward(self, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None,
                    cache: Any = None, **kwargs: Any) -> Any:  # fmt: skip
            if attention_mask is not None and attention_mask.ndim == 4:
                position_ids = None
            return super().forward(input_ids, attention_mask, position_ids, cache, **kwargs)

    torch.manual_seed(0)
    model = Forgetful(llama().config)
    with caplog.at_level(logging.WARNING):
        result = backend(model).generate(
            [GenerationRequest("a", [7, 8, 9], (0,))], SamplingParams(max_new_tokens=4)
        )
    assert "logits differ" in caplog.text
    check_logprobs(model, [[7, 8, 9]], result, 1.0)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_bfloat16_follows_the_model_and_autocast_when_asked(attention: str) -> None:
    sampling = SamplingParams(temperature=0.0, max_new_tokens=4)
    request = GenerationRequest("a", [7, 8, 9], (0,))
    model = llama(attn_implementation=attention)
    engine = backend(model, autocast_dtype=torch.bfloat16)
    result = engine.generate([request], sampling)[0]
    assert engine._arena is not None
    assert engine._arena.layers[0].keys.dtype == torch.bfloat16
    ids = [7, 8, 9, *result.token_ids]
    assert result.logprobs == pytest.approx(plain_logprobs(model, ids, 1.0)[2:].tolist(), abs=0.2)
    plain = backend(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert plain.generate([request], sampling)[0] == result
    assert plain._arena is not None
    assert plain._arena.layers[0].keys.dtype == torch.bfloat16
    plain.generate([request], sampling)
    assert plain._arena.layers[0].keys.dtype == torch.float32
    half = llama(attn_implementation=attention).to(torch.bfloat16)
    engine = backend(half)
    assert engine.generate([request], sampling)[0].logprobs == pytest.approx(result.logprobs, abs=0.3)
    assert engine._arena is not None


def test_diverged_weights_are_named() -> None:
    model = llama()
    engine = backend(model)
    request = GenerationRequest("a", [7, 8], (0,))
    engine.generate([request], SamplingParams())
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    with pytest.raises(FloatingPointError, match="NaN or infinite"):
        engine.generate([request], SamplingParams())


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([GenerationRequest("a", [7], (0,)), GenerationRequest("a", [8], (0,))], "share a key"),
        ([GenerationRequest("a", [], (0,))], "no input_ids"),
        ([GenerationRequest("a", [7] * 500, (0,))], "max_position_embeddings"),
        ([GenerationRequest("a", [7], (0,), max_new_tokens=0)], "max_new_tokens"),
    ],
)
def test_bad_requests(requests: list[GenerationRequest], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        backend(llama()).generate(requests, SamplingParams(max_new_tokens=20))


def test_no_requests_give_no_results() -> None:
    assert backend(llama()).generate([], SamplingParams()) == []


def test_bad_settings() -> None:
    with pytest.raises(ValueError, match="stop_token_ids"):
        backend(llama(), stop_token_ids=[])
    with pytest.raises(ValueError, match="max_kept_rows"):
        backend(llama(), max_kept_rows=4, max_batch_rows=8)


def test_random_numbers_belong_to_their_key() -> None:
    assert (row_uniforms((1, 2), 3) == row_uniforms((1, 2), 5)[:3]).all()
    draws = [row_uniforms(key, 1)[0] for key in [(1, 2), (2, 1), (1, 2, 0), (-1, 2), (0,), (0, 0)]]
    assert len(set(draws)) == len(draws)
