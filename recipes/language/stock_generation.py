"""Answers of a trained model by transformers alone, for judges that must not depend on this package's own generation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from overtone.finetune.storage.model_security import admit
from overtone.recipes.language.modeling.causal_model import causal_language_model

BATCH_SIZE = 64


def generate_stock_answers(model: Path, prompts: Sequence[list[dict[str, str]]], most: int) -> list[str]:
    """Return the greedy answer to each prompt, a list of messages, without special tokens and with at most `most` tokens. `model`: any
    folder that AutoModelForCausalLM and AutoTokenizer load."""
    with admit(model, causal_language_model()) as clean:
        tokenizer = AutoTokenizer.from_pretrained(clean, padding_side="left", trust_remote_code=False)
        answering = AutoModelForCausalLM.from_pretrained(clean, trust_remote_code=False, use_safetensors=True).eval()
    answers = list[str]()
    for start in range(0, len(prompts), BATCH_SIZE):
        batch = list(prompts[start : start + BATCH_SIZE])
        inputs = tokenizer.apply_chat_template(batch, add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt")
        with torch.inference_mode():
            found = answering.generate(**inputs, do_sample=False, max_new_tokens=most)
        answers += tokenizer.batch_decode(found[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return answers
