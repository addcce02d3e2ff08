import json

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from trl_agent.callbacks import MetricsWriter, episode_bar
from trl_agent.curve import read_metrics, save_learning_curve


@pytest.fixture
def log(tmp_path):
    args = TrainingArguments(output_dir=str(tmp_path / "new"), use_cpu=True, report_to="none")
    state = TrainerState()

    def write(step, logs, main=True):
        state.global_step, state.is_world_process_zero = step, main
        MetricsWriter().on_log(args, state, TrainerControl(), logs=logs)

    return write


def test_one_line_a_log_by_the_first_process(tmp_path, log):
    log(1, {"env/score": 0.5, "loss": float("nan")})
    log(1, {"eval_score": 0.25})
    log(2, {"env/score": 0.75}, main=False)
    lines = (tmp_path / "new" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 1, "env/score": 0.5, "loss": None},
        {"step": 1, "eval_score": 0.25},
    ]


def test_curve_from_the_metrics(tmp_path, log):
    for step in range(1, 4):
        log(step, {"env/score": step / 4, "env/success": 0.0, "objective/kl": None})
    path = tmp_path / "new" / "metrics.jsonl"
    with open(path, "a") as file:
        file.write('{"step": 4, "en')
    rows = read_metrics(path)
    assert [row["step"] for row in rows] == [1, 2, 3]
    save_learning_curve(rows, tmp_path / "curve.png", baselines={"bc": 0.3}, title="a run")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    save_learning_curve([], tmp_path / "empty.png", panels={"nothing": ["x"]})
    assert (tmp_path / "empty.png").exists()


def test_a_bar_over_episodes(capsys):
    with episode_bar("rollout") as progress:
        for ended in range(1, 4):
            progress(ended, 3)
    assert "rollout" in capsys.readouterr().err
    with episode_bar("rollout", enabled=False) as progress:
        assert progress is None
