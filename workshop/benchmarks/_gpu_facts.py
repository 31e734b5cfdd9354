"""Part `facts`: what no CPU shows of the operations that a step is made of."""

from __future__ import annotations

import collections
import inspect
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

from overtone.finetune.config import Config, resolve
from overtone.finetune.data import batching
from overtone.finetune.hardware.cudnn_sdpa import disable_cudnn
from overtone.finetune.modeling import loss_head
from overtone.finetune.recipe import find_recipe, load_recipe
from overtone.finetune.storage import demo_models, files
from overtone.finetune.training import setup
from overtone.finetune.training.step import make_loader, train_step
from overtone.recipes.llm_sft.model import tiny_checkpoint
from overtone.recipes.qwen3_tts.model.config_factory import SMALL
from workshop.benchmarks import _gpu, _voice
from workshop.benchmarks._gpu import Bench, one_line
from workshop.benchmarks._gpu_figures import Cells, Figure, Part, Table

HEADS, SHARED, CHANNELS = 16, 8, 128
"""Heads of attention in Qwen3-1.7B: queries, keys and values, and their channels."""
GIB = 2**30
SPEECH = demo_models.data_folder() / "sample" / "rms" / "workshop.wav"
DEMO_BASE = "qwen3-tts-demo-base"


def milliseconds(act: Callable[[], object], rounds: int = 5, warm_up: int = 2) -> float:
    return 1e3 * _gpu.seconds_of(act, rounds, warm_up)


def sdpa_first_calls(bench: Bench) -> list[Cells]:
    """Forward and backward of lengths that were not there before, and of the same once more; cuDNN's backend allowed, and not."""
    rows: list[Cells] = []
    totals, lengths = ((40, 41), (7, 11)) if bench.dry else ((1000, 1001, 1003), (201, 333, 467, 811))
    for name, allowed in (("allowed", True), ("not", False)):
        torch.backends.cuda.enable_cudnn_sdp(allowed)
        attend(*(one.requires_grad_() for one in heads_of(bench, 64)))  # loads the libraries, with a shape that is not measured
        first, again = [], []
        for total in totals:
            for length in lengths:
                act = partial(attend, *(one[:, :, :length].requires_grad_() for one in heads_of(bench, total)))
                first.append(milliseconds(act, 1, 0))
                again.append(milliseconds(act, 3, 0))
        shown = f"median {median(first):.2f} ms, at most {max(first):.1f} ms"
        rows.append(
            [f"SDPA, {len(first)} new combinations of row and length, cuDNN {name}", shown, "the same again", f"{median(again):.2f} ms"]
        )
    disable_cudnn()
    return rows


def heads_of(bench: Bench, total: int) -> list[Tensor]:
    """Queries, keys and values of a row, [1, heads, total, channels], bf16."""
    sizes = (1, total, HEADS, CHANNELS), (1, total, SHARED, CHANNELS), (1, total, SHARED, CHANNELS)
    return [torch.randn(size, device=bench.device, dtype=torch.bfloat16).transpose(1, 2) for size in sizes]


def attend(query: Tensor, key: Tensor, value: Tensor) -> None:
    functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True).sum().backward()


def varlen_kernel(bench: Bench) -> list[Cells]:
    """Shared heads with and without the flag, beside SDPA on each sample; samples without positions included. A refusal is a fact too."""
    from torch.nn.attention.varlen import varlen_attn

    lengths = [13, 0, 27] if bench.dry else [300, 700, 0, 0, 3096]
    query, key, value = (one[0].transpose(0, 1).contiguous().requires_grad_() for one in heads_of(bench, sum(lengths)))
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=bench.device)
    leaves = (query, key, value)
    separate = zip(*(leaf.split(lengths) for leaf in leaves), strict=True)
    expected = torch.cat([alone(*parts) for parts in separate if len(parts[0])])
    slope = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, leaves, slope)
    has_flag = "enable_gqa" in inspect.signature(varlen_attn).parameters
    flags: dict[str, dict[str, bool]] = {"without enable_gqa": {}}
    if has_flag:
        flags["with enable_gqa"] = {"enable_gqa": True}
    rows: list[Cells] = [] if has_flag else [["varlen kernel with enable_gqa", "this torch has no such flag", "", ""]]

    for name, flag in flags.items():

        def call(flag: dict[str, bool] = flag) -> Tensor:
            return varlen_attn(query, key, value, bounds, bounds, max(lengths), max(lengths), window_size=(-1, 0), **flag)

        try:
            found = call()
            pairs = zip((found, *torch.autograd.grad(found, leaves, slope)), (expected, *wanted), strict=True)
            far = max(float((one - other).abs().max()) for one, other in pairs)
            taken = milliseconds(lambda call=call: torch.autograd.grad(call(), leaves, slope))
            rows.append([f"varlen kernel {name}, forward and backward", f"{taken:.2f} ms", "its largest difference to SDPA", f"{far:.2g}"])
        except Exception as problem:
            rows.append([f"varlen kernel {name}", f"refused: {one_line(problem)}", "", ""])
    return rows


def alone(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """[S, heads, channels] of one sample, by SDPA."""
    parts = (one.transpose(0, 1)[None] for one in (query, key, value))
    return functional.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


def head_of(bench: Bench) -> tuple[nn.Linear, Tensor, Tensor]:
    """Qwen3's head, the last states of a micro-batch's positions, and its targets."""
    positions, channels, words = (64, 64, 999) if bench.dry else (8192, 2048, 151936)
    linear = nn.Linear(channels, words, bias=False, device=bench.device, dtype=torch.bfloat16)
    hidden = torch.randn(positions, channels, device=bench.device, dtype=torch.bfloat16, requires_grad=True)
    return linear, hidden, torch.randint(0, words, (positions,), device=bench.device)


def learn(head: nn.Module, hidden: Tensor, targets: Tensor) -> None:
    head(hidden, targets)[0].backward()
    hidden.grad = None
    head.zero_grad(set_to_none=True)


def loss_heads(bench: Bench) -> list[Cells]:
    """Forward and backward by the rows of a chunk; and Liger's, if it is installed."""
    linear, hidden, targets = head_of(bench)
    head = loss_head.LossHead(linear)
    rows = [head_row(f"loss head of {len(hidden):,} positions as it is", partial(learn, head, hidden, targets))]
    for size in (16, 64) if bench.dry else (256, 512, 1024, 2048, 4096, 8192):
        with mock.patch.object(loss_head, "rows_of_a_chunk", lambda *_, size=size: size):
            rows.append(head_row(f"loss head, chunks of {size:,} positions", partial(learn, head, hidden, targets)))
    try:
        from overtone.recipes.language.modeling import liger_loss

        liger_loss.check_runnable()
        rows.append(head_row("Liger's loss head", partial(learn, liger_loss.LigerHead(linear, loss_head.Shaping()), hidden, targets)))
    except Exception as problem:
        rows.append(["Liger's loss head", f"not here: {one_line(problem)}", "", ""])
    return rows


def head_row(name: str, act: Callable[[], object]) -> Cells:
    if not torch.cuda.is_available():
        return [name, f"{milliseconds(act):.1f} ms", "", ""]
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    taken = milliseconds(act)
    return [name, f"{taken:.1f} ms", "memory at its peak", f"{(torch.cuda.max_memory_allocated() - before) / GIB:.2f} GiB"]


def weight_gradients(bench: Bench) -> list[Cells]:
    """A chunk's part of the head's weight gradient added to an fp32 sum: as a bf16 product, and by addmm(out_dtype)."""
    words, rows, channels = (99, 16, 64) if bench.dry else (151936, 1024, 2048)
    left = torch.randn(rows, words, device=bench.device, dtype=torch.bfloat16).T
    right = torch.randn(rows, channels, device=bench.device, dtype=torch.bfloat16)
    total = torch.zeros(words, channels, device=bench.device)
    exact = left[:512].double() @ right.double()

    def rounded() -> None:
        total.add_(left @ right)

    def fused() -> None:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)

    found: list[Cells] = []
    for name, act in (("bf16 product, then added", rounded), ("addmm(out_dtype=float32)", fused)):
        try:
            total.zero_()
            act()
            far = float((total[:512] - exact).norm() / exact.norm())
            taken = milliseconds(act)
            found.append([f"weight gradient of {rows:,} positions, {name}", f"{taken:.2f} ms", "relative error", f"{far:.1e}"])
        except Exception as problem:
            found.append([f"weight gradient, {name}", f"refused: {one_line(problem)}", "", ""])
    return found


def copies(bench: Bench) -> list[Cells]:
    """Between host and device."""
    size = GIB // 256 if bench.dry else 2 * GIB
    there = torch.zeros(size, dtype=torch.uint8, device=bench.device)
    pageable = torch.zeros(size, dtype=torch.uint8)
    acts = {
        "device to fresh host memory": lambda: there.to("cpu", copy=True),
        "device to host memory that was used before": lambda: pageable.copy_(there),
        "host to device, not pinned": lambda: there.copy_(pageable),
    }
    rows: list[Cells] = []
    if torch.cuda.is_available():
        began = _gpu.clock()
        pinned = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
        rows.append([f"pinning {size / GIB:.1f} GiB", f"{_gpu.clock() - began:.2f} s", "", ""])
        acts["device to pinned host memory"] = lambda: pinned.copy_(there, non_blocking=True)
        acts["pinned host memory to device"] = lambda: there.copy_(pinned, non_blocking=True)
    return rows + [[name, f"{size / GIB / (milliseconds(act, 3, 1) / 1e3):.1f} GiB/s", "", ""] for name, act in acts.items()]


def optimizer(bench: Bench) -> list[Cells]:
    """AdamW over fp32 parameters in matrices of 16 Mi elements: 28 bytes of traffic for each (Kingma and Ba 2015, algorithm 1, read and
    written: weight and two moments; read: gradient)."""
    count, side = (2, 64) if bench.dry else (24, 4096)
    rows: list[Cells] = []
    for name, how in (("fused", {"fused": True}), ("foreach", {"foreach": True}), ("one by one", {"foreach": False, "fused": False})):
        parameters = [nn.Parameter(torch.randn(side, side, device=bench.device)) for _ in range(count)]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        taken = milliseconds(torch.optim.AdamW(parameters, **how).step)
        moved = 28 * count * side**2 / taken / 1e6
        rows.append([f"AdamW, {name}, {count * side**2 / 1e6:,.0f} million parameters", f"{taken:.2f} ms", "traffic", f"{moved:,.0f} GB/s"])
    return rows


def launches(bench: Bench) -> list[Cells]:
    """Host time of a small operation: a thousand in a row, without waiting."""
    small, many = torch.zeros(8, device=bench.device), 1000
    return [["a small operation", f"{1e3 * milliseconds(lambda: [small.add_(1) for _ in range(many)]) / many:.1f} µs", "", ""]]


def synchronizations(kind: str, bench: Bench) -> list[Cells]:
    """Return what waits for the device in the third step of a tiny run of several micro-batches, by torch's own account."""
    recipe = load_recipe(find_recipe(kind))
    config = (tiny_chat if kind == "llm_sft" else tiny_voice)(bench)
    training, progress = setup.build(config, recipe, bench.joined())
    step = next(batching.steps(training.order, training.rows.lengths, progress.place, None))
    loader = make_loader(training, training.rows)
    turns = loader.turns(step.micros)
    loader.close()
    for _ in range(2):
        train_step(training, turns, 0)
    if not torch.cuda.is_available():
        return [[f"{kind}: waits in a step of {len(turns)} micro-batches", "a CPU has none", "", ""]]
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            train_step(training, turns, 0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [warning for warning in seen if "synchronizing" in str(warning.message)]
    places = collections.Counter(f"{Path(warning.filename).name}:{warning.lineno}" for warning in waits)
    shown = ", ".join(f"{place} × {count}" for place, count in places.most_common(12))
    return [[f"{kind}: waits in a step of {len(turns)} micro-batches", len(waits), "where", shown]]


def tiny_chat(bench: Bench) -> Config:
    """Packed, in bf16, several micro-batches a step."""
    folder = bench.fresh("facts chat")
    tiny_checkpoint.build(folder / "base")
    chat = [{"role": "user", "content": "sort dcba"}, {"role": "assistant", "content": "abcd"}]
    files.write_jsonl(folder / "train.jsonl", ({"messages": chat} for _ in range(64)))
    given = {
        "model.source": folder / "base", "data.train": folder / "train.jsonl", "run.dir": folder / "run", "data.packing": True,
        "train.micro_tokens": 128, "train.global_batch_tokens": 384, "log.trackers": [],
    }  # fmt: skip
    return resolve("llm_sft", load_recipe(find_recipe("llm_sft")).Options, [], [(key, str(value)) for key, value in given.items()])


def tiny_voice(bench: Bench) -> Config:
    folder = _voice.make(bench.fresh("facts voice"), SMALL["nano"], clips=12, frames=20)
    return _voice.run_config(folder, "run", precision="bf16", micro_tokens=128, global_batch_tokens=384)


def codes_of_both(bench: Bench) -> list[Cells]:
    """Real speech, encoded and embedded on this device and on a CPU by the demo model."""
    import numpy as np
    import soundfile
    import soxr

    from overtone.data_prep.audio_codecs.selection import open_codec, open_speaker_encoder

    codec, encoder = open_codec(DEMO_BASE), open_speaker_encoder(DEMO_BASE, "--model")
    sound, own = soundfile.read(SPEECH, dtype="float32", frames=8 * 44100 if bench.dry else -1)
    rate = codec.sample_rate
    wave = soxr.resample(sound, own, rate)
    clips = [wave[start : start + 4 * rate] for start in range(0, len(wave) - 4 * rate, 4 * rate)]
    heard = [soxr.resample(clip, rate, encoder.sample_rate) for clip in clips]
    both = ("cpu", bench.device.type)
    spoken, vectors = [], []
    for device in both:
        spoken.append(np.concatenate(codec.load(device).encode(clips)))
        loaded = encoder.load(device)
        vectors.append(np.stack([loaded.embed(clip) for clip in heard]))
    different, codes = int((spoken[0] != spoken[1]).sum()), spoken[0].size
    far = np.linalg.norm(vectors[0] - vectors[1], axis=1) / np.linalg.norm(vectors[0], axis=1)
    return [
        [f"codes of {len(clips)} clips of speech, here and on a CPU", f"{different:,} of {codes:,} differ", "", ""],
        [f"speaker vectors of {len(clips)} clips, here and on a CPU", f"{far.max():.1e} of their length apart", "", ""],
    ]


FIGURES = tuple(
    Figure(name, seconds, act)
    for name, seconds, act in (
        ("first calls of SDPA", 15.0, sdpa_first_calls),
        ("varlen kernel", 15.0, varlen_kernel),
        ("loss heads", 40.0, loss_heads),
        ("weight gradients", 10.0, weight_gradients),
        ("copies", 25.0, copies),
        ("AdamW", 10.0, optimizer),
        ("small operations", 5.0, launches),
        ("codes and speaker vectors", 20.0, codes_of_both),
        ("waits of a chat step", 30.0, partial(synchronizations, "llm_sft")),
        ("waits of a voice step", 30.0, partial(synchronizations, "voice_clone")),
    )
)
NOTE = (
    "Medians, by a clock with the device idle before and after. Attention: 16 heads of queries, 8 of keys and values, 128 channels, bf16; "
    "loss heads: 8,192 positions of 2,048 channels over 151,936 words. Waits: what torch.cuda.set_sync_debug_mode reports."
)
PART = Part((Table(("fact", "measured", "beside it", "that"), FIGURES, NOTE),), prepare=lambda _: None, preparing=0.0)
