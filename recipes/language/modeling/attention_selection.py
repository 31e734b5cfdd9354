"""Chooses the attention implementation that a model is trained with, before the model is built; the choice is logged before step 1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from overtone.finetune.errors import UserError
from overtone.recipes.language.modeling import varlen_attention

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from overtone.finetune.config import Config
    from overtone.recipes.language.options import LanguageOptionsT


EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names that transformers' configs use for the number of experts."""


class AttentionChoice(NamedTuple):
    """An attention implementation, and why it was chosen."""

    name: str
    """Name in transformers."""
    remark: str
    """One line for the log."""


def choose_attention(config: Config[LanguageOptionsT], model_config: PretrainedConfig) -> AttentionChoice:
    """Return the implementation that `options.attention` means for the model with this config of transformers, on this machine.

    Raises `UserError` for one that cannot run here, or that ignores a part of the model's own attention.
    """
    requested = config.options.attention
    check_available(requested, model_config)
    if requested not in ("auto", "varlen"):
        return use_transformers(requested, "as configured")
    obstacle, chunk = find_varlen_obstacle(model_config), find_chunk(model_config)
    if obstacle is None and chunk and config.train.compile is True and config.data.packing:
        obstacle = "train.compile needs rows of one shape, and samples in chunks (attention_chunk_size) do not make them"
    if obstacle is None and config.train.precision == "bf16" and varlen_attention.has_kernel(model_config.get_text_config()):
        varlen_attention.register()
        return AttentionChoice(varlen_attention.KERNEL, "attention: varlen, the samples of a packed row separately, in one kernel of torch")
    # After the kernel: with flash_attention_2, transformers looks for packed samples in each layer, and the host waits for the GPU.
    flash = not chunk and has_flash_attn() and model_class(model_config)._supports_flash_attn
    if requested == "auto" and config.train.precision == "bf16" and flash:
        return use_transformers("flash_attention_2", "")
    if obstacle is None and config.train.compile is True and config.data.packing:
        obstacle = "train.compile would compile each block again for the lengths of each row"
    if obstacle is None:
        varlen_attention.register()
        return AttentionChoice(varlen_attention.LOOP, "attention: varlen, the samples of a packed row separately, in a loop with sdpa")
    if requested == "varlen":
        raise UserError(f"options.attention: varlen cannot be used, because {obstacle}; use auto or sdpa")
    return use_transformers("eager" if find_sdpa_obstacle(model_config) else "sdpa", f"because {obstacle}")


def list_attentions(config: Config[LanguageOptionsT], model_config: PretrainedConfig) -> Iterator[AttentionChoice]:
    """Yield the choice of `choose_attention`, and for `auto` the implementations of transformers to try if it is wrong for this model."""
    chosen = choose_attention(config, model_config)
    yield chosen
    for name in ("sdpa", "eager") if config.options.attention == "auto" else ():
        if name != chosen.name and (name == "eager" or find_sdpa_obstacle(model_config) is None):
            yield use_transformers(name, f"because {chosen.name} is wrong for this model")


def find_stand_in(name: str, model_config: PretrainedConfig) -> str:
    """Return the implementation that computes the same on a CPU in fp64."""
    if name in (varlen_attention.LOOP, "sdpa", "eager"):
        return name
    if find_varlen_obstacle(model_config) is None:
        return varlen_attention.LOOP
    return "eager" if find_sdpa_obstacle(model_config) else "sdpa"


def use_transformers(name: str, reason: str) -> AttentionChoice:
    """Return an implementation of transformers. Of these, only flash_attention_2 separates packed samples without a mask."""
    if name == "flash_attention_2":
        return AttentionChoice(name, "attention: flash_attention_2, the samples of a packed row separately, in one kernel")
    return AttentionChoice(name, f"attention: {name}, {reason}; the cost of a packed row grows with the square of its whole length")


def check_available(requested: str, model_config: PretrainedConfig) -> None:
    """Raises `UserError` for an implementation of transformers that cannot run here, or not for this model."""
    if requested == "flash_attention_2" and not has_flash_attn():
        raise UserError(
            "options.attention: flash_attention_2 needs a CUDA GPU and the package flash-attn (pip install flash-attn); or use auto"
        )
    if requested == "flash_attention_2" and (chunk := find_chunk(model_config)):
        raise UserError(
            f"options.attention: flash_attention_2 has no attention in chunks (attention_chunk_size: {chunk}); use auto or sdpa"
        )
    if requested == "flex_attention" and not torch.cuda.is_available():
        raise UserError("options.attention: flex_attention has no backward pass without a CUDA GPU; use auto or eager")
    if requested == "sdpa" and (obstacle := find_sdpa_obstacle(model_config)):
        raise UserError(f"options.attention: sdpa cannot be used, because {obstacle}; use auto or eager")


def has_flash_attn() -> bool:
    """Return whether the package flash-attn can run here."""
    from transformers.utils import is_flash_attn_2_available

    return torch.cuda.is_available() and bool(is_flash_attn_2_available())


def find_sdpa_obstacle(model_config: PretrainedConfig) -> str | None:
    """Return why sdpa cannot compute this model's attention; None if it can. transformers 4 silently ignores a soft cap (Gemma 2) with
    sdpa."""
    kind, cap = model_class(model_config), getattr(model_config.get_text_config(), "attn_logit_softcapping", None)
    if cap is not None:
        return f"sdpa ignores this model's attn_logit_softcapping: {cap}"
    return None if kind._supports_sdpa else f"transformers has no sdpa for {kind.__name__}"


def find_chunk(model_config: PretrainedConfig) -> int | None:
    """Return the number of positions that attend only to each other (Llama 4); None if there are no chunks."""
    return getattr(model_config.get_text_config(), "attention_chunk_size", None)


def find_varlen_obstacle(model_config: PretrainedConfig) -> str | None:
    """Return why samples cannot be computed separately; None if they can."""
    kind = model_class(model_config)
    if not kind._supports_attention_backend:
        return f"{kind.__name__} supports only its own attention implementations"
    return find_sdpa_obstacle(model_config)


def explain_recompilation(name: str, packing: bool, model_config: PretrainedConfig) -> str | None:
    """Return why blocks with this attention would be recompiled again and again; None if they would not. `model_config`: of a model that
    was built, which has chosen how to compute experts."""
    text, kind = model_config.get_text_config(), model_class(model_config)
    # One product of all experts, which only transformers 5 has, makes shapes that do not depend on the routing.
    grouped = getattr(text, "_experts_implementation", None) == "grouped_mm" and kind._can_set_experts_implementation()
    if any(getattr(text, key, None) for key in EXPERT_COUNTS) and not grouped:
        return "its experts are computed in a loop, and the number of positions of each one differs from batch to batch"
    if packing and name == varlen_attention.LOOP:
        return "the samples of a packed row are computed in a loop, and their lengths differ"
    if packing and name == varlen_attention.KERNEL and find_chunk(model_config):
        return "samples in chunks (attention_chunk_size) do not make rows of one shape"
    return "flash_attention_2 looks for packed samples in each layer" if packing and name == "flash_attention_2" else None


def model_class(model_config: PretrainedConfig) -> Any:
    """transformers' class for the causal language model of a config."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    return MODEL_FOR_CAUSAL_LM_MAPPING[type(model_config)]
