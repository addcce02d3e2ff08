"""The copying start: each of its heads does what it says on a page, before any training."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trl_agent.copying_start import HIDDEN_SIZE, ROPE_THETA, Roles, start_as_copier

HEADS, TAILS = list(range(10, 16)), list(range(20, 26))
WISH, PART, VERB, BRACKET, ASK = 30, 31, 32, 33, 34
ROLES = Roles(HEADS, TAILS, [WISH], [PART], VERB, ASK)
WORDS = list(range(40, 100))

PAGE = [
    *(WISH, 50, 51, 52, 53),
    *(PART, 10, 22, 60, 61, 62, 63, 64),
    *(11, 23, 65, 50, 51, 52, 53),
    *(12, 21, 66, 67, 60, 62, 68),
    *(PART, VERB, BRACKET),
]
"""Three products of two-token names and five words; the second is the one wished for."""
NAME_PLACES = [i for i, token in enumerate(PAGE) if token in HEADS]


def model(layers: int = 3, **changes: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {"hidden_size": HIDDEN_SIZE, "num_attention_heads": 4, "num_key_value_heads": 4, **changes}
    config = LlamaConfig(
        vocab_size=128,
        intermediate_size=512,
        num_hidden_layers=layers,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        attn_implementation="eager",
        **shape,
    )
    return LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def copier() -> LlamaForCausalLM:
    started = model()
    start_as_copier(started, ROLES)
    return started.eval()


def attention(copier: LlamaForCausalLM, tokens: list[int], layer: int, head: int) -> torch.Tensor:
    with torch.no_grad():
        return copier(input_ids=torch.tensor([tokens]), output_attentions=True).attentions[layer][0, head]


def test_the_first_head_looks_at_the_previous_token(copier: LlamaForCausalLM) -> None:
    looks = attention(copier, PAGE, 0, 0)
    places = torch.arange(1, len(PAGE))
    assert looks[places, places - 1].mean() > 0.8


def test_the_second_head_looks_at_the_nearest_mark(copier: LlamaForCausalLM) -> None:
    looks = attention(copier, PAGE, 0, 1).argmax(-1)
    marks = [i for i, token in enumerate(PAGE) if token in (*HEADS, WISH, PART)]
    wrong = [i for i in range(len(PAGE)) if looks[i] != max(m for m in marks if m <= i)]
    assert len(wrong) <= 2  # a mark right behind another may lose to it


def test_the_third_head_finishes_a_name_that_was_seen(copier: LlamaForCausalLM) -> None:
    for place in NAME_PLACES:
        tokens = [*PAGE, PAGE[place]]
        assert attention(copier, tokens, 1, 0)[-1].argmax() == place + 1
        with torch.no_grad():
            logits = copier(input_ids=torch.tensor([tokens])).logits[0, -1]
        assert TAILS[int(logits[TAILS].argmax())] == PAGE[place + 1]


def test_the_vote_goes_to_the_product_that_is_wished_for(copier: LlamaForCausalLM) -> None:
    looks = attention(copier, PAGE, 2, 0)[-1]
    second = slice(NAME_PLACES[1], NAME_PLACES[2])
    assert looks[second].sum() > 0.5


def test_on_a_page_without_names_a_wanted_word_is_looked_at(copier: LlamaForCausalLM) -> None:
    options = [WISH, 50, 51, 52, PART, 70, 71, 51, 72, 73, PART, VERB, BRACKET]
    looks = attention(copier, options, 2, 1)[-1]
    assert looks[7] > looks[[6, 8, 9]].max()
    assert looks[7] > looks[1:4].max()


def test_after_the_verb_that_asks_the_wish_is_looked_at(copier: LlamaForCausalLM) -> None:
    looks = attention(copier, [*PAGE[:5], PART, ASK, BRACKET], 2, 2)[-1]
    assert looks[1:5].sum() > 0.6


def test_a_random_start_does_not_choose(copier: LlamaForCausalLM) -> None:
    looks = attention(model().eval(), PAGE, 2, 0)[-1]
    assert looks[NAME_PLACES[1] : NAME_PLACES[2]].sum() < 0.4


@pytest.mark.parametrize("changes", [{"num_key_value_heads": 2}, {"hidden_size": 96}, {"layers": 2}])
def test_another_shape_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="the circuit needs"):
        start_as_copier(model(**changes), ROLES)
