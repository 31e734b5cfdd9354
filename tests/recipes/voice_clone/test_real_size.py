"""The released 0.6B size for real: one optimizer step, one checkpoint and one export on a CPU, with random weights."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
import soundfile
import torch
from safetensors import safe_open
from torch import Tensor, nn

from overtone.finetune.checkpointing import rank_shards
from overtone.finetune.checkpointing.checkpoint import Saver
from overtone.finetune.checkpointing.rank_shards import TensorEntry
from overtone.finetune.config import Config, resolve
from overtone.finetune.data import batching
from overtone.finetune.distributed import process_group
from overtone.finetune.exporting import export
from overtone.finetune.modeling import loading
from overtone.finetune.storage import files
from overtone.finetune.training import loop, setup
from overtone.finetune.training.step import Training, train_step
from overtone.recipes.qwen3_tts.model import config_factory
from overtone.recipes.voice_clone.model import tiny_checkpoint
from overtone.recipes.voice_clone.recipe import RECIPE

GIB = 2**30
MEMORY, DISK = 20 * GIB, 20 * GIB
"""Of memory, masters, gradients and moments take 13.5 GiB and a step 4 more; of disk, the checkpoint 10.1, base and export 1.7 each."""
WHOLE, TRAINED = 914_643_008, 905_788_672
CODEC_EMBEDDING = "talker.model.codec_embedding.weight"
LOOKED_AT = (
    CODEC_EMBEDDING,
    "talker.model.text_embedding.weight",
    "talker.model.layers.27.mlp.down_proj.weight",
    "talker.text_projection.linear_fc1.bias",
    "talker.code_predictor.model.layers.4.self_attn.q_norm.weight",
    "talker.code_predictor.lm_head.14.weight",
)
SPEAKER_ROW = 3000


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A folder that does not outlive the test: pytest would keep three of them."""
    if (available := psutil.virtual_memory().available) < MEMORY:
        pytest.skip(f"{available / GIB:.1f} GiB of memory are available, {MEMORY / GIB:.0f} are needed")
    if (free := shutil.disk_usage(tmp_path).free) < DISK:
        pytest.skip(f"{free / GIB:.1f} GiB are free at {tmp_path}, {DISK / GIB:.0f} are needed")
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_step_a_checkpoint_and_an_export(room: Path) -> None:
    with measured("base"):
        base = write_base(room / "base")
    saved = train_and_save(configure(room, base))
    gc.collect()
    with measured("export"):
        exported = export.export(room / "run", room / "export", "custom_voice")

    assert count(shapes_in(base)) == WHOLE
    assert saved.trained == count(saved.shapes) == TRAINED
    assert saved.peak <= 1.1 * saved.before, f"saving took {saved.before / GIB:.2f} GiB to {saved.peak / GIB:.2f}"
    expected = {name: shape for name, shape in shapes_in(base).items() if not name.startswith("speaker_encoder.")}
    assert shapes_in(exported) == expected == saved.shapes
    assert expected["talker.model.text_embedding.weight"] == (151_936, 2048)
    check_values(exported, base, saved.values)


def check_values(exported: Path, base: Path, trained: dict[str, Tensor]) -> None:
    """Bit for bit what was trained, in the base's type, and no longer the base."""
    with loading.open_base(exported) as read, loading.open_base(base) as read_base:
        for name, value in trained.items():
            written, begun = read(name, None), read_base(name, None)
            assert written.dtype == begun.dtype == torch.bfloat16
            rows = [row for row in range(len(value)) if (name, row) != (CODEC_EMBEDDING, SPEAKER_ROW)]
            assert torch.equal(written[rows], value[rows]), name
            assert not torch.equal(written[rows], begun[rows]), f"{name} was not trained"
        assert not torch.equal(read(CODEC_EMBEDDING, None)[SPEAKER_ROW], trained[CODEC_EMBEDDING][SPEAKER_ROW]), "no speaker's vector"


@dataclass(frozen=True)
class SavedTraining:
    """What is left of a training that is over."""

    trained: int
    shapes: dict[str, tuple[int, ...]]
    values: dict[str, Tensor]
    """Some trained tensors, bf16."""
    before: int
    """Resident bytes when saving began."""
    peak: int
    """The most while it went on."""


def train_and_save(config: Config) -> SavedTraining:
    joined = process_group.join((), config.run.dir)
    try:
        with measured("build"):
            training, _ = setup.build(config, RECIPE, joined)
        with measured("step"):
            progress = one_step(training)
        with measured("save"):
            before = forget_peak()
            save(training, progress)
            peak = peak_memory()
        return summarize_training(training.model, before, peak)
    finally:
        process_group.leave()


def one_step(training: Training) -> loop.Progress:
    step = next(
        batching.steps(
            training.order,
            training.rows.lengths,
            batching.Place(),
            epochs=None,
        )
    )
    loader = batching.Loader(training.rows, RECIPE, rank=0, size=1)
    numbers = train_step(training, loader.turns(step.micros), 0)
    loader.close()
    assert math.isfinite(numbers["loss"]) and numbers["grad_norm"] > 0
    return loop.Progress(1, step.after)


def save(training: Training, progress: loop.Progress) -> None:
    run_dir = training.config.run.dir
    saver = Saver(training.world, run_dir, keep=2, asynchronous=training.config.checkpoint.asynchronous)
    loop.save(training, progress, saver)
    assert saver.finish() == run_dir / "checkpoints" / "step-00000001"
    saver.close()


def summarize_training(model: nn.Module, before: int, peak: int) -> SavedTraining:
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    values = {name: parameters[name].full_tensor().detach().to(torch.bfloat16) for name in LOOKED_AT}
    forms = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    return SavedTraining(sum(parameter.numel() for parameter in parameters.values()), forms, values, before, peak)


def configure(room: Path, base: Path) -> Config:
    """One clip of two seconds, one step, fp32, saved while training waits."""
    chance = np.random.RandomState(0)
    soundfile.write(room / "clip.wav", 0.1 * chance.randn(48000), 24000)
    row = {"audio": "clip.wav", "text": "She counted the boats.", "speaker": "Ann", "language": "english"}
    row["audio_codes"] = chance.randint(0, 2048, (25, 16)).tolist()
    (room / "train.jsonl").write_text(json.dumps(row) + "\n")
    given = {"model.source": base, "data.train": room / "train.jsonl", "run.dir": room / "run", "train.precision": "fp32"}
    rest = {"train.steps": 1, "train.lr": 1e-2, "train.schedule": "constant", "train.warmup": 0, "checkpoint.asynchronous": "false"}
    return resolve("voice_clone", RECIPE.Options, [], [(key, str(value)) for key, value in {**given, **rest}.items()])


def write_base(folder: Path) -> Path:
    """The released 0.6B config.json with random bf16 weights, drawn and written one tensor at a time."""
    shape, codec = config_factory.make_released_config("0.6B"), config_factory.make_codec_config(2048)
    contents = {
        **released_tokenizer(),
        **tiny_checkpoint.make_config_files(shape, codec),
        "speech_tokenizer/model.safetensors": tiny_checkpoint.make_codec_weights(codec, seed=0),
    }
    for name, data in contents.items():
        files.write_bytes(folder / name, data)
    model = stock_model(shape)
    entries = [TensorEntry(name, torch.bfloat16, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    torch.manual_seed(0)
    rank_shards.write_stream(folder / "model.safetensors", entries, (fresh(entry) for entry in entries), {})
    return folder


def stock_model(shape: dict[str, object]) -> nn.Module:
    """The package's own model on meta, speaker encoder included."""
    from overtone.data_prep.audio_codecs.qwen_tts_import import import_qwen_tts

    import_qwen_tts()
    from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration

    with torch.device("meta"):
        return Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**shape))


def fresh(entry: TensorEntry) -> Tensor:
    norm = entry.name.endswith("norm.weight")
    return torch.ones(entry.shape, dtype=entry.dtype) if norm else torch.empty(entry.shape, dtype=entry.dtype).normal_(std=0.02)


def released_tokenizer() -> dict[str, bytes]:
    """The tiny tokenizer with its special tokens at the released ids; words that no text makes fill the space below them."""
    text = config_factory.RELEASED_TEXT
    ids = dict(
        zip(tiny_checkpoint.SPECIAL, (text.im_start - 1, text.im_start, text.im_end, text.tts_pad, text.tts_bos, text.tts_eos), strict=True)
    )
    made = tiny_checkpoint.make_tokenizer_files(tiny_checkpoint.train_text_tokenizer())
    words = json.loads(made["vocab.json"])
    words |= {f"<unused {number}>": number for number in range(len(words), text.im_start - 1)}
    between = {f"<unused {number}>": number for number in range(text.im_end + 1, text.tts_pad)}
    declared = json.loads(made["tokenizer_config.json"])
    declared["added_tokens_decoder"] = {str(number): {"content": token, "special": True} for token, number in (ids | between).items()}
    return made | {"vocab.json": json.dumps(words).encode(), "tokenizer_config.json": json.dumps(declared).encode()}


def shapes_in(folder: Path) -> dict[str, tuple[int, ...]]:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping


def count(forms: dict[str, tuple[int, ...]]) -> int:
    return sum(map(math.prod, forms.values()))


def forget_peak() -> int:
    """Start a new peak (Linux: proc(5), /proc/pid/clear_refs); returns the resident bytes of now."""
    Path("/proc/self/clear_refs").write_text("5")
    return psutil.Process().memory_info().rss


def peak_memory() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


@contextlib.contextmanager
def measured(part: str) -> Iterator[None]:
    """Tell people the seconds and the peak memory of a part."""
    began = time.monotonic()
    forget_peak()
    yield
    print(f"{part}: {time.monotonic() - began:.0f} s, at most {peak_memory() / GIB:.2f} GiB")
