"""The scripted shopper: an expert nearly always succeeds, the crowd far less, and a seed fixes both."""

from __future__ import annotations

from trl_agent_envs.webshop.demonstrator import CROWD, EXPERT, Demonstrator, Person
from trl_agent_envs.webshop.env import WebShopEnv


def shop(person: Person, episodes: int, seed: int = 0) -> tuple[float, list[str]]:
    env = WebShopEnv(split="train")
    shopper = Demonstrator(person, seed=seed)
    successes, actions = 0, []
    for episode in range(episodes):
        env.reset(seed=episode)
        shopper.start_episode(episode)
        done = False
        while not done:
            action = shopper.act(env)
            _, _, terminated, truncated, info = env.step(action)
            assert info["action_error"] is None, action
            actions.append(action)
            done = terminated or truncated
        successes += info["success"]
    return successes / episodes, actions


def test_expert_succeeds_and_the_crowd_is_of_mixed_quality() -> None:
    expert, _ = shop(EXPERT, 60)
    crowd, _ = shop(CROWD, 200)
    assert expert >= 0.95
    assert 0.1 < crowd < 0.5


def test_a_seed_fixes_what_a_shopper_does() -> None:
    assert shop(CROWD, 20, seed=3) == shop(CROWD, 20, seed=3)
    assert shop(CROWD, 20, seed=3) != shop(CROWD, 20, seed=4)
