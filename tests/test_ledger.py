import pytest

from trl_agent import ledger as module
from trl_agent.ledger import CostLedger


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def test_device_hours_and_money(clock):
    ledger = CostLedger(num_devices=8, price_per_hour=2.5)
    with ledger.running():
        clock[0] += 1800
        with ledger.phase("rollout"):
            clock[0] += 1800
    assert ledger.summary()["device_hours"] == 8.0
    assert ledger.summary()["money"] == 20.0
    assert ledger.seconds == {"rollout": 1800.0}
    assert ledger.peak_memory_mb > 1
    assert "money" not in CostLedger().summary()


def test_time_counts_when_the_run_fails(clock):
    ledger = CostLedger()

    def fail() -> None:
        clock[0] += 36
        raise RuntimeError("no")

    with pytest.raises(RuntimeError), ledger.running(), ledger.phase("train"):
        fail()
    assert ledger.summary()["device_hours"] == pytest.approx(0.01)
    assert ledger.seconds["train"] == 36


def test_a_resumed_run_goes_on_counting(clock):
    first = CostLedger(num_devices=2, env_steps=5, tokens_trained=7)
    with first.running(), first.phase("train"):
        clock[0] += 10
    second = CostLedger(num_devices=4)
    second.load_state_dict(first.state_dict())
    with second.running(), second.phase("train"):
        clock[0] += 10
    assert second.device_seconds == 2 * 10 + 4 * 10
    assert second.seconds["train"] == 20
    assert first.seconds["train"] == 10
    assert (second.env_steps, second.tokens_trained, second.num_devices) == (5, 7, 4)
