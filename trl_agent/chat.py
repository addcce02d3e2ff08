"""Turns <-> token ids. Tokens the policy sampled are never made from text again: contexts only grow, token by token."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from trl_agent._compat import (
    get_training_chat_template,
    is_chat_template_prefix_preserving,
    supports_tool_calling,
)

logger = logging.getLogger(__name__)

# Plain words, so that no template and no tokenizer treats them specially.
_ACTION = "qzactionqz"
_ACTION_2 = "qzactiontwoqz"
_OBSERVATION = "qzobservationqz"
_OBSERVATION_2 = "qzobservationtwoqz"
_SYSTEM = "qzsystemqz"
_REASONING = "qzreasoningqz"

Message = dict[str, str]


class ChatFormat:
    """Renders observations with a chat template so that each turn adds tokens and changes none.

    The text around an action is read off a dummy conversation and tokenized apart from the action, so what the
    policy sampled stays as it was sampled. Special tokens spelled out in an observation (a web page may contain
    ``<|im_end|>``) are broken up: an environment cannot end the user's turn.

    Args:
        tokenizer: any fast tokenizer with a pad token or an end-of-sequence token. It is not modified.
        chat_template: Jinja text used instead of the tokenizer's own.

    Raises:
        ValueError: no chat template; no pad and no end-of-sequence token; a template that rewrites earlier turns
            and for which TRL has no training template; a template whose assistant turn does not end in one
            special token. Each message says what to do.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, chat_template: str | None = None) -> None:
        # A shallow copy: TRL's checks read the template off the tokenizer, and the caller's must stay as it is.
        self.tokenizer: Any = copy.copy(tokenizer)
        self._name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        if chat_template is not None:
            self.tokenizer.chat_template = chat_template
        if self.tokenizer.chat_template is None:
            raise ValueError(
                f"tokenizer {self._name!r} has no chat template: pass chat_template=... (Jinja text), or use an "
                "instruction-tuned model's tokenizer"
            )
        self.pad_token_id = self._find_pad_token()
        self.chat_template: str = self._training_template()
        self.tokenizer.chat_template = self.chat_template
        self._has_system_role = self._detect_system_role()
        self._end_of_turn = self._find_end_of_turn()
        self.stop_token_ids: list[int] = sorted(
            {self._end_of_turn} | ({tokenizer.eos_token_id} if tokenizer.eos_token_id is not None else set())
        )
        self._special = self._special_pattern()

    # ---- the interface ------------------------------------------------------------------------------------
    def start(self, observation: str, system_prompt: str | None = None) -> list[int]:
        """Tokens of the first context: system prompt, first observation, generation prompt.

        Where the template has no system role, the system prompt precedes the observation in the user's turn.
        """
        observation = self._escape(observation)
        messages: list[Message] = []
        if system_prompt and self._has_system_role:
            messages.append({"role": "system", "content": system_prompt})
        elif system_prompt:
            observation = f"{system_prompt}\n\n{observation}"
        messages.append({"role": "user", "content": observation})
        return self._encode(self._render(messages))

    def next(self, observation: str, finished: bool) -> list[int]:
        """Tokens between an action and the one after it: the next observation and the generation prompt.

        Args:
            finished: whether the action ended in a stop token. If not (it was cut), the end of turn comes first.
        """
        ids = self._encode(self._after_action(self._escape(observation)))
        return ids[1:] if finished else ids

    def decode_action(self, ids: Sequence[int]) -> str:
        """Text of an action, for the environment: without its stop token and surrounding white space."""
        if len(ids) and ids[-1] in self.stop_token_ids:
            ids = ids[:-1]
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text.strip()

    def encode_action(self, text: str) -> list[int]:
        """Tokens of an action that comes as text (a demonstration), end of turn included."""
        # Between two special tokens the text is tokenized as it would be in the conversation (some tokenizers
        # put a space in front of a text that begins a string).
        stop = self.tokenizer.convert_ids_to_tokens(self._end_of_turn)
        ids = self._encode(f"{stop}{self._escape(text)}{stop}")
        if ids[0] != self._end_of_turn or ids[-1] != self._end_of_turn:
            raise ValueError(f"tokenizer {self._name!r} does not keep {stop!r} apart from the text beside it")
        return ids[1:]

    # ---- the template -------------------------------------------------------------------------------------
    def _render(self, messages: list[Message], *, generate: bool = True, template: str | None = None) -> str:
        text: str = self.tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=generate,
            chat_template=template or self.tokenizer.chat_template,
        )
        return text

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _after_action(self, observation: str) -> str:
        return _after(self._render([_user("x"), _assistant(_ACTION), _user(observation)]), _ACTION)

    def _training_template(self) -> str:
        """The tokenizer's own template if earlier turns never change, else TRL's version of it."""
        own: str = self.tokenizer.chat_template
        # TRL's check renders a tool call, so it only says something about templates that know tools.
        trl_agrees = not supports_tool_calling(self.tokenizer) or is_chat_template_prefix_preserving(
            self.tokenizer
        )
        problem = self._what_it_rewrites(own)
        keeps_reasoning = problem is not None or self._keeps_reasoning(own)
        if trl_agrees and problem is None and keeps_reasoning:
            return own
        try:
            patched = get_training_chat_template(self.tokenizer)
        except ValueError:
            patched = None  # TRL has no version of this template
        if patched is not None and self._what_it_rewrites(patched) is None:
            return patched
        if trl_agrees and problem is None:
            logger.warning(
                "The chat template of tokenizer %r drops the reasoning of earlier turns, and TRL has no training "
                "template for it. Here earlier reasoning stays in the context, as the policy sampled it.",
                self._name,
            )
            return own
        raise ValueError(
            f"the chat template of tokenizer {self._name!r} is not prefix-preserving "
            f"({problem or 'a message changes when a tool message follows it'}), so the tokens of one turn would "
            "not be a prefix of the next one's, and TRL has no training template for it. Pass chat_template=... "
            "with a template that renders a message the same whatever follows it"
        )

    def _keeps_reasoning(self, template: str) -> bool:
        thought = f"<think>\n{_REASONING}\n</think>\n\n{_ACTION}"
        return _REASONING in self._render([_user("x"), _assistant(thought), _user("y")], template=template)

    def _what_it_rewrites(self, template: str) -> str | None:
        """Say how `template` breaks the rule that a conversation only grows, or None if it keeps it."""
        try:
            return self._first_rewrite(template)
        except TemplateError as error:
            return f"it cannot render user and assistant messages of plain text: {error}"

    def _first_rewrite(self, template: str) -> str | None:
        def render(messages: list[Message], generate: bool = True) -> str:
            return self._render(messages, generate=generate, template=template)

        one = [_user(_OBSERVATION)]
        two = [*one, _assistant(_ACTION), _user(_OBSERVATION_2)]
        three = [*two, _assistant(_ACTION_2), _user(_OBSERVATION_2)]
        short, long = render(two), render(three)
        for word, text in (
            (_OBSERVATION, short),
            (_ACTION, short),
            (_OBSERVATION_2, short),
            (_ACTION_2, long),
        ):
            if word not in text:
                return "it leaves out the content of user or assistant messages"
        if not short.startswith(_through(render(one), _OBSERVATION)):
            return "the first turn changes when an answer follows it"
        if not short.startswith(_through(render(two[:2], generate=False), _ACTION)):
            return "an answer is rendered differently when a message follows it"
        if not long.startswith(_through(short, _OBSERVATION_2)):
            return "a turn changes when more turns follow it"
        if _after(long, _ACTION_2) != _after(short, _ACTION):
            return "what follows an answer depends on the turn"
        return None

    def _detect_system_role(self) -> bool:
        try:
            return _SYSTEM in self._render([{"role": "system", "content": _SYSTEM}, _user("x")])
        except TemplateError:
            return False  # e.g. "System role not supported"

    def _find_end_of_turn(self) -> int:
        """The token with which the template ends an assistant turn."""
        after = self._after_action(_OBSERVATION)
        first = self._encode(after)[0]
        special = set(self.tokenizer.all_special_ids) | set(self.tokenizer.get_added_vocab().values())
        if first not in special:
            raise ValueError(
                f"the chat template of tokenizer {self._name!r} follows an answer with {after[:20]!r}, which does "
                "not begin with a special token, so the model could not end its turn. Use a template that ends "
                f"assistant messages with a special token, for instance {self.tokenizer.eos_token!r}"
            )
        return first

    def _find_pad_token(self) -> int:
        # Nothing here or downstream finds padding by comparing with this id, so end-of-sequence can serve.
        for token_id in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id):
            if token_id is not None:
                return int(token_id)
        raise ValueError(
            f"tokenizer {self._name!r} has neither a pad token nor an end-of-sequence token to pad with: set one, "
            "for instance tokenizer.add_special_tokens({'pad_token': '<pad>'}), and resize the model's embeddings"
        )

    def _special_pattern(self) -> re.Pattern[str] | None:
        tokens = set(self.tokenizer.all_special_tokens)
        tokens |= {self.tokenizer.convert_ids_to_tokens(i) for i in self.stop_token_ids}
        tokens = {token for token in tokens if len(token) > 1}
        return (
            re.compile("|".join(re.escape(t) for t in sorted(tokens, key=len, reverse=True)))
            if tokens
            else None
        )

    def _escape(self, text: str) -> str:
        """Break up special tokens spelled out in a text that does not come from the policy."""
        if self._special is None:
            return text
        return self._special.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def _through(text: str, word: str) -> str:
    """`text` up to the end of `word`'s first occurrence."""
    return text[: text.index(word) + len(word)]


def _after(text: str, word: str) -> str:
    """`text` from the end of `word`'s first occurrence on."""
    return text[text.index(word) + len(word) :]
