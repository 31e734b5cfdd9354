"""A stack of Qwen3 decoder layers over one static key/value cache, for the talker and for the code predictor.

The arithmetic is that of the package's layers (Qwen3: normalised queries and keys, grouped heads, rotary positions, gated MLP) on the
package's own parameters, in as few calls as they allow: at one position a step, a call costs more than what it computes. Nothing here
depends on values, so that a CUDA graph can hold a whole frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from finetune.errors import UserError


class Norm:
    """Root mean square normalisation over the last axis: x · weight / √(mean x² + ε).

    `rms_norm` is one kernel on CUDA and a dozen calls on a CPU, where half of a small model's frame would go to it; the same quotient,
    times √n above and below, is four: x · (√n · weight) / hypot(|x|, √(n · ε)).
    """

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        size = weight.shape[-1]
        self.weight, self.epsilon = weight, epsilon
        self.scaled, self.floor = weight.detach() * size**0.5, weight.new_tensor((size * epsilon) ** 0.5)

    def __call__(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            return F.rms_norm(x, x.shape[-1:], eps=self.epsilon) * self.weight
        return x * self.scaled / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self.floor)


Cache = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, [batch, key/value heads, slots, head]."""


@dataclass(frozen=True)
class Layer:
    """One decoder layer's parameters. What is multiplied with the same input stands in one matrix."""

    before_attention: Norm
    qkv: Tensor
    """[(heads + 2 key/value heads) · head, H]."""
    qk_norm: Norm
    """[heads + key/value heads, 1, head]."""
    out: Tensor
    before_mlp: Norm
    gate_up: Tensor
    """[2 · inner, H]."""
    down: Tensor


@dataclass(frozen=True)
class Window:
    """Where a step reads and writes."""

    slots: Tensor
    """[S] int64: the cache's slots of this step's positions."""
    size: int
    """Slots 0 … size-1 are looked at."""
    mask: Tensor | None
    """[B, 1, S, size] bool, true where a position may look; None: everywhere."""
    rotary: tuple[Tensor, Tensor]
    """Cosine and signed sine, [B or 1, 1, S, head]."""


class Stack:
    """The layers and the final norm of a `Qwen3TTSTalkerModel` or a `Qwen3TTSTalkerCodePredictorModel`."""

    def __init__(self, model: Any) -> None:
        config = model.config
        check_supported(config)
        self.heads, self.key_value_heads, self.head = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.layers = [layer_of(module, self.heads, self.key_value_heads) for module in model.layers]
        self.norm = norm_of(model.norm)
        self._rotary = model.rotary_emb

    def cache(self, batch: int, slots: int) -> Cache:
        """Zeros: an unwritten slot must be finite to be masked."""
        size = (batch, self.key_value_heads, slots, self.head)
        return [(self.norm.weight.new_zeros(size), self.norm.weight.new_zeros(size)) for _ in self.layers]

    def rotary_table(self, positions: int) -> Tensor:
        """[positions, 2, head]: cosine, and sine with the sign of the half-rotation.

        The talker's three position streams (time, height, width) are the same stream for speech, so that its interleaved sections pick
        the same number from any of them: its table is the plain one.
        """
        where = torch.arange(positions, device=self.norm.weight.device)[None]
        cosine, sine = self._rotary(self.norm.weight, where.expand(3, 1, -1) if has_sections(self._rotary) else where)
        cosine, sine = (one.reshape(-1, positions, self.head)[0] for one in (cosine, sine))
        half = self.head // 2
        return torch.stack([cosine, torch.cat([-sine[:, :half], sine[:, half:]], -1)], 1)

    def __call__(self, x: Tensor, cache: Cache, window: Window) -> Tensor:
        """[B, S, H] through all layers and the norm; the cache gets S more positions."""
        for layer, kept in zip(self.layers, cache, strict=True):
            x = x + self._attend(layer.before_attention(x), layer, kept, window)
            gate, up = F.linear(layer.before_mlp(x), layer.gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return self.norm(x)

    def _attend(self, x: Tensor, layer: Layer, kept: tuple[Tensor, Tensor], window: Window) -> Tensor:
        batch, steps, _ = x.shape
        joint = F.linear(x, layer.qkv).view(batch, steps, -1, self.head).transpose(1, 2)
        qk, v = joint.split([self.heads + self.key_value_heads, self.key_value_heads], 1)
        cosine, sine = window.rotary
        qk = layer.qk_norm(qk)
        qk = qk * cosine + qk.roll(self.head // 2, -1) * sine
        q, k = qk.split([self.heads, self.key_value_heads], 1)
        keys, values = (store.index_copy_(2, window.slots, new)[:, :, : window.size] for store, new in zip(kept, (k, v), strict=True))
        heard = F.scaled_dot_product_attention(q, keys, values, attn_mask=window.mask, enable_gqa=True)
        return F.linear(heard.transpose(1, 2).reshape(batch, steps, -1), layer.out)


def check_supported(config: Any) -> None:
    """Raises `UserError` for an architecture that the released models do not have and that `Stack` does not compute."""
    found = {
        "sliding_window": getattr(config, "sliding_window", None),
        "attention_bias": config.attention_bias or None,
        "hidden_act": None if config.hidden_act == "silu" else config.hidden_act,
        "rope_type": rope_type(config),
    }
    odd = [f"{name} {value}" for name, value in found.items() if value is not None]
    if odd:
        raise UserError(f"{config.model_type} with {', '.join(odd)} cannot be decoded here; the released Qwen3-TTS models have none of it")


def rope_type(config: Any) -> str | None:
    """The kind of rotary positions if it is not the default one."""
    scaling = config.rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    return None if kind == "default" else str(kind)


def has_sections(rotary: Any) -> bool:
    """Whether these rotary positions are the talker's, which take three streams of positions."""
    return bool((rotary.config.rope_scaling or {}).get("mrope_section"))


def layer_of(module: Any, heads: int, key_value_heads: int) -> Layer:
    """The parameters of a package's decoder layer."""
    attention, mlp = module.self_attn, module.mlp
    of_queries, of_keys = (
        norm.weight.expand(count, 1, -1) for norm, count in ((attention.q_norm, heads), (attention.k_norm, key_value_heads))
    )
    return Layer(
        before_attention=norm_of(module.input_layernorm),
        qkv=joined(attention.q_proj, attention.k_proj, attention.v_proj),
        qk_norm=Norm(torch.cat([of_queries, of_keys]), attention.q_norm.variance_epsilon),
        out=attention.o_proj.weight,
        before_mlp=norm_of(module.post_attention_layernorm),
        gate_up=joined(mlp.gate_proj, mlp.up_proj),
        down=mlp.down_proj.weight,
    )


def norm_of(module: Any) -> Norm:
    """A package's norm."""
    return Norm(module.weight, module.variance_epsilon)


def joined(*linears: Any) -> Tensor:
    """The weights of several layers one above the other. The layers become views of it, so that nothing is held twice."""
    weight = torch.cat([linear.weight for linear in linears])
    for linear, part in zip(linears, weight.split([len(linear.weight) for linear in linears]), strict=True):
        linear.weight.data = part
    return weight
