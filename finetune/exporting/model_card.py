"""The model card (README.md) of an export: what all recipes say of base, data and training, and the card of a recipe without its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from pydantic import JsonValue

from overtone.finetune.command_lines import join_words
from overtone.finetune.config_sources import load_yaml
from overtone.finetune.exporting.model_card_metadata import THIS_MODEL, describe_target, make_model_index, render_header
from overtone.finetune.recipe import POSITIONS, CheckpointState, built_in_recipes
from overtone.finetune.storage.hub_download import COMMIT
from overtone.version import __version__

SECTIONS = ("model", "data", "train", "options")
"""Sections of the config that a card shows."""
PRIVATE = {"model": {"source"}, "data": {"train", "mix", "val"}}
"""Keys that name places on the machine of the training."""


def render_card(
    state: CheckpointState,
    config: str,
    inherited: Mapping[str, Any],
    metadata: Mapping[str, Any],
    example: Sequence[str] = (),
    unit: str = POSITIONS,
) -> str:
    """Return the card of a recipe that writes none, in Markdown with the hub's YAML header. `state` and `config`: of the checkpoint.
    `inherited`: of the base's header (`read_base_metadata`). `metadata`: `ExportPlan.metadata`. `example`: `Inference.example`. `unit`:
    `Recipe.unit`."""
    settings = load_yaml(config, "config.yaml")
    recipe = Path(state["recipe"]).name
    table = "\n".join(f"| {key} | {value} |" for key, value in make_table(state, settings, unit).items())
    chosen = () if recipe in built_in_recipes() else ("--recipe", recipe)
    return f"""{render_header(make_header(state, settings, inherited, metadata))}
# {base_name(state).rpartition("/")[2]}, fine-tuned

| | |
|---|---|
{table}

{describe_licence(inherited)}The terms of the training data apply too.

## Use

```
{join_words(["overtone", "generate", "--model", THIS_MODEL, *example, *chosen])}
```

## Training configuration

```yaml
{format_settings(public_settings(settings))}
```
"""


def make_header(
    state: CheckpointState, settings: dict[str, Any], inherited: Mapping[str, Any], metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the metadata for the hub: `metadata` is the recipe's own, such as `library_name`. The validation loss needs a task, its
    pipeline tag."""
    task = metadata.get("pipeline_tag")
    return {
        **base_metadata(state),
        **inherited,
        **metadata,
        "tags": [*metadata.get("tags", ()), Path(state["recipe"]).name],
        **(index_results(state, settings, "finetuned", str(task), {"loss": round_loss(state)}) if task else {}),
    }


def make_table(state: CheckpointState, settings: dict[str, Any], unit: str) -> dict[str, str]:
    """Return the card's table: recipe, base, data, training, validation loss."""
    loss = state["validation_loss"]
    return {
        "Recipe": f"`{Path(state['recipe']).name}`",
        **describe_origin(state, settings, unit),
        "Trained": describe_training(state),
        "Steps": f"{state['step']:,}",
        "Validation loss": "not measured at this step" if loss is None else f"{loss:.4f}",
        "Made with": list_versions("torch"),
    }


def describe_origin(state: CheckpointState, settings: dict[str, Any], unit: str) -> dict[str, str]:
    """Name base and data with their digests. `unit`: what the data's positions are."""
    data = state["data"]
    mixed = [f"`{source['name']}` ({float(Fraction(source['share'])):.3g} of the samples)" for source in data["sources"]]
    named = ", ".join(mixed) or f"`{Path(str(settings['data'].get('train'))).name}`"
    return {
        "Base": base_name(state) + (f"@{state['base']['revision']}" if state["base"]["revision"] else ""),
        "Base's weights": f"SHA-256 `{state['base']['digest']}`",
        "Data": f"{named}, {data['rows']:,} rows, {data['positions']:,} {unit}",
        "Data's content": f"SHA-256 `{data['digest']}`",
    }


def list_versions(*packages: str) -> str:
    """This package and others, with their versions."""
    return ", ".join([f"overtone {__version__}", *(f"{name} {version(name)}" for name in packages)])


def describe_training(state: CheckpointState) -> str:
    """All weights, or adapters, and what was new."""
    lora, added = state["lora"], state["added"]
    new = f"; new: {', '.join(added)}" if added else ""
    if lora is None:
        return f"all weights{new}"
    kind = " ".join(["4-bit base," if state["quantization"] else "", "DoRA" if lora["dora"] else "LoRA"]).strip()
    return f"{kind} of rank {lora['rank']}, alpha {lora['alpha']:g}, merged{new}"


def describe_licence(inherited: Mapping[str, JsonValue]) -> str:
    """A sentence, unless the header names the licence."""
    return (
        "" if "license" in inherited else "The licence of the base applies to this model; it could not be read from the base's model card. "
    )


def base_metadata(state: CheckpointState) -> dict[str, str]:
    """Return the header keys of the base, only if that is on the hub, because the hub refuses other names."""
    return {"base_model": state["base"]["source"], "base_model_relation": "finetune"} if is_on_hub(state) else {}


def is_on_hub(state: CheckpointState) -> bool:
    """Return whether the base came from the hub: only then its commit was recorded. A folder may have been moved since the training."""
    source, revision = state["base"]["source"], state["base"]["revision"]
    return source.count("/") == 1 and COMMIT.fullmatch(revision or "") is not None and not Path(source).is_dir()


def base_name(state: CheckpointState) -> str:
    """Return the base's name on the hub, or the name of its folder without the path."""
    source = state["base"]["source"]
    return source if is_on_hub(state) else Path(source).resolve().name


def index_results(state: CheckpointState, settings: dict[str, Any], suffix: str, task: str, metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return the header key with the results on the validation data, if there are any. `suffix`: added to the base's name. `task`: a
    pipeline tag."""
    data = settings["data"].get("val")
    if state["validation_loss"] is None or data is None:
        return {}
    name = f"{base_name(state).rpartition('/')[2]}-{suffix}"
    files = ", ".join(Path(str(path)).name for path in (data if isinstance(data, list) else [data]))
    return {"model-index": make_model_index(name, task, {files: metrics})}


def round_loss(state: CheckpointState) -> float:
    """Return the validation loss with four digits; 0 if there is none."""
    return round(state["validation_loss"] or 0.0, 4)


def public_settings(settings: dict[str, Any], private: Mapping[str, set[str]] = PRIVATE) -> dict[str, Any]:
    """Return the settings that determine the result, without keys in `private`; of other paths only the last part."""
    return {
        section: {key: _hide_folders(value) for key, value in settings[section].items() if key not in private.get(section, ())}
        for section in SECTIONS
    }


def _hide_folders(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _hide_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_hide_folders(each) for each in value]
    return describe_target(value) if isinstance(value, str) else value


def format_settings(settings: Mapping[str, JsonValue]) -> str:
    """Return settings as YAML."""
    text: str = yaml.safe_dump(settings, sort_keys=False)
    return text.strip()
