"""voice_clone: teach Qwen3-TTS 12 Hz (0.6B, 1.7B Base) one voice or several, and export it as a named voice.

    accelerate launch finetune/train.py --recipe voice_clone --data.train data/me/train.jsonl

Features: full fine-tuning, without the text embedding, or LoRA; several speakers; the language prefix; speaker vectors averaged over
several reference clips; export for the stock `qwen_tts` package, as named voices (`custom_voice`) or as a base to train on (`base`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.config import Config
from finetune.recipe import Answer, Batch, ExportPlan, Inference, Loaded, Recipe, Sample, Sketch, Term

from .options import Options

# Modules that import torch or audio packages are imported inside the functions: `finetune generate` and `serve` import this file before
# they parse their options, and their --help must not wait for torch.

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .model.sequence_layout import Ids, Processor


def load(config: Config[Options]) -> Loaded:
    """The talker on meta, the speaker vectors as a buffer; call after `prepare`."""
    from data_prep.audio_codecs.qwen3_tts_speaker_encoder import read_base_config
    from finetune.modeling.loading import resolve_source

    from .model.sequence_layout import Ids
    from .model.speaker_embeddings import known

    base = resolve_source(config.model.source, config.model.revision)
    shape, found = read_base_config(base), known(config)
    names = [speaker["name"] for speaker in found.state["speakers"]]
    processor = processor_of(config, base, Ids.of(shape), names)
    return replace(shaped(config, base, shape, found.vectors), processor=processor, state=found.state)


def shaped(config: Config[Options], base: Path, shape: dict[str, Any], vectors: Tensor) -> Loaded:
    """What the base, whose config is `shape`, and the options say, for speakers with these vectors."""
    from .model.qwen3_tts_model import block_classes, on_meta

    options = config.options
    return Loaded(
        model=on_meta(shape, vectors, options.sub_weight, options.sub_frames, options.frame_dropout, partial(adapted, config)),
        processor=None,
        blocks=block_classes(),
        base=base,
        trainable=trainable(options.trainable),
        buffers={"speaker_vectors": vectors},
    )


def adapted(config: Config[Options], name: str) -> bool:
    """Whether LoRA's pattern names this layer."""
    pattern = config.model.lora.targets if config.model.lora else None
    return pattern is not None and re.fullmatch(pattern, name) is not None


def processor_of(config: Config[Options], base: Path, ids: Ids, speakers: list[str]) -> Processor:
    """`speakers` are in the order of their vectors."""
    from .model.sequence_layout import Processor, load_tokenizer

    options = config.options
    return Processor(
        tokenizer=load_tokenizer(base),
        ids=ids,
        speakers={name: index for index, name in enumerate(speakers)},
        default_speaker=options.speaker,
        use_language=options.language == "row",
    )


def sketch(config: Config[Options]) -> Sketch:
    """For `finetune plan`: one speaker, whose vector is not computed, and clips that are nearly all frames."""
    import torch

    from data_prep.audio_codecs.qwen3_tts_speaker_encoder import read_base_config
    from finetune.modeling.loading import resolve_source

    from .model import sequence_layout

    base = resolve_source(config.model.source, config.model.revision)
    shape = read_base_config(base)
    ids = sequence_layout.Ids.of(shape)
    return Sketch(
        loaded=shaped(config, base, shape, torch.zeros(1, shape["talker_config"]["hidden_size"])),
        batch=lambda count, positions: sequence_layout.collate([sequence_layout.monotonous(positions, ids)] * count),
        processor=partial(surveyed, config, base, ids),
    )


def surveyed(config: Config[Options], base: Path, ids: Ids) -> Processor:
    """For the speakers of the data, whose reference clips are looked at and not heard by any model."""
    from .model.speaker_embeddings import check_references
    from .model.speaker_statistics import survey

    options = config.options
    speakers = survey(config, ids)
    check_references(speakers, options.references)
    return processor_of(config, base, ids, [speaker.name for speaker in speakers])


def trainable(asked: str) -> Callable[[str], bool]:
    """Which parameters `options.trainable` means."""
    return lambda name: asked == "full" or not name.startswith("talker.model.text_embedding.")


def read(row: dict[str, Any], processor: Any) -> Sample:
    """One row as tensors over S positions; see `sequence_layout.arrange`."""
    from .model import sequence_layout

    return sequence_layout.read(row, processor)


def length(sample: Sample) -> int:
    """S, text and speech positions together; 12.5 positions are a second of speech."""
    return len(sample["text"])


def collate(samples: list[Sample]) -> Batch:
    """Samples padded on the right to [B, S]."""
    from .model import sequence_layout

    return sequence_layout.collate(samples)


def loss(model: nn.Module, batch: Batch) -> dict[str, Term]:
    """Codebook 0 with end of speech (`main`), codebooks 1 to 15 (`sub`), and how many of each were the model's first guess."""
    sums: dict[str, Tensor] = model(batch.tensors)
    weights: dict[str, float] = model.weights  # type: ignore[assignment]
    return {name: Term(value, weights[name]) for name, value in sums.items()}


def prepare(config: Config[Options]) -> None:
    """Find the speakers and compute their vectors into the run's cache."""
    from .model import speaker_embeddings

    speaker_embeddings.prepare(config)
    if config.sample.prompts:
        from recipes.speech.evaluation import training_samples

        training_samples.check_prompts(
            config.sample.prompts, [speaker["name"] for speaker in speaker_embeddings.known(config).state["speakers"]]
        )


def export(base: Path, state: dict[str, Any], buffers: dict[str, Tensor], kind: str) -> ExportPlan:
    """How trained tensors become a folder for the stock package."""
    from .exporting import exported_files

    return exported_files.plan(base, state, buffers, kind)


def generate(folder: Path, argv: list[str]) -> int:
    """Speak with an export."""
    from .cli import generate as generate_command

    return generate_command.generate(folder, argv)


def sample(folder: Path, prompts: list[str]) -> list[Answer]:
    """Sentences spoken by an export, while its run trains."""
    from recipes.speech.evaluation import training_samples

    from .inference.synthesizer import SPEECH

    return training_samples.speak_prompts(SPEECH, folder, prompts)


def evaluate(model: Path, argv: list[str]) -> int:
    """Say how good a voice is."""
    from recipes.speech.cli import evaluate as evaluate_command

    from .inference.synthesizer import SPEECH

    return evaluate_command.evaluate(SPEECH, model, argv)


def serve(folders: list[Path], argv: list[str]) -> int:
    """A page to listen on, and OpenAI's API for speech."""
    from recipes.speech.serving import http_server

    from .inference.synthesizer import SPEECH

    return http_server.serve(SPEECH.inspect, folders, argv)


RECIPE = Recipe(
    Options=Options,
    load=load,
    read=read,
    length=length,
    collate=collate,
    loss=loss,
    export=export,
    formats=("custom_voice", "base"),
    inference=Inference(generate=generate, serve=serve, sample=sample, evaluate=evaluate),
    # The layers of talker and predictor. Embeddings and heads stay: what a code means does not change with the voice.
    lora_targets=r"talker\.(code_predictor\.)?model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)",
    prepare=prepare,
    base_folders=("speech_tokenizer",),
    sketch=sketch,
)
