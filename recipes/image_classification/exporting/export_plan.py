"""The files of an export, which AutoModelForImageClassification and AutoImageProcessor load: config.json with the labels, and the weights
under the names of the stock class."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

from overtone.finetune.modeling.loading import tensor_shapes
from overtone.finetune.recipe import ExportPlan
from overtone.finetune.storage import files
from overtone.finetune.storage.model_security import CONFIG, cleaned
from overtone.recipes.transformers_weight_names import find_file_names, find_layouts, find_prefix

from ..image_processing import SETTINGS
from ..model.modeling import build_stock_model, find_head, read_config, set_labels
from ..state import ClassifierState

COPIED = (SETTINGS, "processor_config.json", "LICENSE*", "NOTICE*", "USE_POLICY*")


def plan_export(base: Path, state: ClassifierState) -> ExportPlan:
    """The plan of the one format."""
    labels = state.labels
    whole = build_stock_model(set_labels(read_config(base), labels), base)
    layouts, known = find_layouts(whole, base), tensor_shapes(base)
    new = find_file_names(whole, find_head(whole.config, base))
    prefix = find_prefix(whole, known)
    used = {name: layouts[name].parts() if name in layouts else {name} for name in whole.state_dict()}
    of_backbone = set().union(*(parts for name, parts in used.items() if name.startswith(prefix)))
    config = {
        **cleaned(base / CONFIG)[0],
        "architectures": [type(whole).__name__],
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        "problem_type": "single_label_classification",
    }
    config.pop("num_labels", None)  # of some older configs; the number follows from the labels
    translate = partial(name_exported, new=new, prefix=prefix, of_backbone=of_backbone)
    kept = {translate(name) for name in (*set().union(*used.values()), *new)}
    return ExportPlan(
        translate_name=translate,
        layouts=layouts,
        keep=lambda name: name in kept,
        files={CONFIG: files.json_bytes(config)},
        copy=tuple(sorted({path.name for pattern in COPIED for path in base.glob(pattern)})),
        adapter_config={"auto_mapping": {"base_model_class": type(whole).__name__, "parent_library": type(whole).__module__}},
        metadata={"library_name": "transformers", "pipeline_tag": "image-classification"},
    )


def name_exported(name: str, new: Mapping[str, str], prefix: str, of_backbone: Collection[str]) -> str:
    """Name in the export for a tensor of the base or a parameter of the head. `new`: the head's names → those that the stock class saves.
    `prefix`: before the tensors `of_backbone`, if the base has only these."""
    if name in new:
        return new[name]
    return prefix + name if name in of_backbone else name
