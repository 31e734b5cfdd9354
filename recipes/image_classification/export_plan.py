"""The files of an export, which AutoModelForImageClassification and AutoImageProcessor load: config.json with the labels, and the weights
under the names of the stock class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from finetune.checkpointing.checkpoint_metadata import JsonPart, check_recipe_state
from finetune.recipe import ExportPlan
from finetune.storage import files
from finetune.storage.model_security import CONFIG, cleaned
from recipes.transformers_weight_names import find_base_names, find_file_names

from .classifier_model import build_stock_model, read_config, set_labels
from .image_processing import SETTINGS

COPIED = (SETTINGS, "processor_config.json", "LICENSE*", "NOTICE*", "USE_POLICY*")


class ClassifierState(JsonPart):
    """The recipe state in a checkpoint."""

    labels: Annotated[list[str], Field(min_length=2)]


def plan_export(base: Path, state: dict[str, Any]) -> ExportPlan:
    """`state`: see `ClassifierState`."""
    check_recipe_state(ClassifierState, state)
    labels: list[str] = state["labels"]
    whole = build_stock_model(set_labels(read_config(base), labels), base)
    in_files = find_file_names(whole)
    stored = find_base_names(in_files, whole, base)
    renamed = {**{name: place for place, name in stored.items()}, **in_files}
    config = {
        **cleaned(base / CONFIG)[0],
        "architectures": [type(whole).__name__],
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        "problem_type": "single_label_classification",
    }
    config.pop("num_labels", None)  # of some older configs; the number follows from the labels
    kept = frozenset(in_files.values())
    return ExportPlan(
        translate_name=lambda name: renamed.get(name, name),
        keep=lambda name: name in kept,
        files={CONFIG: files.json_bytes(config)},
        copy=tuple(sorted({path.name for pattern in COPIED for path in base.glob(pattern)})),
        adapter_config={"auto_mapping": {"base_model_class": type(whole).__name__, "parent_library": type(whole).__module__}},
        metadata={"library_name": "transformers", "pipeline_tag": "image-classification"},
    )
