"""The options: bounds, and what they train."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from overtone.recipes.csm.options import Options
from overtone.recipes.csm.recipe import select_trainable


@pytest.mark.parametrize(("key", "value"), [("depth_share", 0.0), ("depth_share", 1.1), ("depth_weight", -1.0), ("trainable", "codec")])
def test_values_out_of_bounds_are_refused(key: str, value: object) -> None:
    with pytest.raises(ValidationError, match=key):
        Options.model_validate({key: value})


def test_the_text_embedding_alone_can_be_left_out() -> None:
    full, less = select_trainable("full"), select_trainable("no_text_embedding")
    assert full("embed_text_tokens.weight") and not less("embed_text_tokens.weight")
    assert less("depth_decoder.model.embed_tokens.weight") and less("lm_head.weight")
