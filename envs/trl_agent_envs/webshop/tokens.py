"""Text to search terms as Lucene's English analyzer does it (Anserini's default), on Python and PyStemmer."""

from __future__ import annotations

import re
from functools import lru_cache

import Stemmer

_STOP_WORD_LIST = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there "
    "these they this to was will with"
)
STOP_WORDS = frozenset(_STOP_WORD_LIST.split())
"""Lucene's 33 English stop words."""

MAX_TOKEN_LENGTH = 255
"""Lucene cuts a longer token into pieces of this many characters."""

# Unicode word boundaries (UAX #29) as far as product text needs them. Python's `\w` counts superscripts and
# fractions as letters, UAX #29 does not; marks and format characters stick to what precedes them.
_NOT_LETTERS = (
    "\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2079\u2080-\u2089\u2150-\u215f\u2460-\u249b"
    "\u2776-\u2793\uff9e\uff9f"
)
_SINGLE = (
    "\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3040-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002fa1f"
)
_KATAKANA = "\u3031-\u3035\u309b\u309c\u30a0-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d"
_MARKS = (
    "\u00ad\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u064b-\u065f\u0900-\u0903\u093a-\u094f\u1ab0-\u1aff"
    "\u1dc0-\u1dff\u200c-\u200f\u20d0-\u20f0\u3099\u309a\ufe00-\ufe0f\ufe20-\ufe2f\uff9e\uff9f"
)
_PICTURES = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23f3"
    "\u23f8-\u23fa\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685"
    "\u2690-\u2705\u2708-\u2712\u2714\u2716\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755"
    "\u2757\u2763-\u2767\u2795-\u2797\u27a1\u27b0\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030"
    "\u303d\u3297\u3299\U0001f000-\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f171"
    "\U0001f17e\U0001f17f\U0001f18e\U0001f191-\U0001f19a\U0001f1ad-\U0001f1e5\U0001f201-\U0001f20f\U0001f21a"
    "\U0001f22f\U0001f232-\U0001f23a\U0001f23c-\U0001f23f\U0001f249-\U0001f3fa\U0001f400-\U0001f53d"
    "\U0001f546-\U0001f64f\U0001f680-\U0001f6ff\U0001f774-\U0001f77f\U0001f7d5-\U0001f7ff\U0001f90c-\U0001f93a"
    "\U0001f93c-\U0001f945\U0001f947-\U0001fffd"
)
_TONES = "\u20e3\ufe0e\ufe0f\U0001f3fb-\U0001f3ff"
_X = f"[{_MARKS}]*"
_LETTER = f"(?:[^\\W\\d_{_NOT_LETTERS}{_SINGLE}{_KATAKANA}{_PICTURES}]{_X})"
_DIGIT = f"(?:\\d{_X})"
_MID_LETTER = f"[.'’‘․﹒＇．:··՟״︓﹕：]{_X}"
_MID_DIGIT = f"[.'’‘․﹒＇．,;;։،؍٬⁄︐︔﹐﹔，；]{_X}"
_CHUNK = f"(?:{_LETTER}+(?:{_MID_LETTER}{_LETTER}+)*|{_DIGIT}+(?:{_MID_DIGIT}{_DIGIT}+)*|[_‿⁀⁔]+)"
_UNICODE_TOKEN = re.compile(
    f"{_CHUNK}+|[{_KATAKANA}]+|[{_SINGLE}]{_X}|[\U0001f1e6-\U0001f1ff]{{2}}"
    f"|[{_PICTURES}][{_TONES}]*(?:\u200d[{_PICTURES}][{_TONES}]*)*"
)
_ASCII_TOKEN = re.compile(r"(?:[A-Za-z]+(?:[.':][A-Za-z]+)*|[0-9]+(?:[.',;][0-9]+)*|_+)+")
_UNDERSCORES = "_‿⁀⁔"
_POSSESSIVE = ("'s", "'S", "’s", "’S", "＇s", "＇S")
_STEMMER = Stemmer.Stemmer("porter", 0)
_VOWELS = frozenset("aeiou")
_UNDOUBLED = frozenset("chjkqvwx")


def tokenize(text: str) -> list[str]:
    """Return the search terms of `text`, in order, stemmed, without stop words."""
    pattern = _ASCII_TOKEN if text.isascii() else _UNICODE_TOKEN
    tokens: list[str] = []
    for raw in pattern.findall(text):
        if len(raw) > MAX_TOKEN_LENGTH:
            pieces = [raw[i : i + MAX_TOKEN_LENGTH] for i in range(0, len(raw), MAX_TOKEN_LENGTH)]
            tokens.extend(term for piece in pieces if (term := _term(piece)))
        elif term := _cached_term(raw):
            tokens.append(term)
    return tokens


def _term(raw: str) -> str:
    if not raw.strip(_UNDERSCORES):  # Lucene keeps underscores inside a token only
        return ""
    if raw.endswith(_POSSESSIVE):
        raw = raw[:-2]
    word = "".join(map(_lower, raw)) if not raw.isascii() else raw.lower()
    return "" if word in STOP_WORDS else stem(word)


def _lower(char: str) -> str:
    # Java lowers one code point to one code point
    lowered = char.lower()
    return lowered if len(lowered) == 1 else lowered[0]


_cached_term = lru_cache(maxsize=1 << 16)(_term)


def stem(word: str) -> str:
    """Return the Porter stem of a lower-case `word`, with its author's later extensions.

    Snowball's "porter" is the algorithm as published, but for rare doubled consonants ("trekking"). The
    extensions
    are: words of up to two letters stay as they are, and in step 2 "bli" becomes "ble" and "logi" becomes
        "log".
    Source: Porter (1980), and the departures listed in the author's reference implementation.
    """
    if len(word) <= 2:
        return word
    stemmed: str = _STEMMER.stemWord(word)
    if stemmed[-1] in _UNDOUBLED and stemmed[-2:-1] == stemmed[-1] and word[len(stemmed) :] in ("ed", "ing"):
        return stemmed[:-1]
    if stemmed.endswith("bli") and _has_measure(stemmed[:-3]):
        return str(_STEMMER.stemWord(stemmed[:-1] + "e"))
    if stemmed.endswith("logi") and _has_measure(stemmed[:-4]):
        return str(_STEMMER.stemWord(stemmed[:-1]))
    return stemmed


def _has_measure(prefix: str) -> bool:
    """Return whether a vowel is followed by a consonant somewhere in `prefix` (Porter's m > 0)."""
    vowel_seen = False
    for i, char in enumerate(prefix):
        is_vowel = char in _VOWELS or (char == "y" and i > 0 and not _is_vowel(prefix, i - 1))
        if is_vowel:
            vowel_seen = True
        elif vowel_seen:
            return True
    return False


def _is_vowel(word: str, i: int) -> bool:
    return word[i] in _VOWELS or (word[i] == "y" and i > 0 and not _is_vowel(word, i - 1))
