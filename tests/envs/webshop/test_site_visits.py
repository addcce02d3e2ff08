"""Visits are private, bounded in number and age, and never changed by an old page or another site."""

from __future__ import annotations

import threading

import pytest

from tests.envs.webshop.conftest import six_products
from tests.envs.webshop.site_visitor import Visitor, site_of
from trl_agent_envs.webshop import Shop
from trl_agent_envs.webshop.site import Site
from trl_agent_envs.webshop.site.server import local_names
from trl_agent_envs.webshop.site.visits import STALE, VisitStore


@pytest.fixture
def site() -> Site:
    return site_of(six_products())


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_one_browser_cannot_see_or_change_anothers_visit(site: Site) -> None:
    mine, other = Visitor(site), Visitor(site)
    address = mine.address
    assert other.get(address).visible.startswith("This visit is not here any more")
    assert other.status == 410
    other.post(f"{address}/search", [("search_query", "rug")])
    assert other.status == 410
    without_cookies = Visitor(site, address)
    assert without_cookies.status == 410
    mine.get(address)
    assert mine.address == address
    assert mine.page.note == ""
    assert mine.status == 200
    page = mine.do("search[rug]")
    assert "Total results: 2" in page.visible


def test_ids_are_long_and_differ(site: Site) -> None:
    ids = {Visitor(site).visit for _ in range(50)}
    assert len(ids) == 50
    assert all(len(visit) >= 22 for visit in ids)


def test_the_cookie_is_for_the_server_alone(site: Site) -> None:
    cookie = Visitor(site, None).client.get("/", follow_redirects=False).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie


def test_two_visits_of_one_browser_do_not_meet(site: Site) -> None:
    one = Visitor(site, "/fixed_0")
    first = one.address
    one.get("/fixed_1")
    one.do("search[rug]")
    one.get(first)
    assert one.page.visible.startswith("WebShop")
    assert one.page.note == ""


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://[x"},
        {"Origin": "http://testserver.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_form_from_another_site_does_nothing(site: Site, headers: dict[str, str]) -> None:
    visitor = Visitor(site)
    address = visitor.address
    visitor.post(f"{address}/search", [("search_query", "rug")], **headers)
    assert visitor.status == 403
    visitor.get(address)
    assert visitor.page.visible.startswith("WebShop")
    assert visitor.page.note == ""


def test_a_form_from_the_site_itself_is_taken(site: Site) -> None:
    visitor = Visitor(site)
    own = {"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"}
    page = visitor.post(f"{visitor.address}/search", [("search_query", "rug")], **own)
    assert "Total results: 2" in page.visible


def test_foreign_host_names_are_refused_where_only_this_machine_is_served() -> None:
    visitor = Visitor(site_of(six_products(), hosts=local_names("127.0.0.1")), None)
    for host, status in (
        ("127.0.0.1:3000", 303),
        ("localhost", 303),
        ("[::1]:3000", 303),
        ("evil.example", 400),
        ("localhost.evil.example:3000", 400),
    ):
        answer = visitor.client.get("/", headers={"Host": host}, follow_redirects=False)
        assert answer.status_code == status, host
    assert local_names("0.0.0.0") == ("*",)


def test_going_back_in_the_browser_shows_where_the_visit_is(site: Site) -> None:
    visitor = Visitor(site)
    start = visitor.address
    visitor.do("search[rug]")
    now = visitor.page.visible
    assert visitor.get(start).visible == now
    assert visitor.page.note == STALE
    visitor.do("click[b000000001]")  # the page shown is the current one, so its buttons work
    assert visitor.page.note == ""
    assert "Persian Rug" in visitor.page.visible


def test_an_old_page_cannot_act(site: Site) -> None:
    """A kept product page must not buy the product that is open now."""
    visitor = Visitor(site)
    visitor.do("search[rug]")
    visitor.do("click[b000000001]")
    old = visitor.page.form_of(visitor.find("buy now") or visitor.page.elements[0]).attributes["action"]
    visitor.do("click[< prev]")
    visitor.do("click[b000000002]")
    before = visitor.page.visible
    page = visitor.post(old, [("value", "buy now")])
    assert (page.visible, page.note) == (before, STALE)
    assert visitor.get(visitor.address).note == STALE, "loading the page again keeps the note"
    assert visitor.do("click[buy now]").visible.startswith("Thank you")


def test_a_double_click_is_one_click(site: Site) -> None:
    visitor = Visitor(site)
    visitor.do("search[rug]")
    address = visitor.page.form_of(visitor.find("next >") or visitor.page.elements[0]).attributes["action"]
    for _ in range(2):
        page = visitor.post(address, [("value", "next >")])
        assert "Page 2 " in page.visible
        assert page.note == ""


def test_what_cannot_be_done_changes_nothing_and_is_told(site: Site) -> None:
    visitor = Visitor(site)
    before = visitor.page.visible
    page = visitor.post(f"{visitor.address}/click", [("value", "buy now")])
    assert (page.visible, page.note) == (before, "'buy now' cannot be clicked on this page.")
    assert visitor.search("").note == "'search[]' is not an action. Write search[keywords] or click[value]."
    assert visitor.post(f"{visitor.address}/choose", []).note == "Choose an option first."
    assert visitor.do("search[rug]").note == ""


def test_brackets_and_line_breaks_in_a_query_are_spaces(site: Site) -> None:
    visitor = Visitor(site)
    page = visitor.search("[persian]\nrug")
    assert page.note == ""
    assert "Total results: 2" in page.visible


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("click", "other=1", 400),
        ("search", "value=1", 400),
        ("nonsense", "value=1", 400),
        ("click", "&".join(["value=1"] * 9), 400),
        ("click", "value=" + "x" * (64 * 1024), 413),
    ],
)
def test_a_form_that_no_page_sends_is_refused(site: Site, kind: str, body: str, status: int) -> None:
    visitor = Visitor(site)
    answer = visitor.client.post(f"{visitor.address}/{kind}", content=body)
    assert answer.status_code == status
    assert "nothing was done" in answer.text


def test_a_visit_ends_with_the_purchase(site: Site) -> None:
    visitor = Visitor(site)
    visitor.do("search[lamp]")
    visitor.do("click[b000000006]")
    page = visitor.do("click[buy now]")
    assert page.clickables == []
    assert any(element.attributes.get("value") == "Shop again" for element in page.elements)
    again = visitor.post(f"{visitor.address}/search", [("search_query", "rug")])
    assert again.visible == page.visible
    assert again.note == "This visit has ended; nothing more can be done."


def test_a_visit_ends_at_the_limit() -> None:
    visitor = Visitor(site_of(six_products(), max_turns=2))
    visitor.do("search[rug]")
    page = visitor.do("click[next >]")
    assert page.note == "This visit has ended: it may take 2 actions."
    assert any(element.attributes.get("value") == "Shop again" for element in page.elements)
    again = visitor.do("click[< prev]")
    assert again.visible == page.visible
    assert again.note == "This visit has ended; nothing more can be done."


def test_the_visit_left_alone_longest_gives_way_to_a_new_one() -> None:
    site = site_of(six_products(), store=VisitStore(max_visits=3))
    first, second, third = (Visitor(site) for _ in range(3))
    first.get(first.address)
    Visitor(site)
    assert len(site.store) == 3
    gone = second.get(second.address)
    assert second.status == 410
    assert gone.visible.startswith("This visit is not here any more [SEP] It was left alone for too long")
    (link,) = [element for element in gone.elements if element.tag == "a"]
    assert link.attributes["href"] == "/"
    for kept in (first, third):
        kept.get(kept.address)
        assert kept.status == 200


def test_a_visit_left_alone_too_long_is_dropped() -> None:
    clock = Clock()
    site = site_of(six_products(), store=VisitStore(max_idle=60, clock=clock))
    one, two = Visitor(site), Visitor(site)
    clock.now = 50
    two.get(two.address)
    clock.now = 100
    one.get(one.address)
    assert one.status == 410
    two.get(two.address)
    assert two.status == 200
    assert len(site.store) == 1


def test_the_store_stays_small(strict: Shop) -> None:
    store = VisitStore(max_visits=10)
    goal = strict.goals("synthetic")[0]
    for _ in range(1000):
        store.open("owner", strict, goal, 5)
    assert len(store) == 10
    for wrong in ({"max_visits": 0}, {"max_idle": 0.0}):
        with pytest.raises(ValueError, match="must be positive"):
            VisitStore(**wrong)  # type: ignore[arg-type]


def test_visits_at_once_do_not_mix(site: Site, strict: Shop) -> None:
    """Eight browsers shop at the same time; each ends with its own product."""
    asins = [product.asin for product in strict.catalog]
    bought: dict[int, str] = {}

    def shop(index: int) -> None:
        visitor = Visitor(site)
        for _ in range(3):
            visitor.do("search[<r>]")
            visitor.do("click[back to search]")
        visitor.do("search[<r>]")
        visitor.do(f"click[{asins[index % 6].lower()}]")
        bought[index] = visitor.do("click[buy now]").visible.split(" [SEP] ")[6]

    threads = [threading.Thread(target=shop, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bought == {index: asins[index % 6] for index in range(8)}
