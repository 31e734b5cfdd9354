"""Part `speech`: frames a second with and without CUDA graphs, beside the stock package; time to the first sound; times real time; and
recordings to words by data_prep."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from statistics import median
from unittest import mock

import torch

from overtone.finetune.exporting.export_provenance import CARD
from overtone.finetune.storage import files
from overtone.recipes.qwen3_tts.inference.synthesizer import Request, open_synthesizer
from overtone.recipes.qwen3_tts.model.config_factory import FRAME_RATE, RELEASED, SMALL
from overtone.recipes.qwen3_tts.model.sampling_settings import SamplingSettings
from overtone.recipes.qwen3_tts.model.sequence_layout import SpeechProcessor, TokenIds
from overtone.recipes.speech.decoding.cuda_graphs import FrameGraphs
from workshop.benchmarks import _gpu, _timing, generation
from workshop.benchmarks._gpu import FULL, Bench
from workshop.benchmarks._gpu_figures import Cells, Figure, Part, Table

NOTHING = "–"
LABELS = ("0.6B", "1.7B")


def make_models(bench: Bench) -> None:
    for label in LABELS[:1] if bench.dry else LABELS:
        files.write_json(speaker(bench, label) / CARD, {"recipe": "voice_clone"})


def speaker(bench: Bench, label: str) -> Path:
    return _gpu.speaker_base(bench, label, SMALL["nano"] if bench.dry else RELEASED[label])


def without_graphs() -> AbstractContextManager[object]:
    """Each kernel is started by itself."""
    return mock.patch.object(FrameGraphs, "open", lambda _: None)


def codes(label: str, bench: Bench) -> list[Cells]:
    """Codes by the stock package beside ours: frames a second, and how many codes agree, since bf16 rounds by the shape of a product."""
    from overtone.recipes.qwen3_tts.inference import stock_qwen_tts

    base, frames = speaker(bench, label), bench.scale.frames
    tts = stock_qwen_tts.load(base)
    ids = TokenIds.from_config(json.loads((base / "config.json").read_text()))
    processor = SpeechProcessor(lambda text: {"input_ids": tts._tokenize_texts([text])[0][0].tolist()}, ids, {})
    variants = generation.codes_of(tts.model, processor, 1, frames)

    def eager() -> generation.Codes:
        with without_graphs():
            return variants["here"]()

    ways = {"here": variants["here"], "here, without CUDA graphs": eager, "the stock package": variants["stock"]}
    spoken = {name: torch.tensor(act()[0]) for name, act in ways.items()}
    check_lengths(spoken, frames)
    taken = _timing.time_in_turns(ways, 2, warm_up=0, clock=_gpu.clock)
    rows: list[Cells] = []
    for name, found in spoken.items():
        seconds = median(taken[name])
        speed = f"{frames / seconds:.1f}", f"{frames / FRAME_RATE / seconds:.2f}"
        rows.append([f"{label}, codes, {name}", *speed, NOTHING, agreeing(spoken["here"], found)])
    return rows


def check_lengths(spoken: Mapping[str, torch.Tensor], frames: int) -> None:
    """Raises `ValueError` unless each way spoke so many frames, by which its seconds are divided."""
    others = {name: len(found) for name, found in spoken.items() if len(found) != frames}
    if others:
        raise ValueError(f"of {frames} frames were spoken: {', '.join(f'{count} ({name})' for name, count in others.items())}")


def agreeing(one: torch.Tensor, other: torch.Tensor) -> str:
    shared = min(len(one), len(other))
    return f"{float((one[:shared] == other[:shared]).float().mean()):.1%}"


def sounds(label: str, bench: Bench) -> list[Cells]:
    """From text to sound, one stream: until the first chunk, and all of it. Each request captures its own graphs."""
    frames = bench.scale.frames
    request, sampling = Request(generation.TEXT, "ann"), SamplingSettings(greedy=True, max_seconds=frames / FRAME_RATE)
    with open_synthesizer(speaker(bench, label)) as voice:
        (spoken,) = voice.speak([request], sampling)
        acts = {"first": partial(generation.first_chunk, voice, request, sampling), "whole": lambda: list(voice.stream(request, sampling))}
        taken = _timing.time_in_turns(acts, 3, warm_up=1, clock=_gpu.clock)
    seconds, first, whole = len(spoken.wave) / spoken.rate, median(taken["first"]), median(taken["whole"])
    speed = f"{seconds * FRAME_RATE / whole:.1f}", f"{seconds / whole:.2f}"
    return [[f"{label}, text to sound, streamed", *speed, f"{first:.3f}", NOTHING]]


def transcription(bench: Bench) -> list[Cells]:
    """Recording to words with word times, by data_prep with large-v3: speech detection on the CPU included, decoding the file not."""
    from overtone.data_prep.segmentation import vad
    from overtone.data_prep.transcription import packed_transcription
    from workshop.benchmarks import transcribe_speed

    size, minutes = ("demo", 0.6) if bench.dry else ("large-v3", 20.0)
    model, detector = transcribe_speed.random_weights(size).to(bench.device), vad.load_vad()
    master = transcribe_speed.recording(minutes, transcribe_speed.PAUSES["0.2 to 0.4 s"])
    sound = transcribe_speed.make_whisper(master)
    regions = vad.find_speech(detector, sound, len(master.samples))
    packed = packed_transcription.pack_windows(vad.make_windows(regions, master))
    transcribe_speed.limit_tokens(model, packed, transcribe_speed.count_tokens(regions))
    act = partial(transcribe_speed.ours, model, detector, master, sound)
    seconds = median(_timing.time_in_turns({size: act}, 2, warm_up=1, clock=_gpu.clock)[size])
    return [[f"Whisper {size}, {len(packed)} packs", f"{sound.seconds:.0f}", f"{seconds:.2f}", f"{sound.seconds / seconds:.1f}", GOAL]]


GOAL = 92
"""Times real time: 150 minutes in 98 s, by the page of insanely-fast-whisper for large-v3 with Flash Attention 2 on an A100 of 80 GB."""
HEARD_NOTE = (
    "Random weights of the released shape that decode as many tokens as English has; the sample's speech with pauses of 0.2 to 0.4 s. "
    f"The goal is {GOAL} times real time: what insanely-fast-whisper states for large-v3 on an A100. One process, of which data_prep "
    "starts one per GPU."
)
HEARD_COLUMNS = ("model", "recording, s", "seconds", "times real time", "goal")
HEARD = (Figure("Whisper large-v3: recording to words", 110.0, transcription),)
NOTE = (
    f"Random weights of the released shapes, {FULL.frames} frames of one text at a time, greedy, with a tiny codec; codes alone in the "
    "rows that count agreeing codes. Seconds by a clock, with the device idle before and after; medians in turns."
)
FIGURES = tuple(
    Figure(f"{label}: {what}", seconds, partial(act, label), dry=label == LABELS[0])
    for label in LABELS
    for what, seconds, act in (("codes", 80.0, codes), ("sound", 30.0, sounds))
)
COLUMNS = ("model and way", "frames / s", "times real time", "first sound, s", "codes that agree")
PART = Part((Table(COLUMNS, FIGURES, NOTE), Table(HEARD_COLUMNS, HEARD, HEARD_NOTE)), prepare=make_models, preparing=110.0)
