"""The README.md of an export: from which base and data it was made, how, and how good it is."""

from __future__ import annotations

import math
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from finetune import __version__
from finetune.config_sources import load_yaml

CHAT = """messages = [{"role": "user", "content": "Good day. Who are you?"}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)"""
TEXT = 'inputs = tokenizer("Once upon a time", return_tensors="pt")'
LEARNED = {"assistant": "every turn of the assistant", "last": "the assistant's last turn", "everything": "every token"}


def model_card(state: dict[str, Any], config: str, licence: str | None, chats: bool) -> str:
    """Markdown with the hub's YAML header. `state` and `config`: of the checkpoint. `chats`: whether there is a chat template."""
    settings = load_yaml(config, "config.yaml")
    table = "\n".join(f"| {key} | {value} |" for key, value in facts(state, settings).items())
    return f"""---
{yaml.safe_dump(header(state, licence), sort_keys=False).strip()}
---

# {base_name(state).rpartition("/")[2]}, fine-tuned

| | |
|---|---|
{table}

{"" if licence else "The base's licence, which could not be read here, applies to this model too. "}What the data allows applies as well.

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/of/this/folder")
model = AutoModelForCausalLM.from_pretrained("path/of/this/folder")
{CHAT if chats else TEXT}
answer = model.generate(**inputs, max_new_tokens=200)
print(tokenizer.decode(answer[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))
```

## Training configuration

```yaml
{yaml.safe_dump(shown(settings), sort_keys=False).strip()}
```
"""


def facts(state: dict[str, Any], settings: dict[str, Any]) -> dict[str, str]:
    """The card's table: from what, on what and how the model was made, and how good it is."""
    name, data = base_name(state), state["data"]
    return {
        "Base": name + (f"@{state['base']['revision']}" if state["base"]["revision"] else ""),
        "Base's weights": f"SHA-256 `{state['base']['digest']}`",
        "Data": f"`{Path(str(settings['data'].get('train'))).name}`, {data['rows']:,} rows, {data['positions']:,} tokens",
        "Data's content": f"SHA-256 `{data['digest']}`",
        "Learned": LEARNED[state["recipe_state"]["supervise"]],
        "Trained": trained(state),
        "Steps": f"{state['step']:,}",
        "Validation loss": quality(state["validation_loss"]),
        "Made with": ", ".join([f"overtone {__version__}", *(f"{name} {version(name)}" for name in ("torch", "transformers"))]),
    }


def header(state: dict[str, Any], licence: str | None) -> dict[str, Any]:
    """What the hub reads. A base is named there only if the hub has it, since it refuses other names."""
    return {
        **({"base_model": state["base"]["source"]} if is_on_hub(state) else {}),
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        **({"license": licence} if licence else {}),
        "tags": ["sft"],
    }


def is_on_hub(state: dict[str, Any]) -> bool:
    return not Path(state["base"]["source"]).is_dir()


def base_name(state: dict[str, Any]) -> str:
    """The hub's name, or that of the folder, without where it lies."""
    source: str = state["base"]["source"]
    return source if is_on_hub(state) else Path(source).resolve().name


def trained(state: dict[str, Any]) -> str:
    lora = state["lora"]
    if lora is None:
        return "all weights"
    kind = " ".join(["4-bit base," if state.get("quantization") else "", "DoRA" if lora["dora"] else "LoRA"]).strip()
    return f"{kind} of rank {lora['rank']}, alpha {lora['alpha']:g}, merged"


def quality(loss: float | None) -> str:
    if loss is None:
        return "not measured at this step"
    return f"{loss:.4f} nats a token, perplexity {math.exp(min(loss, 700.0)):.4g}"


def shown(settings: dict[str, Any]) -> dict[str, Any]:
    """What decides the result, without paths of the machine that it was trained on."""
    left_out = {"model": {"source"}, "data": {"train", "val"}, "train": set(), "options": {"chat_template"}}
    return {section: {key: value for key, value in settings[section].items() if key not in names} for section, names in left_out.items()}
