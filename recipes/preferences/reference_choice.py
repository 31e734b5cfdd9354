"""Parts of `Recipe.reference`: they read from the options if an objective compares with the base, and how."""

from __future__ import annotations

from overtone.recipes.preferences.preference_options import REFERENCED, PreferenceOptions


def needs_reference(options: PreferenceOptions) -> bool:
    """Return whether the objective compares with the base."""
    return options.objective in REFERENCED


def is_reference_cached(options: PreferenceOptions) -> bool:
    """Return whether the predictions of the base are computed once."""
    return options.reference == "cached"


def needs_divergence(options: PreferenceOptions) -> bool:
    """Return whether the objective needs an estimate of the divergence from the base."""
    return options.objective == "kto"


def describe_reference(options: PreferenceOptions, has_adapters: bool) -> str:
    """For the log and `plan`: the reference of the objective, and what it takes."""
    passes = "two more forward passes for each batch, of its answers and of answers of other rows, for the KL divergence"
    passes = passes if needs_divergence(options) else "one more forward pass for each batch"
    if not needs_reference(options):
        return f"reference: none ({options.objective} compares the two answers by the model alone)"
    if is_reference_cached(options):
        size = "4 bytes for each token of an answer" + (", twice" if needs_divergence(options) else "")
        return f"reference: computed once before the first step and kept in cache/ of the run's folder, {size}; no memory in a step"
    if has_adapters:
        return f"reference: the model with its adapters switched off, {passes}"
    return f"reference: a frozen copy of the base in the compute type, sharded as the model is, {passes}"
