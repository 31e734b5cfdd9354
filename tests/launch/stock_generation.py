"""Greedy codes from exported folders by the stock qwen_tts package alone, in a process of its own.

usage: stock_generation.py REQUESTS.json → JSON list of codes [T][16] on the last line of stdout
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from overtone.data_prep.audio_codecs.qwen_tts_import import import_qwen_tts

qwen_tts = import_qwen_tts()


@cache
def load(folder: str) -> Any:
    return qwen_tts.Qwen3TTSModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")


def codes(folder: str, speaker: str, text: str, language: str) -> list[list[int]]:
    stock = load(folder)
    found, _ = stock.model.generate(
        input_ids=stock._tokenize_texts([stock._build_assistant_text(text)]),
        languages=[language],
        speakers=[speaker],
        non_streaming_mode=True,
        max_new_tokens=80,
        do_sample=False,
        subtalker_dosample=False,
        repetition_penalty=1.0,
    )
    return found[0].tolist()


if __name__ == "__main__":
    print(json.dumps([codes(**request) for request in json.loads(Path(sys.argv[1]).read_text())]))
