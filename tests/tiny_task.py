"""A task that a tiny model learns in seconds, and all that a trainer test needs around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tests.fakes import tiny_llama
from trl_agent.chat import ChatFormat
from trl_agent.ppo_config import AgentPPOConfig
from trl_agent.ppo_trainer import AgentPPOTrainer
from trl_agent.trajectory import Segment, Trajectory, Turn
from trl_agent_envs.core import AgentEnv

WORDS = ["red", "green", "blue", "gold", "grey", "pink"]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }} {{ message['content'] }}<|im_end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


class EchoEnv(AgentEnv):
    """Description: the observation shows a word, the action repeats it; 1 to 3 words an episode.

    Reward: 1 / words for each word repeated. Episode end: terminated after the last word.
    """

    metadata = {"render_modes": [], "backend": "inline"}  # noqa: RUF012

    def __init__(self, words: int | None = None, truncate: bool = False) -> None:
        self._words, self._truncate = words, truncate

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        num = self._words or int(self.np_random.integers(1, 4))
        self._todo = [WORDS[i] for i in self.np_random.integers(0, len(WORDS), num)]
        goal = (options or {}).get("goal_id")
        if goal is not None:
            self._todo[0] = WORDS[int(goal) % len(WORDS)]
        self._num, self._right = num, 0
        return f"say {self._todo[0]}", {"score": 0.0, "success": False, "goal_id": goal or 0}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = action == self._todo.pop(0)
        self._right += right
        score = self._right / self._num
        done = not self._todo
        info: dict[str, Any] = {"score": score, "success": score == 1.0}
        info["action_error"] = None if right else "wrong"
        if done and self._truncate:
            info["truncation_cause"] = "turn_limit"
        observation = "done" if done else f"say {self._todo[0]}"
        return observation, right / self._num, done and not self._truncate, done and self._truncate, info


def tokenizer() -> PreTrainedTokenizerFast:
    vocab = [*SPECIAL, "user", "assistant", "system", "say", "done", *WORDS]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocab)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    made.chat_template = TEMPLATE
    return made


def model(seed: int = 0, **overrides: Any) -> LlamaForCausalLM:
    settings = {"vocab_size": len(tokenizer()), "initializer_range": 0.05}
    return tiny_llama(seed, **(settings | overrides))


def demonstration(chat: ChatFormat, word: str) -> Trajectory:
    """An offline episode of one turn that repeats `word`."""
    segment = Segment()
    segment.append_context(chat.start(f"say {word}"))
    ids = chat.encode_action(word)
    start, end = segment.append_action(ids, [0.0] * len(ids))
    turn = Turn(f"say {word}", word, 0, start, end, reward=1.0)
    return Trajectory(turns=[turn], segments=[segment], score=1.0, success=True, terminated=True)


def config(output_dir: str | Path, **overrides: Any) -> AgentPPOConfig:
    settings: dict[str, Any] = {
        "max_updates": 2,
        "episodes_per_update": 8,
        "num_envs": 4,
        "num_mini_batches": 2,
        "num_ppo_epochs": 2,
        "max_new_tokens": 3,
        "max_length": 128,
        "micro_batch_tokens": 128,
        "learning_rate": 1e-3,
        "schedule": "lockstep",
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "steps",
        "seed": 5,
    }
    return AgentPPOConfig(output_dir=str(output_dir), **(settings | overrides))


def trainer(
    output_dir: str | Path, *, cls: type[AgentPPOTrainer] = AgentPPOTrainer, **overrides: Any
) -> AgentPPOTrainer:
    """Make a trainer; `overrides` are its arguments or configuration fields."""
    names = AgentPPOConfig.__dataclass_fields__
    arguments: dict[str, Any] = {"model": None, "processing_class": tokenizer(), "env_factory": EchoEnv}
    arguments |= {key: value for key, value in overrides.items() if key not in names}
    arguments["model"] = arguments["model"] or model()
    return cls(config(output_dir, **{k: v for k, v in overrides.items() if k in names}), **arguments)
