"""The options of llm_dpo."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from overtone.recipes.language.options import ChatOptions

Objective = Literal["dpo", "ipo", "kto", "orpo", "simpo"]
REFERENCED: tuple[Objective, ...] = ("dpo", "ipo", "kto")
"""The objectives that compare the model with its base."""
DEFAULT_BETA: dict[Objective, float] = {"dpo": 0.1, "ipo": 0.1, "kto": 0.1, "orpo": 0.1, "simpo": 2.0}
"""Customary values; the SimPO paper uses 2 to 2.5."""


class Options(ChatOptions):
    """Options of preference optimization."""

    objective: Objective = "dpo"
    """The loss of a pair: `dpo` (Rafailov et al. 2023), `ipo` (Azar et al. 2023), `orpo` (Hong et al. 2024), `simpo` (Meng et al. 2024); or
    of an answer with a label: `kto` (Ethayarajh et al. 2024). dpo, ipo and kto compare with the base; the others need no reference, and so
    less memory and time."""
    reference: Literal["live", "cached"] = "live"
    """Predictions of the base for dpo, ipo and kto. `live`: computed in each step, by the model without its adapters or by a frozen copy of
    the base. `cached`: computed once, before the first step, and kept in the run's folder, so that a step needs neither memory nor time
    for them."""
    beta: float | None = Field(default=None, gt=0)
    """Strength of the objective; null: 0.1, and 2 for simpo. dpo, ipo, kto: the larger, the closer to the base. orpo: weight of the odds
    ratio beside the likelihood of the chosen answer. simpo: scale of the rewards."""
    margin: float = Field(default=1.0, ge=0)
    """simpo: the target margin γ between the rewards of the two answers."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """dpo: the assumed share of pairs whose sides are swapped (conservative DPO, Mitchell 2023)."""
    length_normalized: bool = False
    """dpo, ipo: divide the log-ratio of each answer by its tokens, so that long answers have no advantage."""
    desirable_weight: float = Field(default=1.0, gt=0)
    """kto: weight of the answers with the label true. Raise it if they are fewer than the others."""
    undesirable_weight: float = Field(default=1.0, gt=0)
    """kto: weight of the answers with the label false. Raise it if they are fewer than the others."""

    @model_validator(mode="after")
    def _refuse_unused(self) -> Self:
        users: dict[str, tuple[Objective, ...]] = {
            **{"reference": REFERENCED, "margin": ("simpo",), "label_smoothing": ("dpo",), "length_normalized": ("dpo", "ipo")},
            **dict.fromkeys(("desirable_weight", "undesirable_weight"), ("kto",)),
        }
        for name, objectives in users.items():
            # Compared with the default, because each checkpoint has all values of its config, which must be a valid config again.
            if self.objective not in objectives and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} has no effect on {self.objective}, only on {' and '.join(objectives)}; remove it")
        if self.loss_head != "chunked":
            raise ValueError(f"loss_head: {self.loss_head} computes no log-probability of each token; use chunked")
        return self

    @property
    def strength(self) -> float:
        """`beta`, or the objective's default."""
        return DEFAULT_BETA[self.objective] if self.beta is None else self.beta
