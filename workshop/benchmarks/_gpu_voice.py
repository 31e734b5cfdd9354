"""Part `voice`: steps of a 0.6B voice in shape, alone and beside a bare loop and other ways of training it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

from overtone.finetune.config import Config
from overtone.finetune.data import batching
from overtone.finetune.training import setup
from overtone.recipes.qwen3_tts.model.config_factory import FRAME_RATE
from overtone.recipes.voice_clone.recipe import RECIPE
from workshop.benchmarks import _gpu, _timing, _voice, voice_ways
from workshop.benchmarks._by_hand import bare_step, check_equal_losses, load_filled_model, optimizer_of, stock_heads, stock_sums
from workshop.benchmarks._gpu import FULL, Bench
from workshop.benchmarks._gpu_figures import Cells, Figure, Part, Table
from workshop.benchmarks._gpu_steps import SPEED, Version, ceiling_row, measure, voice_versions
from workshop.benchmarks._overhead_of_ranks import our_step

ALIKE = 0.05
"""Nats by which two bf16 losses of one model may differ."""
BESIDE = ("measured", "here", "beside it", "that", "ratio")


def row(version: Version, bench: Bench) -> list[Cells]:
    found = measure(bench, "voice", version)
    frames = sum(int(turn.batch.tensors["frame_mask"].sum()) for turn in found.turns)
    # Hours in an hour are seconds in a second.
    return [[version.name, f"{frames / FRAME_RATE / found.seconds:,.0f}", *found.cells]]


def figure(version: Version) -> Figure:
    compiled = "train.compile" in version.keys
    return Figure(version.name, 20.0 + 50.0 * compiled, partial(row, version), dry=not compiled)  # a CPU compiles for minutes


def compared(measured: str, here: Sequence[float], beside: str, that: Sequence[float]) -> list[object]:
    """A row under `BESIDE`, of seconds."""
    return [measured, f"{median(here):.3f} s", beside, f"{median(that):.3f} s", _timing.ratio(that, here)]


def overhead_config(folder: Path, run: str = "run") -> Config:
    return _voice.run_config(folder / "voice", run, precision="bf16", compile="false")


def ways_config(folder: Path, run: str = "ways") -> Config:
    """At this rate no weight moves, so that every step of every way has the same loss."""
    return _voice.run_config(folder / "voice", run, precision="bf16", micro_tokens=4096, lr=1e-30, weight_decay=0, compile="false")


def overhead(bench: Bench) -> list[Cells]:
    """Our step beside a bare loop around the package's modules with autocast, on the same batch."""
    config = overhead_config(bench.folder, str(bench.fresh("overhead").resolve()))
    ours, batch = our_step(bench.joined(), config)
    with stock_heads():
        stock = load_filled_model(config, bench.device)
    sums = partial(stock_sums, by_frame=False)
    acts = {"ours": ours, "bare": bare_step(stock, optimizer_of(stock, config), config, [batch], sums=sums)}
    check_equal_losses({name: act() for name, act in acts.items()}, ALIKE)
    taken = _timing.time_in_turns(acts, bench.scale.rounds, warm_up=2, clock=_gpu.clock)
    return [compared("a step", taken["ours"], "a bare loop", taken["bare"])]


def ways(bench: Bench) -> list[Cells]:
    """The ways of voice_ways.py."""
    config = ways_config(bench.folder, str(bench.fresh("ways").resolve()))
    training, progress = setup.build(config, RECIPE, bench.joined())
    step = next(batching.steps(training.order, training.rows.lengths, progress.place, epochs=None))
    found = voice_ways.ways_of(training, step)
    acts = voice_ways.trainers(training, found)
    check_equal_losses({name: acts[name]() for name, way in found.items() if way.share == 1.0}, ALIKE)
    taken = _timing.time_in_turns(acts, 2, warm_up=1, clock=_gpu.clock)
    ours = taken[voice_ways.OURS]
    return [compared(f"a step on {len(training.rows)} clips", ours, name, taken[name]) for name in list(found)[1:]]


STEPS_NOTE = (
    f"{FULL.clips} clips of spoken sentences a step, bf16 with fp32 masters, full fine-tuning, AdamW; median of {FULL.rounds} steps after "
    "two. Columns as in `chat`; model FLOPs are those of the talker and of 16 positions of the code predictor a frame. "
    "The plan is for micro-batches of `train.micro_tokens` positions, which these clips do not fill."
)
BESIDE_NOTE = (
    "Seconds by a clock, with the device idle before and after; ratios are what stands beside it over what is here, of the same round, "
    "median (smallest–largest), so more is better."
)
CEILING = Figure("ceiling", 5.0, lambda bench: [[(cells := ceiling_row(bench))[0], "–", *cells[1:]]])
PART = Part(
    tables=(
        Table(("version", "hours of speech / GPU-hour", *SPEED), (CEILING, *map(figure, voice_versions())), STEPS_NOTE),
        Table(BESIDE, (Figure("a bare loop", 30.0, overhead), Figure("other ways", 160.0, ways)), BESIDE_NOTE),
    ),
    prepare=_gpu.voice_base,
    preparing=45.0,
)
