from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest

from trl_agent_envs.webshop import Catalog, Goal, RawCatalog, Shop
from trl_agent_envs.webshop.goals import build_goals
from trl_agent_envs.webshop.synthetic import generate


def test_one_goal_for_each_combination(strict: Shop) -> None:
    goals = strict.goals("synthetic")
    assert [goal.goal_id for goal in goals] == list(range(10))  # 2*2 rugs, 2*2 shoes, 1, 1
    rug = next(goal for goal in goals if goal.options == {"color": "black", "item shape": "round"})
    start = "Find me rugs with hand woven with color: black, and item shape: round, and price lower than "
    assert rug.instruction == f"{start}{rug.price_upper:.2f} dollars"
    assert rug.price_upper in (40.0, 50.0, 60.0)  # the larger of two of 30, 40, 50, 60
    assert rug.attributes == ("hand woven", "non slip")
    assert rug.weight == pytest.approx(1 / 4)  # both attributes are wanted by the four rug goals
    dear = next(goal for goal in goals if goal.asin == "B000000004")
    assert (dear.price_upper, dear.instruction) == (1_000_000, "Find me shoes")  # only 990 lies above 985


def _plain_synthetic(catalog: Catalog, prices: dict[str, float], rng: random.Random) -> list[Goal]:
    """The original's construction, with every goal in memory; it shares no code with the package's."""
    drafts: list[Any] = []
    uses: Counter[str] = Counter()
    for product in catalog:
        if product.instruction is None:
            continue
        grid = [10.0 * i for i in range(1, 100) if 10.0 * i > prices[product.asin]][:4]
        limit = max(rng.sample(grid, 2)) if len(grid) >= 2 else 1_000_000.0
        clause = f", and price lower than {limit:.2f} dollars" if len(grid) >= 2 else ""
        names = sorted(product.options)
        for values in itertools.product(*(product.options[name] for name in names)):
            options = dict(zip(names, values))
            wish = ", and ".join(f"{name}: {value}" for name, value in options.items())
            text = f"{product.instruction}{' with ' + wish if wish else ''}{clause}"
            drafts.append((product, text, options, limit))
            uses.update(product.instruction_attributes)
    random.Random(233).shuffle(drafts)
    return [
        Goal(
            goal_id,
            product.asin,
            text,
            product.instruction_attributes,
            options,
            limit,
            sum(1 / uses[name] for name in product.instruction_attributes)
            / len(product.instruction_attributes),
        )
        for goal_id, (product, text, options, limit) in enumerate(drafts)
    ]


@pytest.mark.parametrize("seed", [0, 4])
def test_against_a_plain_construction(seed: int) -> None:
    catalog = Catalog.load(generate(300, seed=5))
    catalog.products[7].options["size"] = ()  # no combination, so no goal, but its price limit is drawn
    shop = Shop(catalog, price_seed=seed)
    rng = random.Random(seed)
    prices = {p.asin: p.pricing[0] if len(p.pricing) == 1 else rng.uniform(*p.pricing) for p in catalog}
    assert shop.prices == prices
    assert list(shop.goals()) == _plain_synthetic(catalog, prices, rng)


def test_goals_are_a_sequence(strict: Shop) -> None:
    goals = strict.goals()
    everything = list(goals)
    assert goals[3] == goals[-7] == everything[3]
    assert goals[2:8:3] == [everything[2], everything[5]]
    assert goals == everything
    assert goals != everything[:-1]
    assert goals.table.weight_of_each().tolist() == [goal.weight for goal in everything]
    places = goals.table.position_of_each().tolist()
    assert [strict.catalog.products[place].asin for place in places] == [goal.asin for goal in everything]
    assert goals != "goals"
    for wrong in (10, -11):
        with pytest.raises(IndexError, match=f"no synthetic goal {wrong}; there are 10"):
            goals[wrong]


def test_order_never_changes(strict: Shop) -> None:
    """Python's `random.Random(233).shuffle`, frozen: a goal id has to mean the same goal on every machine."""
    assert "".join(goal.asin[-1] for goal in strict.goals("synthetic")) == "3511333141"


def test_human_goals(strict: Shop) -> None:
    (goal,) = strict.goals("human")  # an instruction that wants no attribute is no goal
    assert (goal.asin, goal.options, goal.weight) == ("B000000003", ("café noir",), 1.0)
    assert goal.instruction.startswith("i want noir trail shoes, and price lower than ")


def test_order_is_fixed_and_price_limits_follow_the_seed(raw: RawCatalog) -> None:
    shops = [Shop.load(raw, price_seed=seed) for seed in (0, 0, 1)]
    first, again, other = ([(g.asin, g.options) for g in shop.goals()] for shop in shops)
    assert first == again == other
    assert shops[0].goals() == shops[1].goals()
    assert shops[0].prices != shops[2].prices
    assert 30.0 <= shops[0].prices["B000000003"] <= 50.25
    assert shops[0].prices["B000000002"] == 100.0


def test_price_limit_frequencies(raw: RawCatalog) -> None:
    """Of the four tens above the price, the second, third and fourth come up in 1, 2 and 3 of 6 draws."""
    shop = Shop.load(raw)
    rng = random.Random(5)
    counts: dict[float, int] = {}
    for _ in range(1200):
        goals = build_goals("synthetic", shop.catalog, shop.prices, rng)
        limit = next(goal.price_upper for goal in goals if goal.asin == "B000000001")
        counts[limit] = counts.get(limit, 0) + 1
    assert counts == {
        40.0: pytest.approx(200, abs=50),
        50.0: pytest.approx(400, abs=60),
        60.0: pytest.approx(600, abs=60),
    }


def test_unknown_and_empty_sets(raw: RawCatalog) -> None:
    shop = Shop.load(raw)
    with pytest.raises(ValueError, match="goals must be one of synthetic, human; got 'all'"):
        shop.goals("all")
    raw.human.clear()
    with pytest.raises(ValueError, match="six has no human goals"):
        Shop.load(raw).goals("human")
