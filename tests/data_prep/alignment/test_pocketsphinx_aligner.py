"""Pocketsphinx without real speech: noise fits no text, and missing words are counted. Real prompts: test_real_prompts.py."""

from __future__ import annotations

from importlib import metadata

import numpy as np
import pytest

from data_prep.alignment import pocketsphinx_aligner
from data_prep.alignment.interface import UNALIGNED_SCORE
from finetune.errors import UserError


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


def test_noise_is_below_the_limit_and_unknown_words_are_counted() -> None:
    pytest.importorskip("pocketsphinx")
    aligner = pocketsphinx_aligner.open_pocketsphinx_aligner("--align").load("cpu")
    noise = np.random.default_rng(0).normal(size=16000).astype(np.float32) * 0.1
    found = aligner.align(noise, ["this", "zzyx", "is", "it,"])
    assert found.unknown == 1 and found.score is not None and UNALIGNED_SCORE <= found.score < 0
    assert aligner.align(noise, ["这", "été", "ça"]).score is None
    again = aligner.align(noise, ["this", "zzyx", "is", "it,"])
    assert again == found  # nothing is carried over from clip to clip
