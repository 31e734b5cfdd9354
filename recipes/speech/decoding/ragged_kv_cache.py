"""The key/value cache of a batch whose rows begin and end at different times: each row has its own length, and none has padding.

The results of a row do not depend on the other rows. The batch always has the same number of rows, so the shapes of all products with
weights are the same, and no operation mixes rows. The attention window grows with the longest row (`round_window`); the further slots of
shorter rows are masked, and their weights are exactly 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from .cached_decoder_layers import AttentionWindow, CachedDecoderLayers, KeyValueCache

if TYPE_CHECKING:
    from transformers import PretrainedConfig

WINDOW = 512
"""Slots by which a long attention window grows. It is the block in which attention on a CPU reads keys (`kvSplitSize` of PyTorch's
`FlashAttentionKernel.cpp`), so that the blocks of a row are the same in a longer window; and there are few CUDA graphs."""
SHORTEST_WINDOW = 64
"""Slots of the shortest window on a CPU, which doubles up to `WINDOW`: to read 512 slots of every row takes as long as to read the weights
of a small model. Within one block, more slots of weight 0 have not changed a bit of a sum: `test_ragged_kv_cache.py` and
`test_ragged_transformers_cache.py` check that on the machine they run on."""
ROWS_MULTIPLE = 4
"""The number of rows is a multiple of this. Matrix products take rows in groups; the rows of an incomplete group are summed in another
order, so that a request would depend on its row (with 6 rows it does). A request that is alone has a batch of one row: four rows would
take up to four times as long."""


def count_rows(requested: int) -> int:
    """The number of rows of a batch that speaks `requested` requests at once: 1, or at least as many and a multiple of `ROWS_MULTIPLE`."""
    return 1 if requested == 1 else -(-requested // ROWS_MULTIPLE) * ROWS_MULTIPLE


def count_generation_bytes(parameters: int, config: PretrainedConfig, itemsize: int, slots: int, positions: int) -> int:
    """Return the bytes of a copy with so many parameters, and of the keys and values of `slots` answers of so many positions each."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    stored = -(-positions // WINDOW) * WINDOW
    return itemsize * (parameters + 2 * config.num_hidden_layers * heads * size * stored * count_rows(slots))


def round_window(slots: int, shortest: int) -> int:
    """Return the attention window for `slots` slots: `shortest`, doubled up to `WINDOW`, then a multiple of `WINDOW`."""
    if slots > WINDOW:
        return -(-slots // WINDOW) * WINDOW
    return max(shortest, 1 << (slots - 1).bit_length())


class RowSlots(ABC):
    """Owns how many slots of a cache each of `rows` rows has filled. A subclass owns the keys and values. The cache grows when a row needs
    more slots, and keeps that size."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows, self._slots = rows, 0
        self._shortest = WINDOW if device.type == "cuda" else SHORTEST_WINDOW  # on a GPU, each window is a graph to be captured
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        """[rows]: the slots that each row has filled."""
        self._known = [0] * rows
        """The same on the host, so that the window is chosen without a synchronization."""
        self._indices = torch.empty(0, dtype=torch.int64, device=device)

    @property
    def slots(self) -> int:
        """Slots of each row; a multiple of `WINDOW`."""
        return self._slots

    def reserve(self, slots: int) -> None:
        """Make room for rows of `slots` slots. Existing rows keep their contents."""
        if slots <= self._slots:
            return
        size = -(-slots // WINDOW) * WINDOW
        indices = torch.arange(size, device=self.lengths.device)
        self._grow(size)  # without memory for it, the rows keep the cache that they have
        self._slots, self._indices = size, indices

    @abstractmethod
    def _grow(self, size: int) -> None:
        """Replace the cache by one of `size` slots with the same contents, or raise and change nothing."""

    @abstractmethod
    def read_prompt(self, row: int, prompt: Tensor) -> Tensor:
        """Start a row with a prompt [S, …], for which there is room; returns what the model computes for its last positions, [N, …]. The
        prompt is computed alone, so it depends on no other row."""

    def find_window(self, steps: int) -> int:
        """Slots of the attention window for `steps` further positions of every row."""
        return min(self._slots, round_window(max(self._known) + steps, self._shortest))

    def list_windows(self) -> list[int]:
        """List the attention windows that `find_window` can return for rows of at most `slots` slots."""
        windows = [min(self._slots, self._shortest)]
        while windows[-1] < self._slots:
            windows.append(min(self._slots, round_window(windows[-1] + 1, self._shortest)))
        return windows

    def advance(self, occupied: list[bool], count: int) -> None:
        """Lengthen the occupied rows by `count` positions; the others write to the same slots again."""
        self._known = [length + count * taken for length, taken in zip(self._known, occupied, strict=True)]

    def clear(self, row: int) -> None:
        """A row that is free has no length, so that it does not widen the window."""
        self.lengths[row] = 0
        self._known[row] = 0

    def _set_length(self, row: int, count: int) -> None:
        self.lengths[row] = count
        self._known[row] = count


class RowCache(RowSlots):
    """The cache of `CachedDecoderLayers`."""

    def __init__(self, layers: CachedDecoderLayers, rows: int) -> None:
        device = layers.norm.weight.device
        super().__init__(rows, device)
        self._layers = layers
        self._store: KeyValueCache = []
        self._rotary = torch.empty(0, device=device)

    def _grow(self, size: int) -> None:
        store, rotary = self._layers.make_cache(self.rows, size), self._layers.make_rotary_table(size)
        for old, new in zip(self._store, store, strict=False):
            for part, whole in zip(old, new, strict=True):
                whole[:, :, : part.shape[2]] = part
        self._store, self._rotary = store, rotary

    def read_prompt(self, row: int, prompt: Tensor) -> Tensor:
        """Read a prompt [S, H], as `RowSlots` does; returns the states [S, H] of its positions."""
        count = len(prompt)
        for keys, values in self._store:  # of the request before: masked values still count as 0 · value, and 0 · NaN is NaN
            keys[row].zero_()
            values[row].zero_()
        own = [(keys[row : row + 1], values[row : row + 1]) for keys, values in self._store]
        indices = self._indices[:count]
        cosine, sine = self._rotary[:count].unbind(1)
        window = AttentionWindow(indices, count, (indices <= indices[:, None])[None, None], (cosine, sine))
        self._set_length(row, count)
        return self._layers(prompt[None], own, window)[0]

    def make_windows(self, count: int, size: int) -> list[AttentionWindow]:
        """Return the windows of `count` positions after the present ones, one by one, with attention to the first `size` slots."""
        slots = self.lengths[:, None] + self._indices[:count]
        mask = (self._indices[:size] <= slots[..., None])[:, None]
        cosine, sine = F.embedding(slots, self._rotary.flatten(1)).unsqueeze(1).chunk(2, -1)
        written = slots[0] if self.rows == 1 else slots  # slots that all rows share are written in half of the time
        steps = zip(written.split(1, -1), mask.split(1, 2), cosine.split(1, 2), sine.split(1, 2), strict=True)
        return [AttentionWindow(slot, size, of_step, (cos, sin)) for slot, of_step, cos, sin in steps]

    @property
    def store(self) -> KeyValueCache:
        """Keys and values of each layer, [rows, key/value heads, slots, head]."""
        return self._store
