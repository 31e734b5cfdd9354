"""Answers by transformers alone are those of each prompt alone, in the order of the prompts, however many share a batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from overtone.recipes.language import stock_generation
from overtone.recipes.llm_sft.model import tiny_checkpoint


def test_the_answers_are_those_of_each_prompt_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_checkpoint.build(folder := tmp_path / "model")
    prompts = [[{"role": "user", "content": content}] for content in ("A", "Reverse KLAD, please", "BC", "Sort MLK")]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    alone = []
    for prompt in prompts:
        inputs = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True, return_tensors="pt")
        found = model.generate(**inputs, do_sample=False, max_new_tokens=6)
        alone.append(tokenizer.decode(found[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    assert len(set(alone)) > 1 and all(alone)
    for size in (1, 3, 64):
        monkeypatch.setattr(stock_generation, "BATCH_SIZE", size)
        assert stock_generation.generate_stock_answers(folder, prompts, 6) == alone
