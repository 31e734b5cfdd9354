"""The voice_clone recipe: trains Qwen3-TTS 12 Hz (0.6B, 1.7B Base) on one or more voices and exports them as named voices.

    overtone train --recipe voice_clone --data.train data/me/train.jsonl

Features: full fine-tuning, with or without the text embedding, or LoRA; several speakers; a language prefix; speaker vectors averaged over
several reference clips; export for the stock `qwen_tts` package, as named voices (`custom_voice`) or as a base to train on (`base`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from pydantic import JsonValue
from torch import Tensor, nn

from overtone.data_prep.audio_codecs.qwen3_tts_speaker_encoder import read_base_config
from overtone.finetune.config import Config, Data, Lora
from overtone.finetune.modeling.loading import resolve_source
from overtone.finetune.modeling.lora_adapters import is_targeted
from overtone.finetune.recipe import BASE_STATES, BaseDistance, Batch, Loaded, Recipe, Sketch
from overtone.finetune.storage.construction_limits import limit_construction
from overtone.recipes.qwen3_tts.exporting.export_plan import plan_export
from overtone.recipes.qwen3_tts.model import sequence_layout
from overtone.recipes.qwen3_tts.model.modeling import LORA_TARGETS, block_classes, build_on_meta
from overtone.recipes.qwen3_tts.model.sequence_layout import SpeechProcessor, TokenIds, load_tokenizer
from overtone.recipes.qwen3_tts.state import VoiceCloneState
from overtone.recipes.speech.multi_term_loss import compute_weighted_sums

from .model import speaker_vectors
from .model.dataset_speakers import collect_speakers
from .model.speaker_vectors import check_reference_clips, load_speaker_vectors
from .options import Options
from .verbs import INFERENCE


def load(config: Config[Options]) -> Loaded[SpeechProcessor]:
    """The talker on the meta device, with the speaker vectors as a buffer. Requires `prepare` to have run."""
    base = resolve_source(config.model.source, config.model.revision)
    model_config, speakers = read_base_config(base), load_speaker_vectors(config.run.dir)
    names = [speaker.name for speaker in speakers.state.speakers]
    processor = make_processor(config.options, base, TokenIds.from_config(model_config), names)
    loaded = make_loaded(config.options, config.model.lora, base, model_config, speakers.vectors)
    return replace(loaded.with_processor(processor), state=speakers.state)


def make_loaded(options: Options, lora: Lora | None, base: Path, model_config: dict[str, JsonValue], vectors: Tensor) -> Loaded:
    """The model of `base`, whose config.json is `model_config`, with speaker vectors [speakers, H]; without processor and state."""
    with limit_construction(base):
        adapted = partial(is_targeted, lora)
        model = build_on_meta(model_config, vectors, options.sub_weight, options.sub_frames, options.frame_dropout, adapted)
    return Loaded(
        model=model,
        processor=None,
        blocks=block_classes(),
        base=base,
        trainable=select_trainable(options.trainable),
        buffers={"speaker_vectors": vectors},
    )


def make_processor(options: Options, base: Path, ids: TokenIds, speakers: list[str]) -> SpeechProcessor:
    """The processor that turns rows into samples. `speakers` are names in the order of the speaker vectors."""
    return SpeechProcessor(
        tokenizer=load_tokenizer(base),
        ids=ids,
        speakers={name: index for index, name in enumerate(speakers)},
        default_speaker=options.speaker,
        use_language=options.language == "row",
    )


def sketch(config: Config[Options]) -> Sketch[SpeechProcessor]:
    """For `overtone plan`: one speaker, whose vector is not computed, and clips that consist almost only of frames."""
    base = resolve_source(config.model.source, config.model.revision)
    model_config = read_base_config(base)
    ids = sequence_layout.TokenIds.from_config(model_config)
    with limit_construction(base):
        vectors = torch.zeros(1, model_config["talker_config"]["hidden_size"])
    return Sketch(
        loaded=make_loaded(config.options, config.model.lora, base, model_config, vectors),
        batch=lambda count, positions: sequence_layout.collate([sequence_layout.make_dummy_sample(positions, ids)] * count),
        processor=partial(make_plan_processor, config.data, config.options, base, ids),
    )


def make_plan_processor(data: Data, options: Options, base: Path, ids: TokenIds) -> SpeechProcessor:
    """The processor for the speakers in the data. Checks that their reference clips are usable, without running the speaker encoder."""
    speakers = collect_speakers(data, options.speaker, ids)
    check_reference_clips(speakers, options.references)
    return make_processor(options, base, ids, [speaker.name for speaker in speakers])


def select_trainable(trainable: str) -> Callable[[str], bool]:
    """For a value of `options.trainable`, a function that returns whether a parameter is trained."""
    return lambda name: trainable == "full" or not name.startswith("talker.model.text_embedding.")


def compute_states(model: nn.Module, batch: Batch) -> Tensor:
    """The talker's states [M, H] that predict codebook 0 and end of speech. The talker predicts no text."""
    states: Tensor = model(batch.tensors, result="states")[BASE_STATES]
    return states


RECIPE = Recipe(
    Options=Options,
    load=load,
    read=lambda row, processor, _: sequence_layout.read_row(row, processor),
    length=lambda sample: len(sample["text"]),
    collate=sequence_layout.collate,
    loss=compute_weighted_sums,
    base_distance=BaseDistance(states=compute_states, head=lambda _: "talker.codec_head", term="main"),
    export=plan_export,
    formats=("custom_voice", "base"),
    inference=INFERENCE,
    State=VoiceCloneState,
    lora_targets=LORA_TARGETS,
    prepare=speaker_vectors.prepare,
    base_folders=("speech_tokenizer",),
    sketch=sketch,
)
