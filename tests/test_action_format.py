"""Answers say actions, or do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_agent.action_format import (
    INSTRUCTION,
    add_instruction,
    check_action_format,
    format_answer,
    parse_action,
)


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("<action>search[red shoes]</action>", "search[red shoes]"),
        ("Red ones, then.\n<action> click[buy now]\n</action> Done.", "click[buy now]"),
        ("<action>a</action> or rather <action>b</action>", "b"),
        ("<action>a</action> or rather <action>b", "a"),  # the last complete pair
        ("<action>a</action> b</action>", "a"),
        ("<action>a <action>b</action>", "b"),
        ("two\n<action>line one\nline two</action>", "line one\nline two"),
        ("<action>a < b</action>", "a < b"),
        ("search[red shoes]", None),
        ("<action>search[red shoes]", None),
        ("search[red shoes]</action>", None),
        ("</action>a<action>", None),
        ("<action> \n</action>", None),
        ("<Action>a</Action>", None),
        ("", None),
    ],
)
def test_the_last_complete_pair_is_the_action(answer: str, action: str | None) -> None:
    assert parse_action(answer, "tagged") == action
    assert parse_action(answer, "plain") == answer


@given(st.text(max_size=40), st.text(min_size=1, max_size=20))
def test_what_is_put_in_tags_comes_out_again(reasoning: str, action: str) -> None:
    if not action.strip() or "action>" in action or "action>" in reasoning:
        return
    assert parse_action(reasoning + format_answer(action, "tagged"), "tagged") == action.strip()
    assert format_answer(action, "plain") == action


def test_an_answer_in_tags_is_left_alone() -> None:
    assert format_answer("so: <action>a</action>", "tagged") == "so: <action>a</action>"


def test_long_garbage_is_read_without_going_back_over_it() -> None:
    assert parse_action("<action>" * 50_000, "tagged") is None
    assert parse_action("<action>" + "x" * 400_000, "tagged") is None


def test_the_instruction_is_added_once() -> None:
    assert add_instruction(None, "tagged") == INSTRUCTION
    assert add_instruction("Rules.", "tagged") == f"Rules.\n\n{INSTRUCTION}"
    assert add_instruction(add_instruction("Rules.", "tagged"), "tagged") == f"Rules.\n\n{INSTRUCTION}"
    assert add_instruction("Rules.", "plain") == "Rules."
    assert add_instruction(None, "plain") is None


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(ValueError, match=r"action_format='xml'.*'tagged'"):
        check_action_format("xml")
