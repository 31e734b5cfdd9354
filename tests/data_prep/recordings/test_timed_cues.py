"""How many unusable cues a file may have."""

from __future__ import annotations

import pytest

from overtone.data_prep.recordings.timed_cues import require_mostly_usable
from overtone.finetune.errors import UserError


def test_one_unusable_cue_is_noted_and_many_are_refused() -> None:
    assert require_mostly_usable([], 5, "a.srt") == []
    assert require_mostly_usable(["a.srt:3: x"], 2, "a.srt") == ["1 cue skipped: a.srt:3: x"]
    assert require_mostly_usable([f"a.srt:{line}: x" for line in range(4)], 20, "a.srt") == [
        "4 cues skipped: a.srt:0: x; a.srt:1: x; a.srt:2: x; …"
    ]
    with pytest.raises(UserError, match="a.srt: 2 of its 9 cues cannot be used"):
        require_mostly_usable(["a", "b"], 9, "a.srt")
