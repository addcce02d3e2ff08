"""RawCatalog: a shop's records as the original's files hold them, before anything is checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class RawCatalog:
    """The contents of the three data files.

    products: the records of `items_shuffle*.json`, in order.
    attributes: `items_ins_v2*.json`, asin -> {"attributes", "instruction", "instruction_attributes"}.
    human: `items_human_ins.json`, asin -> list of human instructions.
    source: how messages name the data ("embedded catalogue", or a folder).
    """

    products: list[dict[str, Any]]
    attributes: dict[str, dict[str, Any]]
    human: dict[str, list[dict[str, Any]]]
    source: str = "records"
