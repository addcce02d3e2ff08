"""WebShopEnv: search, browse and buy in a shop, in text."""

from __future__ import annotations

import dataclasses
import random
from functools import cached_property
from pathlib import Path
from typing import Any

from trl_agent_envs.core import AgentEnv

from .compat import Compat
from .draws import OriginalDraws
from .goals import Goal
from .oracle import Oracle
from .pages import OBSERVATION_MODES, ObservationMode
from .pools import goal_pools
from .raw import RawCatalog
from .session import ActionError, Session, can_be_named
from .shop import Shop
from .splits import split_ids

SYSTEM_PROMPT = """You are shopping in a web shop. Buy the product that the instruction asks for.
Each turn, answer with exactly one action:
search[keywords] - search the shop for products
click[value] - click a button, a product id or an option shown on the page, for example click[next >]
Choose the options that the instruction names (such as color or size), then click[buy now]. You can buy
once."""


class WebShopEnv(AgentEnv):
    """A shop of products with titles, options and prices, and an instruction that says what to buy.

    Description: the agent searches, opens products, reads their pages, chooses options, and buys one product.
    Observation: the page as text. "text" joins all visible texts with " [SEP] "; "text_rich" has one text a
        line and marks buttons and what was clicked.
    Action: ``search[keywords]`` (possible on every page) or ``click[value]`` with a value of
        ``info["available_actions"]["clickables"]``. Anything else changes nothing; ``info["action_error"]``
        says why.
    Reward: 0, and the score in [0, 1] when something is bought.
    Episode end: terminated by the purchase; truncated ("turn_limit") after `max_turns` actions.

    Args:
        data_dir: folder in the original's format, or one that `trl-agent webshop index` has built; None is the
            embedded catalogue.
        goals: "synthetic" or "human" instructions.
        split: "train", "dev", "test", "all", or one of the original's ranges ("original:test", ...).
        observation_mode: "text" or "text_rich".
        compat: "strict", or "original" for the original's behaviour with its faults (see `Compat`).
        price_seed: draws prices of products with a price range, and the price limits in the instructions.
        title_nouns: what the reward takes a title's nouns from (see `nouns.title_nouns`).
        max_turns: actions an episode may take.

    Goals are drawn uniformly over products, then over the product's goals, so that one with hundreds of
    option combinations does not dominate. ``reset(options={"goal_id": n})`` chooses a goal of any split.
    With "original" they are drawn as the original does: by weight, one after the other from its generator,
    which ``reset(seed=n)`` seeds as ``random.seed(n)`` would.

    Version history: v0, the first.
    """

    metadata: dict[str, Any] = {"render_modes": [], "backend": "inline"}  # noqa: RUF012 - declared so by Gymnasium

    def __init__(
        self,
        data_dir: str | Path | RawCatalog | None = None,
        goals: str = "synthetic",
        split: str = "train",
        observation_mode: ObservationMode = "text",
        compat: str | Compat = "strict",
        price_seed: int = 0,
        title_nouns: str | Path | None = None,
        max_turns: int = 15,
    ) -> None:
        if observation_mode not in OBSERVATION_MODES:
            raise ValueError(
                f"observation_mode must be one of {', '.join(OBSERVATION_MODES)}; got {observation_mode!r}"
            )
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
            raise ValueError(f"max_turns must be a whole number of at least 1, got {max_turns!r}")
        self.shop = Shop.load(data_dir, compat=compat, price_seed=price_seed, title_nouns=title_nouns)
        self.goals = self.shop.goals(goals)
        self.observation_mode: ObservationMode = observation_mode
        self.max_turns = max_turns
        self._pools = goal_pools(goals, split, self.shop)
        self._oracle = Oracle(self.shop)
        self._session: Session | None = None
        self._turns = 0
        self._truncated = False
        self.goal_set, self.split = goals, split

    @cached_property
    def goal_ids(self) -> list[int]:
        """The goal ids of the split."""
        return split_ids(self.goal_set, self.split, self.shop)

    @cached_property
    def _draws(self) -> OriginalDraws:
        return OriginalDraws(self.goals.table.weight_of_each().tolist(), self.goal_ids)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Open the search page with a goal drawn by `seed`, or ``options["goal_id"]``.

        Raises:
            ValueError: an unknown option, or a goal id that does not exist.
        """
        super().reset(seed=seed)
        if seed is not None and not self.shop.compat.even_draws:
            self._draws.reseed(seed)
        self._session = Session(self.shop, self._pick(options or {}))
        self._turns = 0
        self._truncated = False
        self._observation = self._session.observation(self.observation_mode)
        info = self._info(None)
        info["system_prompt"] = SYSTEM_PROMPT
        return self._observation, info

    def _pick(self, options: dict[str, Any]) -> Goal:
        if options.keys() - {"goal_id"}:
            raise ValueError(f"reset options may hold goal_id only, got {', '.join(map(repr, options))}")
        goal_id = options.get("goal_id")
        if goal_id is None and not self.shop.compat.even_draws:
            return self.goals[self._draws.next()]
        if goal_id is None:
            pool = self._pools[int(self.np_random.integers(len(self._pools)))]
            goal_id = pool[int(self.np_random.integers(len(pool)))] if len(pool) > 1 else pool[0]
            return self.goals[int(goal_id)]
        if (
            isinstance(goal_id, bool)
            or not hasattr(goal_id, "__index__")
            or not 0 <= int(goal_id) < len(self.goals)
        ):
            raise ValueError(f"goal_id must be a whole number in [0, {len(self.goals) - 1}], got {goal_id!r}")
        return self.goals[int(goal_id)]

    @property
    def session(self) -> Session:
        """The current visit."""
        if self._session is None:
            raise RuntimeError("call reset() before anything else")
        return self._session

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Do `action`. What cannot be done changes nothing and says why in ``info["action_error"]``."""
        session = self.session
        if self._over:
            over = self._info("The episode is over; call reset().")
            return self._observation, 0.0, session.reward is not None, self._truncated, over
        self._turns += 1
        error: str | None = None
        reward = 0.0
        try:
            if not isinstance(action, str):
                raise ActionError(f"An action is text, not {type(action).__name__}.")
            session.act(action)
            self._observation = session.observation(self.observation_mode)
        except ActionError as problem:
            error = str(problem)
        terminated = session.page.kind == "done" and error is None
        if terminated and session.reward is not None:
            reward = session.reward.total
        self._truncated = self._turns >= self.max_turns and not terminated
        return self._observation, reward, terminated, self._truncated, self._info(error)

    @property
    def _over(self) -> bool:
        if self._truncated:
            return True
        return self.session.page.kind == "done" and self.shop.compat.over_when_done

    def _info(self, error: str | None) -> dict[str, Any]:
        session = self.session
        reward = session.reward
        info: dict[str, Any] = {
            "score": 0.0 if reward is None else reward.total,
            "success": reward is not None and reward.success,
            "goal_id": session.goal.goal_id,
            "available_actions": {
                "has_search_bar": session.page.kind == "index",
                "clickables": list(session.clickables),
            },
            "action_error": error,
        }
        if self._truncated:
            info["truncation_cause"] = "turn_limit"
        if reward is not None:
            info["reward_info"] = dataclasses.asdict(reward)
        return info

    def state_key(self) -> str:
        """Return goal, page and choices as text. The number of turns taken is not part of it."""
        return self.session.key(with_visited=self.observation_mode == "text_rich")

    def oracle_action(self) -> str | None:
        """Return the next action of an expert who knows the product, or None after the end."""
        return None if self._over else self._oracle.action(self.session)

    def sample_action(self, rng: random.Random) -> str | None:
        """Return a random valid action: a click, or on the search page a search for words of the goal."""
        if self._over:
            return None
        clickable = [v for v in self.session.clickables if v != "search" and can_be_named(v)]
        if clickable:
            return f"click[{rng.choice(clickable)}]"
        words = self.session.goal.instruction.replace("[", " ").replace("]", " ").split() or ["product"]
        start = rng.randrange(len(words))
        return f"search[{' '.join(words[start : start + rng.randint(1, 5)])}]"
