"""Tests of `overtone.recipes.preferences.reference_choice`."""

from __future__ import annotations

from overtone.recipes.preferences.preference_options import PreferenceOptions
from overtone.recipes.preferences.reference_choice import describe_reference, is_reference_cached, needs_divergence, needs_reference


def test_the_reference_of_each_objective() -> None:
    dpo, simpo, kto = (PreferenceOptions(objective=name) for name in ("dpo", "simpo", "kto"))
    assert needs_reference(dpo) and needs_reference(kto) and not needs_reference(simpo)
    assert needs_divergence(kto) and not needs_divergence(dpo)
    assert is_reference_cached(PreferenceOptions(reference="cached")) and not is_reference_cached(dpo)


def test_the_log_describes_what_the_reference_takes() -> None:
    dpo, cached = PreferenceOptions(), PreferenceOptions(reference="cached")
    assert "frozen copy" in describe_reference(dpo, has_adapters=False)
    assert "adapters switched off" in describe_reference(dpo, has_adapters=True)
    assert "computed once" in describe_reference(cached, has_adapters=True)
    assert describe_reference(PreferenceOptions(objective="simpo"), has_adapters=True).startswith("reference: none")
    assert "two more forward passes" in describe_reference(PreferenceOptions(objective="kto"), has_adapters=True)
