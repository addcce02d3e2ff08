"""The embedded catalogue against `plain_shop`, an independent and slow writing of the original's rules.

`test_golden.py` compares with the original itself, where its data is; these tests always run.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from tests.envs.webshop.plain_shop import PlainSearch, PlainVisit, options_of, plain_goals, plain_reward
from trl_agent_envs.webshop import RawCatalog, Shop
from trl_agent_envs.webshop.env import WebShopEnv
from trl_agent_envs.webshop.nouns import guess_nouns
from trl_agent_envs.webshop.pages import ObservationMode
from trl_agent_envs.webshop.synthetic import generate

MODES: tuple[ObservationMode, ...] = ("text", "text_rich")


@pytest.fixture(scope="module")
def embedded() -> RawCatalog:
    return generate()


@pytest.fixture(scope="module", params=["strict", "original"])
def shop(request: pytest.FixtureRequest) -> Shop:
    return Shop.load(compat=request.param)


def plain(raw: RawCatalog) -> Any:
    return plain_goals(raw.products, raw.attributes, seed=0)


def test_goals(embedded: RawCatalog) -> None:
    shop = Shop.load()
    charged, goals = plain(embedded)
    assert shop.prices == charged
    found = shop.goals("synthetic")
    assert len(found) == len(goals) > 5000
    for goal, (asin, text, attributes, options, limit, weight) in zip(found, goals):
        assert (goal.asin, goal.instruction, list(goal.attributes)) == (asin, text, attributes)
        assert (goal.options, goal.price_upper) == (options, limit)
        assert goal.weight == pytest.approx(weight, rel=1e-12)


def test_search(embedded: RawCatalog) -> None:
    """Fifty documents for each query, with the loop's scores, in their order; equal ones by asin."""
    shop, slow = Shop.load(), PlainSearch(embedded.products)
    rng = random.Random(0)
    goals = rng.sample(range(len(shop.goals())), 25)
    queries = [shop.goals()[i].instruction for i in goals[:10]]
    queries += [shop.catalog[shop.goals()[i].asin].title for i in goals[10:20]]
    queries += [shop.goals()[i].attributes[0] for i in goals[20:]] + ["red red dress", "the", "zzz"]
    for query in queries:
        expected = slow.scores(query)
        found = shop.search(query)
        best = sorted(expected.values(), reverse=True)[:50]
        assert [score for _, score in found] == pytest.approx(best, rel=2e-5), query
        assert [expected[asin] for asin, _ in found] == pytest.approx(best, rel=2e-5), query
        assert found == sorted(found, key=lambda hit: (-hit[1], hit[0])), query


def _purchases(raw: RawCatalog, goals: Any, rng: random.Random, number: int) -> Any:
    """Goals with purchases of several kinds: exact, other options, the same kind of product, any product."""
    by_query: dict[str, list[Any]] = {}
    for record in raw.products:
        by_query.setdefault(record["query"], []).append(record)
    wanted_by = {record["asin"]: record for record in raw.products}
    for _ in range(number):
        index = rng.randrange(len(goals))
        wanted = wanted_by[goals[index][0]]
        yield index, wanted, goals[index][3]
        for bought in (wanted, rng.choice(by_query[wanted["query"]]), rng.choice(raw.products)):
            types = options_of(bought)
            yield index, bought, {name: rng.choice(v) for name, v in types.items() if rng.random() < 0.8}


def test_rewards(embedded: RawCatalog, shop: Shop) -> None:
    charged, goals = plain(embedded)
    records = {record["asin"]: record for record in embedded.products}
    nouns = {record["name"]: list(guess_nouns(shop.catalog[record["asin"]])) for record in embedded.products}
    seen = set()
    for index, bought, options in _purchases(embedded, goals, random.Random(1), 400):
        asin = bought["asin"]
        expected = plain_reward(
            goals[index],
            records[goals[index][0]],
            bought,
            embedded.attributes[asin]["attributes"],
            options,
            charged[asin],
            lambda title: nouns[title],
            original=not shop.compat.exact_option_matches,
        )
        info = shop.reward(shop.goals()[index], asin, options)
        assert {name: getattr(info, name) for name in expected} == pytest.approx(expected, abs=1e-12)
        seen.add((info.r_type, info.r_price, info.total == 1.0))
    assert len(seen) > 6  # the purchases differ in what they are worth


def test_pages(embedded: RawCatalog, shop: Shop) -> None:
    """Random walks with moves that are possible and moves that are not: same pages, same clickables."""
    rng = random.Random(2)
    envs = {mode: WebShopEnv(split="all", compat=shop.compat, observation_mode=mode) for mode in MODES}
    kinds = set()
    for goal in rng.sample(range(len(shop.goals())), 40):
        for env in envs.values():
            env.reset(options={"goal_id": goal})
        wish = shop.goals()[goal]
        visit = PlainVisit(
            embedded.products,
            wish.instruction,
            lambda query: [asin for asin, _ in shop.search(query)],
            lambda asin, options: shop.reward(wish, asin, options).total,  # noqa: B023 - used in this turn
        )
        for action in itertools.chain([None], _walk(envs["text"], rng)):
            steps = {mode: env.step(action) for mode, env in envs.items()} if action is not None else {}
            done = action is not None and visit.act(action)
            kinds.add((visit.kind, visit.sub, bool(visit.options), done))
            for mode, env in envs.items():
                expected = visit.text() if mode == "text" else visit.text_rich()
                assert env.session.observation(mode) == expected, action
                assert list(env.session.clickables) == visit.clickables(), action
                assert (env.session.page.kind == "index") == ('id="search_input"' in visit.html())
            for observation, reward, terminated, _, info in steps.values():
                assert (info["action_error"] is None) == done, action
                assert (reward, terminated) == (visit.reward, visit.kind == "done")
                assert observation in (visit.text(), visit.text_rich())
    for sub in ("description", "features", "reviews"):
        assert any(kind == "sub" and name == sub for kind, name, _, _ in kinds)
    assert {("done", True), ("results", True), ("item", False)} <= {
        (kind, done) for kind, _, _, done in kinds
    }


def _walk(env: WebShopEnv, rng: random.Random) -> Any:
    """Yield up to 14 actions that fit the page `env` is on when each is asked for."""
    for _ in range(14):
        draw = rng.random()
        if draw < 0.1:
            yield rng.choice(
                ["click[buy now]x", "click[green]", "look", "search[]", "click[search]", "buy[now]"]
            )
        elif draw < 0.25:
            yield f"search[{rng.choice(env.session.goal.instruction.split())}]"
        elif env.session.page.kind == "item" and draw < 0.9:
            yield f"click[{rng.choice([v for v in env.session.clickables if v != 'buy now'])}]"
        else:
            yield env.sample_action(rng)
        if env.session.page.kind == "done":
            return
