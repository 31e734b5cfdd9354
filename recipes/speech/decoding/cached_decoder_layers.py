"""A stack of Llama or Qwen3 decoder layers with a static key/value cache.

The arithmetic is that of the stock layers (grouped heads, rotary positions, gated MLP; Qwen3 also normalizes queries and keys) with the
model's own parameters, in as few calls as possible: at one position per step, a call costs more than its computation. Nothing here
depends on values, so a CUDA graph can contain a whole frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from overtone.finetune.errors import UserError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


class RMSNorm:
    """Root mean square normalization over the last axis: x · weight / √(mean x² + ε).

    `rms_norm` is one kernel on CUDA but a dozen calls on a CPU, where it would take half of the time of a small model's frame. The same
    quotient with both sides multiplied by √n takes four calls: x · (√n · weight) / hypot(|x|, √(n · ε)).
    """

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        size = weight.shape[-1]
        self.weight, self.epsilon = weight, epsilon
        self.scaled, self.floor = weight.detach() * size**0.5, weight.new_tensor((size * epsilon) ** 0.5)

    def __call__(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            return F.rms_norm(x, x.shape[-1:], eps=self.epsilon) * self.weight
        return x * self.scaled / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self.floor)


FIXED_ROPE_TYPES = ("default", "linear", "llama3")
"""Rotary positions whose frequencies do not depend on the length of the sequence, so that one table is right for all steps."""

KeyValueCache = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, [batch, key/value heads, slots, head]."""


@dataclass(frozen=True)
class LayerWeights:
    """Parameters of one decoder layer. Weights that multiply the same input are joined into one matrix."""

    before_attention: RMSNorm
    qkv: Tensor
    """[(heads + 2 key/value heads) · head, H]."""
    qk_norm: RMSNorm | None
    """[heads + key/value heads, 1, head]; None: queries and keys are not normalized."""
    out: Tensor
    before_mlp: RMSNorm
    gate_up: Tensor
    """[2 · inner, H]."""
    down: Tensor


@dataclass(frozen=True)
class AttentionWindow:
    """The cache slots that a step reads and writes."""

    slots: Tensor
    """[S] int64: the cache slots of this step's positions; [B, S] if each row of the batch has its own."""
    size: int
    """Attention covers slots 0 … size-1."""
    mask: Tensor | None
    """[B, 1, S, size] bool, true where a position may attend; None: everywhere."""
    rotary: tuple[Tensor, Tensor]
    """Cosine and signed sine, [B or 1, 1, S, head]."""


class CachedDecoderLayers:
    """The layers and the final norm of a decoder such as `LlamaModel`, `Qwen3Model`, or one of a speech model that is built like them."""

    def __init__(self, model: PreTrainedModel, family: str) -> None:
        """`family` names the model in errors, as in "Qwen3-TTS"."""
        config = model.config
        check_supported(config, family)
        self.heads, self.key_value_heads, self.head = config.num_attention_heads, config.num_key_value_heads, find_head_size(config)
        self.layers = [collect_layer_weights(module, self.heads, self.key_value_heads) for module in model.layers]
        self.norm = make_norm(model.norm)
        self._rotary = model.rotary_emb

    def make_cache(self, batch: int, slots: int) -> KeyValueCache:
        """A cache of zeros: unwritten slots must be finite, or masking them would give NaN."""
        size = (batch, self.key_value_heads, slots, self.head)
        return [(self.norm.weight.new_zeros(size), self.norm.weight.new_zeros(size)) for _ in self.layers]

    def make_rotary_table(self, positions: int) -> Tensor:
        """[positions, 2, head]: cosine, and sine with the sign of the half-rotation.

        For speech, three position streams (time, height, width), which some models have, are equal, so interleaved sections all read the
        same numbers and the table is the plain one.
        """
        indices = torch.arange(positions, device=self.norm.weight.device)[None]
        cosine, sine = self._rotary(self.norm.weight, indices.expand(3, 1, -1) if has_sections(self._rotary) else indices)
        cosine, sine = (one.reshape(-1, positions, self.head)[0] for one in (cosine, sine))
        half = self.head // 2
        return torch.stack([cosine, torch.cat([-sine[:, :half], sine[:, half:]], -1)], 1)

    def __call__(self, x: Tensor, cache: KeyValueCache, window: AttentionWindow) -> Tensor:
        """[B, S, H] through all layers and the norm; writes S positions to the cache."""
        for layer, keys_and_values in zip(self.layers, cache, strict=True):
            x = x + self._attend(layer.before_attention(x), layer, keys_and_values, window)
            gate, up = F.linear(layer.before_mlp(x), layer.gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return self.norm(x)

    def _attend(self, x: Tensor, layer: LayerWeights, keys_and_values: tuple[Tensor, Tensor], window: AttentionWindow) -> Tensor:
        batch, steps, _ = x.shape
        joint = F.linear(x, layer.qkv).view(batch, steps, -1, self.head).transpose(1, 2)
        qk, v = joint.split([self.heads + self.key_value_heads, self.key_value_heads], 1)
        cosine, sine = window.rotary
        if layer.qk_norm is not None:
            qk = layer.qk_norm(qk)
        qk = qk * cosine + qk.roll(self.head // 2, -1) * sine
        q, k = qk.split([self.heads, self.key_value_heads], 1)
        keys, values = (
            write_slots(store, window.slots, new)[:, :, : window.size] for store, new in zip(keys_and_values, (k, v), strict=True)
        )
        attended = attend_in_groups(q, keys, values, window.mask)
        return F.linear(attended.transpose(1, 2).reshape(batch, steps, -1), layer.out)


def attend_in_groups(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None = None) -> Tensor:
    """Attention of query [B, heads, S, head] to key and value [B, groups, size, head], each of which several heads share.

    Returns [B, heads, S, head]. `mask`: [B, 1, S, size] bool. With a mask, torch's kernels for CUDA do not take shared heads
    (`enable_gqa`): torch would compute in fp32, with a copy of keys and values for each head. So the heads of a group become positions.
    """
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=True)
    batch, heads, steps, head = query.shape
    groups = key.shape[1]
    together = query.reshape(batch, groups, heads // groups * steps, head)
    masks = mask if steps == 1 else mask.repeat(1, 1, heads // groups, 1)
    return F.scaled_dot_product_attention(together, key, value, attn_mask=masks, scale=scale).reshape(batch, heads, steps, head)


def write_slots(store: Tensor, slots: Tensor, new: Tensor) -> Tensor:
    """Write `new` [B, heads, S, head] to the slots [S] or [B, S] of `store` [B, heads, slots, head]; returns the store."""
    if slots.dim() == 1:
        return store.index_copy_(2, slots, new)
    return store.scatter_(2, slots[:, None, :, None].expand_as(new), new)


def make_codebook_windows(rotary: Tensor) -> list[AttentionWindow]:
    """The steps within a frame, of a small model that predicts its codebooks one by one: two positions (the backbone's state and codebook
    0), then one per code, each of which attends to all earlier ones. `rotary` [codebooks, 2, head] is the result of `make_rotary_table`."""
    codebooks = len(rotary)
    slots = torch.arange(codebooks, device=rotary.device)
    first = torch.ones(1, 1, 2, 2, dtype=torch.bool, device=rotary.device).tril()
    starts = [0, *range(2, codebooks)]
    windows = []
    for start, end in zip(starts, [*starts[1:], codebooks], strict=True):
        cosine, sine = rotary[start:end].unbind(1)
        windows.append(AttentionWindow(slots[start:end], end, first if start == 0 else None, (cosine, sine)))
    return windows


def check_supported(config: PretrainedConfig, family: str) -> None:
    """Raises `UserError` for architectures that the released models do not have and that `CachedDecoderLayers` does not implement."""
    rope_type = find_rope_type(config)
    found = {
        "sliding_window": getattr(config, "sliding_window", None),
        "attention_bias": config.attention_bias or None,
        "mlp_bias": getattr(config, "mlp_bias", None) or None,
        "hidden_act": None if config.hidden_act == "silu" else config.hidden_act,
        "rope_type": None if rope_type in FIXED_ROPE_TYPES else rope_type,
    }
    unsupported = [f"{name} {value}" for name, value in found.items() if value is not None]
    if unsupported:
        raise UserError(
            f"{config.model_type} with {', '.join(unsupported)} is not supported; use a model with the released {family} architecture"
        )


def find_head_size(config: PretrainedConfig) -> int:
    """Channels of one attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def find_rope_type(config: PretrainedConfig) -> str:
    """The kind of rotary positions."""
    scaling = config.rope_scaling or {}
    return str(scaling.get("rope_type", scaling.get("type", "default")))


def has_sections(rotary: Any) -> bool:
    """Return whether these rotary positions take three streams of positions."""
    return bool((rotary.config.rope_scaling or {}).get("mrope_section"))


def collect_layer_weights(module: Any, heads: int, key_value_heads: int) -> LayerWeights:
    """The parameters of one of the stock decoder layers."""
    attention, mlp, qk_norm = module.self_attn, module.mlp, None
    if hasattr(attention, "q_norm"):
        query_norm, key_norm = (
            norm.weight.expand(count, 1, -1) for norm, count in ((attention.q_norm, heads), (attention.k_norm, key_value_heads))
        )
        qk_norm = RMSNorm(torch.cat([query_norm, key_norm]), attention.q_norm.variance_epsilon)
    return LayerWeights(
        before_attention=make_norm(module.input_layernorm),
        qkv=join_weights(attention.q_proj, attention.k_proj, attention.v_proj),
        qk_norm=qk_norm,
        out=attention.o_proj.weight,
        before_mlp=make_norm(module.post_attention_layernorm),
        gate_up=join_weights(mlp.gate_proj, mlp.up_proj),
        down=mlp.down_proj.weight,
    )


def make_norm(module: Any) -> RMSNorm:
    """Return the equivalent of a stock norm module."""
    return RMSNorm(module.weight, module.variance_epsilon)


def join_weights(*linears: Any) -> Tensor:
    """The weights [out, in] of several layers, concatenated to [sum of out, in]. The layers become views of the result, so that
    no weight is stored twice."""
    weight = torch.cat([linear.weight for linear in linears])
    for linear, part in zip(linears, weight.split([len(linear.weight) for linear in linears]), strict=True):
        linear.weight.data = part
    return weight
