"""Alignment with a CTC model of hand-made weights, which maps tones to letters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overtone.data_prep.alignment.ctc_aligner import LoadedCtcAligner, open_ctc_aligner, read_vocabulary
from overtone.data_prep.alignment.interface import UNALIGNED_SCORE
from overtone.finetune.errors import UserError
from tests.data_prep.alignment.tone_model import save_tone_model, speak


@pytest.fixture(scope="module")
def aligner(tmp_path_factory: pytest.TempPathFactory) -> LoadedCtcAligner:
    return open_ctc_aligner("--align", str(save_tone_model(tmp_path_factory.mktemp("tones")))).load("cpu")


def test_words_get_the_times_of_their_tones(aligner: LoadedCtcAligner) -> None:
    found = aligner.align(speak("ab cd a"), ["AB", "cd", "A"])
    assert found.score is not None and found.score > 0.5 and found.unknown == 0
    assert [word.position for word in found.words] == [0, 1, 2]
    assert [word.start for word in found.words] == pytest.approx([0.1, 0.5, 0.9], abs=0.03)
    assert [word.stop for word in found.words] == pytest.approx([0.4, 0.8, 1.0], abs=0.03)


@pytest.mark.parametrize("wrong", [["dc", "ba", "d"], ["cd", "ab"], ["ab" * 60]])
def test_a_text_that_is_not_spoken_is_below_the_limit(aligner: LoadedCtcAligner, wrong: list[str]) -> None:
    score = aligner.align(speak("ab cd a"), wrong).score
    assert score is not None and score < 0


def test_a_part_of_a_long_text_is_located(aligner: LoadedCtcAligner) -> None:
    found = aligner.locate(speak("cd ab"), ["ab", "ab", "cd", "ab", "dd"])
    assert [word.position for word in found] == [2, 3]


def test_words_outside_the_vocabulary_are_counted(aligner: LoadedCtcAligner) -> None:
    found = aligner.align(speak("ab cd"), ["ab", "42", "cd"])
    assert found.unknown == 1 and found.score is not None and found.score > 0
    assert aligner.align(speak("ab"), ["17", "42", "ab"]).score is None
    assert aligner.align(speak("")[:100], ["ab"]).score == UNALIGNED_SCORE


def test_a_vocabulary_without_characters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no vocab\.json"):
        read_vocabulary(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"eng": {"a": 1}}))
    with pytest.raises(UserError, match="a model for one language"):
        read_vocabulary(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"<pad>": 0, "|": 1}))
    with pytest.raises(UserError, match="no letters"):
        read_vocabulary(tmp_path)


def test_a_model_without_its_head_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_tone_model(tmp_path)
    weights = load_file(folder / "model.safetensors")
    save_file({name: weights[name] for name in weights if "lm_head" not in name}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"--align .*lacks 2 weights \(lm_head.bias, lm_head.weight\)"):
        open_ctc_aligner("--align", str(folder)).load("cpu")
