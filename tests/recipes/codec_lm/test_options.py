"""Tests of `overtone.recipes.codec_lm.options`."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from overtone.recipes.codec_lm.options import Options


def test_defaults_and_refusal_of_unknown_values() -> None:
    options = Options()
    assert (options.supervise, options.speaker, options.codec, options.attention, options.loss_head) == (
        *("speech", None, None),
        *("auto", "chunked"),
    )
    with pytest.raises(ValidationError, match="everything"):
        Options(supervise="assistant")  # type: ignore[arg-type]
