"""Attention that computes each sample of a row by itself, where a mask over the row would compute the square of its whole length.

It is registered with transformers as an attention of its own: once a forward, in place of a mask, each kind of layer is handed the spans
of the samples, which `collation.pack` has written down on the host (`packed`). So the host never waits for a device to learn where samples
begin, and what is handed over is in the layers' arguments, which activation checkpointing keeps for the second forward. Nothing has to be
known of an architecture: its own rule for who sees whom, with which sdpa would fill its mask, is compared with what is computed here
(`compared`), once before the first step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from finetune.errors import UserError

LOOP, KERNEL = "overtone_loop", "overtone_varlen"
"""Names in transformers: sdpa sample by sample, on every device; or one call of torch's varlen kernel."""


@dataclass(frozen=True)
class Spans:
    """Who sees whom in rows of equal shape: the earlier positions of the same sample, and of those the last `window`."""

    lengths: tuple[int, ...]
    """Of the samples that are end to end in a row. Empty for a row of fixed shape, of which only the kernel knows where samples begin."""
    bounds: Tensor
    """[N + 1] int32, where the samples begin and end."""
    longest: int
    """No sample has more positions."""
    window: int | None
    """Positions that are seen, one's own included; None: all of them."""

    def mask(self, length: int) -> Tensor | None:
        """[length, length], True where a sample's position (row) sees another (column). None: whatever came before."""
        if self.window is None or length <= self.window:
            return None
        places = torch.arange(length, device=self.bounds.device)
        behind = places[:, None] - places
        return (behind >= 0) & (behind < self.window)


_row: ContextVar[tuple[Tensor | None, tuple[int, ...]]] = ContextVar("row", default=(None, ()))
"""Of the forward that is under way: bounds and lengths, as `packed` takes them."""


@contextmanager
def packed(bounds: Tensor | None, lengths: tuple[int, ...]) -> Iterator[None]:
    """While open, models attend to rows of these samples: `bounds` [N + 1] int32 on the model's device, `lengths` on the host, or () for a
    row of fixed shape. None: each row is one sample."""
    token = _row.set((bounds, lengths))
    try:
        yield
    finally:
        _row.reset(token)


_compared: ContextVar[int] = ContextVar("compared", default=0)
"""Positions for which the rule of a model is compared, in the forward that is under way."""


@contextmanager
def compared(positions: int) -> Iterator[None]:
    """While open, a forward compares its model's own rule of who sees whom with what is computed here, in rows of so many positions
    however few it is given. It raises `UserError` where they differ."""
    token = _compared.set(positions)
    try:
        yield
    finally:
        _compared.reset(token)


def register() -> None:
    """Make both known to transformers under their names."""
    from transformers import AttentionInterface, AttentionMaskInterface

    for name, attend in ((LOOP, one_by_one), (KERNEL, at_once)):
        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, spans)


def spans(
    *,
    batch_size: int,
    kv_length: int,
    mask_function: Callable[..., Tensor],
    local_size: int | None = None,
    attention_mask: Tensor | None = None,
    cache_position: Tensor | None = None,
    device: torch.device | None = None,
    **_: Any,
) -> Spans | None:
    """What transformers requests of an attention once a forward, for each kind of its layers. None: everybody sees all that came before.

    Of the arguments, `cache_position` is how transformers 4 names the device. `attention_mask` [rows, S] says that there is no padding; it
    is given so that transformers does not look at positions for packed samples, which would hold up the host (`causal_model`).
    """
    bounds, lengths = _row.get()
    if bounds is not None and batch_size > 1:
        raise ValueError(f"{batch_size} rows of samples end to end; one at a time can be computed")
    positions = _compared.get()
    if positions and not (agrees(mask_function, local_size, positions) and (attention_mask is None or attention_mask.all())):
        raise UserError("this model lets positions see others than those before them, within a window; set options.attention: sdpa")
    if bounds is None:
        if local_size is None or kv_length <= local_size:
            return None
        device = cache_position.device if cache_position is not None else torch.device(device or "cpu")
        lengths, bounds = (kv_length,), torch.arange(0, kv_length + 1, kv_length, dtype=torch.int32, device=device)
    elif len(lengths) == 1 and (local_size is None or kv_length <= local_size):
        return None
    return Spans(lengths, bounds, max(lengths, default=kv_length), local_size)


def agrees(rule: Callable[..., Tensor], window: int | None, length: int) -> bool:
    """Whether a rule of transformers, looked at where each position's view begins and ends, lets positions see those before them, within
    the window if there is one."""
    zero, here = torch.zeros(1, 1, dtype=torch.int64), torch.arange(length)
    first = torch.zeros_like(here) if window is None else (here - window + 1).clamp(min=0)

    def sees(positions: Tensor, others: Tensor) -> Tensor:
        return rule(zero, zero, positions, others).expand(1, -1)

    inside = sees(here, here) & sees(here, first)
    outside = (sees(here, first - 1) & (first > 0)) | sees(here[:-1], here[1:]).any()
    return bool((inside & ~outside).all())


def one_by_one(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Spans | Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Query, key and value [B, heads, S, D], with fewer heads in the last two if they are shared → [B, S, heads, D].

    `options` are transformers', for the sdpa under it: scaling, dropout, and more that differs between its versions. So is a mask that a
    model made by itself.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    check_options(options)
    if not isinstance(attention_mask, Spans):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    lengths = attention_mask.lengths
    if not lengths:
        raise ValueError("a row of fixed shape, whose samples only the kernel can tell apart")
    parts = zip(*(each.split(lengths, dim=2) for each in (query, key, value)), lengths, strict=True)
    done = [sdpa_attention_forward(module, q, k, v, attention_mask.mask(length), **options)[0] for q, k, v, length in parts]
    return torch.cat(done, dim=1), None


def at_once(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Spans | Tensor | None,
    *,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The same by torch's kernel, which takes samples of a single row. Needs `has_kernel`."""
    from torch.nn.attention.varlen import varlen_attn

    if not isinstance(attention_mask, Spans) or len(query) > 1:
        return one_by_one(module, query, key, value, attention_mask, scaling=scaling, **options)
    check_options(options)
    bounds, longest = attention_mask.bounds, attention_mask.longest
    reach = -1 if attention_mask.window is None else attention_mask.window - 1
    q, k, v = (each[0].transpose(0, 1) for each in (query, key, value))
    # torch 2.11 has no such flag and takes shared heads without it; torch 2.12 refuses them unless it is set.
    shared: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
    found = varlen_attn(q, k, v, bounds, bounds, longest, longest, scale=scaling, window_size=(reach, 0), **shared)
    assert isinstance(found, Tensor)  # and not with the auxiliaries, which nobody asked for
    return found[None], None


def check_options(options: dict[str, Any]) -> None:
    """Raises `UserError` if a layer asks for more than sdpa gives to a sample alone, so that it would be trained on another attention."""
    if asked := [name for name in ("softcap", "s_aux", "position_bias", "head_mask") if options.get(name) is not None]:
        raise UserError(f"this model's attention has {', '.join(asked)}, which attention by spans has not; set options.attention: eager")


def has_kernel(shape: Any) -> bool:
    """Whether torch's varlen kernel computes this model's attention in bf16, here: a CUDA GPU of compute capability 8.0 or more, heads
    of one size up to 256 for queries, keys and values, and no dropout."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
        return False
    from torch.nn.attention.varlen import varlen_attn

    understood = {"scale", "window_size"} <= inspect.signature(varlen_attn).parameters.keys()  # torch 2.10 has neither
    head = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    plain = not hasattr(shape, "v_head_dim") and not getattr(shape, "attention_dropout", 0.0)
    return understood and plain and head % 8 == 0 and head <= 256


@contextmanager
def stock(config: Any) -> Iterator[None]:
    """While open, the model of this config attends by sdpa under a mask."""
    before = config._attn_implementation
    config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        config._attn_implementation = before
