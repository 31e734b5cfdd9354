"""Tests of `overtone.recipes.language.answer_generation`: answers, and where they stop."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from overtone.recipes.language import answer_generation
from overtone.recipes.language.answer_generation import LoadedModel
from tests.recipes.llm_sft import tiny_runs


@pytest.fixture(scope="module")
def loaded(exported: Path) -> LoadedModel:
    return answer_generation.load_model(exported)


def test_loading_disables_cudnn_attention(exported: Path) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    answer_generation.load_model(exported)
    assert not torch.backends.cuda.cudnn_sdp_enabled(), "a growing cache would need a new plan of cuDNN for each token"


def test_generation_stops_at_the_end_of_turn_although_the_base_has_another_end(loaded: LoadedModel) -> None:
    prompt, answer = tiny_runs.CHATS[0]
    ids = answer_generation.tokenize_prompt(answer_generation.make_row(prompt, None, loaded.tokenizer), loaded.tokenizer)
    assert loaded.stop_ids == [0, loaded.tokenizer.eos_token_id]
    assert answer_generation.generate_answer(loaded, ids, 512) == answer_generation.GeneratedAnswer(answer, True)
    assert answer_generation.generate_answer(loaded, ids, 2).ended is False
    run_on = answer_generation.generate_answer(LoadedModel(loaded.model, loaded.tokenizer, [0]), ids, 40)
    assert run_on.text.startswith(answer) and len(run_on.text) > len(answer), "without that token it does not stop"


def test_prompts_have_the_format_of_the_training(loaded: LoadedModel) -> None:
    text = loaded.tokenizer.decode(
        answer_generation.tokenize_prompt(answer_generation.make_row("Good day.", "Be brief.", loaded.tokenizer), loaded.tokenizer)
    )
    assert text.endswith("<|im_start|>user\nGood day.<|im_end|>\n<|im_start|>assistant\n") and "system\nBe brief." in text


def test_generation_settings_of_the_base_are_ignored(exported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "export")
    loud = {"do_sample": True, "temperature": 5.0, "repetition_penalty": 9.0, "min_new_tokens": 40, "transformers_version": "4.57.0"}
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**settings, **loud}))
    assert answer_generation.sample(folder, [prompt for prompt, _ in tiny_runs.CHATS]) == [answer for _, answer in tiny_runs.CHATS]


def test_an_answer_ends_at_the_last_position_of_the_model(loaded: LoadedModel) -> None:
    ids = answer_generation.tokenize_prompt({"prompt": "boats " * 16}, loaded.tokenizer)
    assert tiny_runs.POSITIONS - 30 < len(ids) < tiny_runs.POSITIONS
    unstopped = LoadedModel(loaded.model, loaded.tokenizer, [])
    assert not answer_generation.generate_answer(unstopped, ids, 512).ended
    assert loaded.model.generation_config.max_new_tokens == tiny_runs.POSITIONS - len(ids)
