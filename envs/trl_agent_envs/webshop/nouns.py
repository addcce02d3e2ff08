"""The nouns of a title, which the reward compares: from a file, from spaCy, or from a small built-in word list."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .catalog import CatalogError, Product

TitleNouns = Callable[[Product], tuple[str, ...]]
"""Product -> the nouns of its title, lower case, in order, with repeats."""

DEFAULT_SPACY_MODEL = "en_core_web_sm"

_TOKEN = re.compile(r"[^\W_][\w.'’+&-]*[^\W_]|[^\W\d_]")
_NUMBER = re.compile(r"[\d.,/x×'\"%-]+")
_FUNCTION_WORDS = frozenset(
    "a about above after all also an and any are as at back be before below between both but by can down each even "
    "every few for from had has have he her his how i if in into is it its just like more most my no non not of off "
    "on once one only or other our out over own per same she so some such than that the their them then these they "
    "this those through to too two three four five six up under until upon us very was we were what when where which "
    "while who why will with within without you your & + - – x vs via yes".split()
)
_ADJECTIVES = frozenset(
    "adjustable anti automatic beautiful big black blue bright brown casual classic clear cold comfortable compact "
    "compatible cool cordless cute dark deep different double dry dual durable easy elastic electric elegant extra "
    "fashionable fast flat foldable free fresh full fun functional funny good gray great green grey handmade happy "
    "hard heavy high hot large light lightweight little long loose low medium metal mini modern multi natural new nice "
    "novelty old open organic original outdoor perfect personalized pink plain portable premium pure purple quick red "
    "removable replaceable retro reusable rich round rustic safe sexy sharp short simple single slim small smart "
    "smooth soft solid special square stretchy strong super sweet tall thick thin tight tiny top traditional triple "
    "ultra unique universal unisex vintage warm washable waterproof wet white wide wild wireless wooden yellow young "
    "breathable sleeveless stainless fit printed".split()
)
_VERBS = frozenset(
    "add buy come comes do does enjoy fits get give gives go help helps keep keeps let make makes made need needs "
    "perfectly provide provides remove removes repairs restores see suit take use used uses want wear works".split()
)
_ADJECTIVE_ENDINGS = ("able", "ible", "ful", "ish", "less", "ous", "ive", "ly")
_NOT_NOUNS = _FUNCTION_WORDS | _ADJECTIVES | _VERBS


def title_nouns(source: str | Path | None) -> TitleNouns:
    """Return the tagger that `source` names.

    Args:
        source: None for the built-in word list; "spacy" or "spacy:MODEL" for spaCy (must be installed); else a JSON
            lines file of ``{"asin": ..., "nouns": [...]}`` (products it lacks fall back to the word list).

    Raises:
        CatalogError: the file is missing or a line is malformed (named by file and line).
        ImportError: spaCy or its model is asked for and not installed.
    """
    if source is None:
        return guess_nouns
    if isinstance(source, str) and source.partition(":")[0] == "spacy":
        return _spacy_nouns(source.partition(":")[2] or DEFAULT_SPACY_MODEL)
    listed = _read_nouns(Path(source))
    return lambda product: listed[product.asin] if product.asin in listed else guess_nouns(product)


def guess_nouns(product: Product) -> tuple[str, ...]:
    """Return the words of the title that are not numbers, function words, or common adjectives and verbs."""
    words = (word.lower() for word in _TOKEN.findall(product.title))
    return tuple(word for word in words if _may_be_noun(word))


def _may_be_noun(word: str) -> bool:
    if word in _NOT_NOUNS or _NUMBER.fullmatch(word):
        return False
    return not (len(word) > 5 and word.endswith(_ADJECTIVE_ENDINGS))


def _spacy_nouns(model: str) -> TitleNouns:
    try:
        import spacy
    except ImportError as error:
        raise ImportError('title_nouns="spacy" needs spaCy: pip install spacy') from error
    try:
        tagger: Any = spacy.load(model, disable=["parser", "ner", "lemmatizer"])
    except OSError as error:
        raise ImportError(f"spaCy has no model {model!r}: python -m spacy download {model}") from error
    return lambda product: tuple(
        token.text.lower() for token in tagger(product.title) if token.pos_ in ("NOUN", "PROPN")
    )


def _read_nouns(file: Path) -> dict[str, tuple[str, ...]]:
    if not file.is_file():
        raise CatalogError(f"title_nouns {str(file)!r} is not a file; it must hold JSON lines of asin and nouns")
    listed = {}
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                asin, nouns = record["asin"], tuple(record["nouns"])
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise CatalogError(f'{file}:{number}: expected {{"asin": ..., "nouns": [...]}}: {error!r}') from error
            listed[asin] = nouns
    return listed
