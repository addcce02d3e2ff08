"""The small tokenizer: what an agent writes comes back as written, a name is two tokens, any text can be encoded."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from trl_agent.small_model import build_model, build_tokenizer

TEXTS = ["search[red hiking boots, non slip]", "click[buy now]", "size: 4 x 6 feet [SEP] pack of 2"] * 20


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(TEXTS, 512, ["[SEP]"], ["b0kato", "b0zove"], ["miru", "rago"])


ACTIONS = (
    "search[red hiking boots, non slip]",
    "click[buy now]",
    "click[b0katomiru]",
    "click[4 x 6 feet]",
    "click[< prev]",
)


@pytest.mark.parametrize("action", ACTIONS)
def test_actions_come_back_as_written(tokenizer: PreTrainedTokenizerFast, action: str) -> None:
    assert tokenizer.decode(tokenizer(action)["input_ids"]) == action


@pytest.mark.parametrize("name", ["b0katomiru", "b0katorago", "b0zovemiru"])
def test_a_name_is_its_head_and_its_tail_wherever_it_stands(
    tokenizer: PreTrainedTokenizerFast, name: str
) -> None:
    head, tail = tokenizer.convert_tokens_to_ids([f"▁{name[:6]}", name[6:]])
    for text in (name.upper(), f"click[{name}]", f"a {name} b"):
        ids = tokenizer(text)["input_ids"]
        assert ids[ids.index(head) + 1] == tail
        assert tokenizer.decode(ids) == text.lower()


@pytest.mark.parametrize("text", ["héllo wörld", "你好 👋", "x\ty"])
def test_unknown_characters_become_bytes(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.unk_token_id is None
    assert tokenizer.decode(tokenizer(text)["input_ids"]).split() == text.split()


def test_a_vocabulary_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size 300"):
        build_tokenizer(TEXTS, 300)


def test_the_model_fits_its_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    model = build_model(tokenizer)
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert 0.5e6 < sum(p.numel() for p in model.parameters()) < 3e6
