"""Pocketsphinx without real speech: noise fits no text, and missing words are counted. Real prompts: test_real_prompts.py."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from types import SimpleNamespace

import numpy as np
import pytest
import soxr

from overtone.data_prep.alignment import pocketsphinx_aligner
from overtone.data_prep.alignment.interface import UNALIGNED_SCORE, AlignedUnit, TextAlignment
from overtone.finetune.errors import UserError


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(pocketsphinx_aligner, "version", fail)
    with pytest.raises(UserError, match=r"--align pocketsphinx: the package is not installed; pip install 'overtone\[align\]'"):
        pocketsphinx_aligner.open_pocketsphinx_aligner("--align")


def test_a_run_may_leave_out_whole_passages() -> None:
    words = ["one", "two", "go", "to", "sleep", "and", "two", "more"]
    assert pocketsphinx_aligner._find_run(words, ["two", "go", "to"], {}) == [1, 2, 3]
    assert pocketsphinx_aligner._find_run(words, ["one", "two", "more"], {0: 2, 2: 6}) == []
    assert pocketsphinx_aligner._find_run(words, ["one", "two", "and", "two"], {2: 5}) == [0, 1, 5, 6]
    assert pocketsphinx_aligner._find_run(words, ["one", "more"], {1: 3, 3: 7}) == [0, 7]
    assert pocketsphinx_aligner._find_run(words, [], {}) == []


class ScriptedDecoder:
    """A decoder of pocketsphinx that returns these segments, each of ten frames."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def seg(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(word=word, start_frame=10 * at, end_frame=10 * at + 9) for at, word in enumerate(self._words)]

    def hyp(self) -> SimpleNamespace:
        return SimpleNamespace(score=0.5)

    def n_frames(self) -> int:
        return 10 * len(self._words)

    def __getattr__(self, name: str) -> Callable[..., object]:
        assert name in ("lookup_word", "activate_search", "set_align_text", "start_utt", "process_raw", "end_utt", "add_fsg", "create_fsg")
        return lambda *_, **__: object()


def test_fillers_and_other_pronunciations_in_the_output_are_no_words() -> None:
    segments = ("<s>", "[NOISE]", "read(2)", "[SPEECH]", "<sil>", "+SPN+", "the", "[COUGH]", "(NULL)", "book", "</s>")
    aligner = pocketsphinx_aligner.LoadedPocketsphinxAligner(ScriptedDecoder(*segments))
    found = aligner.align(np.zeros(16000, np.float32), ["Read", "the", "book."])
    assert found.words == (AlignedUnit(0, 0.2, 0.3), AlignedUnit(1, 0.6, 0.7), AlignedUnit(2, 0.9, 1.0))
    assert found.score is not None and found.score > UNALIGNED_SCORE
    assert aligner.locate(np.zeros(16000, np.float32), ["I", "read", "the", "book", "twice"]) == tuple(
        AlignedUnit(one.position + 1, one.start, one.stop) for one in found.words
    )


def test_numbers_are_aligned_as_they_are_spoken() -> None:
    aligner = pocketsphinx_aligner.LoadedPocketsphinxAligner(ScriptedDecoder("<s>", "press", "forty", "two", "twentieth", "</s>"))
    found = aligner.align(np.zeros(16000, np.float32), ["Press", "42", "20th"])
    assert found.words == (AlignedUnit(0, 0.1, 0.2), AlignedUnit(1, 0.2, 0.4), AlignedUnit(2, 0.4, 0.5)) and found.unknown == 0


def test_a_hypothesis_without_all_words_is_no_alignment() -> None:
    aligner = pocketsphinx_aligner.LoadedPocketsphinxAligner(ScriptedDecoder("<s>", "read", "[NOISE]", "book"))
    assert aligner.align(np.zeros(16000, np.float32), ["read", "the", "book"]) == TextAlignment(score=UNALIGNED_SCORE)


def test_noise_is_below_the_limit_and_unknown_words_are_counted() -> None:
    pytest.importorskip("pocketsphinx")
    aligner = pocketsphinx_aligner.open_pocketsphinx_aligner("--align").load("cpu")
    noise = np.random.default_rng(0).normal(size=16000).astype(np.float32) * 0.1
    found = aligner.align(noise, ["this", "zzyx", "is", "it,"])
    assert found.unknown == 1 and found.score is not None and UNALIGNED_SCORE <= found.score < 0
    assert aligner.align(noise, ["这", "été", "ça"]).score is None
    again = aligner.align(noise, ["this", "zzyx", "is", "it,"])
    assert again == found  # nothing is carried over from clip to clip


def test_the_limit_is_lower_in_the_band_of_a_telephone() -> None:
    wide = 0.1 * np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    narrow = soxr.resample(soxr.resample(wide, 16000, 8000), 8000, 16000)
    aligner = pocketsphinx_aligner.LoadedPocketsphinxAligner(ScriptedDecoder("<s>", "read", "</s>"))
    scores = [aligner.align(samples, ["Read"]).score for samples in (wide, narrow)]
    assert scores == [-pocketsphinx_aligner.LEAST_SCORE, -pocketsphinx_aligner.NARROW_LEAST_SCORE]
