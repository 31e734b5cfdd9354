"""Tests of `overtone.recipes.llm_sft.model.tiny_checkpoint`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.recipes.llm_sft.model import tiny_checkpoint

LAYOUT = {"chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
SEED_0 = "934986e9bd7768eb83310bbf5e9b722b35486fe8394e5295d0daebf818969fbd"


def contents(folder: Path) -> dict[str, str]:
    return {path.name: files.digest(path) for path in folder.iterdir()}


def test_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    torch.manual_seed(123)  # the global generator must not matter
    drawn = torch.random.get_rng_state()
    first, again, other = (contents(tiny_checkpoint.build(tmp_path / name, seed)) for name, seed in (("one", 0), ("two", 0), ("three", 1)))
    assert first == again and set(first) == LAYOUT
    assert {name for name in first if other[name] != first[name]} == {"model.safetensors"}
    assert first["model.safetensors"] == SEED_0, "the same with every release of transformers, so that the demo's figures do not change"
    assert torch.equal(torch.random.get_rng_state(), drawn)


def test_transformers_loads_the_model_and_its_tokenizer(tmp_path: Path) -> None:
    folder = tiny_checkpoint.build(tmp_path / "base")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert type(model).__name__ == "Qwen3ForCausalLM" and model.lm_head.weight is model.model.embed_tokens.weight
    assert len(tokenizer) == model.config.vocab_size and tokenizer.is_fast
    assert tokenizer.decode([model.generation_config.eos_token_id]) == "<|endoftext|>" == tokenizer.eos_token
    given = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Sort CAB"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        scores = model(**given).logits[0, -1]
    assert scores.isfinite().all() and scores.std() > 0.1, "nearly equal logits would make training slow"


def test_the_command_line_does_not_overwrite_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny_checkpoint.main([str(tmp_path / "made"), "--seed", "3"]) == 0
    assert "a model with random weights; train it before use" in capsys.readouterr().out
    with pytest.raises(UserError, match="exists already"):
        tiny_checkpoint.main([str(tmp_path / "made")])


def test_a_failed_build_leaves_no_folder(tmp_path: Path) -> None:
    def fail(operation: str, path: Path) -> None:
        if operation == "rename":
            raise OSError("stopped")

    with files.watch(fail), pytest.raises(OSError, match="stopped"):
        tiny_checkpoint.build(tmp_path / "base")
    assert not (tmp_path / "base").exists()
