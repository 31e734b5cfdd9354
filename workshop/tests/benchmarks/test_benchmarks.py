"""Every benchmark runs, in a small setting, and its table speaks of its claim."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.finetune import fork_server
from tests.launch.launching import ALONE, ROOT
from workshop.benchmarks._gpu import has_gpu
from workshop.benchmarks._gpu_figures import PARTS, part_named, read_record
from workshop.benchmarks._regressions import Rows, rows_of
from workshop.benchmarks._table import NOT_YET, SKIPPED

COLUMNS = {
    "background_sound": {"recording", "clips rejected by"},
    "codec_lm_generation": {"codes of a codebook", "texts at once", "here / stock"},
    "communication": {"strategy", "ranks", "moved / Ψ", "bytes a rank sends", "simulated", "ratio", "hops", "simulated hops"},
    "comparison_errors": {"comparison", "texts", "wrong, bootstrap", "wrong", "wrong front"},
    "copies": {"voice", "sentences", "called copies, by fingerprints alone", "called copies", "MP3", "Opus"},
    "csm_generation": {"codebooks", "texts at once", "here / stock"},
    "data_preparation": {"promise", "trials", "failures"},
    "export_memory": {"model, MiB", "peak above imports, MiB", "bound, MiB", "peak / bound", "its time / merge-weights'"},
    "first_step": {"target", "stage", "seconds", "of all"},
    "generation": {"model", "texts at once", "here / stock", "real-time factor, here", "first sound, s, here"},
    "growth": {"what grows", "to", "measured", "figure", "of the first"},
    "hardware_table": {"model", "training", "one GPU", "memory, GiB", "eight GPUs"},
    "loader_interference": {"recipe", "samples come from", "of the step", "op rate / alone", "processor"},
    "models_table": {"model", "recipe", "full, GiB", "LoRA, GiB", "tensor parallel", "licence"},
    "order": {"rows", "first step from the middle, ms", "memory of its own, KiB"},
    "overlapped_speech": {"clips", "clips of each kind", "rejected, %"},
    "packing_utilisation": {"sequence_length", "window", "best fit", "first fit in order", "padded in order"},
    "plan_backtest": {"run", "source", "published, GB", "sum / published", "use", "fitted / published"},
    "preparation_speed": {"step", "seconds of one core for an hour", "times real time"},
    "real_recordings": {"way", "pauses", "kept words", "errors in them", "clips", "end inside a prompt", "right clips rejected for"},
    "reliability": {"promise", "trials", "failures"},
    "scaling": {"model", "GPUs", "fsdp, s", "best", "waits", "GPU-hours for 10⁹", "$ for 10⁹"},
    "scaling_context": {"model", "GPUs", "longest sequence, fsdp", "fsdp, 8 GPUs a sequence", "ring hides in a machine from"},
    "scaling_data": {"Whisper", "GPU", "hours of speech a GPU-hour", "published, any GPU", "CPU cores a GPU"},
    "scaling_experts": {"model", "GPUs", "positions of a GPU", "computing, ms", "gathering, ms", "faster", "ratio"},
    "scaling_limits": {"model", "between machines, GB/s", "ddp", "fsdp", "hsdp", "fsdp × tp"},
    "scaling_pipeline": {"model", "GPUs", "best without stages", "best with stages", "bubble", "without / with", "pays"},
    "resume_time": {"state, MiB", "ranks", "read / torch.load", "start to first step, s", "here / by hand"},
    "sft_defaults": {"task", "rows", "learning rate", "epochs", "held-out right, of 40", "general kept, of 30"},
    "sft_speed": {"way", "tokens / s", "of by hand", "peak memory, MiB"},
    "serving_latency": {"model and way", "clients", "first sound, s: p95", "gap between chunks, s: p95", "seconds of sound / s"},
    "serving_throughput": {"model", "clients", "batched / one at a time", "first part: one at a time / batched"},
    "save_blocking": {"state, MiB", "copy, ms", "save / copy", "first save / first copy", "torch.save / save"},
    "subtitle_repair": {"error of the subtitles", "right", "wrong", "right without repair", "measured"},
    "step_overhead": {"model", "positions a step", "ranks", "our step / bare loop", "accelerate / bare loop"},
    "start_up": {"command", "processor time, ms", "of import torch"},
    "strategy_bytes": {"strategy", "compute", "ranks N", "lasting", "passing", "formula", "ratio"},
    "transcribe_estimate": {"GPU", "a step waits for", "times real time", "goal", "with fp32 weights"},
    "transcribe_speed": {"pauses", "windows", "tokens", "transcribe / data_prep", "a file each / data_prep"},
    "voice_batches": {"clips", "micro_tokens", "by budget", "2 clips, padded"},
    "voice_defaults": {"minutes", "trained", "learning rate", "epochs", "WER, %", "similarity"},
    "voice_ways": {"model", "way", "predictor calls", "tokens / s", "frames / s", "its time / voice_clone's"},
    "speaker_names": {"conversation", "right number of names", "clips misnamed, %", "the same with --speakers, %"},
    "soak": {"quantity", "second quarter", "last quarter", "last / second"},
    "sub_talker": {"at once", "loop over time", "loop / at once"},
}
SLOW = {
    *(
        "background_sound",
        "codec_lm_generation",
        "communication",
        "copies",
        "csm_generation",
        "data_preparation",
        "export_memory",
        "first_step",
        "generation",
        "growth",
        "hardware_table",
        "loader_interference",
        "models_table",
        "plan_backtest",
    ),
    *(
        "real_recordings",
        "reliability",
        "resume_time",
        "save_blocking",
        "scaling",
        "scaling_context",
        "scaling_limits",
        "scaling_pipeline",
        "serving_latency",
        "serving_throughput",
        "soak",
        "start_up",
        "step_overhead",
        "strategy_bytes",
    ),
    *(
        "overlapped_speech",
        "preparation_speed",
        "sft_defaults",
        "sft_speed",
        "speaker_names",
        "transcribe_estimate",
        "transcribe_speed",
        "voice_defaults",
        "voice_ways",
    ),
}
"""Benchmarks that start worlds of several processes, or twenty after each other, or run or trace a model of real size: half a minute."""
ON_A_GPU = {"gpu"}
"""Benchmarks whose tables stay empty until they have run on a GPU; `make gpu-dry` runs through them."""
FOUND = sorted(path.stem for path in (ROOT / "workshop" / "benchmarks").glob("[a-z]*.py"))


def test_every_benchmark_is_known_and_measured() -> None:
    assert set(FOUND) == COLUMNS.keys() | ON_A_GPU
    for name in FOUND:
        path = ROOT / "workshop" / "benchmarks" / "results" / f"{name}.md"
        command = path.read_text(encoding="utf-8").splitlines()[0]
        assert command == f"`.venv/bin/python workshop/benchmarks/{name}.py`", "measured in full, not with --quick"
        if name in COLUMNS:
            _, rows = read_table(path)
            assert len(rows) >= 2 and COLUMNS[name] <= set(rows[0])


def test_a_table_that_no_gpu_has_measured_says_so() -> None:
    folder = ROOT / "workshop" / "benchmarks" / "results"
    head, *sections = (folder / "gpu.md").read_text(encoding="utf-8").split("\n### ")
    assert head.startswith("`") and [section.partition("\n")[0] for section in sections] == list(PARTS)
    for name, section in zip(PARTS, sections, strict=True):
        found = {figure for record in read_record(folder / f"gpu-{name}.jsonl") for figure in record}
        empty = [table for table in part_named(name).tables if not found & {figure.name for figure in table.figures}]
        assert section.count(NOT_YET) == len(empty)


@pytest.mark.skipif(has_gpu(), reason="with a GPU it measures")
@pytest.mark.parametrize("name", sorted(ON_A_GPU))
def test_without_a_gpu_a_benchmark_of_one_says_so_and_leaves_its_table(name: str, tmp_path: Path) -> None:
    done = fork_server.run_command(ROOT / "workshop" / "benchmarks" / f"{name}.py", "--to", tmp_path, cwd=tmp_path, env=ALONE)
    printed = done.stdout + done.stderr
    assert done.returncode == 0 and printed.startswith(f"{SKIPPED}needs a CUDA GPU; ") and len(printed.splitlines()) == 1, printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in FOUND if name not in ON_A_GPU])
def test_a_benchmark_runs_and_writes_its_table(name: str, tmp_path: Path) -> None:
    script, arguments = ROOT / "workshop" / "benchmarks" / f"{name}.py", ["--quick", "--to", tmp_path]
    if name in SLOW:
        command = [sys.executable, script, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=ALONE, capture_output=True, text=True, timeout=200, check=False)
    else:
        done = fork_server.run_command(script, *arguments, cwd=tmp_path, env=ALONE)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    if printed.startswith(SKIPPED):
        pytest.skip(printed)
    assert (tmp_path / f"{name}.md").read_text(encoding="utf-8") in printed
    first, rows = read_table(tmp_path / f"{name}.md")
    assert first == f"`.venv/bin/python workshop/benchmarks/{name}.py --quick`"
    assert rows and COLUMNS[name] <= set(rows[0])


def read_table(path: Path) -> tuple[str, Rows]:
    """The first line, and the table's rows by column."""
    return path.read_text(encoding="utf-8").splitlines()[0], rows_of(path)
