"""Exports of trained models from Python."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from overtone.training import TrainingRun, locate_run


def export(
    run: TrainingRun | str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    step: int | None = None,
    best: bool = False,
    strength: float | None = None,
    format: str | None = None,
    dtype: Literal["bf16", "fp32"] | None = None,
    base: str | os.PathLike[str] | None = None,
    adapter_only: bool = False,
    base_name: str | None = None,
    recipe: str | os.PathLike[str] | None = None,
    push_to_hub: str | None = None,
    private: bool = False,
    quantize: str | None = None,
) -> Path:
    """Export a checkpoint as a folder that the model's own package can load: transformers, or `qwen_tts` for a voice of Qwen3-TTS. LoRA is
    merged. Needs no GPU. The command `overtone export` also reads and writes URLs.

    Args:
        run: a run, or the folder of a run or of one of its checkpoints.
        to: the folder to create.
        step: of the checkpoint, such as `run.best`; by default the newest.
        best: export the checkpoint at the strength that `overtone.select` has chosen.
        strength: scale the update of the training: 0 is the base, 1 (default) the trained model, up to 2.
        format: one of the recipe's formats, by default its first; for `voice_clone`, `custom_voice` (named speakers) or `base` (to train
            on).
        dtype: type of the weights; by default as in the base model.
        base: the base model, if it was moved after training.
        adapter_only: export the LoRA adapter alone, in peft's format.
        base_name: with `adapter_only`, the hub name of the base in place of the folder that the run was trained from.
        recipe: the folder of the recipe, if that is not part of the package.
        push_to_hub: upload the export to this repository of the Hugging Face Hub.
        private: create that repository as private.
        quantize: type of the numbers of the formats `gguf`, `ollama` and `gguf-adapter`: `f16`, `bf16` or `q8_0`.

    Returns:
        The folder.

    Raises:
        UserError: if there is no such checkpoint, the folder exists already, or the base is not the one that was trained on.
    """
    from overtone.finetune.cli.export import ExportOptions, export_model
    from overtone.finetune.storage.folder_handles import name_paths

    source, target = locate_run(run), Path(to)
    name_paths([str(source), str(target)])
    options = ExportOptions(
        form=format,
        step=step,
        dtype=dtype,
        adapter_only=adapter_only,
        base_name=base_name,
        strength=strength,
        best=best,
        base=None if base is None else Path(base),
        recipe=None if recipe is None else str(recipe),
        push_to_hub=push_to_hub,
        private=private,
        quantize=quantize,
    )
    export_model(source, target, options)
    return target
