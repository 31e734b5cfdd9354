"""The seam that everything which speaks goes through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from finetune.errors import UserError
from recipes.voice_clone.synthesis import Request, Sampling, open_synthesizer

GREEDY = Sampling(greedy=True, max_seconds=2)


def test_a_batch_speaks_what_was_learned(two_voices: Any) -> None:
    for folder in (two_voices.custom_voice, two_voices.base):
        with open_synthesizer(folder) as voice:
            spoken = voice.speak([Request(row["text"], row["speaker"]) for row in two_voices.rows], GREEDY)
            assert [one.codes.tolist() for one in spoken] == [row["audio_codes"] for row in two_voices.rows]
            assert all(one.ended and len(one.wave) == len(one.codes) * one.rate // 12.5 for one in spoken)
            chunks = list(voice.stream(Request(two_voices.rows[0]["text"], "anna"), GREEDY))
            np.testing.assert_allclose(np.concatenate(chunks), spoken[0].wave, atol=1e-5)


def test_it_tells_who_it_is(two_voices: Any) -> None:
    with open_synthesizer(two_voices.base) as voice:
        assert voice.is_base and voice.speakers == ("anna", "bert") and voice.rate == 24000
        assert voice.languages[0] == "auto" and "english" in voice.languages
        with pytest.raises(UserError, match="it has anna, bert"):
            voice.check(Request("Hi.", "carl"))
