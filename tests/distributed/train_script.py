"""Trains the tiny task; run alone or by torchrun. Usage: train_script.py OUTPUT_DIR WORLD_SIZE SECONDS"""

from __future__ import annotations

import faulthandler
import json
import sys
from pathlib import Path

from tests.tiny_task import WORDS, demonstration, tokenizer, trainer
from trl_agent.chat import ChatFormat
from trl_agent.checkpoint import CheckpointError


def main(output_dir: Path, world_size: int) -> None:
    chat = ChatFormat(tokenizer())
    settings = {
        "offline_trajectories": [demonstration(chat, word) for word in WORDS],
        "bc_coef": 0.5,
        "episodes_per_update": 9,  # uneven over two processes, and so are turns and micro batches
        "episodes_per_goal": 3,  # the second goal's episodes are on both
        "num_mini_batches": 3,
        "micro_batch_tokens": 48,
        "kl_control": "auto",
        "save_strategy": "steps",
        "save_steps": 1,
        "eval_steps": 2,
        "eval_episodes": 5,
        "learning_rate": 1e-4,
    }
    made = trainer(output_dir, max_updates=2, **settings)
    assert made.accelerator.num_processes == world_size
    made.train()
    state = {name: tensor.double().sum().item() for name, tensor in made.actor.state_dict().items()}
    again = trainer(output_dir, max_updates=3, **settings)
    again.train(resume_from_checkpoint=True)
    try:
        trainer(output_dir, max_updates=3, **settings).train()
    except CheckpointError as error:
        refused = str(error)
    if made.accelerator.is_main_process:
        result = {"state": state, "refused": refused, "ledger": again.ledger.state_dict()}
        (output_dir / "result.json").write_text(json.dumps(result))
    # The process group is left to the interpreter's end: destroying gloo's while a DDP module lives aborts or
    # hangs now and then (torch 2.13).


if __name__ == "__main__":
    # a hang shows where, and leaves no process behind
    faulthandler.dump_traceback_later(float(sys.argv[3]), exit=True)
    main(Path(sys.argv[1]), int(sys.argv[2]))
