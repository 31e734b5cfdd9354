"""The models that were built are the released ones: they answer, transcribe and agree with each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, WhisperForConditionalGeneration, pipeline

from overtone.data_prep.transcription import whisper_engine
from tests.real.build_models import ROOT

pytestmark = pytest.mark.slow


def test_the_chat_model_answers(chat_model: Path) -> None:
    answer = pipeline(
        "text-generation", model=AutoModelForCausalLM.from_pretrained(chat_model), tokenizer=AutoTokenizer.from_pretrained(chat_model)
    )
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    assert answer(asked, max_new_tokens=20, do_sample=False)[0]["generated_text"][-1]["content"] == "The capital of France is Paris."


def test_both_forms_of_whisper_compute_the_same(whisper_file: Path, whisper_folder: Path) -> None:
    """The audio features of noise: of the original classes, and of CTranslate2 from the file that was converted."""
    import ctranslate2
    import whisper

    mel = np.random.default_rng(0).standard_normal((1, 80, 3000)).astype(np.float32) * 0.2
    ours = whisper.load_model(str(whisper_file), device="cpu").encoder(torch.from_numpy(mel)).detach().numpy()
    theirs = ctranslate2.models.Whisper(str(whisper_folder), compute_type="float32").encode(ctranslate2.StorageView.from_array(mel))
    assert np.abs(ours - np.array(theirs)).max() < 1e-3 * np.abs(ours).max()


def test_the_folder_for_transformers_has_the_same_weights(whisper_base: Path, whisper_file: Path) -> None:
    """And the tokenizer of openai-whisper, which `write_whisper_folder` has compared."""
    found, expected = (whisper_engine.load_whisper(str(place), "cpu").state_dict() for place in (whisper_base, whisper_file))
    assert found.keys() == expected.keys() and all(torch.equal(found[name], value) for name, value in expected.items())
    stock, loading = WhisperForConditionalGeneration.from_pretrained(whisper_base, output_loading_info=True)
    assert set(loading["missing_keys"]) <= {"proj_out.weight"} and not loading["unexpected_keys"]
    assert stock.generation_config.alignment_heads == [[1, 0], [2, 0], [2, 5], [3, 0], [3, 1], [3, 2], [3, 3], [3, 4]]


def test_a_run_without_the_packages_says_so_in_one_loud_line(tmp_path: Path) -> None:
    cut_off = os.environ | {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "slow", "tests/real/test_models.py", "-k", "answers"],
        cwd=ROOT,
        env=cut_off | {"OVERTONE_REAL_MODELS": str(tmp_path / "models")},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0 and "1 skipped" in done.stdout
    assert "= NOTHING WAS TESTED ON REAL MODELS =" in done.stdout and "cannot be downloaded; check the network" in done.stdout
