"""How a policy's answer says its action: as it stands, or in a tag after free reasoning."""

from __future__ import annotations

import re
from typing import Literal

ActionFormat = Literal["plain", "tagged"]
"""plain: the whole answer is the action. tagged: free text, then ``<action>...</action>``."""

INSTRUCTION = "Think first if that helps. Then write your action as <action>...</action>."
"""What a policy is told of the format "tagged"."""

NO_ACTION = "no <action>...</action> in the answer"
"""The `action_error` of a turn whose answer does not parse."""

RETRY_NOTE = "Your last answer had no action. Write it as <action>...</action>."
"""Stands before the observation that is shown again after such a turn."""

# The last complete pair: no tag inside it. Each character is looked at a bounded number of times.
_PAIR = re.compile(r"<action>((?:(?!</?action>).)*)</action>", re.DOTALL)


def parse_action(answer: str, action_format: ActionFormat) -> str | None:
    """Return the action that an answer says, without surrounding white space, or None if it says none.

    A plain answer always says one. In a tagged one it is what the last complete pair of tags holds; an empty
    pair, or one that was never closed, says none.
    """
    if action_format == "plain":
        return answer
    pairs = _PAIR.findall(answer)
    return (pairs[-1].strip() or None) if pairs else None


def format_answer(action: str, action_format: ActionFormat) -> str:
    """Return an answer that says `action`: how a demonstration without reasoning is put. One that already
    says an action in this format stays as it is.
    """
    if parse_action(action, action_format) is not None:
        return action
    return f"<action>{action}</action>"


def add_instruction(system_prompt: str | None, action_format: ActionFormat) -> str | None:
    """Return the system prompt with `INSTRUCTION` at its end if the format needs it; added once only."""
    if action_format == "plain" or (system_prompt and INSTRUCTION in system_prompt):
        return system_prompt
    return f"{system_prompt}\n\n{INSTRUCTION}" if system_prompt else INSTRUCTION


def check_action_format(action_format: str) -> None:
    """Raise ValueError if there is no such format."""
    if action_format not in ("plain", "tagged"):
        raise ValueError(
            f"action_format={action_format!r} is out of range: it must be one of ('plain', 'tagged')"
        )
