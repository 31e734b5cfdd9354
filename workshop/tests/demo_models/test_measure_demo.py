"""A finished demo is measured by several recognizers, and on clips in which no word was read wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.speech.evaluation.speaker_similarity import SimilarityEncoder
from overtone.recipes.speech.evaluation.systems import RECORDINGS
from overtone.recipes.voice_clone.demo import comparison_clips
from overtone.recipes.voice_clone.demo.comparison_clips import AFTER
from workshop.demo_models import measure_demo, recognizers
from workshop.demo_models.corpus import make_new_voice


def test_only_words_that_all_recognizers_have_wrong_count_as_wrong_for_both() -> None:
    """Eight words: both have `opens` and one of the numbers wrong, but only one `door` and `the`; an insertion does not count."""
    one = [("Every pilot opens the door.", "every pilot closes the oven"), ("Where is seven?", "where is four")]
    other = [("Every pilot opens the door.", "every pilot keeps a door"), ("Where is seven?", "where is the six")]
    assert measure_demo.find_both_wrong([one, other]) == 25.0
    assert measure_demo.find_both_wrong([one, [(text, text) for text, _ in one]]) == 0.0


def test_a_recognizer_that_writes_the_text_has_no_errors_and_one_that_writes_nothing_only_errors() -> None:
    spoken = [("Every pilot opens the door.", None), ("Where is seven?", None)]
    texts = iter(text for text, _ in spoken)
    assert recognizers.measure_word_errors(lambda samples: next(texts), spoken) == 0.0  # type: ignore[arg-type]
    assert recognizers.measure_word_errors(lambda samples: "", spoken) == 1.0  # type: ignore[arg-type]


def test_a_folder_without_a_finished_demo_is_refused_before_models_are_loaded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a finished demo; run it first: make demo"):
        measure_demo.main([str(tmp_path), "--asr", "nobody.pt"])
    with pytest.raises(UserError, match="--others -1: must be at least 0"):
        measure_demo.main([str(tmp_path), "--others", "-1"])
    with pytest.raises(UserError, match="--given 17: must be from 0 to 16"):
        measure_demo.main([str(tmp_path), "--given", "1", "--given", "17"])


def test_the_other_sentences_start_with_those_for_choosing_and_none_is_reported() -> None:
    others = make_new_voice.list_choosing_sentences(count=measure_demo.OTHERS)
    assert others[: make_new_voice.CHOOSING] == make_new_voice.list_choosing_sentences()
    reported = {row["text"] for row in comparison_clips.read_rows(make_new_voice.FOLDER / "held_out.jsonl")}
    assert len(set(others)) == measure_demo.OTHERS and not reported & set(others)


def test_similarity_is_that_to_the_recordings_of_other_texts() -> None:
    """The encoder reads a direction from the first sample: the recordings are at 0, 90 and 90 degrees, the clips at 90."""
    encoder = SimilarityEncoder("first sample", lambda wave: np.array([np.cos(wave[0]), np.sin(wave[0])], np.float32))

    def spoken(**angles: float) -> list[tuple[str, np.ndarray]]:
        return [(text, np.full(24_000, angle, np.float32)) for text, angle in angles.items()]

    recordings = spoken(one=2 * np.pi, two=np.pi / 2, three=np.pi / 2)
    found = measure_demo.measure_similarity(encoder, {RECORDINGS: recordings, AFTER: spoken(one=np.pi / 2, three=np.pi / 2)})
    assert found == {RECORDINGS: 0.471, AFTER: 0.854}
    silence = measure_demo.measure_similarity(encoder, {RECORDINGS: recordings, AFTER: [("one", np.zeros(24_000, np.float32))]})
    assert silence[AFTER] == 0.0
