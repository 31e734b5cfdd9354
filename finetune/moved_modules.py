"""Old names of the modules that recipes import: `finetune.files` still imports `finetune.storage.files`, with a warning that names it.

Importing this module makes it the last finder of `sys.meta_path`, so a module that exists is never replaced. Python calls `find_spec` for
an unknown name, then `create_module` and `exec_module`.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import sys
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "finetune.files": ("finetune.storage.files",),
    "finetune.loss_head": ("finetune.modeling.loss_head",),
    "finetune.model_gate": ("finetune.storage.model_security",),
    "finetune.models": ("finetune.modeling.loading",),
    "finetune.packing": ("finetune.data.packing",),
    "finetune.strict_json": ("finetune.storage.strict_json",),
    "recipes.distributed_generation": ("recipes.ray_generation",),
    "recipes.language.causal_lm_copied_files": ("recipes.language.causal_lm_export_files",),
    "recipes.language.causal_lm_export": ("recipes.language.causal_lm_export_files",),
    "recipes.language.chat_labels": ("recipes.language.sft_tokenization",),
    "recipes.language.exported_files": ("recipes.language.causal_lm_export_files",),
    "recipes.language.loss_equivalence": ("recipes.language.loss_assumption_checks",),
    "recipes.language.loss_metrics": ("recipes.language.causal_lm_loss",),
    "recipes.recipe_state": ("recipes.recipe_state_file",),
    "recipes.serving.running_batch": ("recipes.serving.running_batch_interface",),
    "recipes.speech.dataset_rows": (
        "recipes.speech.dataset_row_checks",
        "recipes.speech.dataset_speakers",
        "recipes.speech.training_files",
        "recipes.speech.voices_json_content",
    ),
    "recipes.speech.decoding.frame_batch": ("recipes.speech.decoding.continuous_batching",),
    "recipes.speech.decoding.row_sampling": ("recipes.speech.decoding.per_row_sampling",),
    "recipes.speech.frame_voice": ("recipes.speech.frame_synthesizer",),
    "recipes.speech.loss_terms": ("recipes.speech.multi_term_loss",),
    "recipes.speech.speech_recipe_state": ("recipes.speech.voices_json_content",),
    "recipes.speech.voices_schema": ("recipes.speech.voices_json_schema",),
    "recipes.speech.voices_state": ("recipes.speech.voices_json_content",),
    "recipes.stock_models": ("recipes.transformers_meta_models", "recipes.transformers_weight_names"),
    "recipes.transformers_models": ("recipes.transformers_meta_models", "recipes.transformers_weight_names"),
}
"""Old name → new name, or the names of the modules into which it was split. These are the modules that the documentation and the built-in
recipes used, of which people have copies; all others were internal."""


def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
    return importlib.util.spec_from_loader(name, THIS) if name in MOVED else None


def create_module(_spec: ModuleSpec) -> None:
    """The default: an empty module, which `exec_module` replaces."""


def exec_module(module: ModuleType) -> None:
    """Put the module of the new name in the place of `module`. One that was split gets the public contents of its parts."""
    parts = MOVED[module.__name__]
    if len(parts) == 1:
        advice = f"moved to {parts[0]}; import {parts[0]} instead"
    else:
        advice = f"was split into {', '.join(parts)}; import each name from the one that has it"
    warn_recipe_author(f"{module.__name__} {advice} (docs/add_a_recipe.md)", 3)
    modules = [importlib.import_module(part) for part in parts]
    if len(modules) == 1:
        sys.modules[module.__name__] = modules[0]
        return
    for part in modules:
        vars(module).update({name: value for name, value in vars(part).items() if not name.startswith("_")})


def warn_recipe_author(message: str, stacklevel: int) -> None:
    """Issue a `FutureWarning`, in one of all processes of a run. `stacklevel`: as of `warnings.warn`, counted from this function."""
    if os.environ.get("RANK", "0") == "0" and multiprocessing.parent_process() is None:
        warnings.warn(message, FutureWarning, stacklevel)


THIS: Any = sys.modules[__name__]
sys.meta_path.append(THIS)
