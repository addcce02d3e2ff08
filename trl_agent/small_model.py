"""A Llama of about two million parameters and a word-level tokenizer of its own, for learning on two CPU cores."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'user' -%}<|user|>{{ message['content'] }}"
    "{%- elif message['role'] == 'assistant' -%}<|assistant|>"
    "{% generation %}{{ message['content'] }}<|end|>{% endgeneration %}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)
"""No system turn: a model trained on one environment needs no rules, and 100 tokens an episode are saved."""

_BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def build_tokenizer(
    texts: Iterable[str],
    vocab_size: int = 2048,
    phrases: Sequence[str] = (),
    name_heads: Sequence[str] = (),
    name_tails: Sequence[str] = (),
) -> PreTrainedTokenizerFast:
    """Train a lower-casing BPE on `texts` and dress it as a chat tokenizer.

    Words are told apart from their place: "[", "]", "," and ":" are tokens of their own, and the word after
    "search[" is the same token as in the middle of a sentence. That makes copying, the main skill of a shopper,
    a matter of repeating tokens. Unknown characters fall back to bytes, so every text can be encoded.

    Args:
        texts: what the model will read and write.
        vocab_size: size of the vocabulary, special tokens, phrases and 256 byte tokens included.
        phrases: texts that always appear whole (a page's fixed parts); each becomes one token.
        name_heads: lower-case beginnings of words that are names, such as product ids. Such a word is cut after its
            head; heads are one token each, on top of `vocab_size`, whether the texts have them or not.
        name_tails: what can follow a head, likewise one token each.

    Raises:
        ValueError: the vocabulary is too small for the fixed tokens.
    """
    fixed = [PAD, USER, ASSISTANT, END]
    room = vocab_size - len(fixed) - len(phrases) - len(_BYTE_TOKENS)
    if room < 100:
        raise ValueError(f"vocab_size {vocab_size} leaves {room} tokens for words; at least 100 are needed")
    core = Tokenizer(models.BPE(unk_token=None))
    core.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    core.pre_tokenizer = _pre_tokenizer(name_heads)
    core.train_from_iterator(
        _without(texts, [USER, ASSISTANT, END, *phrases]),
        trainers.BpeTrainer(vocab_size=room, show_progress=False),
    )
    core.model = _with_bytes(core, [*(f"▁{head}" for head in name_heads), *name_tails])
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Replace(Regex(r"\[ "), "["),
            decoders.Replace(Regex(r" (?=[\[\],:])"), ""),
            decoders.Strip(" ", 1, 0),
        ]
    )
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in fixed])
    core.add_tokens(
        [AddedToken(p, normalized=False, special=False, lstrip=True, rstrip=True) for p in phrases]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _pre_tokenizer(name_heads: Sequence[str]) -> pre_tokenizers.PreTokenizer:
    steps = [
        pre_tokenizers.Split(Regex(r"[\[\],:]"), "isolated"),
        pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always"),
    ]
    if name_heads:
        steps.append(
            pre_tokenizers.Split(Regex("▁(?:" + "|".join(map(re.escape, name_heads)) + ")"), "isolated")
        )
    return pre_tokenizers.Sequence(steps)


def _without(texts: Iterable[str], markers: Sequence[str]) -> Iterable[str]:
    for text in texts:
        for marker in sorted(markers, key=len, reverse=True):
            text = text.replace(marker, " ")
        yield text


def _with_bytes(core: Tokenizer, names: Sequence[str]) -> models.BPE:
    """The trained BPE with `names` and 256 byte tokens appended, the latter for characters it does not know."""
    state = json.loads(core.to_str())["model"]
    vocab: dict[str, int] = state["vocab"]
    for token in (*names, *_BYTE_TOKENS):
        vocab.setdefault(token, len(vocab))
    return models.BPE(
        vocab=vocab, merges=[tuple(m) for m in state["merges"]], byte_fallback=True, ignore_merges=True
    )


def build_model(
    tokenizer: PreTrainedTokenizerFast, hidden_size: int = 192, num_layers: int = 4, rope_theta: float = 1e4
) -> LlamaForCausalLM:
    """A randomly initialised Llama sized for two CPU cores: about 2 M parameters at the defaults.

    Raises:
        ValueError: hidden_size is not a multiple of 48, the size of a head.
    """
    if hidden_size % 48:
        raise ValueError(f"hidden_size={hidden_size} is not a multiple of 48, the size of a head")
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=hidden_size * 8 // 3 // 16 * 16,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 48,
        num_key_value_heads=hidden_size // 48,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)
