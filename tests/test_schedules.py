from __future__ import annotations

import pytest

from trl_agent.schedules import AdaptiveKL, FixedKL, Schedule


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule("constant", 0.2), [0.2, 0.2, 0.2, 0.2, 0.2]),
        (Schedule("linear", 0.2, 0.1), [0.2, 0.175, 0.15, 0.1, 0.1]),
        (Schedule("cosine", 1.0, 0.0), [1.0, 0.853553, 0.5, 0.0, 0.0]),
    ],
)
def test_schedules_by_hand(schedule, expected):
    assert [schedule(p) for p in (0.0, 0.25, 0.5, 1.0, 7.0)] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("kind", "end"), [("constant", 0.1), ("linear", None), ("cubic", 0.1)])
def test_schedule_rejects_what_it_would_ignore(kind, end):
    with pytest.raises(ValueError, match=kind):
        Schedule(kind, 0.2, end)


def test_adaptive_kl_by_hand():
    controller = AdaptiveKL(0.2, target=6.0, horizon=10_000)
    controller.update(6.6, 256)  # error 0.1
    assert controller.value == pytest.approx(0.2 * (1 + 0.1 * 256 / 10_000))
    controller = AdaptiveKL(0.2, target=6.0, horizon=100)
    controller.update(60.0, 50)  # error clipped to 0.2
    assert controller.value == pytest.approx(0.2 * 1.1)
    controller.update(0.0, 50)  # error clipped to -0.2
    assert controller.value == pytest.approx(0.2 * 1.1 * 0.9)


def test_controllers_resume():
    controller = AdaptiveKL(0.2, target=1.0, horizon=10)
    controller.update(2.0, 1)
    resumed = AdaptiveKL(0.5, target=1.0, horizon=10)
    resumed.load_state_dict(controller.state_dict())
    controller.update(0.5, 3)
    resumed.update(0.5, 3)
    assert resumed.value == controller.value
    fixed = FixedKL(0.1)
    fixed.update(100.0, 5)
    assert fixed.value == 0.1
    other = FixedKL(0.0)
    other.load_state_dict(fixed.state_dict())
    assert other.value == 0.1


def test_adaptive_kl_rejects_nonsense():
    with pytest.raises(ValueError, match="target=0"):
        AdaptiveKL(0.1, target=0.0, horizon=10)
    with pytest.raises(ValueError, match="nan"):
        AdaptiveKL(0.1, target=1.0, horizon=10).update(float("nan"), 1)
