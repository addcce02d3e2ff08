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
def copiers() -> list[LlamaForCausalLM]:
    """Several, for random words are alike by chance now and then."""
    started = []
    for seed in range(8):
        started.append(model().eval())
        torch.manual_seed(seed)
        start_as_copier(started[-1], ROLES)
    return started


def attention(models: list[LlamaForCausalLM], tokens: list[int], layer: int, head: int) -> torch.Tensor:
    """(T, T), the mean over the models."""
    ids = torch.tensor([tokens])
    with torch.no_grad():
        looks = [m(input_ids=ids, output_attentions=True).attentions[layer][0, head] for m in models]
    return torch.stack(looks).mean(0)


def test_the_first_head_looks_at_the_previous_token(copiers: list[LlamaForCausalLM]) -> None:
    looks = attention(copiers, PAGE, 0, 0)
    places = torch.arange(1, len(PAGE))
    assert looks[places, places - 1].mean() > 0.8


def test_the_second_head_looks_at_the_nearest_mark(copiers: list[LlamaForCausalLM]) -> None:
    looks = attention(copiers, PAGE, 0, 1).argmax(-1)
    marks = [i for i, token in enumerate(PAGE) if token in (*HEADS, WISH, PART)]
    wrong = [i for i in range(len(PAGE)) if looks[i] != max(m for m in marks if m <= i)]
    assert len(wrong) <= 2  # a mark right behind another may lose to it


def test_the_third_head_finishes_a_name_that_was_seen(copiers: list[LlamaForCausalLM]) -> None:
    for place in NAME_PLACES:
        tokens = [*PAGE, PAGE[place]]
        assert attention(copiers, tokens, 1, 0)[-1].argmax() == place + 1


def test_the_vote_goes_to_the_product_that_is_wished_for(copiers: list[LlamaForCausalLM]) -> None:
    looks = attention(copiers, PAGE, 2, 0)[-1]
    first, second, third = NAME_PLACES
    assert looks[second:third].sum() > 2 * looks[first:second].sum()
    assert looks[second:third].sum() > 2 * looks[third:].sum()


def test_on_a_page_without_names_a_wanted_word_is_looked_at(copiers: list[LlamaForCausalLM]) -> None:
    options = [WISH, 50, 51, 52, PART, 70, 71, 51, 72, 73, PART, VERB, BRACKET]
    looks = attention(copiers, options, 2, 1)[-1]
    assert looks[7] > 1.5 * looks[[6, 8, 9]].max()


def test_after_the_verb_that_asks_the_wish_is_looked_at(copiers: list[LlamaForCausalLM]) -> None:
    looks = attention(copiers, [*PAGE[:5], PART, ASK, BRACKET], 2, 2)[-1]
    assert looks[1:5].sum() > 0.6


def test_a_random_start_does_not_choose() -> None:
    looks = attention([model().eval()], PAGE, 2, 0)[-1]
    assert looks[NAME_PLACES[1] : NAME_PLACES[2]].sum() < 0.4


@pytest.mark.parametrize("changes", [{"num_key_value_heads": 2}, {"hidden_size": 96}, {"layers": 2}])
def test_another_shape_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="the circuit needs"):
        start_as_copier(model(**changes), ROLES)
