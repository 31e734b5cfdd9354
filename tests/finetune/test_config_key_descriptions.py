"""Config keys are listed with their type, default, and documentation."""

from __future__ import annotations

from overtone.finetune.config import Names, Section
from overtone.finetune.config_key_descriptions import fields


class Options(Section):
    depth: int = 1
    """How deep."""
    names: Names = ()
    """Of what."""


def test_fields_are_listed_with_type_default_and_meaning() -> None:
    assert list(fields(Options, "options.")) == [
        ("options.depth", "int, default 1", "How deep."),
        ("options.names", "list of str, default []", "Of what."),
    ]
