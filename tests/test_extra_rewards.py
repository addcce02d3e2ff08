import pytest

from trl_agent.extra_rewards import ActionErrorPenalty, add_rewards
from trl_agent.trajectory import Trajectory, Turn


def two_turns() -> Trajectory:
    return Trajectory(turns=[Turn("o", "a", 0, 0, 1, reward=0.5), Turn("o", "b", 0, 1, 2, reward=1.0)])


def test_a_number_goes_to_the_last_turn_and_a_list_to_each():
    trajectory = two_turns()
    changed = add_rewards(trajectory, [lambda t: 2, lambda t: [0.25, -1.0]])
    assert [turn.reward for turn in changed.turns] == [0.75, 2.0]
    assert [turn.reward for turn in trajectory.turns] == [0.5, 1.0]


def test_nothing_to_add():
    trajectory = two_turns()
    assert add_rewards(trajectory, []) is trajectory
    empty = Trajectory()
    assert add_rewards(empty, [lambda t: 1.0]) is empty


def test_a_wrong_length_names_the_function():
    def per_token(trajectory):
        return [0.0] * 7

    with pytest.raises(ValueError, match="'per_token' returned 7 rewards for 2 turns"):
        add_rewards(two_turns(), [per_token])


def test_an_action_error_costs_its_turn():
    trajectory = two_turns()
    trajectory.turns[0].action_error = "no such button"
    changed = add_rewards(trajectory, [ActionErrorPenalty(0.2)])
    assert [turn.reward for turn in changed.turns] == [0.3, 1.0]
    with pytest.raises(ValueError, match="size=-1"):
        ActionErrorPenalty(-1)
