"""Demonstrations are tokenized as a policy would have seen and said them."""

from __future__ import annotations

from tests.fakes_env import bpe_tokenizer
from trl_agent.action_format import INSTRUCTION
from trl_agent.chat import ChatFormat
from trl_agent.demonstrations import encode_demonstrations
from trl_agent_envs.records import EpisodeRecord, StepRecord

CHAT = ChatFormat(bpe_tokenizer())


def episode(turns: int) -> EpisodeRecord:
    steps = [StepRecord(f"number {k}", f"{k}", 1.0, k == turns - 1, score=1.0) for k in range(turns)]
    steps[0].extra["system_prompt"] = "Rules."
    return EpisodeRecord(steps)


def test_an_episode_is_one_segment_and_too_long_ones_are_left_out() -> None:
    short, long = episode(2), episode(20)
    encoded = encode_demonstrations([short, long], CHAT, use_system_prompt=True, max_length=100)
    ((segment,),) = encoded
    text = CHAT.tokenizer.decode(segment.input_ids, skip_special_tokens=False)
    assert "Rules." in text
    actions = [token for token, counts in zip(segment.input_ids, segment.action_mask) if counts]
    assert actions == [*CHAT.encode_action("0"), *CHAT.encode_action("1")]
    bare = encode_demonstrations([short], CHAT, use_system_prompt=False, max_length=100)
    assert "Rules." not in CHAT.tokenizer.decode(bare[0][0].input_ids)
    assert (
        encode_demonstrations([short], CHAT, use_system_prompt=True, max_length=100, keep=lambda e: False)
        == []
    )


def test_through_a_window_and_in_tags() -> None:
    (segments,) = encode_demonstrations(
        [episode(3)],
        CHAT,
        use_system_prompt=True,
        max_length=300,
        context_policy="window",
        context_window=1,
        action_format="tagged",
    )
    assert len(segments) == 3
    for k, segment in enumerate(segments):
        actions = [token for token, counts in zip(segment.input_ids, segment.action_mask) if counts]
        assert actions == CHAT.encode_action(f"<action>{k}</action>")
        text = CHAT.tokenizer.decode(segment.input_ids, skip_special_tokens=False)
        assert text.startswith(f"<|im_start|>system\nRules.\n\n{INSTRUCTION}<|im_end|>")
        assert text.count("[earlier observation left out]") == k
