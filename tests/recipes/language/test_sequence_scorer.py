"""Scores are those of transformers for each row alone, in the order of the rows."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Qwen3Config

from overtone.finetune.errors import UserError
from overtone.recipes.language import sequence_scorer
from overtone.recipes.language.sequence_scorer import find_pad, load_scorer, score_rows, score_sequences
from tests.recipes.llm_sft import families

ROWS: list[dict[str, Any]] = [
    {"text": "I am a machine. I am a machine."},
    {"messages": [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "I am."}]},
    {"text": "No."},
    {"prompt": "Good day.", "completion": " And to you."},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("a scorer")
    tokenizer = copy.deepcopy(families.tokenizer("chatml"))
    tokenizer.pad_token = tokenizer.eos_token
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen3Config(
        vocab_size=len(tokenizer), head_dim=8, max_position_embeddings=64, initializer_range=0.2, num_labels=1,
        pad_token_id=tokenizer.pad_token_id, **sizes,
    )  # fmt: skip
    AutoModelForSequenceClassification.from_config(config).save_pretrained(found)
    tokenizer.save_pretrained(found)
    return found


def test_rewards_are_those_of_transformers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = tokenizer.apply_chat_template(ROWS[1]["messages"], tokenize=False)
    texts = [ROWS[0]["text"], chat, ROWS[2]["text"], "Good day. And to you.<|im_end|>"]
    with torch.no_grad():
        expected = torch.cat([model(**tokenizer(text, return_tensors="pt", add_special_tokens=False)).logits for text in texts])
    scorer = load_scorer(folder)
    assert scorer.labels == () and expected.std() > 0.01
    torch.testing.assert_close(score_rows(scorer, ROWS), expected, rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(sequence_scorer, "MOST_POSITIONS", 20)
    torch.testing.assert_close(score_rows(scorer, ROWS), expected, rtol=1e-4, atol=1e-5)
    assert score_sequences(scorer, []).shape == (0, 1)


def test_a_row_that_cannot_be_scored_is_named(folder: Path) -> None:
    scorer = load_scorer(folder)
    with pytest.raises(UserError, match=r"row 2: \d+ tokens, and the model has 64 positions; shorten the text"):
        score_rows(scorer, [ROWS[0], {"text": "no " * 99}])
    with pytest.raises(UserError, match="row 1: the row has no tokens besides padding"):
        score_rows(scorer, [{"text": "<|im_end|>"}])
    for row in ({"text": "a \ud800"}, {"messages": [{"role": "user", "content": "\ud800"}]}):
        with pytest.raises(UserError, match=r"row 1: the row contains half of a character \(the lone surrogate \\ud800\)"):
            score_rows(scorer, [row])


def test_the_head_computes_in_fp32_on_a_body_in_bf16(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder, tmp_path / "scorer")
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "scorer")
    with monkeypatch.context() as patch:  # a GPU keeps the dtype of the folder; without one, `device_map` is the CPU
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 0)
        scorer = load_scorer(tmp_path / "scorer")
    assert scorer.model.model.norm.weight.dtype == torch.bfloat16
    rows = [{"text": f"I am {number}."} for number in range(200)]
    found = score_rows(scorer, rows)
    with torch.no_grad():
        ids = [scorer.tokenizer(row["text"], return_tensors="pt")["input_ids"] for row in rows[:20]]
        expected = torch.cat([model.score.weight.float() @ model.model(input_ids=each).last_hidden_state[0, -1].float() for each in ids])
    torch.testing.assert_close(found[:20, 0], expected, rtol=0.02, atol=0.02)
    assert len(found.unique()) > len(found.bfloat16().unique()), "values have more digits than bf16 has"


def test_a_folder_that_cannot_score_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "scorer")
    config = json.loads((tmp_path / "scorer" / "config.json").read_text())
    (tmp_path / "scorer" / "config.json").write_text(json.dumps({**config, "pad_token_id": None}))
    with pytest.raises(UserError, match="has no pad_token_id, so sequences cannot be scored together"):
        load_scorer(tmp_path / "scorer")
    (tmp_path / "scorer" / "config.json").write_text(json.dumps({**config, "model_type": "vit"}))
    with pytest.raises(UserError, match="model_type 'vit' is not a causal language model"):
        load_scorer(tmp_path / "scorer")


@pytest.mark.parametrize("problem_type", ["multi_label_classification", "regression"])
def test_outputs_that_are_not_classes_of_which_one_is_right_are_refused(problem_type: str, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "scorer")
    config = AutoModelForSequenceClassification.from_pretrained(folder).config
    config.num_labels, config.problem_type = 2, problem_type
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "scorer")
    with pytest.raises(UserError, match=f"config.json has problem_type {problem_type} with 2 outputs, and only rewards"):
        load_scorer(tmp_path / "scorer")


def test_padding_is_the_tokenizers_own_or_its_end_of_text() -> None:
    tokenizer = copy.deepcopy(families.tokenizer("chatml"))
    assert find_pad(tokenizer, Path("base")) == "<|im_end|>"
    tokenizer.pad_token = "<|im_start|>"
    assert find_pad(tokenizer, Path("base")) == "<|im_start|>"
    tokenizer.pad_token = tokenizer.eos_token = None
    with pytest.raises(UserError, match="base: its tokenizer has neither a pad_token nor an eos_token; set pad_token"):
        find_pad(tokenizer, Path("base"))
