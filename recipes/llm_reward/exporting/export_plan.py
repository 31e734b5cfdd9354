"""The files of an export, which AutoModelForSequenceClassification and AutoTokenizer load."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.finetune.exporting.model_card_metadata import read_base_metadata
from overtone.finetune.modeling.loading import tensor_shapes
from overtone.finetune.recipe import ExportPlan
from overtone.finetune.storage import files
from overtone.finetune.storage.model_security import CONFIG, cleaned
from overtone.recipes.language.causal_lm_export_files import GENERATION, TOKENIZER, complete_tokenizer, list_copied_files
from overtone.recipes.language.exporting.export_plan import TEMPLATE, template_files
from overtone.recipes.language.sequence_scorer import find_pad
from overtone.recipes.language.tokenization.tokenizer import load_tokenizer
from overtone.recipes.transformers_weight_names import find_file_names, find_layouts, find_prefix

from ..model.modeling import WEIGHT, build_stock
from ..state import RewardState
from .model_card import render_card

if TYPE_CHECKING:
    from pydantic import JsonValue

REWARD = "reward"
"""Name of the only output of a reward model."""


def plan_export(base: Path, state: RewardState) -> ExportPlan:
    """The plan of the one format. Raises `UserError` for a base that cannot be trained."""
    whole = build_stock(base, state.outputs)
    layouts, prefix = find_layouts(whole, base), find_prefix(whole, tensor_shapes(base))
    new = find_file_names(whole, {WEIGHT})
    of_base = {part for name in whole.state_dict() for part in (layouts[name].parts() if name in layouts else {name})}
    # A backbone's tensors lack the prefix of the whole model.
    names = {name: name if not prefix or name.startswith(prefix) else prefix + name for name in of_base} | new
    tokenizer = load_tokenizer(base, None)
    pad = find_pad(tokenizer, base)
    config = describe_model(base, state, type(whole).__name__, tokenizer.convert_tokens_to_ids(pad))
    written = {CONFIG: files.json_bytes(config), **write_tokenizer(base, state.chat_template, pad)}
    copied = list_copied_files(base, ("chat_template",) if state.chat_template is not None else ())
    return ExportPlan(
        translate_name=lambda name: names.get(name, name),
        layouts=layouts,
        keep=lambda name: name in names.values(),
        files=written,
        copy=tuple(name for name in copied if name not in written and name != GENERATION),
        adapter_config={"task_type": "SEQ_CLS"},
        adapter_files=tuple(name for name in (*copied, TEMPLATE, TOKENIZER) if name not in (CONFIG, GENERATION)),
        readme=partial(render_card, inherited=read_base_metadata(base), state_of_recipe=state),
    )


def describe_model(base: Path, state: RewardState, architecture: str, pad: int) -> dict[str, JsonValue]:
    """The content of config.json. `pad`: token of the padding."""
    names = state.labels or [REWARD]
    config = {
        **cleaned(base / CONFIG)[0],
        "architectures": [architecture],
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": "single_label_classification" if state.labels else "regression",
        "pad_token_id": pad,
    }
    if isinstance(config.get("text_config"), dict):
        config["text_config"] = {**config["text_config"], "pad_token_id": pad}
    config.pop("num_labels", None)  # of some older configs; the number follows from the labels
    return config


def write_tokenizer(base: Path, template: str | None, pad: str) -> dict[str, bytes]:
    """The tokenizer's files that differ from the base's: with the padding of the training, on the right, and its chat template."""
    written = {} if template is None else template_files(base, template)
    settings = cleaned(base / TOKENIZER)[0] if (base / TOKENIZER).is_file() else {}
    field = {"chat_template": template} if TOKENIZER in written else {}
    padding = {"pad_token": pad, "padding_side": "right"}
    return complete_tokenizer(base, {**written, TOKENIZER: files.json_bytes({**settings, **field, **padding})})
