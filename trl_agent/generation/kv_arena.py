"""Keys and values of many conversations in one preallocated block, one conversation a row."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from trl_agent._compat import Cache, CacheLayerMixin

_STEP = 64  # capacity grows in steps of this many tokens


@dataclass
class _Row:
    """What one row holds: the keys and values of `ids`, from column 0 on."""

    key: Hashable | None = None
    ids: list[int] = field(default_factory=list)
    used: int = 0  # when, in calls of `place`


@dataclass
class _Window:
    """Where the forward pass that runs now reads and writes."""

    rows: torch.Tensor  # (B,) row of each batch entry
    columns: torch.Tensor  # (B, Q) column of each new token
    length: int  # columns that are read
    front: bool  # the rows are 0..B-1 in order, so they can be read without a copy


class KVArena(Cache):
    """A KV cache whose rows have lengths of their own and outlive a call.

    Keys are (R, H, L, D) a layer: R rows, H key-value heads, L columns, D head size. Rows begin at column 0
    whatever their length, so nothing is padded on the left. The last column is never read: padding of ragged
    queries is written there. Memory is allocated at the first forward pass, in the model's own type.

    Args:
        num_layers: layers of the model.
        max_rows: conversations kept; the one unused for longest makes room.
        dtype: of the keys and values; None = as the model makes them. Under autocast rotary embeddings make
            float32 keys, which every attention would convert again.
    """

    def __init__(self, num_layers: int, max_rows: int, dtype: torch.dtype | None = None) -> None:
        self.max_rows = max_rows
        self.kv_dtype = dtype  # not "dtype": Accelerate takes whatever has one for a tensor
        self.num_rows = 0
        self.capacity = 0
        self.window: _Window | None = None
        self._rows: list[_Row] = []
        self._row_of: dict[Hashable, int] = {}
        self._clock = 0
        self._blocks = [_ArenaLayer(self) for _ in range(num_layers)]
        super().__init__(layers=list(self._blocks))

    # ---- which conversation is where ----------------------------------------------------------------------
    def known(self, key: Hashable) -> list[int]:
        """Tokens whose keys and values are kept for `key`. Empty if there are none."""
        row = self._row_of.get(key)
        return self._rows[row].ids if row is not None else []

    def place(self, keys: Sequence[Hashable], columns: int) -> None:
        """Move the conversations `keys` to rows 0..B-1, in whatever order costs least.

        New ones get free rows; where there are none, those unused for longest are evicted. Afterwards
        `row_of(key)` is below B for each of them, and the arena has room for `columns` tokens a row.
        """
        self._clock += 1
        wanted = set(keys)
        self._grow(max(len(keys), self.num_rows), columns)
        for key in keys:
            if key not in self._row_of:
                self._claim(key, wanted)
        outside = sorted(self._row_of[key] for key in keys if self._row_of[key] >= len(keys))
        for row in range(len(keys)):
            if self._rows[row].key not in wanted:
                self.swap(row, outside.pop(0))
        for key in keys:
            self._rows[self._row_of[key]].used = self._clock

    def row_of(self, key: Hashable) -> int:
        return self._row_of[key]

    def keep(self, key: Hashable, ids: list[int]) -> None:
        """Declare that the row of `key` now holds the keys and values of `ids`."""
        self._rows[self._row_of[key]].ids = ids

    def release(self, key: Hashable) -> None:
        row = self._row_of.pop(key, None)
        if row is not None:
            self._rows[row] = _Row()

    def clear(self) -> None:
        """Forget everything and give the memory back."""
        self._rows, self._row_of, self.num_rows, self.capacity, self.window = [], {}, 0, 0, None
        for layer in self._blocks:
            layer.free()

    def swap(self, a: int, b: int, columns: int | None = None) -> None:
        """Exchange two rows. `columns`: how many are in use, where `keep` has not been told yet."""
        row_a, row_b = self._rows[a], self._rows[b]
        used = columns if columns is not None else max(len(row_a.ids), len(row_b.ids))
        for layer in self._blocks:
            layer.swap(a, b, used)
        self._rows[a], self._rows[b] = row_b, row_a
        for index in (a, b):
            key = self._rows[index].key
            if key is not None:
                self._row_of[key] = index

    # ---- one forward pass ---------------------------------------------------------------------------------
    def open_window(self, rows: torch.Tensor, columns: torch.Tensor, length: int, *, front: bool) -> None:
        """Say where the next forward pass writes (`columns` (B, Q) of `rows` (B,)) and how far it reads."""
        self.window = _Window(rows, columns, length, front)

    @property
    def trash_column(self) -> int:
        """A column that is written to but never read."""
        return self.capacity - 1

    def _claim(self, key: Hashable, wanted: set[Hashable]) -> None:
        free = next((i for i, row in enumerate(self._rows) if row.key is None), None)
        if free is None and self.num_rows < self.max_rows:
            free = self.num_rows
            self._grow(self.num_rows + 1, self.capacity)
        if free is None:
            idle = [i for i, row in enumerate(self._rows) if row.key not in wanted]
            free = min(idle, key=lambda i: self._rows[i].used)
            self.release(self._rows[free].key)
        self._rows[free] = _Row(key=key)
        self._row_of[key] = free

    def _grow(self, rows: int, columns: int) -> None:
        if rows <= self.num_rows and columns + 1 <= self.capacity:
            return
        if columns + 1 > self.capacity:
            # A quarter more than asked, so that a growing conversation does not copy the block every turn.
            wanted = (columns + 1) * 5 // 4 if self.capacity else columns + 1
            self.capacity = -(-wanted // _STEP) * _STEP
        if rows > self.num_rows:
            self.num_rows = min(max(rows, self.num_rows * 5 // 4), max(self.max_rows, rows))
        self._rows += [_Row() for _ in range(self.num_rows - len(self._rows))]
        for layer in self._blocks:
            layer.resize(self.num_rows, self.capacity)


class _ArenaLayer(CacheLayerMixin):
    """One layer's keys and values, (R, H, L, D). `keys` is None until the first forward pass."""

    def __init__(self, arena: KVArena) -> None:
        super().__init__()
        self.arena = arena

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        rows, columns = self.arena.num_rows, self.arena.capacity
        # Zeros, because a masked column still enters a product with weight 0, and 0 * NaN is NaN.
        shapes = [(rows, states.shape[1], columns, states.shape[3]) for states in (key_states, value_states)]
        self.keys = key_states.new_zeros(shapes[0], dtype=self.arena.kv_dtype)
        self.values = value_states.new_zeros(shapes[1], dtype=self.arena.kv_dtype)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values (B, H, Q, D); return all that the rows hold, (B, H, length, D)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window = self.arena.window
        if window is None or self.keys is None or self.values is None:
            raise RuntimeError("KVArena: open_window must precede the forward pass")
        rows = window.rows[:, None]
        self.keys[rows, :, window.columns] = key_states.transpose(1, 2).to(self.keys.dtype)
        self.values[rows, :, window.columns] = value_states.transpose(1, 2).to(self.values.dtype)
        read: slice | torch.Tensor = slice(len(window.rows)) if window.front else window.rows
        return self.keys[read, :, : window.length], self.values[read, :, : window.length]

    def swap(self, a: int, b: int, columns: int) -> None:
        if self.keys is None or self.values is None or not columns:
            return
        for tensor in (self.keys, self.values):
            held = tensor[a, :, :columns].clone()
            tensor[a, :, :columns] = tensor[b, :, :columns]
            tensor[b, :, :columns] = held

    def resize(self, rows: int, columns: int) -> None:
        if self.keys is None or self.values is None:
            return
        old_keys, old_values = self.keys, self.values
        self.lazy_initialization(old_keys, old_values)
        held_rows, _, held_columns, _ = old_keys.shape
        self.keys[:held_rows, :, :held_columns] = old_keys
        self.values[:held_rows, :, :held_columns] = old_values

    def free(self) -> None:
        self.keys = self.values = None
        self.is_initialized = False

    def get_seq_length(self) -> int:
        return self.arena.window.length if self.arena.window is not None else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length(), 0

    def get_max_length(self) -> int:
        return -1
