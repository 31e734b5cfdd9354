"""The options of llm_dpo."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from overtone.recipes.language.options import ChatOptions
from overtone.recipes.preferences.preference_options import Objective, PreferenceOptions


class Options(PreferenceOptions, ChatOptions):
    """Options of preference optimization."""

    objective: Objective = "dpo"
    """The loss of a pair: `dpo` (Rafailov et al. 2023), `ipo` (Azar et al. 2023), `orpo` (Hong et al. 2024), `simpo` (Meng et al. 2024); or
    of an answer with a label: `kto` (Ethayarajh et al. 2024). dpo, ipo and kto compare with the base; the others need no reference, and so
    less memory and time."""
    desirable_weight: float = Field(default=1.0, gt=0)
    """kto: weight of the answers with the label true. Raise it if they are fewer than the others."""
    undesirable_weight: float = Field(default=1.0, gt=0)
    """kto: weight of the answers with the label false. Raise it if they are fewer than the others."""

    @model_validator(mode="after")
    def _refuse_liger(self) -> Self:
        if self.loss_head != "chunked":
            raise ValueError(f"loss_head: {self.loss_head} computes no log-probability of each token; use chunked")
        return self
