"""The options of llm_reward."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from overtone.recipes.language.options import ChatOptions


class Options(ChatOptions):
    """Options of reward models and classifiers."""

    objective: Literal["preference", "classification"] = "preference"
    """`preference`: one value for a sequence, the reward, from pairs of answers of which one is better (Bradley & Terry 1952).
    `classification`: one of the classes that `label` names in the rows."""
    head: Literal["fresh", "base"] = "fresh"
    """Start with a new head, initialized by `run.seed`, or with that of the base, which must then be a model of the same kind, such as an
    export of this recipe. With LoRA, a new head is trained beside the adapters, and that of the base stays as it is."""
    centering: float = Field(default=0.0, ge=0)
    """preference: weight of the squared sum of both rewards of a pair in the loss, which keeps their mean near 0 (Eisenstein et al. 2023,
    arXiv:2312.09244, use 0.01). Only differences of rewards count in the rest of the loss."""

    @model_validator(mode="after")
    def _refuse_unused(self) -> Self:
        if self.objective == "classification" and self.centering:
            raise ValueError("centering has no effect on classification, only on preference; remove it")
        if self.loss_head != "chunked":
            raise ValueError(f"loss_head: {self.loss_head} computes probabilities of tokens, which this recipe does not need; use chunked")
        return self
