"""Five transcripts at the end of a run."""

from __future__ import annotations

import random

from overtone.data_prep.pipeline.clip_selection import JudgedClip
from overtone.data_prep.pipeline.transcript_examples import format_examples
from tests.data_prep.pipeline.test_clip_selection import clip, recording


def test_the_same_five_transcripts_are_shown_in_any_order_with_the_median_confidence() -> None:
    clips = [clip(number, text=f"Sentence  {number}.", avg_logprob=-number / 10) for number in range(9)]
    judged = [JudgedClip(recording(one), one, ()) for one in clips]
    shown = format_examples(judged)
    assert shown == format_examples(random.Random(0).sample(judged, len(judged)))
    lines = shown.splitlines()
    assert len(lines) == 7
    assert all("clips/aa/aa_" in line and "5.0 s  Sentence " in line for line in lines[1:6])
    assert "-0.40" in lines[6]
    own = [one.clip.model_copy(update={"quality": one.clip.quality.model_copy(update={"avg_logprob": None})}) for one in judged[:2]]
    assert len(format_examples([JudgedClip(recording(one), one, ()) for one in own]).splitlines()) == 3
    assert format_examples([]) == "no transcripts to show"
