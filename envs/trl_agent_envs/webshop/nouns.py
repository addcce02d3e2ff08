"""The nouns of a title, which the reward compares: from a file, spaCy, or guessed by a small word list."""

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

# as spaCy splits: at hyphens and slashes, before "'s", and between a number and its unit
_TOKEN = re.compile(r"\d[\d.,]*(?![\d.,]*[a-z]\d)|[^\W_]+(?:[.'’][^\W\d_]{2,})*")
_LETTER_OF_A_NAME = re.compile(r"[A-Z](?=-[A-Za-z])")
_FUNCTION_WORDS = (
    "about above after all also an and any are as at be before below between both but by can down each "
    "even every few for from had has have he her his how if in into is it its just like more most my no "
    "not of off on once one only or other our out own per same she so some such than that the their them "
    "then these they this those through to too two three four five six under until up upon very via was "
    "we well were what when where which while who why will with within without yes you your ever etc"
)
# a title is written in capitals, so a tagger takes most of its adjectives for names; these it seldom does
_OTHER_WORDS = (
    "add assembled built buy come comes cooling covers damaged de designed discontinued do does drying "
    "enjoy et floating folding full fully get give gives help imported included includes italian keep "
    "keeps la lasting let made make makes ml need needs oriental packaged padded pcs perfectly picks play "
    "plus pressed provide provides reduce reduces remove removes repairing restores see shaped sit "
    "sleeping take tempered th thin true un used uses walking want wide"
)
_NOT_NOUNS = frozenset(_FUNCTION_WORDS.split() + _OTHER_WORDS.split())


def title_nouns(source: str | Path | None) -> TitleNouns:
    """Return the tagger that `source` names.

    Args:
        source: None for the built-in word list; "spacy" or "spacy:MODEL" for spaCy (must be installed); else
            a JSON lines file of ``{"asin": ..., "nouns": [...]}`` (products it lacks fall back to the word
            list).

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
    """Return the words of the title that are not numbers, single letters, function words or common verbs.

    The letter of "T-Shirt" or "V-Neck" counts: a tagger that splits at hyphens takes it for a noun.
    """
    title = product.title
    return tuple(word.group().lower() for word in _TOKEN.finditer(title) if _may_be_noun(word, title))


def _may_be_noun(found: re.Match[str], title: str) -> bool:
    word = found.group().lower()
    if len(word) == 1:
        return _LETTER_OF_A_NAME.match(title, found.start()) is not None
    return not word.replace(".", "").replace(",", "").isdigit() and word not in _NOT_NOUNS


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
        raise CatalogError(
            f"title_nouns {str(file)!r} is not a file; it must hold JSON lines of asin and nouns"
        )
    listed = {}
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                asin, nouns = record["asin"], record["nouns"]
                if not isinstance(nouns, list) or not all(isinstance(noun, str) for noun in nouns):
                    raise TypeError("nouns is not a list of strings")
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise CatalogError(
                    f'{file}:{number}: expected {{"asin": ..., "nouns": [...]}}: {error!r}'
                ) from error
            listed[asin] = tuple(nouns)
    return listed
