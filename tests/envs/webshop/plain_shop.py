"""The shop once more, in the plainest form: HTML pages that are parsed, loops instead of indexes.

Written from the description of the original program, to compare the package with. It reads the raw records, knows
nothing of the package's modules but the tokenizer and the noun list (tested by themselves), and is slow.
"""

from __future__ import annotations

import html
import itertools
import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

from rapidfuzz import fuzz

from trl_agent_envs.webshop.reward import COLORS
from trl_agent_envs.webshop.tokens import tokenize

Record = dict[str, Any]


def options_of(record: Record) -> dict[str, list[str]]:
    raw = record["customization_options"] or {}
    return {
        name.lower(): [content["value"].strip().replace("/", " | ").lower() for content in contents]
        for name, contents in raw.items()
        if contents is not None
    }


def prices_of(record: Record) -> list[float]:
    found = [float(text.replace(",", "")) for text in re.findall(r"\$([\d.,]+)", record["pricing"] or "")]
    return found[:2] or [100.0]


def bullets_of(record: Record) -> list[str]:
    small = record["small_description"]
    return [small] if isinstance(small, str) else list(small)


def price_tag(record: Record) -> str:
    return " to ".join(f"${price}" for price in prices_of(record))


# --- search


class PlainSearch:
    """BM25 by a loop over all documents, in double precision."""

    def __init__(self, products: list[Record]) -> None:
        self.documents = {}
        for record in products:
            choices = ", and ".join(f"{k}: {', '.join(v)}" for k, v in options_of(record).items())
            first = (bullets_of(record) or [""])[0]
            text = f"{record['name']} {record['full_description']} {first} {choices}".lower()
            self.documents[record["asin"]] = Counter(tokenize(text))
        self.mean = sum(map(Counter.total, self.documents.values())) / len(self.documents)
        self.df = Counter(term for document in self.documents.values() for term in document)

    def scores(self, query: str) -> dict[str, float]:
        found: dict[str, float] = {}
        n = len(self.documents)
        for asin, document in self.documents.items():
            total = 0.0
            for term in tokenize(query):
                if document[term]:
                    idf = math.log(1 + (n - self.df[term] + 0.5) / (self.df[term] + 0.5))
                    length = _as_stored(document.total())
                    total += idf * document[term] / (document[term] + 0.9 * (0.6 + 0.4 * length / self.mean))
            if total:
                found[asin] = total
        return found


def _as_stored(length: int) -> int:
    kept = [*range(40), *(24 + (m << e) for e in range(1, 12) for m in range(8, 16))]
    return max(value for value in kept if value <= length)


# --- goals


def plain_goals(products: list[Record], attributes: dict[str, Record], seed: int) -> tuple[Any, Any]:
    """The charged prices and the synthetic goals, as tuples (asin, text, attributes, options, limit, weight)."""
    rng = random.Random(seed)
    charged = {}
    for record in products:
        range_ = prices_of(record)
        charged[record["asin"]] = range_[0] if len(range_) == 1 else rng.uniform(range_[0], range_[1])
    drafts = []
    counts: Counter[str] = Counter()
    for record in products:
        wish = attributes.get(record["asin"], {})
        if "instruction" not in wish:
            continue
        above = [10.0 * i for i in range(1, 100) if 10.0 * i > charged[record["asin"]]][:4]
        limit, clause = 1000000.0, ""
        if len(above) >= 2:
            limit = sorted(rng.sample(above, 2))[1]
            clause = f", and price lower than {limit:.2f} dollars"
        types = sorted(options_of(record).items())
        for values in itertools.product(*[values for _, values in types]):
            chosen = {name: value for (name, _), value in zip(types, values)}
            asked = ", and ".join(f"{name}: {value}" for name, value in chosen.items())
            text = wish["instruction"] + (" with " + asked if asked else "") + clause
            drafts.append((record["asin"], text, wish["instruction_attributes"], chosen, limit))
            for attribute in wish["instruction_attributes"]:
                counts[attribute] += 1
    goals = [
        (*draft, sum(1 / counts[attribute] for attribute in draft[2]) / len(draft[2])) for draft in drafts
    ]
    random.Random(233).shuffle(goals)
    return charged, goals


# --- reward


def plain_reward(
    goal: tuple[Any, ...],
    wanted: Record,
    bought: Record,
    attributes: list[str],
    options: dict[str, str],
    price: float,
    nouns: Callable[[str], list[str]],
    original: bool,
) -> Record:
    """The parts of the score by the description's rules. `goal` as `plain_goals` gives it."""
    _, _, asked, asked_options, limit, _ = goal
    query = wanted["query"].lower().strip() == bought["query"].lower().strip()
    parts = [{part.strip() for part in r["product_category"].split("›")} for r in (wanted, bought)]
    category = len(parts[0] & parts[1]) >= 2
    mine, theirs = nouns(wanted["name"]), nouns(bought["name"])
    title = sum(noun in theirs for noun in dict.fromkeys(mine)) / len(mine) if mine else 0.2
    r_type = 1.0 if query or category or title > 0.2 else 0.5
    if title < 0.1:
        r_type = 0.1
    if title == 0:
        r_type = 0.0
    texts = [bought["name"], " ".join(bullets_of(bought)), bought["full_description"]]
    hits = 0
    for attribute in asked:
        listed = any(_alike(own, attribute) for own in attributes)
        hits += listed or any(attribute in text.lower() for text in texts)
    chosen = [_color(value, original) for value in options.values()]
    met = 0
    for name, value in asked_options.items():
        if original:
            same = next((c for c in COLORS if c in (name, value)), None)
            met += any(_alike(own, same or str((name, value))) for own in chosen)
        else:
            pair = next((c for c in COLORS if c in (name, value)), None) or str((name, value))
            met += options.get(name) == value or any(_alike(own, pair) for own in chosen)
    total = (hits + met + (price <= limit)) / (len(asked) + len(asked_options) + 1) * r_type
    return {
        "total": total,
        "r_type": r_type,
        "r_att": hits / len(asked),
        "r_option": met / len(asked_options) if asked_options else None,
        "r_price": price <= limit,
        "title_score": title,
        "query_match": query,
        "category_match": category,
    }


def _alike(a: str, b: str) -> bool:
    cleaned = ["".join(c if c.isalnum() or c == "_" else " " for c in t) for t in (a, b)]
    cleaned = [text.lower().strip() for text in cleaned]
    return all(cleaned) and round(fuzz.token_set_ratio(*cleaned)) > 85


def _color(value: str, original: bool) -> str:
    for color in COLORS:
        if color in value and (original or re.search(rf"(?<!\w){color}(?!\w)", value)):
            return color
    return value


# --- pages


class PlainVisit:
    """One visit: keeps what the description says a session keeps, and writes the page as HTML."""

    def __init__(
        self,
        products: list[Record],
        instruction: str,
        search: Callable[[str], list[str]],
        score: Callable[[str, dict[str, str]], float],
    ) -> None:
        self.records = {record["asin"]: record for record in products}
        self.instruction, self.search, self.score = instruction, search, score
        self._home()

    def _home(self) -> None:
        self.kind, self.keywords, self.page, self.asin = "index", "", 0, ""
        self.options: dict[str, str] = {}
        self.visited: set[str] = set()
        self.sub = ""
        self.reward = 0.0

    def act(self, action: str) -> bool:
        """Do it; False where it is not possible."""
        match = re.match(r"(.+)\[(.+)\]", action)
        if match is None or self.kind == "done":
            return False
        name, value = match[1], match[2].lower()
        if name == "search":
            self._results(value, 1)
        elif name == "click" and value in self.clickables() and value != "search":
            self._click(value)
        else:
            return False
        return True

    def _results(self, keywords: str, page: int) -> None:
        self.kind, self.keywords, self.page, self.asin, self.options = "results", keywords, page, "", {}

    def _click(self, value: str) -> None:
        if value == "back to search":
            self._home()
        elif value == "buy now":
            self.kind, self.reward = "done", self.score(self.asin, self.options)
        elif value == "next >":
            self._results(self.keywords, self.page + 1)
        elif value == "< prev" and self.kind == "results":
            self._results(self.keywords, self.page - 1)
        elif value == "< prev" and self.kind == "item":
            self._results(self.keywords, self.page)
        elif value == "< prev":
            self.kind = "item"
        elif value in ("description", "features", "reviews"):
            self.kind, self.sub = "sub", value
        elif self.kind == "results":
            self.kind, self.asin = "item", next(asin for asin in self.records if asin.lower() == value)
            self.visited.add(self.asin)
        else:
            for name, values in options_of(self.records[self.asin]).items():
                if value in values:
                    where = name
            self.options[where] = value

    def html(self) -> str:
        asked = f"<h4>Instruction:{'<br>' if self.kind != 'index' else ' <br>'}{_esc(self.instruction)}</h4>"
        back = '<button class="btn">Back to Search</button>'
        if self.kind == "index":
            search = '<input id="search_input"><button class="btn">Search</button>'
            return f"<h3>WebShop</h3>{asked}{search}"
        if self.kind == "results":
            return asked + back + self._listing()
        if self.kind == "done":
            return self._receipt()
        record = self.records[self.asin]
        head = asked + back + '<button class="btn">&lt; Prev</button>'
        if self.kind == "sub":
            bullets = "".join(f"<li> {_esc(point)}</li>" for point in bullets_of(record))
            shown = {"description": f"<p>{_esc(record['full_description'])}</p>", "features": bullets}
            return head + shown.get(self.sub, "")
        choices = ""
        for name, values in options_of(record).items():
            choices += f"<h4>{_esc(name)}</h4>"
            for v in values:
                choices += f'<input type="radio" value="{_esc(v)}"><label>{_esc(v)}</label>'
        buttons = ("Description", "Features", "Reviews", "Buy Now")
        rest = "".join(f'<button class="btn">{text}</button>' for text in buttons)
        price = f"<h4>Price: {price_tag(record)}</h4><h4>Rating: N.A.</h4>"
        return f"{head}{choices}<h2>{_esc(record['name'])}</h2>{price}{rest}"

    def _listing(self) -> str:
        found = self.search(self.keywords)
        text = f"<h3>Page {self.page} (Total results: {len(found)})</h3>"
        if self.page > 1:
            text += '<button class="btn">&lt; Prev</button>'
        text += '<button class="btn">Next &gt;</button>'
        for asin in found[10 * self.page - 10 : 10 * self.page]:
            record = self.records[asin]
            text += f'<a class="product-link">{asin}</a><h4>{_esc(record["name"])}</h4>'
            text += f"<h5>{price_tag(record)}</h5>"
        return text

    def _receipt(self) -> str:
        chosen = json.dumps(self.options, sort_keys=True)
        for char in "<>&'":
            chosen = chosen.replace(char, f"\\u{ord(char):04x}")
        return (
            "<h1>Thank you for shopping with us!</h1><h3>Your code: </h3><p>None</p>"
            f"<p> (Paste it in your MTurk interface.)</p><h3>Purchased</h3><h4>asin</h4><p>{self.asin}</p>"
            f"<h4>options</h4><p>{_esc(chosen)}</p><h4>attrs</h4><p>None</p><h4>category</h4><p>None</p>"
            "<h4>query</h4><p>None</p><h4>product category</h4><p>None</p><h3>Target</h3><h4>asin</h4>"
            "<h4>options</h4><h4>attrs</h4><h4>price upper</h4><h4>instuction text</h4><h4>category</h4>"
            "<h4>product category</h4><h4>query</h4><h4>Goal </h4><p>None</p><h4>Reward</h4>"
            f"<h3>Your score (min 0.0, max 1.0)</h3><pre>{self.reward}</pre><h4>Reward Details </h4><p>None</p>"
        )

    def clickables(self) -> list[str]:
        nodes = _parse(self.html())
        buttons = [text.lower() for tag, _, text in nodes if tag == "button"]
        links = [text.lower() for _, css, text in nodes if css == "product-link"]
        radios = [text for tag, _, text in nodes if tag == "label"]
        return list(dict.fromkeys(buttons + links + radios))

    def text(self) -> str:
        return " [SEP] ".join(text.strip() for _, _, text in _parse(self.html()))

    def text_rich(self) -> str:
        out = ""
        for tag, css, text in _parse(self.html()):
            clicked = text in (self.visited if css == "product-link" else self.options.values())
            word = "clicked button" if clicked else "button"
            if tag == "button":
                out += f"[button] {text} [button_]\n"
            elif tag == "label":
                out = f"You have clicked {text}.\n{out}" if clicked else out
                out += f"  [{word}] {text} [{word}_]\n"
            elif css == "product-link":
                out += f"\n[{word}] {text} [{word}_]\n"
            else:
                out += f"{text}\n"
        return out


def _esc(text: str) -> str:
    return html.escape(text)


def _parse(page: str) -> list[tuple[str, str, str]]:
    """The page's text nodes as (tag, class, text)."""
    nodes: list[tuple[str, str, str]] = []
    open_tags: list[tuple[str, str]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            if tag not in ("input", "br"):
                open_tags.append((tag, dict(attributes).get("class") or ""))

        def handle_endtag(self, tag: str) -> None:
            open_tags.pop()

        def handle_data(self, data: str) -> None:
            if data != "\n":
                nodes.append((*open_tags[-1], data))

    reader = Reader(convert_charrefs=True)
    reader.feed(page)
    reader.close()
    return nodes
