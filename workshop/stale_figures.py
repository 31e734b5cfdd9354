"""Figures on the pages whose benchmark has not run since the code that it measures last changed.

    make stale-figures      # exit code 1 if there are any

A full run of a benchmark leaves the digest of that code in its results file. A page names a benchmark by its script or its results file.
"""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "workshop" / "benchmarks" / "results"
PAGES, LISTING = ("README.md", "SECURITY.md", "docs/*.md", "workshop/lab_book/*.md"), "benchmarks.md"
"""The pages with figures; the last one only lists the benchmarks."""
RECORD = "<!-- measured on code {} -->"
"""Last line of a results file."""

DECODING = ("recipes/speech/decoding/*.py",)
CODEC = ("data_prep/audio_codecs/frame_layers.py", "data_prep/audio_codecs/qwen3_tts_frame_decoder.py")
PLANNING = ("finetune/hardware/gpu_specs.py", "finetune/planning/activation_memory.py", "finetune/planning/memory.py")
PLANNED_STEPS = (*PLANNING, "finetune/planning/parallelism_planner.py")
STEP = ("finetune/training/step.py", "finetune/data/batching.py")
SAVING = ("finetune/checkpointing/checkpoint.py", "finetune/checkpointing/rank_shards.py", "finetune/checkpointing/staging_buffers.py")
VOICE = ("recipes/voice_clone/recipe.py", "recipes/qwen3_tts/model/modeling.py")
WHISPER = (
    *("data_prep/segmentation/vad.py", "data_prep/transcription/faster_whisper_engine.py"),
    *("data_prep/transcription/packed_transcription.py", "data_prep/transcription/whisper_engine.py"),
)
MEASURED: dict[str, tuple[str, ...]] = {
    "background_sound": ("data_prep/clips/dnsmos.py", "data_prep/clips/measurements.py", "data_prep/clips/quality_rules.py"),
    "codec_lm_generation": ("recipes/codec_lm/inference/*.py", *DECODING),
    "communication": ("finetune/distributed/*.py", "finetune/training/step.py", "finetune/planning/parallelism_planner.py"),
    "comparison_errors": ("recipes/speech/evaluation/confidence_intervals.py", "recipes/speech/selection/candidate_ranking.py"),
    "copies": ("data_prep/clips/duplicates.py", "data_prep/clips/fingerprint*.py", "data_prep/clips/waveform_agreement.py"),
    "csm_generation": ("recipes/csm/inference/*.py", *DECODING),
    "data_preparation": ("data_prep/audio/*.py", "data_prep/segmentation/*.py", "data_prep/pipeline/*.py", "data_prep/clips/extraction.py"),
    "export_memory": ("finetune/exporting/export.py", "finetune/modeling/lora_adapters.py", "finetune/modeling/stored_tensors.py"),
    "first_step": ("Makefile", "locked/*.txt", "recipes/demo_runner.py", "recipes/*/demo.py", "recipes/voice_clone/demo/*.py"),
    "generation": ("recipes/qwen3_tts/inference/*.py", *CODEC, *DECODING),
    "gpu": (*STEP, *SAVING, *VOICE, *WHISPER, *DECODING, "finetune/modeling/loss_head.py", "recipes/llm_sft/recipe.py"),
    "growth": (*STEP, "finetune/data/cached_samples.py", "finetune/data/index_building.py", "finetune/training/loop.py"),
    "hardware_table": (*PLANNED_STEPS, "finetune/planning/run_plan.py"),
    "loader_interference": (*STEP, "finetune/data/cached_samples.py", "finetune/data/sample_serialization.py"),
    "models_table": (*PLANNED_STEPS, "finetune/planning/run_plan.py", "recipes/*/released_models.py"),
    "order": ("finetune/data/batching.py", "finetune/data/cached_samples.py", "finetune/data/keyed_permutation.py"),
    "overlapped_speech": ("data_prep/clips/overlapped_speech.json", "data_prep/clips/overlapped_speech.py"),
    "packing_utilisation": ("finetune/data/batching.py", "finetune/data/packing.py"),
    "plan_backtest": PLANNING,
    "preparation_speed": (
        *("data_prep/audio/waveform.py", "data_prep/clips/dnsmos.py", "data_prep/clips/extraction.py", "data_prep/clips/measurements.py"),
        *("data_prep/segmentation/silero_network.py", "data_prep/segmentation/vad.py", "data_prep/speakers/windowed_speaker_vectors.py"),
    ),
    "real_recordings": (
        *(*WHISPER, "data_prep/transcription/word_errors.py", "data_prep/alignment/pocketsphinx_aligner.py"),
        *("data_prep/segmentation/clip_segmentation.py", "data_prep/clips/quality_rules.py", "data_prep/clips/speaking_rate.py"),
    ),
    "reliability": ("finetune/checkpointing/*.py", "finetune/exporting/export.py", "finetune/storage/files.py", "finetune/training/run.py"),
    "resume_time": (*SAVING, "finetune/modeling/stored_tensors.py", "finetune/training/setup.py"),
    "save_blocking": SAVING,
    "scaling": PLANNED_STEPS,
    "scaling_context": PLANNED_STEPS,
    "scaling_data": ("finetune/hardware/gpu_specs.py",),
    "scaling_experts": PLANNED_STEPS,
    "scaling_limits": PLANNED_STEPS,
    "scaling_pipeline": PLANNED_STEPS,
    "serving_latency": (
        *("recipes/serving/continuous_batch_scheduler.py", "recipes/serving/request_queue.py", "recipes/speech/continuous_speech_batch.py"),
        *("recipes/qwen3_tts/inference/*.py", *CODEC, *DECODING),
    ),
    "serving_throughput": (
        *("recipes/serving/continuous_batch_scheduler.py", "recipes/serving/request_queue.py", "recipes/speech/continuous_speech_batch.py"),
        *("recipes/language/serving/*.py", "recipes/qwen3_tts/inference/*.py", *CODEC, *DECODING),
    ),
    "sft_defaults": ("finetune/data/run_sizes.py", "recipes/llm_sft/config.yaml"),
    "sft_speed": (*STEP, "finetune/data/packing.py", "recipes/language/causal_lm_loss.py", "recipes/language/modeling/varlen_attention.py"),
    "soak": (*SAVING, "finetune/checkpointing/remote_copies.py", "finetune/training/*.py"),
    "speaker_names": ("data_prep/segmentation/vad.py", "data_prep/speakers/*.py"),
    "start_up": ("data_prep/__main__.py", "finetune/__main__.py", "finetune/config.py", "finetune/config_sources.py"),
    "step_overhead": (*STEP, *VOICE, "finetune/distributed/sharding.py"),
    "strategy_bytes": ("finetune/distributed/*.py", "finetune/planning/memory.py", "finetune/training/step.py"),
    "sub_talker": VOICE,
    "subtitle_repair": ("data_prep/pipeline/transcript_timing.py", "data_prep/segmentation/subtitle_*.py"),
    "transcribe_estimate": WHISPER,
    "transcribe_speed": WHISPER,
    "voice_batches": ("finetune/data/batching.py", "finetune/data/packing.py"),
    "voice_defaults": ("finetune/data/run_sizes.py", "recipes/voice_clone/config.yaml", "recipes/voice_clone/demo/demo.yaml"),
    "voice_ways": (*STEP, *VOICE),
}
"""Benchmark → the files whose change makes its figures old: those that take the time or the memory, or decide what is counted."""


def main() -> int:
    stale = list_stale()
    print("\n".join([*stale, f"{len(MEASURED) - len(stale)} of {len(MEASURED)} benchmarks ran on the code that is here"]))
    return 1 if stale else 0


def list_stale() -> list[str]:
    """A line for each benchmark whose results are not of the code that is here: the pages that name it, and the code's last change."""
    paths = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern)) if path.name != LISTING]
    pages = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    return [
        f"{name} ({', '.join(pages_that_name(name, pages)) or 'no page'}): {'other code' if record else 'no record'}; {last_change(name)}"
        for name in MEASURED
        if (record := find_record((RESULTS / f"{name}.md").read_text(encoding="utf-8"))) != write_record(name)
    ]


def pages_that_name(benchmark: str, pages: dict[str, str]) -> list[str]:
    """The pages (path → text) with a link to the results of a benchmark, or with the command that runs it."""
    return [path for path, text in pages.items() if re.search(rf"benchmarks/(results/)?{benchmark}\.(md|py)\b", text)]


def write_record(benchmark: str) -> str:
    """The line that a full run leaves in its results file."""
    return RECORD.format(digest_code(benchmark))


def find_record(results: str) -> str:
    """That line of a results file; empty if there is none."""
    found = re.search(RECORD.format(r"\w+"), results)
    return found[0] if found else ""


def digest_code(benchmark: str) -> str:
    """Digest of the files that a benchmark measures, without comments and docstrings; by the syntax tree of this version of Python."""
    total = hashlib.sha256()
    for path in files_of(benchmark):
        data = path.read_bytes()
        total.update(strip_texts(data.decode()).encode() if path.suffix == ".py" else data)
    return total.hexdigest()[:16]


def files_of(benchmark: str) -> list[Path]:
    return sorted({path for pattern in MEASURED[benchmark] for path in ROOT.glob(pattern)})


def strip_texts(source: str) -> str:
    """The syntax tree of a module as text, without the strings that stand alone as statements."""
    return ast.dump(_TextRemover().visit(ast.parse(source)))


class _TextRemover(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


def last_change(benchmark: str) -> str:
    """Commit, date and subject of the last change of the measured files."""
    command = ["git", "log", "-1", "--format=last changed by %h, %as, %s", "--", *map(str, files_of(benchmark))]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
