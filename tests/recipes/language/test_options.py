"""Tests of `overtone.recipes.language.options`."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from overtone.recipes.language.options import ChatOptions, LanguageOptions


def test_defaults_and_refusal_of_unknown_values() -> None:
    options = ChatOptions()
    assert (options.chat_template, options.attention, options.loss_head) == (None, "auto", "chunked")
    with pytest.raises(ValidationError, match="flash_attention_2"):
        LanguageOptions(attention="flash")  # type: ignore[arg-type]
