"""The voice_dpo recipe: preference optimization of a Qwen3-TTS voice, on pairs of clips of the same text that it spoke itself.

    overtone train --recipe voice_dpo --model.source exports/me --data.train data/me_pairs/train.jsonl

The log-probability of a clip is that of generation: Σ log p over its codebook 0 and its end, by the talker, and over codebooks 1 to 15, by
the code predictor within each frame. The base, with which DPO and IPO compare, is the model without its adapters, or a frozen, sharded
copy of it (`Recipe.reference`). An export is one of voice_clone: named voices (`custom_voice`), or a base to train on (`base`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from overtone.finetune.config import Config, Data, Lora
from overtone.finetune.modeling.loading import resolve_source
from overtone.finetune.recipe import REFERENCE, Batch, Loaded, PredictionCache, Recipe, Reference, Sketch
from overtone.finetune.storage.construction_limits import limit_construction
from overtone.recipes.preferences.batch_targets import KL, count_predictions
from overtone.recipes.preferences.preference_terms import attach_objective, compute_terms
from overtone.recipes.preferences.reference_choice import describe_reference, is_reference_cached, needs_reference
from overtone.recipes.qwen3_tts.exporting.export_plan import FORMATS, plan_export
from overtone.recipes.qwen3_tts.model.base_voices import (
    BaseVoices,
    load_voices,
    make_speech_processor,
    read_base_voices,
    read_speaker_vectors,
    require_voices,
)
from overtone.recipes.qwen3_tts.model.clip_scores import score_codes
from overtone.recipes.qwen3_tts.model.modeling import LORA_TARGETS
from overtone.recipes.qwen3_tts.model.sequence_layout import SpeechProcessor, TokenIds
from overtone.recipes.speech.dataset_speakers import visit_speakers
from overtone.recipes.speech.training_files import describe_training_files, list_training_files
from overtone.recipes.speech.voices_json_content import describe_base

from .options import Options
from .pair_rows import collate, make_dummy_pair, read_row
from .state import PairData, VoicePreferenceState
from .verbs import INFERENCE


def load(config: Config[Options]) -> Loaded[SpeechProcessor]:
    """The talker on the meta device, with the base's speaker vectors as a buffer."""
    base, options = resolve_source(config.model.source, config.model.revision), config.options
    voices = read_base_voices(base)
    pairs = count_pairs(config.data)
    require_voices(voices, pairs, "pairs")
    name, sha256 = describe_training_files(list_training_files(config.data))
    state = VoicePreferenceState(
        speakers=voices.speakers,
        data=voices.data,
        preferences=PairData(name=name, sha256=sha256, pairs=pairs),
        base=describe_base(config.model),
        objective=options.objective,
        beta=options.strength,
        margin=options.margin,
        label_smoothing=options.label_smoothing,
        length_normalized=options.length_normalized,
    )
    loaded = load_pair_model(options, config.model.lora, base, voices, read_speaker_vectors(base, voices.rows))
    return replace(loaded.with_processor(make_speech_processor(base, voices)), state=state)


def load_pair_model(options: Options, lora: Lora | None, base: Path, voices: BaseVoices, vectors: Tensor) -> Loaded[None]:
    """The model with its objective."""
    loaded = load_voices(base, voices, vectors, lora, (describe_reference(options, lora is not None),))
    attach_objective(loaded.model, options)
    return loaded


def count_pairs(data: Data) -> dict[str, int]:
    """Speaker → pairs in `data.train`. Raises `UserError` with file and line for a row without a speaker."""
    pairs = Counter[str]()
    visit_speakers(data, "voice_dpo", None, lambda _, name, __: pairs.update([name]))
    return dict(sorted(pairs.items()))


def sketch(config: Config[Options]) -> Sketch[SpeechProcessor]:
    """For `overtone plan`: all voices of the base, without their vectors, and clips that consist almost only of frames."""
    base, options = resolve_source(config.model.source, config.model.revision), config.options
    voices = read_base_voices(base)
    ids = TokenIds.from_config(voices.config)
    with limit_construction(base):
        vectors = torch.zeros(len(voices.speakers), voices.hidden_size)

    def make_batch(count: int, positions: int) -> Batch:
        batch = collate([make_dummy_pair(positions, ids)] * count)
        added = {REFERENCE: torch.zeros(batch.targets[KL])} if is_reference_cached(options) else {}
        return replace(batch, tensors={**batch.tensors, **added})

    loaded = load_pair_model(options, config.model.lora, base, voices, vectors)
    return Sketch(loaded=loaded, batch=make_batch, processor=partial(make_speech_processor, base, voices))


RECIPE = Recipe(
    Options=Options,
    load=load,
    read=lambda row, processor, _: read_row(row, processor),
    length=lambda sample: len(sample["text"]),
    collate=collate,
    loss=partial(compute_terms, score_codes),
    reference=Reference[Options](
        predict=score_codes,
        needed=needs_reference,
        cache=PredictionCache[Options](needed=is_reference_cached, count=count_predictions),
    ),
    export=plan_export,
    formats=FORMATS,
    inference=INFERENCE,
    State=VoicePreferenceState,
    lora_targets=LORA_TARGETS,
    base_folders=("speech_tokenizer",),
    sketch=sketch,
)
