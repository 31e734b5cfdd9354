"""What the options accept."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from recipes.language.options import LanguageOptions


def test_defaults_choose_by_themselves_and_unknown_values_are_refused() -> None:
    options = LanguageOptions()
    assert (options.supervise, options.chat_template, options.attention, options.loss_head) == ("assistant", None, "auto", "chunked")
    with pytest.raises(ValidationError, match="flash_attention_2"):
        LanguageOptions(attention="flash")  # type: ignore[arg-type]
