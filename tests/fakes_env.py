"""A small environment and a small tokenizer that rollout tests build from nothing."""

from __future__ import annotations

from typing import Any, Literal

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trl_agent_envs.core import AgentEnv

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = [
    "the number is one two three four five six seven eight nine ten",
    "say search[red shoes] click[buy now] click[back to search] user assistant system",
    *(str(n) for n in range(200)),
]


def bpe_tokenizer(chat_template: str | None = CHATML, **special: str | None) -> PreTrainedTokenizerFast:
    """Byte-level BPE with merges, so that a text has many token sequences and only one is canonical."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        _CORPUS,
        trainers.BpeTrainer(
            vocab_size=420,
            special_tokens=["<pad>", "<|im_start|>", "<|im_end|>", "<|eos|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokens = {"pad_token": "<pad>", "eos_token": "<|im_end|>"} | special
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, **{name: token for name, token in tokens.items() if token is not None}
    )
    made.chat_template = chat_template
    return made


class CountEnv(AgentEnv):
    """Description: each observation shows a number, the right action repeats it. `goal_id` is the first number.

    Reward: 1 / turns for each right answer; the score is their sum. Episode end: terminated after `turns`
    right or wrong answers. Arguments: `fail` = "raise" or "report" an error at step `fail_at`; `words` makes
    observations longer; `limit` truncates.
    """

    metadata = {"render_modes": [], "backend": "inline"}  # noqa: RUF012

    def __init__(
        self,
        turns: int = 3,
        words: int = 0,
        limit: int | None = None,
        fail: Literal["raise", "report", None] = None,
        fail_at: int = 1,
        rules: str | None = "Repeat the number.",
    ) -> None:
        self.turns, self.words, self.limit = turns, words, limit
        self.fail, self.fail_at, self.rules = fail, fail_at, rules

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        goal = (options or {}).get("goal_id")
        self.number = int(self.np_random.integers(0, 90)) if goal is None else int(goal)
        self.done, self.right, self.goal = 0, 0, self.number
        info: dict[str, Any] = {"score": 0.0, "success": False, "goal_id": self.goal}
        if self.rules:
            info["system_prompt"] = self.rules
        return self._show(), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.done += 1
        if self.fail == "raise" and self.done == self.fail_at:
            raise RuntimeError("the shop burned down")
        right = action == str(self.number)
        self.right += right
        self.number += 1
        score = self.right / self.turns
        terminated = self.done == self.turns
        truncated = not terminated and self.done == self.limit
        info: dict[str, Any] = {"score": score, "success": score == 1.0, "goal_id": self.goal}
        info["action_error"] = None if right else "not the number"
        if self.fail == "report" and self.done == self.fail_at:
            truncated, info["truncation_cause"] = True, "env_timeout"
        return self._show(), right / self.turns, terminated, truncated, info

    def state_key(self) -> str | None:
        return f"{self.number}/{self.done}"

    def oracle_action(self) -> str | None:
        return str(self.number)

    def sample_action(self, rng: Any) -> str | None:
        return str(rng.randrange(3) + self.number)

    def _show(self) -> str:
        return f"number {self.number}" + " more" * self.words
