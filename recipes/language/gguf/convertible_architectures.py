"""The architectures that are exported as GGUF, and the settings of each that llama.cpp computes.

llama.cpp fixes many settings for an architecture that transformers reads from config.json, and its converter drops those without a word. So
each architecture lists the values that both compute. tests/real/test_gguf_architectures.py compares the logits of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overtone.finetune.errors import UserError

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class Convertible:
    """An architecture as llama.cpp computes it."""

    name: str
    """`general.architecture` in the file."""
    activation: str = "silu"
    rotary_types: tuple[str, ...] = ("default", "linear")
    """Accepted `rope_type`s."""
    find_difference: Callable[[Any], str | None] = lambda _: None
    """(config) → what else llama.cpp would compute in another way; None if there is nothing."""
    ignores_window: bool = False
    """True if llama.cpp attends to all earlier positions also if the config has a sliding window."""


def _find_other_rope_layers(config: PretrainedConfig) -> str | None:
    """SmolLM3: in llama.cpp every fourth layer is without rotary positions."""
    fixed = [int((layer + 1) % 4 != 0) for layer in range(config.num_hidden_layers)]
    return None if list(config.no_rope_layers) == fixed else f"no_rope_layers {config.no_rope_layers}, where llama.cpp has {fixed}"


def _find_other_windows(config: PretrainedConfig) -> str | None:
    """Gemma 3: in llama.cpp every sixth layer attends to all positions, and scores are scaled by the size of a head."""
    fixed = ["full_attention" if (layer + 1) % 6 == 0 else "sliding_attention" for layer in range(config.num_hidden_layers)]
    if list(config.layer_types) != fixed:
        return f"layer_types {config.layer_types}, where llama.cpp has {fixed}"
    if config.query_pre_attn_scalar != config.head_dim and config.num_hidden_layers != GEMMA_27B_LAYERS:
        return f"query_pre_attn_scalar {config.query_pre_attn_scalar}, where llama.cpp has head_dim {config.head_dim}"
    return "attn_logit_softcapping, which llama.cpp ignores" if config.attn_logit_softcapping else None


GEMMA_27B_LAYERS = 62
"""Layers of Gemma 3 27B, by which llama.cpp recognizes it and its scale of scores."""
CONVERTIBLE = {
    "llama": Convertible("llama", rotary_types=("default", "linear", "llama3")),
    "mistral": Convertible("llama", ignores_window=True),
    "qwen2": Convertible("qwen2", rotary_types=("default", "linear", "yarn"), ignores_window=True),
    "qwen3": Convertible("qwen3", rotary_types=("default", "linear", "yarn"), ignores_window=True),
    "phi3": Convertible("phi3", rotary_types=("default", "longrope")),
    "smollm3": Convertible("smollm3", find_difference=_find_other_rope_layers, ignores_window=True),
    "gemma3_text": Convertible("gemma3", "gelu_pytorch_tanh", find_difference=_find_other_windows),
}
"""`model_type` of config.json → how llama.cpp computes it."""


def find_convertible(config: PretrainedConfig, base: Path) -> Convertible:
    """Return the entry of a model. `config`: that of transformers. Raises `UserError` for an architecture or a setting that llama.cpp does
    not compute as transformers does."""
    found = CONVERTIBLE.get(config.model_type)
    if found is None:
        raise UserError(
            f"{base}: an export as GGUF is possible for {', '.join(CONVERTIBLE)}, not for {config.model_type}; export with --format "
            "transformers, which vLLM serves"
        )
    activation = getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None)
    other = found.find_difference(config) or find_other_rotary(config, found)
    if activation != found.activation:
        other = f"the activation {activation}, where llama.cpp has {found.activation}"
    if other:
        raise UserError(f"{base}: the config has {other}, so answers would differ; export with --format transformers, which vLLM serves")
    return found


def find_other_rotary(config: PretrainedConfig, found: Convertible) -> str | None:
    """Return the rotary type of the config that llama.cpp does not compute for this architecture; None if it computes all."""
    # Version 5 of transformers has `rope_parameters`, for Gemma 3 one for each type of layer; version 4 `rope_scaling` or None.
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    each = [value for value in given.values() if isinstance(value, dict)] or [given]
    types = {str(one.get("rope_type", one.get("type", "default"))) for one in each}
    unknown = sorted(types - {*found.rotary_types})
    return f"rope_type {', '.join(unknown)}, which llama.cpp does not compute for {config.model_type}" if unknown else None


def find_ignored_window(config: PretrainedConfig, found: Convertible) -> int | None:
    """Return the sliding window, in positions, that llama.cpp ignores: in longer texts the answers differ. None if there is none."""
    window: int | None = getattr(config, "sliding_window", None)
    used = getattr(config, "use_sliding_window", True)
    return window if found.ignores_window and used and window and window < config.max_position_embeddings else None


def find_long_factors(config: Any) -> int | None:
    """Return the context, in positions, above which llama.cpp gives every text the rotary factors for long ones (longrope); None if it has
    none.

    transformers chooses by the length of the text.
    """
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if given.get("rope_type", given.get("type")) != "longrope":
        return None
    original: int = given.get("original_max_position_embeddings") or config.original_max_position_embeddings
    return original
