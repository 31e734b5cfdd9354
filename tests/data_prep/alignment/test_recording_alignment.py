"""Words of a transcript found in the sound, with the aligner that maps tones to letters."""

from __future__ import annotations

import numpy as np
import pytest

from overtone.data_prep.alignment import recording_alignment
from overtone.data_prep.alignment.ctc_aligner import LoadedCtcAligner, open_ctc_aligner
from overtone.data_prep.audio.waveform import MASTER_RATE, Audio
from overtone.data_prep.segmentation.clip_segmentation import TextUnit
from overtone.data_prep.segmentation.vad import Region
from tests.data_prep.alignment.tone_model import save_tone_model, speak

TEXTS = ("ab cd a", "dd ba", "ca bb d", "bc da")
STARTS = (0.0, 2.0, 4.0, 6.0)
SECOND = MASTER_RATE


@pytest.fixture(scope="module")
def aligner(tmp_path_factory: pytest.TempPathFactory) -> LoadedCtcAligner:
    return open_ctc_aligner("--align", str(save_tone_model(tmp_path_factory.mktemp("tones")))).load("cpu")


@pytest.fixture
def audio() -> Audio:
    samples = np.zeros(8 * 16000, np.float32)
    for start, text in zip(STARTS, TEXTS, strict=True):
        wave = speak(text)
        samples[int(start * 16000) : int(start * 16000) + len(wave)] = wave
    return Audio(samples, 16000)


WINDOWS = [Region(0, 4 * SECOND), Region(4 * SECOND, 8 * SECOND)]


def make_cues(late: float) -> list[TextUnit]:
    return [
        TextUnit(text=" " + text, start=int((start + late) * SECOND), stop=int((start + late + 1.0) * SECOND))
        for start, text in zip(STARTS, TEXTS, strict=True)
    ]


def test_late_cues_get_the_times_of_their_words(aligner: LoadedCtcAligner, audio: Audio) -> None:
    found = recording_alignment.locate_utterances(aligner, audio, WINDOWS, make_cues(1.0), 20.0, "approximate")
    assert [unit.text for unit in found.units] == [" " + text for text in TEXTS]
    assert [unit.start / SECOND for unit in found.units] == pytest.approx([start + 0.1 for start in STARTS], abs=0.03)
    assert found.note == "times of 4 of 4 utterances corrected by alignment, usually 0.9 s late"
    assert found.ends == [unit.stop for unit in found.units]


def test_a_plain_text_is_divided_into_words(aligner: LoadedCtcAligner, audio: Audio) -> None:
    whole = [TextUnit(text=" ".join(TEXTS), start=0, stop=8 * SECOND)]
    found = recording_alignment.locate_utterances(aligner, audio, WINDOWS, whole, 2.0, "unknown")
    assert "".join(unit.text for unit in found.units).split() == " ".join(TEXTS).split()
    starts = [unit.start / SECOND for unit in found.units]
    assert starts == sorted(starts) and starts[3] == pytest.approx(2.1, abs=0.03) and starts[5] == pytest.approx(4.1, abs=0.03)
    assert found.note == "1 long utterances divided at pauses"


def test_without_a_cue_of_another_text_the_others_keep_their_order(aligner: LoadedCtcAligner, audio: Audio) -> None:
    cues = make_cues(0.0)
    cues[1] = cues[1].model_copy(update={"text": " cb cb cb"})
    found = recording_alignment.locate_utterances(aligner, audio, WINDOWS, cues, 20.0, "approximate")
    assert [unit.text for unit in found.units] == [cue.text for cue in cues if cue is not cues[1]]
    starts = [unit.start for unit in found.units]
    assert starts == sorted(starts)
    assert '1 sentence not spoken, dropped: "cb cb cb"' in found.note


@pytest.mark.parametrize("unspoken", [" cb cb cb", " da. bb dc"])
@pytest.mark.parametrize("at", [0, 1, 3, 4])
def test_a_cue_that_nobody_speaks_is_left_out_unless_the_times_are_right(
    aligner: LoadedCtcAligner, audio: Audio, at: int, unspoken: str
) -> None:
    """Right times leave it where nobody speaks, and so to the check of the clips."""
    cues = make_cues(0.0)
    begin = int((at * 2.0 - 0.2) * SECOND) if at else 0
    cues.insert(at, TextUnit(text=unspoken, start=begin, stop=begin + SECOND // 8))
    found = recording_alignment.locate_utterances(aligner, audio, WINDOWS, cues, 20.0, "approximate")
    assert [unit.text for unit in found.units] == [" " + text for text in TEXTS]
    assert "not spoken, dropped" in found.note and unspoken.split()[0] in found.note
    kept = recording_alignment.locate_utterances(aligner, audio, WINDOWS, cues, 20.0, "right")
    assert kept.units == cues and "left out" not in kept.note


def test_a_sentence_of_a_plain_text_that_nobody_speaks_is_left_out(aligner: LoadedCtcAligner, audio: Audio) -> None:
    text = "ab cd a. dd ba. dc bb ac. ca bb d. bc da."
    whole = [TextUnit(text=text, start=0, stop=8 * SECOND)]
    found = recording_alignment.locate_utterances(aligner, audio, WINDOWS, whole, 2.0, "unknown")
    assert "".join(unit.text for unit in found.units).split() == text.replace("dc bb ac. ", "").split()
    assert found.note == '1 long utterances divided at pauses; 1 sentence not spoken, dropped: "dc bb ac."'


def test_a_cue_with_another_text_than_its_sound_stays_for_the_check_of_the_clips(aligner: LoadedCtcAligner, audio: Audio) -> None:
    cues = make_cues(0.0)
    cues[2] = cues[2].model_copy(update={"text": " dd cb a"})
    found = recording_alignment.locate_utterances(aligner, audio, WINDOWS, cues, 20.0, "approximate")
    assert [unit.text for unit in found.units] == [cue.text for cue in cues]


def test_a_cue_over_a_change_of_the_voice_is_divided_into_words(aligner: LoadedCtcAligner, audio: Audio) -> None:
    cues = [TextUnit(text=" ab cd a dd ba", start=0, stop=3 * SECOND), *make_cues(0.0)[2:]]
    ends = [cue.stop for cue in cues]
    found = recording_alignment.divide_at_changes(aligner, audio, cues, ends, [int(1.5 * SECOND), int(5.9 * SECOND)])
    assert [unit.text for unit in found.units] == [" ab", " cd", " a", " dd", " ba", " ca bb d", " bc da"]
    assert [unit.start / SECOND for unit in found.units[:4]] == pytest.approx([0.1, 0.5, 0.9, 2.1], abs=0.03)
    assert found.ends == [*ends, found.units[4].stop]


def test_a_cue_whose_text_does_not_fit_is_not_divided(aligner: LoadedCtcAligner, audio: Audio) -> None:
    wrong = [TextUnit(text=" cb dd da bc dc", start=0, stop=3 * SECOND), TextUnit(text=" 17 42", start=3 * SECOND, stop=5 * SECOND)]
    found = recording_alignment.divide_at_changes(aligner, audio, wrong, [3 * SECOND], [int(1.5 * SECOND), int(3.5 * SECOND)])
    assert found.units == wrong and found.ends == [3 * SECOND]


def test_a_word_that_is_not_found_stays_in_the_text() -> None:
    assert recording_alignment._attach_missing([3, 4, 5, 7, 8], [4, 7]) == [(4, [3, 4, 5]), (7, [7, 8])]
