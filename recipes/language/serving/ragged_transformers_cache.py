"""The key/value cache of transformers' own model for a batch whose rows begin and end at different times.

A prompt is read by the stock model alone, with the stock cache, and its keys and values are copied into a row. A step is one call of the
stock model on all rows, each with its own position and its own mask; nothing is padded. As in `RowSlots`, the number of rows is fixed and
the attention window grows by `round_window`, so that a row's results do not depend on the other rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AttentionInterface, Cache, DynamicCache

from overtone.recipes.speech.decoding.cached_decoder_layers import KeyValueCache, attend_in_groups, write_slots
from overtone.recipes.speech.decoding.ragged_kv_cache import RowSlots

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ONE_POSITION = "one_position_of_rows"
"""Name of `attend_one_position` in transformers."""


def attend_one_position(
    _: object, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float | None = None, **__: object
) -> tuple[Tensor, None]:
    """Attention of one position of each row, as transformers' `sdpa` with a mask, but without its copies of keys and values for each head,
    which would take longer than the rest of the attention. query [rows, heads, 1, head] → [rows, 1, heads, head]."""
    attended = attend_in_groups(query, key, value, attention_mask, scaling)
    return attended.transpose(1, 2).contiguous(), None


class _WindowOfRows(Cache):
    """The cache that the stock layers see: each writes the keys and values of one position of every row, and gets those of the window."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(layers=[])
        self.store: KeyValueCache = []
        self.slots = torch.empty(0, dtype=torch.int64, device=device)
        """[rows, 1]: where this step writes."""
        self.size = 0
        """Slots of the window."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """[rows, heads, 1, head] of a layer → keys and values of the window, [rows, heads, size, head]."""
        slots, (keys, values) = self.slots.to(key_states.device), self.store[layer_idx]
        return write_slots(keys, slots, key_states)[:, :, : self.size], write_slots(values, slots, value_states)[:, :, : self.size]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002  # the same for all
        """Implements `Cache`."""
        return self.size - 1


class StockRowCache(RowSlots):
    """Owns the cache of `rows` rows of a model of transformers, which `find_obstacle` has admitted."""

    def __init__(self, model: PreTrainedModel, rows: int) -> None:
        super().__init__(rows, model.device)
        AttentionInterface.register(ONE_POSITION, attend_one_position)
        self._model, self._window = model, _WindowOfRows(model.device)
        config = self._config = model.config.get_text_config()
        self._sliding: int | None = getattr(config, "sliding_window", None)
        layer_types = getattr(config, "layer_types", None)
        self._by_type = layer_types is not None and "sliding_attention" in layer_types
        """True if the layers differ: the stock model then takes a mask for each type."""
        if layer_types is not None and not self._by_type:
            self._sliding = None
        one_token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
        self._layers = [(layer.keys, layer.values) for layer in self._read(one_token)[1]]

    def _read(self, ids: Tensor) -> tuple[Tensor, list[Any]]:
        """Token ids [1, S] → scores [1, V] after the last one, and the cache's layers."""
        cache = DynamicCache()
        scores = self._model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        return scores.float(), cache.layers

    def _grow(self, size: int) -> None:
        store: KeyValueCache = []
        for number, (keys, values) in enumerate(self._layers):
            old = self._window.store[number] if self._window.store else ()
            new = tuple(one.new_zeros(self.rows, one.shape[1], size, one.shape[3]) for one in (keys, values))
            for part, whole in zip(old, new, strict=False):
                whole[:, :, : part.shape[2]] = part
            store.append((new[0], new[1]))
        self._window.store = store

    def read_prompt(self, row: int, prompt: Tensor) -> Tensor:
        """Read a prompt of token ids [S], as `RowSlots` does; returns the scores [1, V] after the last one."""
        count = len(prompt)
        scores, layers = self._read(prompt[None])
        for layer, stored in zip(layers, self._window.store, strict=True):
            for new, whole in zip((layer.keys, layer.values), stored, strict=True):
                whole[row, :, :count] = new[0]
                whole[row, :, count:] = 0  # of the request before: masked values still count as 0 · value, and 0 · NaN is NaN
        self._set_length(row, count)
        return scores

    def read_tokens(self, tokens: Tensor, size: int) -> Tensor:
        """The next token of each row, [rows] → scores [rows, V] fp32 after it, with attention to the first `size` slots."""
        self._window.slots, self._window.size = self.lengths[:, None], size
        mask = self._mask(size)
        stock = self._config._attn_implementation
        self._config._attn_implementation = ONE_POSITION
        try:
            called = self._model(
                input_ids=tokens[:, None],
                position_ids=self.lengths[:, None],
                attention_mask=mask,
                past_key_values=self._window,
                use_cache=True,
            )
        finally:
            self._config._attn_implementation = stock
        return called.logits[:, -1].float()

    def _mask(self, size: int) -> Tensor | dict[str, Tensor]:
        """[rows, 1, 1, size] bool, true where a row attends; one for each type of layer if they differ."""
        indices, last = self._indices[:size], self.lengths[:, None]
        full = indices <= last
        sliding = full if self._sliding is None else full & (indices > last - self._sliding)
        if self._by_type:
            return {"full_attention": full[:, None, None], "sliding_attention": sliding[:, None, None]}
        return sliding[:, None, None]
