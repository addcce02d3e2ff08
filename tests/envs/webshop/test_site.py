"""The site shows what the text environment shows, through the same moves, and lets no text out of its place."""

from __future__ import annotations

import contextlib
import json
import os
import random
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tests.envs.webshop.conftest import product, six_products, values
from tests.envs.webshop.html_reading import ReadPage
from tests.envs.webshop.site_visitor import Visitor, site_of
from trl_agent_envs.webshop import RawCatalog, Shop, splits
from trl_agent_envs.webshop.env import WebShopEnv
from trl_agent_envs.webshop.session import ActionError, Session
from trl_agent_envs.webshop.site import Site
from trl_agent_envs.webshop.site.rendering import Templates
from trl_agent_envs.webshop.site.visits import Visit
from trl_agent_envs.webshop.synthetic import generate

DATA = os.environ.get("WEBSHOP_DATA")
SIXTY = generate(60, seed=0)
HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "</form></main></body>",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;b&gt; &amp;amp; &#60;",
    "a' onclick='x",
    "<!-- comment -->",
    "javascript:alert(1)//\\",
    "..%2f..%2f?x=1&y=2#z",
    "\u202eright to left \u0000 null \ud800",
]


@pytest.fixture(scope="module", params=["strict", "original"])
def env(request: pytest.FixtureRequest) -> WebShopEnv:
    return WebShopEnv(data_dir=SIXTY, split="all", compat=request.param, max_turns=1000)


def same(visitor: Visitor, env: WebShopEnv, observation: str, info: dict[str, Any]) -> None:
    assert visitor.status == 200
    assert visitor.page.visible == observation
    assert visitor.page.clickables == info["available_actions"]["clickables"]
    has_bar = any(element.attributes.get("id") == "search_input" for element in visitor.page.elements)
    assert has_bar == info["available_actions"]["has_search_bar"]


def test_random_walks_show_the_same_on_both_sides(env: WebShopEnv) -> None:
    site = Site(env)
    kinds = set()
    for walk in range(8):
        rng = random.Random(walk)
        observation, info = env.reset(options={"goal_id": rng.randrange(len(env.goals))})
        visitor = Visitor(site, f"/fixed_{info['goal_id']}")
        same(visitor, env, observation, info)
        while (action := env.sample_action(rng)) is not None and env.session.number < 4:
            observation, reward, done, _, info = env.step(action)
            visitor.do(action)
            same(visitor, env, observation, info)
            assert visitor.page.note == ""
            kinds.add(env.session.page.kind)
            if done:
                assert (
                    float(visitor.page.by_id("reward").text.removeprefix("Your score (min 0.0, max 1.0)"))
                    == reward
                )
                break
    assert kinds == {"index", "results", "item", "sub", "done"}


@pytest.mark.skipif(
    not DATA, reason="needs the real WebShop data: set WEBSHOP_DATA to a folder with data/ and golden/"
)
def test_every_golden_page_has_the_originals_texts_and_clickables() -> None:
    """The original's own pages on its real products, rendered without a server."""
    folder = Path(str(DATA))
    nouns = folder / "golden" / "title_nouns_sm360.jsonl"
    shop = Shop.load(folder / "data", compat="original", title_nouns=nouns)
    goals, templates = shop.goals("synthetic"), Templates()
    visit, wrong, kinds = None, [], set()
    with (folder / "golden" / "pages.jsonl").open(encoding="utf-8") as file:
        for row in map(json.loads, file):
            if row["action"] is None:
                visit = Visit("id", "owner", Session(shop, goals[row["goal"]]), 1000)
            assert visit is not None
            with contextlib.suppress(ActionError):
                visit.session.act(row["action"] or "")
            page = ReadPage(templates.visit(visit).decode())
            kinds.add(visit.session.page.kind)
            if (page.visible, page.clickables) != (row["text"], row["clickables"]):
                wrong.append((row["ep"], row["step"]))
    assert wrong == []
    assert kinds == {"index", "results", "item", "sub", "done"}


def test_chosen_options_are_checked_and_kept_on_sub_pages() -> None:
    visitor = Visitor(site_of(six_products()))
    visitor.do("search[persian]")
    visitor.do("click[b000000001]")
    assert [radio.attributes["name"] for radio in visitor.page.radios] == ["color"] * 2 + ["item shape"] * 2
    visitor.do("click[navy | red]")
    visitor.do("click[round]")
    visitor.do("click[description]")
    visitor.do("click[< prev]")
    checked = [radio.attributes["value"] for radio in visitor.page.radios if "checked" in radio.attributes]
    assert checked == ["navy | red", "round"]
    visitor.do("click[black]")
    (focused,) = [element for element in visitor.page.elements if "autofocus" in element.attributes]
    assert focused.attributes["value"] == "black", "the keyboard goes on where it was"
    labels = {e.attributes["for"]: e.text for e in visitor.page.elements if e.tag == "label"}
    assert all(labels[radio.attributes["id"]] == radio.attributes["value"] for radio in visitor.page.radios)
    assert all(radio.attributes["data-url"].endswith("/choose") for radio in visitor.page.radios)


def test_ids_and_classes_are_the_originals(strict: Shop) -> None:
    visitor = Visitor(site_of(six_products()), "/fixed_0")
    goal = strict.goals("synthetic")[0]
    assert visitor.page.by_id("instruction-text").text == f"Instruction:{goal.instruction}"
    assert visitor.page.by_id("search_input").attributes["type"] == "text"
    visitor.do("search[rug]")
    links = [element for element in visitor.page.elements if "product-link" in element.classes]
    assert [link.text for link in links] == ["B000000002", "B000000001"]
    visitor.do("click[b000000001]")
    assert visitor.page.by_id("product-image").attributes["src"].startswith("/static/")
    visitor.do("click[buy now]")
    (score,) = [
        e for e in visitor.page.elements if e.tag == "pre" and e.parent is visitor.page.by_id("reward")
    ]
    assert 0 <= float(score.text) <= 1


def hostile(text: str) -> RawCatalog:
    wish = {"attributes": [text], "instruction": text, "instruction_attributes": [text]}
    record = product(
        "B000000001",
        f"rug {text}",
        full_description=text,
        small_description=[text, text],
        images=[text],
        customization_options={text: values(text, "plain"), "Size": values(f"{text} 7")},
    )
    return RawCatalog([record], {"B000000001": wish}, {}, "hostile")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_stay_texts(text: str) -> None:
    """Every page of a shop whose every text is hostile has the elements of a harmless one, and the right texts."""
    visitor = Visitor(site_of(hostile(text)), "/fixed_0")
    harmless = Visitor(site_of(hostile("harmless")), "/fixed_0")
    env = WebShopEnv(data_dir=hostile(text), split="all")
    observation, _ = env.reset(options={"goal_id": 0})
    for action in ("search[rug]", "click[b000000001]", "click[description]", "click[< prev]", "click[features]",
                   "click[< prev]", "click[plain]", "click[buy now]"):  # fmt: skip
        observation = env.step(action)[0]
        page, plain = visitor.do(action), harmless.do(action)
        # HTML has no null character and no lone surrogate; Jinja leaves them, the encoding and the reader do not
        assert page.visible == observation.encode("utf-8", "replace").decode()
        assert [(e.tag, sorted(e.attributes)) for e in page.elements] == [
            (e.tag, sorted(e.attributes)) for e in plain.elements
        ]
        assert page.comments == []
        assert "alert(1)" not in "".join(e.attributes.get("src", "") for e in page.elements)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_queries_and_clicks_are_told_as_text(text: str) -> None:
    visitor = Visitor(site_of(six_products()))
    tags = [element.tag for element in visitor.page.elements]
    page = visitor.post(f"{visitor.address}/click", [("value", text)])
    assert page.note.endswith("cannot be clicked on this page.")
    assert [element.tag for element in page.elements if element.attributes.get("id") != "message"] == tags
    page = visitor.search(text)
    assert page.visible.partition("Page ")[2].startswith("1 (Total results: ")


def test_an_option_of_any_name_can_be_chosen() -> None:
    for name in ("value", "search_query", "turn", "", "a=b&c", "naïve ☃"):
        record = product("B000000001", "rug", customization_options={name: values("red", "blue & <green>")})
        wish = {"attributes": ["x"], "instruction": "rug", "instruction_attributes": ["x"]}
        visitor = Visitor(site_of(RawCatalog([record], {"B000000001": wish}, {}, "one")))
        visitor.do("search[rug]")
        visitor.do("click[b000000001]")
        visitor.do("click[blue & <green>]")
        assert visitor.page.note == ""
        checked = [r.attributes["value"] for r in visitor.page.radios if "checked" in r.attributes]
        assert checked == ["blue & <green>"]


@pytest.fixture(scope="module")
def robust() -> Visitor:
    return Visitor(site_of(hostile("plain")))


@given(name=st.text(min_size=1, max_size=20), kind=st.text(max_size=10), body=st.binary(max_size=100))
@settings(max_examples=30, deadline=None)
def test_any_request_gets_an_answer_with_the_headers(
    robust: Visitor, name: str, kind: str, body: bytes
) -> None:
    base = robust.address
    for method, address in (
        ("GET", "/" + quote(name, safe="", errors="replace")),
        ("POST", f"{base}/{quote(kind, errors='replace')}"),
        ("PUT", base),
    ):
        answer = robust.client.request(method, address, content=body, follow_redirects=False)
        assert answer.status_code < 500
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert robust.client.get(base).status_code == 200


def test_security_headers_are_on_every_answer() -> None:
    visitor = Visitor(site_of(six_products()))
    first = visitor.address
    for address in ("/", first, "/static/site.css", "/static/no.css", "/visit/none/0", "/a/b/c"):
        headers = visitor.client.get(address).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["img-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["x-content-type-options"] == "nosniff"
    assert visitor.client.get(first).headers["cache-control"] == "no-store"
    assert visitor.client.get("/static/site.css").headers["cache-control"] == "no-cache"


def test_nothing_is_fetched_from_elsewhere_and_no_script_or_style_is_inline(env: WebShopEnv) -> None:
    visitor = Visitor(Site(env))
    pages: list[ReadPage] = [visitor.page]
    shown = env.shop.catalog.products[0]
    for action in (f"search[{shown.title}]", f"click[{shown.asin.lower()}]", "click[description]", "click[< prev]",
                   "click[buy now]"):  # fmt: skip
        pages.append(visitor.do(action))
    addresses = set()
    for page in pages:
        for element in page.elements:
            assert not any(name.startswith("on") or name == "style" for name in element.attributes)
            assert element.tag != "script" or (element.text == "" and element.attributes["src"])
            assert element.tag != "style"
            addresses |= {element.attributes[n] for n in ("src", "href", "action") if n in element.attributes}
    assert all(address.startswith("/") and not address.startswith("//") for address in addresses)
    for address in addresses - {""}:
        if address.startswith("/static/"):
            answer = visitor.client.get(address)
            assert answer.status_code == 200
            assert "//" not in answer.text.replace("http://www.w3.org/2000/svg", "").replace("\n//", "\n")


def test_a_goal_is_drawn_fixed_or_named(strict: Shop) -> None:
    site = site_of(six_products(), rng=random.Random(0))
    goals = strict.goals("synthetic")

    def asked(address: str) -> str:
        return Visitor(site, address).page.by_id("instruction-text").text.removeprefix("Instruction:")

    for goal in goals:
        assert asked(f"/fixed_{goal.goal_id}") == goal.instruction
    drawn = {asked("/") for _ in range(60)}
    assert drawn <= {goal.instruction for goal in goals}
    assert len(drawn) > 3
    assert len({asked("/worker-7") for _ in range(5)}) == 1, "a name always means the same goal"
    assert len({asked(f"/worker-{i}") for i in range(40)}) > 3
    for wrong in (f"/fixed_{len(goals)}", "/fixed_", "/fixed_-1", "/fixed_x", "/fixed_99999999999"):
        visitor = Visitor(site, wrong)
        assert visitor.status == 404
        assert f"goals are fixed_0 to fixed_{len(goals) - 1}" in visitor.page.visible


@pytest.mark.parametrize("name", ["favicon.ico", "robots.txt", "a b", "x" * 101, "%3Cscript%3E"])
def test_not_every_name_begins_a_visit(name: str) -> None:
    site = site_of(six_products())
    visitor = Visitor(site, f"/{name}")
    assert visitor.status == 404
    assert "There is no such page" in visitor.page.visible
    assert len(site.store) == 0


def test_a_mistake_of_the_shop_is_logged_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    visitor = Visitor(site_of(six_products()))

    def broken(self: Session, action: str) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(Session, "act", broken)
    with pytest.raises(RuntimeError, match="secret detail"):  # what the server logs
        visitor.do("search[rug]")
    visitor.client = TestClient(
        visitor.client.app, raise_server_exceptions=False, cookies=visitor.client.cookies
    )
    page = visitor.do("search[rug]")
    assert visitor.status == 500
    assert "The shop made a mistake" in page.visible
    assert "secret detail" not in visitor.html
    assert visitor.headers["x-content-type-options"] == "nosniff"


def test_goals_are_drawn_from_the_split_alone() -> None:
    env = WebShopEnv(split="dev")
    site = Site(env, rng=random.Random(0))
    dev = set(splits("synthetic", env.shop)["dev"])
    visitor = Visitor(site)
    for address in ["/"] * 15 + [f"/worker-{i}" for i in range(15)]:
        visitor.get(address)
        visit = site.store.get(visitor.visit, visitor.client.cookies["webshop_owner"])
        assert visit is not None
        assert visit.session.goal.goal_id in dev
