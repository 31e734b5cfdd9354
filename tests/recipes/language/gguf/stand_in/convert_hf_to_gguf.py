"""Stands in for llama.cpp's converter in quick tests: writes a GGUF for a tiny model with the tokenizer `byte_level`.

STAND_IN_FAULT in the environment names something that it does wrong, with exit code 0.
"""

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[5]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

from tests.finetune.storage.gguf_samples import write_gguf  # noqa: E402

folder, fault = Path(sys.argv[1]), os.environ.get("STAND_IN_FAULT")
assert os.environ["HF_HUB_OFFLINE"] == "1" and "auto_map" not in (folder / "config.json").read_text()
kind = sys.argv[sys.argv.index("--outtype") + 1].upper()
weights = load_file(folder / "model.safetensors")
if fault == "lost":
    weights.pop("model.norm.weight")
if fault == "infinite":
    weights["model.embed_tokens.weight"][3, 5] = np.inf


def store(array: np.ndarray) -> tuple[str, np.ndarray]:
    if array.ndim == 1:
        return "F32", array
    return kind, array.astype("<f4").view("<u4") >> 16 if kind == "BF16" else array


tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
added = {token["content"]: token for token in tokenizer["added_tokens"]}
ids = tokenizer["model"]["vocab"] | {text: token["id"] for text, token in added.items()}
tokens = sorted(ids, key=lambda text: ids[text])
metadata = {
    "general.architecture": "llama" if fault == "architecture" else "qwen3",
    "general.name": sys.argv[sys.argv.index("--model-name") + 1],
    "tokenizer.ggml.model": "llama" if fault == "vocabulary" else "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": tokens,
    "tokenizer.ggml.token_type": [1 if text not in added else 3 if added[text]["special"] else 4 for text in tokens],
    "tokenizer.ggml.merges": [" ".join(merge) for merge in tokenizer["model"]["merges"]],
    "tokenizer.ggml.eos_token_id": ids["<|im_end|>"],
    "tokenizer.ggml.add_bos_token": fault == "add_bos",  # the metadata of the training replaces it
    "tokenizer.chat_template": (folder / "chat_template.jinja").read_text() + " " * (fault == "template"),
}
write_gguf(Path(sys.argv[sys.argv.index("--outfile") + 1]), metadata, {name: store(array) for name, array in weights.items()})
