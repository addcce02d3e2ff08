"""Where the small model's weights start: seven attention heads set by hand so that it can copy from a page at once.

From random weights a model of 2 M parameters has not learned to copy a product id from a result page after 9 M tokens
(measured); the circuit that it lacks is known, and is written down here as a start that training then improves:

1. layer 0, head 0 looks at the previous token and notes it;
2. layer 0, head 1 looks at the nearest mark before it (a name, or the beginning of a part of the page) and notes it;
3. layer 1, head 0 looks for a token whose note of (1) is what stands here and repeats it: an induction head
   (Olsson et al. 2022, arXiv 2209.11895), which finishes names of two tokens;
4. layer 1, head 1 looks for the same word in the wish and flags the words that are wanted;
5. layer 2, head 0, after the verb that takes from a page, looks at flagged words behind a name and says the name: a
   vote; head 1 looks at flagged words that belong to no name and says one; head 2, after the verb that asks, looks at
   the wish and says a word of it.

The residual stream is divided for this: columns for what a token is, two registers for the notes of (1) and (2), and
one column for each mark. Everything else starts at random, and nothing is frozen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import LlamaForCausalLM

HIDDEN_SIZE, HEAD_SIZE, MIN_LAYERS = 192, 48, 3
ROPE_THETA = 1e8
"""So slow that half of a head's columns hardly turn within 4096 tokens: they compare words, wherever they stand."""

_WORD = range(0, 90)  # what a token is
_SAME = range(0, 28)  # the part of it that heads compare
_PREVIOUS = range(96, 144)  # register of head 1: the previous token's first 48 columns
_MARK_NOTE = range(144, 190)  # register of head 2: the nearest mark's first 46 columns
_NOTED_NAME, _NOTED_WISH = 190, 191  # ... and whether it was a name or the beginning of the wish
_IS_MARK, _ONE, _IS_NAME, _WANTED, _IS_WISH = 91, 92, 93, 94, 95
_UNTURNED = (*range(10, 24), *range(34, 48))
"""Rows of a head that turn so slowly that they do not tell positions (pairs i, i + 24 of the rotary embedding)."""
_NOTE = 0.1  # size of a note beside an embedding of length 1: a head reads vectors of length about 13
_NOISE = 0.02


@dataclass(frozen=True)
class Roles:
    """Token ids that mean something to the circuit.

    name_heads, name_tails: first and second token of a name.
    wish: tokens after which the wish begins.
    parts: tokens that begin another part of a page or conversation.
    take: the verb before the bracket that a name or word of a page is copied into.
    ask: the verb before the bracket that words of the wish are copied into.
    """

    name_heads: Sequence[int]
    name_tails: Sequence[int]
    wish: Sequence[int]
    parts: Sequence[int]
    take: int
    ask: int


@torch.no_grad()
def start_as_copier(model: LlamaForCausalLM, roles: Roles) -> None:
    """Set embeddings and attention of a fresh model to the circuit above, in place; MLPs are left alone.

    Args:
        model: `HIDDEN_SIZE` wide, at least `MIN_LAYERS` deep, heads of `HEAD_SIZE` without sharing of keys, tied
            embeddings, rope_theta = `ROPE_THETA`.

    Raises:
        ValueError: the model has another shape.
    """
    _check(model)
    _embeddings(model.model.embed_tokens.weight, roles)
    for layer in model.model.layers:
        attention = layer.self_attn
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
            projection.weight.normal_(0.0, _NOISE)
    _note_previous(_Head(model, 0, 0))
    _note_nearest_mark(_Head(model, 0, 1))
    _repeat(_Head(model, 1, 0))
    _flag_wanted(_Head(model, 1, 1))
    take, ask = (model.model.embed_tokens.weight[verb] for verb in (roles.take, roles.ask))
    _vote(_Head(model, 2, 0), take)
    _say(_Head(model, 2, 1), take, {_WANTED: 16.0, _NOTED_NAME: -20.0, _NOTED_WISH: -20.0})
    _say(_Head(model, 2, 2), ask, {_NOTED_WISH: 16.0})


def _check(model: LlamaForCausalLM) -> None:
    config = model.config
    found = (config.hidden_size, config.hidden_size // config.num_attention_heads)
    if found != (HIDDEN_SIZE, HEAD_SIZE) or config.num_key_value_heads != config.num_attention_heads:
        raise ValueError(
            f"the circuit needs {HIDDEN_SIZE} columns in heads of {HEAD_SIZE} with keys of their own; the model has "
            f"{found[0]} in {config.num_attention_heads} heads with {config.num_key_value_heads} keys"
        )
    if config.num_hidden_layers < MIN_LAYERS:
        raise ValueError(f"the circuit needs {MIN_LAYERS} layers; the model has {config.num_hidden_layers}")


def _embeddings(weight: torch.Tensor, roles: Roles) -> None:
    """Random words of length 1, and marks. A marked word is smaller, so that all rows are about equally long."""
    heads, wish = list(roles.name_heads), list(roles.wish)
    marks = [*heads, *wish, *roles.parts]
    words = torch.randn(weight.shape[0], len(_WORD))
    weight.zero_()
    weight[:, : len(_WORD)] = torch.nn.functional.normalize(words, dim=-1)
    weight[heads + wish] *= 0.8
    weight[:, _ONE] = 0.5
    weight[marks, _IS_MARK] = 0.55
    weight[heads, _IS_NAME] = 0.45
    weight[wish, _IS_WISH] = 0.5


class _Head:
    """Weights of one head, by row of the head and column of the residual stream; cleared at first."""

    def __init__(self, model: LlamaForCausalLM, layer: int, head: int) -> None:
        attention = model.model.layers[layer].self_attn
        rows = slice(head * HEAD_SIZE, (head + 1) * HEAD_SIZE)
        self.query = attention.q_proj.weight[rows]
        self.key = attention.k_proj.weight[rows]
        self.value = attention.v_proj.weight[rows]
        self.output = attention.o_proj.weight[:, rows]
        for weight in (self.query, self.key, self.value, self.output):
            weight.zero_()

    def compare(self, here: Sequence[int], there: Sequence[int], size: float) -> None:
        """Look, at any distance, for tokens whose columns `there` are like the columns `here`."""
        for row, ours, theirs in zip(_UNTURNED, here, there):
            self.query[row, ours] = size
            self.key[row, theirs] = size

    def carry(self, sources: Sequence[int], targets: Sequence[int], size: float, first_row: int = 0) -> None:
        """Write the `sources` columns of what is looked at into the `targets` columns here."""
        for row, (source, target) in enumerate(zip(sources, targets), first_row):
            self.value[row, source] = 1.0
            self.output[target, row] = size


def _frequency(pair: int) -> float:
    """Radians a token by which rows (pair, pair + 24) of a head are turned."""
    return ROPE_THETA ** (-2 * pair / HEAD_SIZE)


def _note_previous(head: _Head) -> None:
    for pair in range(6):  # the fast pairs agree at a distance of one token only
        turn = -_frequency(pair)
        head.key[pair, _ONE] = 1.1
        head.query[pair, _ONE] = 1.1 * math.cos(turn)
        head.query[pair + HEAD_SIZE // 2, _ONE] = 1.1 * math.sin(turn)
    head.carry(range(48), _PREVIOUS, _NOTE)


def _note_nearest_mark(head: _Head) -> None:
    for pair in (3, 4, 5, 6):  # wavelengths of 63 to 627 tokens: the nearer, the larger
        head.query[pair, _ONE] = 1.3
        head.key[pair, _IS_MARK] = 3.0
    head.carry([*range(46), _IS_NAME, _IS_WISH], [*_MARK_NOTE, _NOTED_NAME, _NOTED_WISH], _NOTE)


def _repeat(head: _Head) -> None:
    head.compare(_SAME, _PREVIOUS, 3.0)
    head.carry(range(48), range(48), 5 * _NOTE)


def _flag_wanted(head: _Head) -> None:
    head.compare(_SAME, _SAME, 2.0)
    head.carry([_NOTED_WISH], [_WANTED], 2 * _NOTE)


def _look_after(head: _Head, verb: torch.Tensor, size: float, wanted: dict[int, float]) -> None:
    """Where the previous token is `verb`, look at tokens by the weighted sum of some of their columns."""
    row = _UNTURNED[10]
    head.query[row, _PREVIOUS] = size * torch.nn.functional.normalize(verb[: len(_PREVIOUS)], dim=0)
    for column, weight in wanted.items():
        head.key[row, column] = weight


def _vote(head: _Head, verb: torch.Tensor) -> None:
    _look_after(head, verb, 0.5, {_WANTED: 16.0, _NOTED_NAME: 20.0})
    head.carry(_MARK_NOTE, range(46), 5 * _NOTE)
    head.carry([_NOTED_NAME], [_IS_NAME], 5 * _NOTE, first_row=46)
    head.output[_IS_MARK, 46] = 5 * _NOTE


def _say(head: _Head, verb: torch.Tensor, wanted: dict[int, float]) -> None:
    _look_after(head, verb, 0.2, wanted)
    head.carry(range(48), range(48), 3 * _NOTE)
