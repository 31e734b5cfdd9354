"""Lines for the log and the plan about a mixture of experts: parameters that compute a position, and what the loss leaves out."""

from __future__ import annotations

from torch import nn

from overtone.recipes.language.modeling.attention_selection import EXPERT_COUNTS

CHOSEN_COUNTS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
"""Names that transformers' configs use for the number of experts that compute a position."""
BALANCE = "router_aux_loss_coef"
"""Key of transformers' configs with the weight of the load-balancing loss that the model was trained with."""


def describe_experts(model: nn.Module, text_config: object) -> tuple[str, ...]:
    """One line for each fact; none for a model without experts. `text_config`: of the language model, as transformers reads it."""
    of = next((count for key in EXPERT_COUNTS if isinstance(count := getattr(text_config, key, None), int) and count > 0), None)
    chosen = next((count for key in CHOSEN_COUNTS if isinstance(count := getattr(text_config, key, None), int)), None)
    experts = sum(each.numel() for name, each in model.named_parameters() if "experts" in name.split("."))
    if of is None or not experts:
        return ()
    lines, total = list[str](), sum(each.numel() for each in model.parameters())
    if chosen is not None:
        active = total - experts + experts * chosen // of
        lines.append(f"experts: {chosen} of {of} compute a position, so {active:,} of {total:,} parameters are active")
    if weight := getattr(text_config, BALANCE, None):
        lines.append(f"{BALANCE}: {weight:g} of config.json is not used: the loss has no term that balances the experts")
    return tuple(lines)
