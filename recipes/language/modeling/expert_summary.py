"""A line for the log and the plan about a mixture of experts: parameters that compute a position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from overtone.recipes.language.modeling.attention_selection import EXPERT_COUNTS
from overtone.recipes.language.modeling.expert_balance import count_chosen

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def describe_experts(model: nn.Module, text_config: PretrainedConfig) -> str | None:
    """Return the line; None for a model without experts. `text_config`: of the language model, as transformers reads it."""
    of = next((count for key in EXPERT_COUNTS if isinstance(count := getattr(text_config, key, None), int) and count > 0), None)
    chosen = count_chosen(text_config)
    experts = sum(each.numel() for name, each in model.named_parameters() if "experts" in name.split("."))
    if of is None or chosen is None or not experts:
        return None
    total = sum(each.numel() for each in model.parameters())
    active = total - experts + experts * chosen // of
    return f"experts: {chosen} of {of} compute a position, so {active:,} of {total:,} parameters are active"
