"""Tests of `overtone.recipes.voice_dpo.options`."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from overtone.recipes.voice_dpo.options import Options


def test_only_objectives_of_pairs_are_offered() -> None:
    assert Options().strength == 0.1 and Options(objective="simpo").strength == 2.0
    with pytest.raises(ValidationError, match="objective"):
        Options(objective="kto")  # type: ignore[arg-type]  # the point
    with pytest.raises(ValidationError, match="label_smoothing has no effect on ipo"):
        Options(objective="ipo", label_smoothing=0.1)
