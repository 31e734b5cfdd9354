"""Attention that computes each sample of a packed row separately. A mask over the row would cost the square of the row's whole length.

Attention in chunks (Llama 4) is attention in samples of a chunk's length, so that a sample is divided into its chunks.

It is registered as an attention implementation in transformers. Once per forward, each kind of layer receives the spans of the samples
instead of a mask. `collation.pack` computes their bounds on the host (`packed_row`), so the host never waits for a device to find where
samples begin. The spans are arguments of the layers, so activation checkpointing keeps them for the second forward. No knowledge of the
architecture is needed: before the first step, the model's own rule of which positions attend to which (sdpa's mask would be made from it)
is compared with the rule here (`compare_rule`).

Where a mask over the row is made after all (sdpa, eager, flex_attention), its rule is applied within each sample: transformers separates
samples only in models that pass their positions on, and not in each version by the positions in the sample.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from overtone.finetune.errors import UserError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

LOOP, KERNEL = "overtone_loop", "overtone_varlen"
"""Names in transformers: sdpa in a loop over the samples, on every device; or one call of torch's varlen kernel."""
MASKED = ("sdpa", "eager", "flex_attention")
"""Implementations of transformers that separate samples by a mask."""


@dataclass(frozen=True)
class Spans:
    """Positions that each position attends to: the earlier ones of the same sample, at most the last `window` of them."""

    lengths: tuple[int, ...]
    """Lengths of the samples in the row. Empty for a row of fixed shape, whose samples only the kernel can separate, by `bounds`."""
    bounds: Tensor
    """[N + 1] int32: where the samples begin and end."""
    longest: int
    """Upper bound of the samples' lengths."""
    window: int | None
    """Positions that one position attends to, itself included; None: all of them."""

    def mask(self, length: int) -> Tensor | None:
        """[length, length], True where a position of a sample (row) attends to another (column). None: to all earlier ones."""
        if self.window is None or length <= self.window:
            return None
        places = torch.arange(length, device=self.bounds.device)
        behind = places[:, None] - places
        return (behind >= 0) & (behind < self.window)


_row: ContextVar[tuple[Tensor | None, tuple[int, ...]]] = ContextVar("row", default=(None, ()))
"""Bounds and lengths of the current forward, as `packed_row` takes them."""


@contextmanager
def packed_row(bounds: Tensor | None, lengths: tuple[int, ...]) -> Iterator[None]:
    """While open, models attend to rows of these samples: `bounds` [N + 1] int32 on the model's device, `lengths` on the host, or () for a
    row of fixed shape, which has more bounds than lengths. Bounds of None: each row is one sample."""
    if bounds is not None and len(bounds) != len(lengths) + 1:
        lengths = ()
    token = _row.set((bounds, lengths))
    try:
        yield
    finally:
        _row.reset(token)


_compared: ContextVar[int] = ContextVar("compared", default=0)
"""Length of the row for which the model's rule is compared in the current forward; 0: it is not compared."""


@contextmanager
def compare_rule(positions: int) -> Iterator[None]:
    """While open, a forward compares its model's own rule of which positions attend to which with what is computed here, for rows of so
    many positions, even if its own rows are shorter. It raises `UserError` if they differ."""
    token = _compared.set(positions)
    try:
        yield
    finally:
        _compared.reset(token)


@cache
def register() -> None:
    """Register both implementations in transformers, and apply the rules of its masks within samples."""
    from transformers import AttentionInterface, AttentionMaskInterface

    for name, attend in ((LOOP, attend_in_loop), (KERNEL, attend_with_kernel)):
        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, make_spans)
    known = AttentionMaskInterface()
    for name in MASKED:
        AttentionMaskInterface.register(name, separate_samples(known[name]))


def separate_samples(make_mask: Callable[..., Any]) -> Callable[..., Any]:
    """transformers' creation of a mask, which for a packed row applies its rule to the positions within each sample."""

    @wraps(make_mask)
    def make(*given: Any, mask_function: Callable[..., Tensor], kv_length: int, **named: Any) -> Any:
        bounds, _ = _row.get()
        if bounds is not None:
            mask_function = apply_within_samples(mask_function, bounds, kv_length)
            named["allow_is_causal_skip"] = False
        return make_mask(*given, mask_function=mask_function, kv_length=kv_length, **named)

    return make


def apply_within_samples(rule: Callable[..., Tensor], bounds: Tensor, length: int) -> Callable[..., Tensor]:
    """Return the rule for a row of `length` positions in which samples begin and end at `bounds` [N + 1], from the rule for one sample."""
    row = torch.arange(length, device=bounds.device)
    samples = torch.bucketize(row, bounds[1:].contiguous(), right=True)
    places = row - bounds[samples]

    def attends(batch: Any, head: Any, position: Tensor, other: Tensor) -> Tensor:
        return (samples[position] == samples[other]) & rule(batch, head, places[position], places[other])

    return attends


def make_spans(
    *,
    batch_size: int,
    kv_length: int,
    mask_function: Callable[..., Tensor],
    local_size: int | None = None,
    attention_mask: Tensor | None = None,
    cache_position: Tensor | None = None,
    device: torch.device | None = None,
    config: PretrainedConfig = None,
    **_: object,
) -> Spans | None:
    """Replaces transformers' creation of a mask, once per forward for each kind of layer. None: positions attend to all earlier ones.

    In transformers 4, the device is that of `cache_position`. `attention_mask` [rows, S] says that there is no padding; `causal_model`
    passes it so that transformers does not inspect positions for packed samples, for which the host would wait.
    """
    bounds, lengths = _row.get()
    if bounds is not None and batch_size > 1:
        raise ValueError(f"{batch_size} packed rows; only one at a time can be computed")
    device = cache_position.device if cache_position is not None else torch.device(device or "cpu")
    chunked = local_size is not None and getattr(config, "attention_chunk_size", None) == local_size
    positions = _compared.get()
    if positions and not (
        rule_matches(mask_function, local_size, positions, chunked, device) and (attention_mask is None or attention_mask.all())
    ):
        raise UserError(
            "in this model, positions attend to others than the earlier ones within a window or a chunk; set options.attention: sdpa"
        )
    if chunked:
        if bounds is not None and not lengths:
            raise ValueError("samples of a row of fixed shape cannot be divided into chunks")
        return _divide(lengths if bounds is not None else (kv_length,), local_size, device)
    if bounds is None:
        if local_size is None or kv_length <= local_size:
            return None
        lengths, bounds = (kv_length,), torch.arange(0, kv_length + 1, kv_length, dtype=torch.int32, device=device)
    elif len(lengths) == 1 and (local_size is None or kv_length <= local_size):
        return None
    return Spans(lengths, bounds, max(lengths, default=kv_length), local_size)


def _divide(lengths: tuple[int, ...], chunk: int | None, device: torch.device) -> Spans | None:
    """The chunks of samples as samples; None if there is only one."""
    assert chunk is not None
    pieces = tuple(min(chunk, length - start) for length in lengths for start in range(0, length, chunk))
    bounds = torch.tensor([0, *accumulate(pieces)], dtype=torch.int32, device=device)
    return Spans(pieces, bounds, max(pieces), None) if len(pieces) > 1 else None


def rule_matches(
    rule: Callable[..., Tensor], size: int | None, length: int, chunked: bool = False, device: torch.device | None = None
) -> bool:
    """Return whether by a mask rule of transformers, positions attend to the earlier ones, within the window or the chunk of this size if
    there is one. The rule is checked at the first and the last position that each position attends to, and at the ones next to them."""
    zero, here = torch.zeros(1, 1, dtype=torch.int64, device=device), torch.arange(length, device=device)

    def attends(positions: Tensor, others: Tensor) -> Tensor:
        return rule(zero, zero, positions, others).expand(1, -1)

    if size == 0:  # Qwen2-MoE without windows makes a mask that no layer uses
        return not attends(here, here).any()
    size = size or length
    first = here // size * size if chunked else (here - size + 1).clamp(min=0)
    inside = attends(here, here) & attends(here, first)
    outside = (attends(here, first - 1) & (first > 0)) | attends(here[:-1], here[1:]).any()
    return bool((inside & ~outside).all())


def attend_in_loop(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Spans | Tensor | None, **options: object
) -> tuple[Tensor, None]:
    """Attention with sdpa for one sample after another: [B, heads, S, D] → [B, S, heads, D]; keys and values may have fewer heads.

    `options` are those of transformers' sdpa: scaling, dropout, and others that differ between its versions. A model may also pass a mask
    that it made itself, which sdpa gets as it is.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    check_options(options)
    if not isinstance(attention_mask, Spans):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    options["is_causal"] = None  # GPT-2 takes spans for a mask, so that it would attend to later positions
    lengths = attention_mask.lengths
    if not lengths:
        raise ValueError("only the kernel can separate the samples of a row of fixed shape")
    parts = zip(*(each.split(lengths, dim=2) for each in (query, key, value)), lengths, strict=True)
    done = [sdpa_attention_forward(module, q, k, v, attention_mask.mask(length), **options)[0] for q, k, v, length in parts]
    return torch.cat(done, dim=1), None


def attend_with_kernel(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Spans | Tensor | None,
    *,
    scaling: float | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """Return the same with torch's kernel, which takes the samples of a single row; for several rows, the loop. Needs `has_kernel`."""
    from torch.nn.attention.varlen import varlen_attn

    if not isinstance(attention_mask, Spans) or len(query) > 1:
        return attend_in_loop(module, query, key, value, attention_mask, scaling=scaling, **options)
    check_options(options)
    bounds, longest = attention_mask.bounds, attention_mask.longest
    reach = -1 if attention_mask.window is None else attention_mask.window - 1
    q, k, v = (each[0].transpose(0, 1) for each in (query, key, value))
    # torch 2.11 has no such flag and accepts shared heads without it; torch 2.12 refuses them unless it is set.
    shared: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
    attended = varlen_attn(q, k, v, bounds, bounds, longest, longest, scale=scaling, window_size=(reach, 0), **shared)
    assert isinstance(attended, Tensor)  # a tuple only with return_aux
    return attended[None], None


def check_options(options: dict[str, object]) -> None:
    """Raises `UserError` if a layer passes an option that sdpa ignores, because the model would be trained with another attention."""
    if unsupported := [name for name in ("softcap", "s_aux", "position_bias", "head_mask") if options.get(name) is not None]:
        raise UserError(f"this model's attention has {', '.join(unsupported)}, which varlen does not support; set options.attention: eager")


def has_kernel(config: PretrainedConfig) -> bool:
    """Return whether torch's varlen kernel can compute the attention of a model with this config in bf16, here: on a CUDA GPU of compute
    capability 8.0 or more, with heads of one size up to 256 for queries, keys and values, and without dropout."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
        return False
    from torch.nn.attention.varlen import varlen_attn

    complete = {"scale", "window_size"} <= inspect.signature(varlen_attn).parameters.keys()  # torch 2.10 has neither
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    plain = not hasattr(config, "v_head_dim") and not getattr(config, "attention_dropout", 0.0)
    return complete and plain and head % 8 == 0 and head <= 256


@contextmanager
def masked_sdpa(config: PretrainedConfig) -> Iterator[None]:
    """While open, the model with this config uses sdpa with a mask."""
    before = config._attn_implementation
    config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        config._attn_implementation = before
