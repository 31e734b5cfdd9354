"""What the options of policy optimization mean together."""

from __future__ import annotations

import pytest

from overtone.recipes.policy.policy_options import PolicyOptions, describe_reference, needs_reference


def test_the_upper_bound_is_that_of_the_objectives_paper_unless_given() -> None:
    assert (PolicyOptions().upper_clip, PolicyOptions(objective="dapo").upper_clip) == (0.2, 0.28)
    assert PolicyOptions(objective="dapo", clip_high=0.5).upper_clip == 0.5


@pytest.mark.parametrize(
    ("weight", "has_adapters", "expected"),
    [(0.0, True, "none"), (0.1, True, "the model with its adapters switched off"), (0.1, False, "a frozen copy of the base")],
)
def test_the_base_is_needed_for_a_divergence_alone(weight: float, has_adapters: bool, expected: str) -> None:
    options = PolicyOptions(kl_weight=weight)
    assert needs_reference(options) == (weight > 0)
    assert describe_reference(options, has_adapters).startswith(f"reference: {expected}")
