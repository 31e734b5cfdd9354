"""Which attention a model is trained with, decided before it is built and told before step 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from finetune.errors import UserError
from recipes.language import varlen_attention

if TYPE_CHECKING:
    from finetune.config import Config
    from recipes.language.options import LanguageOptions


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names of their number in transformers' configs."""


class Attention(NamedTuple):
    """A choice."""

    name: str
    """In transformers."""
    remark: str
    """One line for the log."""


def choose(config: Config[LanguageOptions], shape: Any) -> Attention:
    """What `options.attention` means for a model of this shape (its config in transformers), on this machine.

    Raises `UserError` for what cannot run here, or would leave out a part of the model's own attention.
    """
    options = config.options
    asked = options.attention
    check_asked(asked, shape)
    if asked not in ("auto", "varlen"):
        return by_transformers(asked, "as asked")
    obstacle = obstacle_of_varlen(shape)
    if obstacle is None and has_kernel(config, shape):
        varlen_attention.register()
        return Attention(varlen_attention.KERNEL, "attention: varlen, samples of a packed row apart in one call of torch's kernel")
    # After the kernel: transformers asks the GPU in each layer whether a row is packed, and the host waits for the answer.
    if asked == "auto" and config.train.precision == "bf16" and has_flash() and class_of(shape)._supports_flash_attn:
        return by_transformers("flash_attention_2", "")
    if obstacle is None and config.train.compile is True and config.data.packing:
        obstacle = "train.compile would compile a block anew for the lengths in each row"
    if obstacle is None:
        varlen_attention.register()
        return Attention(varlen_attention.LOOP, "attention: varlen, samples of a packed row one by one through sdpa")
    if asked == "varlen":
        raise UserError(f"options.attention: varlen cannot be used, as {obstacle}; take auto or sdpa")
    return by_transformers("eager" if beyond_sdpa(shape) else "sdpa", f"as {obstacle}")


def by_transformers(name: str, reason: str) -> Attention:
    """An attention of transformers' own, of which flash_attention_2 alone keeps samples apart without a mask."""
    if name == "flash_attention_2":
        return Attention(name, "attention: flash_attention_2, samples of a packed row apart in one call")
    return Attention(name, f"attention: {name}, {reason}; a packed row is computed as the square of its whole length")


def check_asked(asked: str, shape: Any) -> None:
    """Raises `UserError`."""
    if asked == "flash_attention_2" and not has_flash():
        raise UserError(
            "options.attention: flash_attention_2 needs a CUDA GPU and the package flash-attn (pip install flash-attn); or take auto"
        )
    if asked == "flex_attention" and not torch.cuda.is_available():
        raise UserError("options.attention: flex_attention has no backward pass without a CUDA GPU; take auto or eager")
    if asked == "sdpa" and (lacking := beyond_sdpa(shape)):
        raise UserError(f"options.attention: sdpa cannot be used, as {lacking}; take auto or eager")


def has_flash() -> bool:
    from transformers.utils import is_flash_attn_2_available

    return torch.cuda.is_available() and bool(is_flash_attn_2_available())


def beyond_sdpa(shape: Any) -> str | None:
    """What of this model's attention sdpa cannot do. A cap (Gemma 2), transformers 4 leaves out under sdpa without a word."""
    kind, cap = class_of(shape), getattr(shape.get_text_config(), "attn_logit_softcapping", None)
    if cap is not None:
        return f"sdpa leaves out this model's attn_logit_softcapping: {cap}"
    return None if kind._supports_sdpa else f"transformers has no sdpa for {kind.__name__}"


def obstacle_of_varlen(shape: Any) -> str | None:
    """Why samples cannot be computed apart; None if they can."""
    kind = class_of(shape)
    if not kind._supports_attention_backend:
        return f"{kind.__name__} takes no attention but those it brings"
    return beyond_sdpa(shape)


def has_kernel(config: Config, shape: Any) -> bool:
    return config.train.precision == "bf16" and varlen_attention.has_kernel(shape.get_text_config())


def why_blocks_vary(name: str, config: Config, shape: Any) -> str | None:
    """Why blocks with this attention would be compiled again and again; None if they would not."""
    if any(getattr(shape.get_text_config(), key, None) for key in EXPERTS):
        return "each of this model's experts gets another number of positions each time"
    if config.data.packing and name == varlen_attention.LOOP:
        return "samples of a packed row are computed one by one, and their lengths differ"
    return "flash_attention_2 looks for samples in each layer" if config.data.packing and name == "flash_attention_2" else None


def class_of(shape: Any) -> Any:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    return MODEL_FOR_CAUSAL_LM_MAPPING[type(shape)]
