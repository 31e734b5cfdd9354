"""The model card (README.md) of an export: its base, its training data, how it was trained, and its validation loss."""

from __future__ import annotations

import math
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from finetune import __version__
from finetune.config_sources import load_yaml
from finetune.exporting.model_metadata import THIS_MODEL, make_model_index, render_header
from finetune.storage.hub_download import COMMIT

CHAT = """messages = [{"role": "user", "content": "Good day. Who are you?"}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)"""
TEXT = 'inputs = tokenizer("Once upon a time", return_tensors="pt")'
BASE_LICENCE = "The licence of the base applies to this model; it could not be read from the base's model card. "
SUPERVISED = {"assistant": "every turn of the assistant", "last": "the assistant's last turn", "everything": "every token"}


def model_card(state: dict[str, Any], config: str, inherited: dict[str, Any], chats: bool) -> str:
    """The card in Markdown with the hub's YAML header. `state` and `config`: of the checkpoint. `inherited`: of the base's header (see
    `read_base_metadata`). `chats`: the model has a chat template."""
    settings = load_yaml(config, "config.yaml")
    table = "\n".join(f"| {key} | {value} |" for key, value in make_table(state, settings).items())
    return f"""{render_header(make_header(state, settings, inherited))}
# {base_name(state).rpartition("/")[2]}, fine-tuned

| | |
|---|---|
{table}

{"" if "license" in inherited else BASE_LICENCE}The terms of the training data apply too.

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{THIS_MODEL}")
model = AutoModelForCausalLM.from_pretrained("{THIS_MODEL}")
{CHAT if chats else TEXT}
answer = model.generate(**inputs, max_new_tokens=200)
print(tokenizer.decode(answer[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))
```

## Training configuration

```yaml
{yaml.safe_dump(public_settings(settings), sort_keys=False).strip()}
```
"""


def make_table(state: dict[str, Any], settings: dict[str, Any]) -> dict[str, str]:
    """The card's table: base, data, training, validation loss."""
    name, data = base_name(state), state["data"]
    return {
        "Base": name + (f"@{state['base']['revision']}" if state["base"]["revision"] else ""),
        "Base's weights": f"SHA-256 `{state['base']['digest']}`",
        "Data": f"`{Path(str(settings['data'].get('train'))).name}`, {data['rows']:,} rows, {data['positions']:,} tokens",
        "Data's content": f"SHA-256 `{data['digest']}`",
        "Supervised": SUPERVISED[state["recipe_state"]["supervise"]],
        "Trained": describe_training(state),
        "Steps": f"{state['step']:,}",
        "Validation loss": format_loss(state["validation_loss"]),
        "Made with": ", ".join([f"overtone {__version__}", *(f"{name} {version(name)}" for name in ("torch", "transformers"))]),
    }


def make_header(state: dict[str, Any], settings: dict[str, Any], inherited: dict[str, Any]) -> dict[str, Any]:
    """Metadata for the hub. It has the base only if that is on the hub, because the hub refuses other names."""
    loss, data = state["validation_loss"], settings["data"].get("val")
    measured = loss is not None and data is not None
    metrics = {"loss": round(loss, 4), "perplexity": round(math.exp(min(loss, 700.0)), 4)} if measured else {}
    name = base_name(state).rpartition("/")[2] + "-sft"
    return {
        **({"base_model": state["base"]["source"], "base_model_relation": "finetune"} if is_on_hub(state) else {}),
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        **inherited,
        "tags": ["sft"],
        **({"model-index": make_model_index(name, "text-generation", {Path(str(data)).name: metrics})} if measured else {}),
    }


def is_on_hub(state: dict[str, Any]) -> bool:
    """Whether the base came from the hub: only then its commit was recorded. A folder may have been moved since the training."""
    source, revision = state["base"]["source"], state["base"]["revision"]
    return source.count("/") == 1 and COMMIT.fullmatch(revision or "") is not None and not Path(source).is_dir()


def base_name(state: dict[str, Any]) -> str:
    """The base's name on the hub, or the name of its folder without the path."""
    source: str = state["base"]["source"]
    return source if is_on_hub(state) else Path(source).resolve().name


def describe_training(state: dict[str, Any]) -> str:
    lora = state["lora"]
    if lora is None:
        return "all weights"
    kind = " ".join(["4-bit base," if state.get("quantization") else "", "DoRA" if lora["dora"] else "LoRA"]).strip()
    return f"{kind} of rank {lora['rank']}, alpha {lora['alpha']:g}, merged"


def format_loss(loss: float | None) -> str:
    if loss is None:
        return "not measured at this step"
    return f"{loss:.4f} nats per token, perplexity {math.exp(min(loss, 700.0)):.4g}"


def public_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that determine the result, without paths on the machine of the training."""
    omitted = {"model": {"source"}, "data": {"train", "val"}, "train": set(), "options": {"chat_template"}}
    return {section: {key: value for key, value in settings[section].items() if key not in names} for section, names in omitted.items()}
