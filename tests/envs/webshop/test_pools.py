from __future__ import annotations

from collections import defaultdict

import pytest

from trl_agent_envs.webshop import RawCatalog, Shop
from trl_agent_envs.webshop.pools import goal_pools
from trl_agent_envs.webshop.splits import split_ids
from trl_agent_envs.webshop.synthetic import generate


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop.load(generate(400))


@pytest.mark.parametrize("goal_set", ["synthetic", "human"])
@pytest.mark.parametrize("split", ["train", "dev", "test", "all", "original:test", "original:eval"])
def test_pools_against_a_plain_loop(shop: Shop, goal_set: str, split: str) -> None:
    """The products in the order of their first goals, each with all its goals of the split, ascending."""
    if goal_set == "human" and split == "original:eval":
        with pytest.raises(ValueError, match="is empty"):
            goal_pools(goal_set, split, shop)
        return
    goals = shop.goals(goal_set)
    expected: dict[str, list[int]] = defaultdict(list)
    for goal_id in split_ids(goal_set, split, shop):
        expected[goals[goal_id].asin].append(goal_id)
    pools = goal_pools(goal_set, split, shop)
    assert [pool.tolist() for pool in pools] == list(expected.values())
    assert len(pools) == len(expected)
    assert goal_pools(goal_set, split, shop) is pools
    assert pools[-1].tolist() == pools[len(pools) - 1].tolist()
    assert [pool.tolist() for pool in pools[1:3]] == list(expected.values())[1:3]
    with pytest.raises(IndexError):
        pools[len(pools)]


def test_what_is_no_split_or_empty(shop: Shop, raw: RawCatalog) -> None:
    with pytest.raises(ValueError, match="split must be one of train, dev, test, all, original:test"):
        goal_pools("synthetic", "validation", shop)
    with pytest.raises(ValueError, match="split 'original:train' of the synthetic goals of six is empty"):
        goal_pools("synthetic", "original:train", Shop.load(raw))
