"""The options of a preference objective, which recipes for text and for speech share. Imports no torch: config checks read this module."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from overtone.finetune.config import Section

Objective = Literal["dpo", "ipo", "kto", "orpo", "simpo"]
REFERENCED: tuple[Objective, ...] = ("dpo", "ipo", "kto")
"""The objectives that compare the model with its base."""
DEFAULT_BETA: dict[Objective, float] = {"dpo": 0.1, "ipo": 0.1, "kto": 0.1, "orpo": 0.1, "simpo": 2.0}
"""Customary values; the SimPO paper uses 2 to 2.5."""
USERS: dict[str, tuple[Objective, ...]] = {
    **{"reference": REFERENCED, "margin": ("simpo",), "label_smoothing": ("dpo",), "length_normalized": ("dpo", "ipo")},
    **dict.fromkeys(("desirable_weight", "undesirable_weight"), ("kto",)),
}
"""Option → the objectives on which it has an effect."""


class PreferenceOptions(Section):
    """Options of preference optimization on pairs."""

    objective: Objective = "dpo"
    """The loss of a pair: `dpo` (Rafailov et al. 2023), `ipo` (Azar et al. 2023), `orpo` (Hong et al. 2024), `simpo` (Meng et al. 2024)."""
    reference: Literal["live", "cached"] = "live"
    """Predictions of the base for the objectives that compare with it. `live`: computed in each step, by the model without its adapters or
    by a frozen copy of the base. `cached`: computed once, before the first step, and kept in the run's folder, so that a step needs neither
    memory nor time for them."""
    beta: float | None = Field(default=None, gt=0)
    """Strength of the objective; null: 0.1, and 2 for simpo. dpo, ipo, kto: the larger, the closer to the base. orpo: weight of the odds
    ratio beside the likelihood of the chosen answer. simpo: scale of the rewards."""
    margin: float = Field(default=1.0, ge=0)
    """simpo: the target margin γ between the rewards of the two answers."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """dpo: the assumed share of pairs whose sides are swapped (conservative DPO, Mitchell 2023)."""
    length_normalized: bool = False
    """dpo, ipo: divide the log-ratio of each answer by its tokens, so that long answers have no advantage."""

    @model_validator(mode="after")
    def _refuse_unused(self) -> Self:
        for name in USERS.keys() & type(self).model_fields.keys():
            # Compared with the default, because each checkpoint has all values of its config, which must be a valid config again.
            if self.objective not in USERS[name] and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} has no effect on {self.objective}, only on {' and '.join(USERS[name])}; remove it")
        return self

    @property
    def strength(self) -> float:
        """`beta`, or the objective's default."""
        return DEFAULT_BETA[self.objective] if self.beta is None else self.beta
