"""Fenced code blocks of a Markdown page, each with the marker above it that says how it is tested.

A marker is an HTML comment on the line above the fence, `<!-- test: KIND -->`, with KIND one of

    run             bash: runs in the fast suite
    slow            runs in the slow suite
    gpu             runs where TRL_AGENT_TEST_GPU=1 and there is a GPU
    file PATH       is written to PATH first, for the page's other blocks to use
    skip REASON     never runs

A python block without a marker is a part of the page's script, which runs in the fast suite.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")
_MARKER = re.compile(r"^<!-- test: (?P<kind>[a-z]+)(?: (?P<detail>.+?))? -->$")
_KINDS = {"run", "slow", "gpu", "file", "skip"}
RUNNABLE = {"bash", "python"}
PLAIN = {"text", "json", "yaml", "toml"}


class DocError(ValueError):
    """A block that is neither run nor marked; the message says the page and the line."""


@dataclass(frozen=True)
class Block:
    """One fenced block. `kind` is "part" for a python block of the page's script, else the marker's kind."""

    page: str
    line: int
    language: str
    kind: str
    detail: str
    code: str


def read_blocks(path: Path, name: str) -> list[Block]:
    """Return the blocks of a page in their order.

    Raises:
        DocError: an unmarked bash block, a language without a rule, a wrong marker, a fence left open.
    """
    blocks: list[Block] = []
    above, lines = "", list[str]()
    opened: tuple[int, str, str, str] | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened, lines = (number, fence.group(1), fence.group(2).strip(), above), []
        elif opened is not None and fence and fence.group(1) == opened[1] and not fence.group(2).strip():
            blocks.append(_block(name, opened[0], opened[2], opened[3], "\n".join(lines) + "\n"))
            opened, above = None, ""
        elif opened is not None:
            lines.append(line)
        elif line.strip():
            above = line.strip()
    if opened is not None:
        raise DocError(f"{name}:{opened[0]}: the fence is never closed")
    return blocks


def _block(page: str, line: int, language: str, above: str, code: str) -> Block:
    where = f"{page}:{line}"
    if language not in RUNNABLE | PLAIN:
        raise DocError(f"{where}: language {language!r} has no rule; use one of {sorted(RUNNABLE | PLAIN)}")
    if not above.startswith("<!-- test:"):
        if language == "bash":
            raise DocError(f"{where}: a bash block needs a marker above it, such as <!-- test: run -->")
        return Block(page, line, language, "part" if language == "python" else "plain", "", code)
    marker = _MARKER.match(above)
    if marker is None or marker["kind"] not in _KINDS:
        raise DocError(f"{where}: {above!r} is no marker; kinds are {sorted(_KINDS)}")
    kind, detail = marker["kind"], marker["detail"] or ""
    if (kind in {"file", "skip"}) != bool(detail):
        raise DocError(f"{where}: `file` needs a path, `skip` needs a reason, the other kinds take nothing")
    if language in PLAIN and kind != "file":
        raise DocError(f"{where}: a {language} block can only be a file")
    if language == "python" and kind == "run":
        raise DocError(f"{where}: a python block runs without a marker")
    return Block(page, line, language, kind, detail, code)
