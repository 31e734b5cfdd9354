"""Stands in for llama.cpp's converter of adapters."""

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[5]
sys.path.insert(0, str(ROOT))

from safetensors.numpy import load_file  # noqa: E402

from tests.finetune.storage.gguf_samples import write_gguf  # noqa: E402

folder, fault = Path(sys.argv[1]), os.environ.get("STAND_IN_FAULT")
assert json.loads((Path(sys.argv[sys.argv.index("--base") + 1]) / "config.json").read_text())["model_type"] == "qwen3"
config = json.loads((folder / "adapter_config.json").read_text())
assert not config["use_rslora"]
metadata = {
    "general.architecture": "qwen3",
    "general.type": "adapter",
    "adapter.type": "lora",
    "adapter.lora.alpha": config["lora_alpha"] + (1.0 if fault == "alpha" else 0.0),
}
tensors = {name: ("F32", array) for name, array in load_file(folder / "adapter_model.safetensors").items()}
write_gguf(Path(sys.argv[sys.argv.index("--outfile") + 1]), metadata, tensors)
