"""What each released model has run as, and the test or the record that shows it: the column "run on" of docs/models.md.

`tiny`: a model of the same architecture, built from a small config. `shape`: the released shape with random weights, on a GPU.
`released weights`: the published weights. Only what a test here runs, or a record in results/ has, counts.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path

from workshop.benchmarks._gpu_figures import read_record

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_name("results")
TINY, SHAPE, WEIGHTS = "tiny", "shape", "released weights"


@dataclass(frozen=True)
class RanTest:
    """A test that trains the model."""

    path: str
    name: str

    def exists(self) -> bool:
        place = ROOT / self.path
        functions = ast.parse(place.read_text(encoding="utf-8")).body if place.is_file() else []
        return any(isinstance(each, ast.FunctionDef) and each.name == self.name for each in functions)


@dataclass(frozen=True)
class GpuRecord:
    """A figure of gpu.py that a GPU has measured on the model's shape."""

    part: str
    figure: str

    def exists(self) -> bool:
        records = read_record(RESULTS / f"gpu-{self.part}.jsonl")
        return any(self.figure in record and record[self.figure].failed is None for record in records)


@dataclass(frozen=True)
class SweepRecord:
    """An architecture that `tests/model_sweep` trained right with every installed version of transformers."""

    architecture: str

    def exists(self) -> bool:
        tables = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("model_sweep_*.json")]
        return bool(tables) and all(table.get(self.architecture, {}).get("full", [""])[0] == "right" for table in tables)


Evidence = RanTest | GpuRecord | SweepRecord
TINY_RUNS: dict[str, Evidence] = {
    "codec_lm": RanTest("tests/recipes/codec_lm/test_recipe.py", "test_stock_transformers_regenerates_every_frame_that_was_trained"),
    "csm": RanTest("tests/recipes/csm/test_regeneration.py", "test_the_stock_class_regenerates_memorized_clips_exactly"),
    "image_classification": RanTest(
        "tests/recipes/image_classification/test_recipe.py", "test_a_run_learns_and_measures_the_accuracy_of_held_out_images"
    ),
    "voice_clone": RanTest("tests/recipes/voice_clone/test_regeneration.py", "test_exported_embedding_rows_are_the_speaker_vectors"),
    "whisper": RanTest("tests/recipes/whisper/test_recipe.py", "test_a_run_learns_and_counts_clips"),
}
"""Recipe → what shows that a tiny model of it is trained. Those of llm_sft are in the records of the sweep, by architecture."""
OTHER_RUNS: dict[str, dict[str, Evidence]] = {
    "Qwen/Qwen3-1.7B": {SHAPE: GpuRecord("chat", "nothing recomputed")},
    "Qwen/Qwen3-TTS-12Hz-0.6B-Base": {SHAPE: GpuRecord("voice", "nothing recomputed")},
    "HuggingFaceTB/SmolLM2-135M-Instruct": {
        WEIGHTS: RanTest("tests/real/test_chat_training.py", "test_a_method_learns_the_task_and_forgets_a_bounded_part")
    },
    "openai/whisper-tiny.en": {WEIGHTS: RanTest("tests/real/test_whisper_training.py", "test_a_recognizer_learns_the_words_of_a_speaker")},
}
"""Model → what it has run as besides a tiny one."""


def find_runs(recipe: str, name: str, architecture: object) -> dict[str, Evidence]:
    """What shows how a model has run, in the order of the column. `architecture`: its `model_type`, for llm_sft."""
    tiny = SweepRecord(architecture) if recipe == "llm_sft" and isinstance(architecture, str) else TINY_RUNS.get(recipe)
    found: dict[str, Evidence] = {**({TINY: tiny} if tiny is not None else {}), **OTHER_RUNS.get(name, {})}
    return {kind: evidence for kind in (TINY, SHAPE, WEIGHTS) if (evidence := found.get(kind)) is not None and evidence.exists()}
