"""The byte model with samples whose metric is planted: the first prompt says what is measured at which step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file

from overtone.finetune.exporting.export_provenance import CARD
from overtone.finetune.recipe import Answer
from overtone.finetune.storage.strict_json import read_object
from tests.byte_model.recipe import RECIPE as BYTE_RECIPE


def sample(folder: Path, prompts: list[str]) -> list[Answer]:
    """`error`: planted, as JSON, by step; `norm`: of the weights, to the last bit; a step that is missing fails."""
    errors = json.loads(prompts[0])
    step = str(read_object(folder / CARD)["step"])
    if step not in errors:
        raise SystemExit(f"nothing is planted at step {step}")
    norm = sum(float(value.double().square().sum()) for value in load_file(folder / "model.safetensors").values())
    return [Answer(f"step {step}", numbers={"error": errors[step], "norm": norm}) for _ in prompts]


RECIPE = replace(BYTE_RECIPE, inference=replace(BYTE_RECIPE.inference, sample=sample))
