"""The model card (README.md) of an export: its base, its training data, how it was trained, and how transformers uses it."""

from __future__ import annotations

from typing import Any

from overtone.finetune.config_sources import load_yaml
from overtone.finetune.exporting import model_card
from overtone.finetune.exporting.model_card_metadata import THIS_MODEL, render_header
from overtone.finetune.recipe import CheckpointState
from overtone.finetune.storage.strict_json import one_line

from ..state import RewardState

PRIVATE = {**model_card.PRIVATE, "options": {"chat_template"}}
"""Keys that name places on the machine of the training."""


MOST_SHOWN = 20
"""Most classes that the table names."""


def render_card(state: CheckpointState, config: str, inherited: dict[str, Any], state_of_recipe: RewardState) -> str:
    """The card in Markdown with the hub's YAML header. `state` and `config`: of the checkpoint. `inherited`: of the base's header."""
    settings = load_yaml(config, "config.yaml")
    kind = "classifier" if state_of_recipe.labels else "reward-model"
    loss = state["validation_loss"]
    table = {
        **model_card.describe_origin(state, settings, "tokens"),
        "Output": describe_output(state_of_recipe.labels),
        "Trained": model_card.describe_training(state),
        "Steps": f"{state['step']:,}",
        "Validation loss": "not measured at this step" if loss is None else f"{loss:.4f} nats",
        "Made with": model_card.list_versions("torch", "transformers"),
    }
    header = {
        **model_card.base_metadata(state),
        "library_name": "transformers",
        **inherited,
        "pipeline_tag": "text-classification",
        "tags": [kind],
        **model_card.index_results(state, settings, kind, "text-classification", {"loss": model_card.round_loss(state)}),
    }
    rows = "\n".join(f"| {key} | {value} |" for key, value in table.items())
    return f"""{render_header(header)}
# {model_card.base_name(state).rpartition("/")[2]}, {kind.replace("-", " ")}

| | |
|---|---|
{rows}

{model_card.describe_licence(inherited)}The terms of the training data apply too.

## Use

```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{THIS_MODEL}")
model = AutoModelForSequenceClassification.from_pretrained("{THIS_MODEL}")
head = model.score.float()  # as in the training; a head in bf16 gives different texts the same value
head.register_forward_pre_hook(lambda _, given: (given[0].float(),))
inputs = tokenizer(["Good day."], padding=True, return_tensors="pt")
print(model(**inputs).logits)
```

An adapter alone needs `num_labels={state_of_recipe.outputs}` and `pad_token_id=tokenizer.pad_token_id` when its base is loaded.

## Training configuration

```yaml
{model_card.format_settings(model_card.public_settings(settings, PRIVATE))}
```
"""


def describe_output(labels: list[str]) -> str:
    """The classes, or what a reward is, for a cell of the table."""
    if not labels:
        return "one reward for a sequence; only differences between answers to one prompt count"
    shown = ", ".join(one_line(label).replace("|", "\\|") for label in labels[:MOST_SHOWN])
    return f"{len(labels):,} classes: {shown}{', …' if len(labels) > MOST_SHOWN else ''}"
