"""The model card (README.md) of an export: its base, its training data, how it was trained, and its validation loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from overtone.finetune.config_sources import load_yaml
from overtone.finetune.exporting import model_card
from overtone.finetune.exporting.model_card_metadata import THIS_MODEL, render_header
from overtone.finetune.recipe import CheckpointState

CHAT = """messages = [{"role": "user", "content": "Good day. Who are you?"}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)"""
TEXT = 'inputs = tokenizer("Once upon a time", return_tensors="pt")'
USES = {
    "gguf": """```sh
llama-server --jinja -m model-f16.gguf
```

The file has the chat template of the training, and the tokens at which an answer ends.""",
    "ollama": """```sh
ollama create NAME -f Modelfile
ollama run NAME
```

The Modelfile has the chat template of the training, and the tokens at which an answer ends. Tools need llama.cpp, with the same file:
`llama-server --jinja -m model-f16.gguf`.""",
    "gguf-adapter": """```sh
llama-server --jinja -m BASE.gguf --lora adapter-f32.gguf
```

The adapter is loaded beside a GGUF file of the base model.""",
}
"""Format → how its files are used; the name of a file ends with the type of its numbers."""
PRIVATE = {**model_card.PRIVATE, "options": {"chat_template"}}
"""Keys that name places on the machine of the training."""


@dataclass(frozen=True)
class Objective:
    """The recipe's part of the card: what was optimized."""

    name: str
    """The recipe's usual short name, as a tag on the hub: sft, dpo."""
    rows: Mapping[str, str]
    """Its lines of the card's table."""
    in_nats: bool = True
    """The validation loss is a mean of nats per token, so that it has a perplexity."""


def render_card(state: CheckpointState, config: str, inherited: dict[str, Any], chats: bool, form: str, objective: Objective) -> str:
    """Return the card in Markdown with the hub's YAML header. `state` and `config`: of the checkpoint. `inherited`: of the base's header
    (see `read_base_metadata`). `chats`: the model has a chat template. `form`: the export's format."""
    settings = load_yaml(config, "config.yaml")
    table = "\n".join(f"| {key} | {value} |" for key, value in make_table(state, settings, objective).items())
    library = "gguf" if form in USES else "transformers"
    return f"""{render_header(make_header(state, settings, inherited, library, objective))}
# {model_card.base_name(state).rpartition("/")[2]}, fine-tuned

| | |
|---|---|
{table}

{model_card.describe_licence(inherited)}The terms of the training data apply too.

## Use

{USES.get(form) or describe_use(chats)}

## Training configuration

```yaml
{model_card.format_settings(model_card.public_settings(settings, PRIVATE))}
```
"""


def describe_use(chats: bool) -> str:
    """Return how transformers loads the export."""
    return f"""```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{THIS_MODEL}")
model = AutoModelForCausalLM.from_pretrained("{THIS_MODEL}")
{CHAT if chats else TEXT}
answer = model.generate(**inputs, max_new_tokens=200)
print(tokenizer.decode(answer[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))
```"""


def make_table(state: CheckpointState, settings: dict[str, Any], objective: Objective) -> dict[str, str]:
    """Return the card's table: base, data, training, validation loss."""
    return {
        **model_card.describe_origin(state, settings, "tokens"),
        **objective.rows,
        "Trained": model_card.describe_training(state),
        "Steps": f"{state['step']:,}",
        "Validation loss": format_loss(state["validation_loss"], objective),
        "Made with": model_card.list_versions("torch", "transformers"),
    }


def make_header(
    state: CheckpointState, settings: dict[str, Any], inherited: dict[str, Any], library: str, objective: Objective
) -> dict[str, Any]:
    """Return the metadata for the hub. `library`: what loads the files."""
    perplexity = {"perplexity": round(compute_perplexity(state["validation_loss"] or 0.0), 4)} if objective.in_nats else {}
    metrics = {"loss": model_card.round_loss(state), **perplexity}
    return {
        **model_card.base_metadata(state),
        "library_name": library,
        "pipeline_tag": "text-generation",
        **inherited,
        "tags": [objective.name],
        **model_card.index_results(state, settings, objective.name, "text-generation", metrics),
    }


def format_loss(loss: float | None, objective: Objective) -> str:
    """Return the validation loss with its unit and perplexity, if it has these."""
    if loss is None:
        return "not measured at this step"
    return f"{loss:.4f} nats per token, perplexity {compute_perplexity(loss):.4g}" if objective.in_nats else f"{loss:.4f}"


def compute_perplexity(nats: float) -> float:
    """e to the power of a loss in nats per token, at most e to the power of 700, which a float can hold."""
    return math.exp(min(nats, 700.0))
