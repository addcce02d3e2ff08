"""Episodes of a counting environment, played by scripted and by real back ends."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from typing import Any

import pytest
import torch

from tests.fakes import tiny_llama
from tests.fakes_env import CountEnv, bpe_tokenizer
from trl_agent.action_format import INSTRUCTION, NO_ACTION, RETRY_NOTE
from trl_agent.batch import EpisodeTensors, collate
from trl_agent.chat import ChatFormat
from trl_agent.generation import (
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    TransformersBackend,
)
from trl_agent.modeling import ActorCritic
from trl_agent.rollout import EpisodeRequest, collect, run_scripted
from trl_agent.trajectory import Trajectory
from trl_agent_envs.pool import EnvPool, EnvPoolError

CHAT = ChatFormat(bpe_tokenizer())
SAMPLING = SamplingParams(max_new_tokens=6)


class Scripted:
    """Answers with the number shown (or garbage), and notes how it was called."""

    def __init__(self, answer: Any = None, cut: bool = False) -> None:
        self.answer, self.cut = answer, cut
        self.batches: list[list[GenerationRequest]] = []
        self.histories: dict[Hashable, list[int]] = {}
        self.released: list[Hashable] = []

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> list[GenerationResult]:
        self.batches.append(list(requests))
        results = []
        for request in requests:
            ids = list(request.input_ids)
            before = self.histories.get(request.key, [])
            assert ids[: len(before)] == before  # a conversation only grows
            text = CHAT.tokenizer.decode(ids)
            number = text.rsplit("number ", 1)[1].split()[0].split("<")[0]
            action = CHAT.encode_action(number if self.answer is None else self.answer)
            limit = request.max_new_tokens or sampling.max_new_tokens
            action = action[:-1] if self.cut else action[:limit]
            finished = action[-1] in CHAT.stop_token_ids
            self.histories[request.key] = ids + action
            results.append(GenerationResult(action, [-0.5] * len(action), finished))
        return results

    def release(self, key: Hashable) -> None:
        self.released.append(key)

    def on_weights_changed(self) -> None: ...


def play(
    backend: Any,
    requests: Sequence[EpisodeRequest],
    env: dict[str, Any] | None = None,
    num_envs: int = 3,
    schedule: Any = "lockstep",
    **options: Any,
) -> list[Trajectory]:
    arguments: dict[str, Any] = {"base_seed": 0, "max_length": 400, **options}
    with EnvPool(CountEnv, env, num_envs=num_envs, schedule=schedule) as pool:
        return collect(pool, backend, CHAT, requests, SAMPLING, **arguments)


def requests(count: int, update: int = 1) -> list[EpisodeRequest]:
    return [EpisodeRequest(e, update, seed=e, options={"goal_id": 10 * e}) for e in range(count)]


def check_shape(trajectory: Trajectory) -> None:
    for segment in trajectory.segments:
        assert len(segment.input_ids) == len(segment.action_mask) == len(segment.logprobs)
        assert all(lp == 0.0 for lp, mask in zip(segment.logprobs, segment.action_mask) if not mask)
    spans = [(turn.segment, t) for turn in trajectory.turns for t in range(turn.start, turn.end)]
    masked = [
        (s, t) for s, seg in enumerate(trajectory.segments) for t, mask in enumerate(seg.action_mask) if mask
    ]
    assert sorted(spans) == masked


@pytest.mark.parametrize("schedule", ["lockstep", "free"])
def test_episodes_come_back_in_the_order_of_the_requests(schedule: str) -> None:
    backend = Scripted()
    seen: list[tuple[int, int]] = []
    asked = requests(7)
    played = play(backend, asked, schedule=schedule, progress=lambda done, total: seen.append((done, total)))
    assert [t.episode for t in played] == list(range(7))
    assert seen == [(n, 7) for n in range(1, 8)]
    for e, trajectory in enumerate(played):
        check_shape(trajectory)
        assert trajectory.goal_id == 10 * e
        assert (trajectory.seed, trajectory.update, trajectory.source) == (e, 1, "online")
        assert trajectory.terminated
        assert not trajectory.truncated
        assert trajectory.truncation_cause is None
        assert (trajectory.score, trajectory.success) == (1.0, True)
        assert [turn.observation for turn in trajectory.turns] == [f"number {10 * e + k}" for k in range(3)]
        assert [turn.action for turn in trajectory.turns] == [str(10 * e + k) for k in range(3)]
        assert trajectory.turn_rewards == pytest.approx([1 / 3] * 3)
        assert [turn.state_key for turn in trajectory.turns] == [f"{10 * e + k}/{k}" for k in range(3)]
        assert trajectory.turns[0].action_error is None
        # One segment that ends with the last action: a terminated episode needs nothing after it.
        assert len(trajectory.segments) == 1
        assert trajectory.turns[-1].end == len(trajectory.segments[0])
    assert sorted(backend.released, key=str) == sorted(set(backend.released), key=str)
    assert len(backend.released) == 7


def test_all_waiting_slots_share_a_batch() -> None:
    backend = Scripted()
    play(backend, requests(3))
    assert [len(batch) for batch in backend.batches] == [3, 3, 3]
    keys = [[request.rng_key for request in batch] for batch in backend.batches]
    assert keys == [[(0, 1, e, turn) for e in range(3)] for turn in range(3)]


def test_the_system_prompt_can_be_left_out() -> None:
    backend = Scripted()
    (with_rules,) = play(backend, requests(1))
    (without,) = play(backend, requests(1), use_system_prompt=False)
    assert with_rules.system_prompt == "Repeat the number."
    assert without.system_prompt is None
    assert "Repeat the number." in CHAT.tokenizer.decode(with_rules.segments[0].input_ids)
    assert "Repeat" not in CHAT.tokenizer.decode(without.segments[0].input_ids)


def test_wrong_actions_are_observations() -> None:
    (trajectory,) = play(Scripted("zzz"), requests(1))
    assert trajectory.terminated
    assert (trajectory.score, trajectory.success) == (0.0, False)
    assert [turn.action_error for turn in trajectory.turns] == ["not the number"] * 3


def test_a_cut_action_is_played_as_it_is_and_closed_before_the_next_turn() -> None:
    (trajectory,) = play(Scripted(cut=True), requests(1))
    assert trajectory.terminated
    assert trajectory.success
    segment = trajectory.segments[0]
    stop = CHAT.stop_token_ids[0]
    for turn in trajectory.turns[:-1]:
        assert stop not in segment.input_ids[turn.start : turn.end]
        assert segment.input_ids[turn.end] == stop
        assert not segment.action_mask[turn.end]


@pytest.mark.parametrize("by", ["rollout", "environment"])
def test_turn_limit(by: str) -> None:
    options = {"max_turns": 2} if by == "rollout" else {}
    env = {"limit": 2} if by == "environment" else {}
    (trajectory,) = play(Scripted(), requests(1), env, **options)
    assert (trajectory.terminated, trajectory.truncated) == (False, True)
    assert trajectory.truncation_cause == "turn_limit"
    assert len(trajectory.turns) == 2
    assert trajectory.score == pytest.approx(2 / 3)
    segment = trajectory.segments[0]
    # What the bootstrap value sees: the observation that followed the last action, up to where the next action
    # would begin.
    tail = segment.input_ids[trajectory.turns[-1].end :]
    assert tail == CHAT.next("number 2", finished=True)
    assert not any(segment.action_mask[trajectory.turns[-1].end :])


def test_token_limit() -> None:
    asked = requests(2)
    full = play(Scripted(), asked, {"words": 10})
    room = full[0].turns[1].end  # enough for two turns, not for the third observation
    played = play(Scripted(), asked, {"words": 10}, max_length=room + 3)
    for trajectory in played:
        check_shape(trajectory)
        assert (trajectory.terminated, trajectory.truncated) == (False, True)
        assert trajectory.truncation_cause == "token_limit"
        assert len(trajectory.turns) == 2
        assert trajectory.turns[-1].end == len(trajectory.segments[0]) <= room + 3
        assert trajectory.turns[1].reward == pytest.approx(1 / 3)


def test_the_last_action_is_cut_to_the_room_there_is() -> None:
    (full,) = play(Scripted("123456"), requests(1))
    start = full.turns[2].start
    (trajectory,) = play(Scripted("123456"), requests(1), max_length=start + 1)
    assert trajectory.terminated  # cutting the action ended nothing
    assert (trajectory.turns[2].start, trajectory.turns[2].end) == (start, start + 1)
    assert len(trajectory.segments[0]) == start + 1


def test_a_first_observation_that_does_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    backend = Scripted()
    played = play(backend, requests(3), {"words": 500})
    assert backend.batches == []
    for trajectory in played:
        assert (trajectory.turns, trajectory.segments) == ([], [])
        assert trajectory.truncation_cause == "token_limit"
    assert "Raise max_length" in caplog.text


@pytest.mark.parametrize(("fail", "cause"), [("raise", "env_error"), ("report", "env_timeout")])
def test_a_failure_of_the_environment_keeps_what_was_played(fail: str, cause: str) -> None:
    played = play(Scripted(), requests(2), {"fail": fail, "fail_at": 2})
    for trajectory in played:
        check_shape(trajectory)
        assert (trajectory.terminated, trajectory.truncated) == (False, True)
        assert trajectory.truncation_cause == cause
        assert len(trajectory.turns) == 2
        if fail == "raise":
            assert trajectory.error is not None
            assert "the shop burned down" in trajectory.error
            assert trajectory.score == pytest.approx(1 / 3)  # as last reported
            assert trajectory.turns[-1].end == len(trajectory.segments[0])
        else:
            assert trajectory.error is None
            shown = CHAT.next(f"number {10 * trajectory.episode + 2}", finished=True)
            assert trajectory.segments[0].input_ids[trajectory.turns[-1].end :] == shown


def test_an_environment_that_always_fails_is_an_error() -> None:
    backend = Scripted()
    with pytest.raises(EnvPoolError, match="the shop burned down"):
        play(backend, requests(40), {"fail": "raise"})
    assert {request.key for batch in backend.batches for request in batch} == set(backend.released)


def test_nothing_asked_nothing_played() -> None:
    assert play(Scripted(), []) == []


def test_bad_limits() -> None:
    with pytest.raises(ValueError, match="max_turns"):
        play(Scripted(), requests(1), max_turns=0)
    with pytest.raises(ValueError, match="max_length"):
        play(Scripted(), requests(1), max_length=1)


# ---- with a model -----------------------------------------------------------------------------------------
def policy(model: torch.nn.Module, **changes: Any) -> TransformersBackend:
    return TransformersBackend(
        model, pad_token_id=CHAT.pad_token_id, stop_token_ids=CHAT.stop_token_ids, **changes
    )


def model() -> Any:
    return tiny_llama(vocab_size=len(CHAT.tokenizer), max_position_embeddings=512)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_that_training_computes(temperature: float) -> None:
    network = model()
    with EnvPool(CountEnv, num_envs=3, schedule="lockstep") as pool:
        sampling = SamplingParams(temperature=temperature, max_new_tokens=6)
        played = collect(pool, policy(network), CHAT, requests(5), sampling, base_seed=3, max_length=400)
    for trajectory in played:
        check_shape(trajectory)
        ids = torch.tensor([trajectory.segments[0].input_ids])
        with torch.no_grad():
            logprobs = (network(ids).logits[0].float() / temperature).log_softmax(-1)
        for s, t in trajectory.action_positions():
            assert float(logprobs[t - 1, ids[0, t]]) == pytest.approx(
                trajectory.segments[s].logprobs[t], abs=1e-5
            )


def test_lockstep_repeats_to_the_bit_and_episodes_do_not_depend_on_their_neighbours() -> None:
    network = model()
    first = play(policy(network), requests(6), num_envs=4)
    assert play(policy(network), requests(6), num_envs=4) == first
    alone = [play(policy(network), [request], num_envs=1)[0] for request in requests(6)]
    free = play(policy(network), requests(6), num_envs=4, schedule="free")
    for others in (alone, free):
        for one, two in zip(others, first):
            assert one.segments[0].input_ids == two.segments[0].input_ids
            assert one.action_logprobs() == pytest.approx(two.action_logprobs(), abs=1e-5)
    other_update = play(policy(network), requests(6, update=2), num_envs=4)
    assert [t.segments[0].input_ids for t in other_update] != [t.segments[0].input_ids for t in first]


def test_no_cache_outlives_its_episode() -> None:
    backend = policy(model())
    play(backend, requests(5))
    assert backend._arena is not None
    assert backend._arena._row_of == {}


# ---- without a model --------------------------------------------------------------------------------------
def test_scripted_policies() -> None:
    with EnvPool(CountEnv, num_envs=3, schedule="lockstep") as pool:
        oracle = run_scripted(pool, "oracle", requests(5))
        chance = run_scripted(pool, "random", requests(20))
        again = run_scripted(pool, "random", requests(20))
        echo = run_scripted(pool, lambda observation, info: observation.split()[1], requests(5), max_turns=2)
    assert [t.score for t in oracle] == [1.0] * 5
    assert all(t.segments == [] and len(t.turns) == 3 for t in oracle)
    assert 0 < sum(t.score for t in chance) / 20 < 1
    assert chance == again
    assert [t.truncation_cause for t in echo] == ["turn_limit"] * 5
    assert [turn.action for turn in echo[1].turns] == ["10", "11"]
    assert [turn.reward for turn in echo[1].turns] == pytest.approx([1 / 3, 1 / 3])


def test_a_scripted_policy_that_the_environment_lacks() -> None:
    class Mute(CountEnv):
        def oracle_action(self) -> str | None:
            return None

    with (
        EnvPool(Mute, num_envs=1) as pool,
        pytest.raises(ValueError, match=r"has no oracle_action .* implement oracle_action"),
    ):
        run_scripted(pool, "oracle", requests(1))
    with EnvPool(CountEnv, num_envs=1) as pool, pytest.raises(ValueError, match="policy is 'best'"):
        run_scripted(pool, "best", requests(1))  # type: ignore[arg-type]


def test_random_generators_seeded_by_text_repeat() -> None:
    assert random.Random("0/1/2/3").random() == random.Random("0/1/2/3").random()


# ---- what the policy sees of the past ---------------------------------------------------------------------
WINDOW: dict[str, Any] = {"context_policy": "window", "context_window": 2}


class Answers(Scripted):
    """Gives one answer after the other, the same ones in each episode; histories may be rewritten."""

    def __init__(self, *answers: str) -> None:
        super().__init__()
        self.answers = answers

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> list[GenerationResult]:
        self.batches.append(list(requests))
        made = [CHAT.encode_action(self.answers[request.rng_key[-1]]) for request in requests]
        return [GenerationResult(ids, [-0.5] * len(ids), True) for ids in made]


def texts(trajectory: Trajectory) -> list[str]:
    return [CHAT.tokenizer.decode(s.input_ids, skip_special_tokens=False) for s in trajectory.segments]


def recomputed(network: torch.nn.Module, trajectory: Trajectory) -> list[float]:
    """Logprobs of the action tokens, segment by segment, in the order of the turns."""
    with torch.no_grad():
        tables = [
            network(torch.tensor([segment.input_ids])).logits[0].float().log_softmax(-1)
            for segment in trajectory.segments
        ]
    return [
        float(tables[s][t - 1, trajectory.segments[s].input_ids[t]]) for s, t in trajectory.action_positions()
    ]


def test_the_window_rewrites_the_context_and_the_turns_go_on() -> None:
    played = play(Answers(*(str(n) for n in range(6))), requests(2), {"turns": 6}, **WINDOW)
    for trajectory in played:
        check_shape(trajectory)
        assert [turn.segment for turn in trajectory.turns] == [0, 0, 0, 1, 1, 2]
        first = 10 * trajectory.episode
        assert [text.count("[earlier observation left out]") for text in texts(trajectory)] == [0, 2, 4]
        assert f"number {first + 2}" in texts(trajectory)[1]
        assert f"number {first + 1}<" not in texts(trajectory)[1]
        assert len(trajectory.action_logprobs()) == trajectory.num_action_tokens
        assert trajectory.turn_ends[-1] == trajectory.num_action_tokens - 1
    assert played[0].success


@pytest.mark.parametrize("window", [1, 2])
def test_sampled_logprobs_are_those_that_training_computes_in_every_segment(window: int) -> None:
    network = model()
    options = {"context_policy": "window", "context_window": window, "max_length": 300}
    cached = play(policy(network), requests(4), {"turns": 6, "words": 2}, **options)
    for trajectory in cached:
        check_shape(trajectory)
        assert len(trajectory.segments) > 1
        assert recomputed(network, trajectory) == pytest.approx(trajectory.action_logprobs(), abs=1e-5)
    # the rewritten beginning is noticed: kept caches change nothing
    anew = play(policy(network, keep_cache=False), requests(4), {"turns": 6, "words": 2}, **options)
    for one, two in zip(cached, anew):
        assert [s.input_ids for s in one.segments] == [s.input_ids for s in two.segments]
        assert [s.action_mask for s in one.segments] == [s.action_mask for s in two.segments]
        assert one.action_logprobs() == pytest.approx(two.action_logprobs(), abs=1e-5)


def test_credit_flows_over_segments_and_the_bootstrap_sees_the_last_context() -> None:
    """Values of a batch of many segments, and of the end, are those of each segment alone."""
    network = model()
    # After turn 3 (index 2) the window moves: the segment of the bootstrap has no action.
    played = play(policy(network), requests(3), {"turns": 9}, max_turns=3, **WINDOW)
    actor = ActorCritic(network, critic="shared").eval()
    assert actor.value_head is not None
    torch.nn.init.normal_(actor.value_head.weight)
    for trajectory in played:
        check_shape(trajectory)
        assert (trajectory.truncated, trajectory.truncation_cause) == (True, "turn_limit")
        assert [turn.segment for turn in trajectory.turns] == [0, 0, 0]
        assert len(trajectory.segments) == 2
        assert not any(trajectory.segments[1].action_mask)
        assert f"number {10 * trajectory.episode + 3}<" in texts(trajectory)[1]
    longer = play(policy(network), requests(2), {"turns": 9}, max_turns=5, **WINDOW)
    assert [turn.segment for turn in longer[0].turns] == [0, 0, 0, 1, 1]
    episodes = [EpisodeTensors.from_trajectory(t) for t in (*played, *longer)]
    for side in ("right", "left"):
        batch = collate(episodes, CHAT.pad_token_id, padding_side=side)  # type: ignore[arg-type]
        with torch.no_grad():
            output = actor(
                batch.input_ids,
                batch.attention_mask,
                batch.position_ids,
                batch.action_rows,
                batch.action_cols,
                batch.last_rows,
                batch.last_cols,
            )
        values = batch.split_by_episode(output.values)
        torch.testing.assert_close(output.logprobs, batch.logprobs, atol=1e-5, rtol=0)
        for k, episode in enumerate(episodes):
            trajectory = episode.trajectory
            with torch.no_grad():
                hidden = [
                    network.model(torch.tensor([s.input_ids])).last_hidden_state[0]
                    for s in trajectory.segments
                ]
                by_hand = [actor.value_head(h.float())[:, 0] for h in hidden]
            expected = [float(by_hand[s][t - 1]) for s, t in trajectory.action_positions()]
            assert values[k].tolist() == pytest.approx(expected, abs=1e-4)
            assert float(output.last_values[k]) == pytest.approx(float(by_hand[-1][-1]), abs=1e-4)


def test_the_tokens_of_an_episode_are_bounded() -> None:
    answers = [str(n) for n in range(9)]
    (free,) = play(Answers(*answers), requests(1), {"turns": 9}, **WINDOW)
    (bound,) = play(
        Answers(*answers), requests(1), {"turns": 9}, max_episode_tokens=free.num_tokens // 2, **WINDOW
    )
    check_shape(bound)
    assert (bound.terminated, bound.truncation_cause) == (False, "token_limit")
    assert 0 < len(bound.turns) < 9
    assert bound.num_tokens <= free.num_tokens // 2


# ---- how an answer says its action ------------------------------------------------------------------------
def test_an_answer_without_action_is_a_turn_and_never_reaches_the_environment() -> None:
    answers = (
        "I think <action>0</action>",
        "zero",
        "<action>",
        "so <action> 1 </action>",
        "<action>2</action>",
    )
    (trajectory,) = play(Answers(*answers), requests(1), action_format="tagged")
    check_shape(trajectory)
    assert [turn.action for turn in trajectory.turns] == ["0", "", "", "1", "2"]
    assert [turn.answer for turn in trajectory.turns] == list(answers)
    assert [turn.action_error for turn in trajectory.turns] == [None, NO_ACTION, NO_ACTION, None, None]
    assert trajectory.turn_rewards == pytest.approx([1 / 3, 0, 0, 1 / 3, 1 / 3])
    assert [turn.observation for turn in trajectory.turns] == [
        "number 0",
        "number 1",
        f"{RETRY_NOTE}\n\nnumber 1",
        f"{RETRY_NOTE}\n\nnumber 1",
        "number 2",
    ]
    assert trajectory.turns[1].state_key == trajectory.turns[3].state_key == "1/1"
    assert trajectory.terminated
    assert trajectory.success
    assert trajectory.system_prompt == f"Repeat the number.\n\n{INSTRUCTION}"
    assert INSTRUCTION in texts(trajectory)[0]


@pytest.mark.parametrize("schedule", ["lockstep", "free"])
def test_answers_without_action_end_by_the_limits(schedule: str) -> None:
    played = play(
        Answers(*["zero"] * 4),
        requests(5),
        schedule=schedule,
        action_format="tagged",
        max_turns=4,
        num_envs=2,
    )
    assert [t.episode for t in played] == list(range(5))
    for trajectory in played:
        check_shape(trajectory)
        assert (trajectory.truncated, trajectory.truncation_cause) == (True, "turn_limit")
        assert (len(trajectory.turns), trajectory.score) == (4, 0.0)
        assert [turn.reward for turn in trajectory.turns] == [0.0] * 4
    (endless,) = play(Answers(*["zero"] * 99), requests(1), action_format="tagged", **WINDOW)
    assert endless.truncation_cause == "token_limit"


def test_a_mix_of_good_and_bad_answers_repeats_under_lockstep() -> None:
    class Mixed(Answers):
        def generate(self, asked: Any, sampling: SamplingParams) -> list[GenerationResult]:
            self.batches.append(list(asked))
            made = []
            for request in asked:
                episode, turn = request.rng_key[-2:]
                good = (episode + turn) % 2 == 0
                made.append(CHAT.encode_action("<action>0</action>" if good else "0"))
            return [GenerationResult(ids, [-0.5] * len(ids), True) for ids in made]

    first, again = Mixed(), Mixed()
    options = {"action_format": "tagged", "max_length": 2000}
    played = play(first, requests(5), **options)
    assert play(again, requests(5), **options) == played
    keys = [[[request.rng_key for request in batch] for batch in b.batches] for b in (first, again)]
    assert keys[0] == keys[1]
    assert len(keys[0][0]) == 3
    for trajectory in played:
        assert sum(turn.action_error == NO_ACTION for turn in trajectory.turns) >= 2
        assert sum(turn.action != "" for turn in trajectory.turns) == 3


def test_without_a_system_prompt_the_format_is_not_explained() -> None:
    answers = [f"<action>{n}</action>" for n in range(3)]
    (trajectory,) = play(Answers(*answers), requests(1), action_format="tagged", use_system_prompt=False)
    assert trajectory.system_prompt is None
    assert INSTRUCTION not in texts(trajectory)[0]
    (plain,) = play(Answers(*answers), requests(1))
    assert [turn.action for turn in plain.turns] == answers  # the tags are part of a plain action
    assert [turn.answer for turn in plain.turns] == [None] * 3


def test_bad_context_and_format_options() -> None:
    for options, message in (
        ({"context_window": 2}, "context_window=2"),
        ({"context_policy": "window"}, "context_window=None"),
        ({"max_episode_tokens": 400}, "max_episode_tokens=400"),
        ({"action_format": "json"}, "action_format='json'"),
    ):
        with pytest.raises(ValueError, match=message):
            play(Scripted(), requests(1), **options)
