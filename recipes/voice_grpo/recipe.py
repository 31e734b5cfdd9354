"""The voice_grpo recipe: training of a Qwen3-TTS voice by rewards for its own speech.

    overtone train --recipe voice_grpo --model.source exports/me --data.train texts.jsonl --options.judge.recordings data/me/val.jsonl

In each step the model speaks every text several times, in a running batch, with its current weights. The codec decodes the clips, a judge
measures them, and each is trained by how much better than the others of its group it is. The log-probability of a clip is that of
generation, as in voice_dpo. An export is one of voice_clone: named voices (`custom_voice`), or a base to train on (`base`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from overtone.data_prep import manifest
from overtone.finetune.config import Config, Data, Lora
from overtone.finetune.modeling.loading import resolve_source
from overtone.finetune.recipe import REFERENCE, Batch, Loaded, Recipe, Reference, Rollouts, Row, Sample, Sketch
from overtone.finetune.storage.construction_limits import limit_construction
from overtone.recipes.policy.policy_options import describe_reference, needs_reference
from overtone.recipes.policy.policy_terms import attach_bounds, check_mismatch, compute_terms
from overtone.recipes.policy.rollout_samples import MISMATCH, make_lesson
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
from overtone.recipes.qwen3_tts.model.sequence_layout import TokenIds, find_language, make_dummy_sample
from overtone.recipes.speech.dataset_row_checks import check_text
from overtone.recipes.speech.dataset_speakers import visit_speakers
from overtone.recipes.speech.spoken_text import SpokenText, clean_text, describe_total
from overtone.recipes.speech.training_files import describe_training_files, list_training_files
from overtone.recipes.speech.voices_json_content import describe_base

from .clip_judge import check_models, digest_judge, read_recordings
from .clip_samples import collate, measure_length
from .group_speaking import GroupSpeaking
from .options import Options
from .rollout_memory import count_rollout_bytes, describe_rollouts
from .state import TextData, VoicePolicyState
from .text_rows import TextProcessor, read_row
from .verbs import INFERENCE


def load(config: Config[Options]) -> Loaded[TextProcessor]:
    """The talker on the meta device, with the base's speaker vectors as a buffer."""
    base, options = resolve_source(config.model.source, config.model.revision), config.options
    voices = read_base_voices(base)
    texts = describe_texts(config.data, voices)
    recordings = read_recordings(options.judge, texts.texts)
    state = VoicePolicyState(
        speakers=voices.speakers,
        data=voices.data,
        texts=texts,
        base=describe_base(config.model),
        objective=options.objective,
        group=options.group,
        max_seconds=options.max_seconds,
        clip_low=options.clip_low,
        clip_high=options.upper_clip,
        kl_weight=options.kl_weight,
        rewards=options.rewards.model_dump(),
        judge=digest_judge(options.judge, recordings),
    )
    loaded = load_speaking_model(options, config.model.lora, base, voices, read_speaker_vectors(base, voices.rows), texts.unspoken)
    return replace(loaded.with_processor(make_processor(base, voices, options)), state=state)


def describe_texts(data: Data, voices: BaseVoices) -> TextData:
    """Return the texts in `data.train`; the only voice of the base speaks rows without a speaker. Raises `UserError` for a speaker that the
    base lacks, and with file and line for a row without a text, without a speaker if the base has several, or of an unknown language."""
    texts, languages, ids, changed = Counter[str](), set[str](), TokenIds.from_config(voices.config), list[SpokenText]()
    own = {speaker.name: speaker.language for speaker in voices.speakers}

    def add_row(_: Path, name: str, row: Row) -> None:
        texts[name] += 1
        languages.add(find_language({"language": row.get("language") or own.get(name)}, ids) or manifest.AUTO)
        if (spoken := clean_text(check_text(row.get("text")))).removed:
            changed.append(spoken)

    visit_speakers(data, "voice_grpo", next(iter(own)) if len(own) == 1 else None, add_row)
    require_voices(voices, texts, "texts")
    name, sha256 = describe_training_files(list_training_files(data))
    return TextData(
        name=name, sha256=sha256, texts=dict(sorted(texts.items())), languages=sorted(languages), unspoken=describe_total(changed)
    )


def load_speaking_model(
    options: Options, lora: Lora | None, base: Path, voices: BaseVoices, vectors: Tensor, unspoken: str
) -> Loaded[None]:
    """The model with the bounds of its loss. `unspoken`: what was dropped from the texts."""
    dropped = f"the texts are spoken without {unspoken}" if unspoken else ""
    remarks = (describe_rollouts(options), describe_reference(options, lora is not None), dropped)
    loaded = load_voices(base, voices, vectors, lora, remarks)
    attach_bounds(loaded.model, options)
    return loaded


def make_processor(base: Path, voices: BaseVoices, options: Options) -> TextProcessor:
    """The processor that turns rows into texts to speak."""
    speech = make_speech_processor(base, voices)
    only = next(iter(speech.speakers)) if len(speech.speakers) == 1 else None
    languages = {speaker.name: speaker.language for speaker in voices.speakers}
    return TextProcessor(replace(speech, default_speaker=only), languages, options)


def sketch(config: Config[Options]) -> Sketch[TextProcessor]:
    """For `overtone plan`: all voices of the base, without their vectors, and clips that consist almost only of frames."""
    base, options = resolve_source(config.model.source, config.model.revision), config.options
    voices = read_base_voices(base)
    ids = TokenIds.from_config(voices.config)
    texts = describe_texts(config.data, voices)
    read_recordings(options.judge, texts.texts)
    with limit_construction(base):
        vectors = torch.zeros(len(voices.speakers), voices.hidden_size)

    def make_batch(count: int, positions: int) -> Batch:
        batch = collate([make_dummy_clip(positions // options.group, ids)] * (count * options.group))
        added = {REFERENCE: torch.zeros(batch.targets[MISMATCH])} if needs_reference(options) else {}
        return replace(batch, tensors={**batch.tensors, **added})

    loaded = load_speaking_model(options, config.model.lora, base, voices, vectors, texts.unspoken)
    return Sketch(loaded=loaded, batch=make_batch, processor=partial(make_processor, base, voices, options))


def make_dummy_clip(positions: int, ids: TokenIds) -> Sample:
    """A clip of so many positions (at least 13) for memory estimates."""
    clip = make_dummy_sample(max(positions, 13), ids)
    tokens = int(clip["frame_mask"].sum()) * ids.codebooks + 1
    return {**clip, **make_lesson("grpo", [0.0] * tokens, 0.0, tokens)}


RECIPE = Recipe(
    Options=Options,
    load=load,
    read=lambda row, processor, _: read_row(row, processor),
    length=lambda text: int(text["positions"]),
    collate=collate,
    loss=partial(compute_terms, score_codes),
    reference=Reference[Options](predict=score_codes, needed=needs_reference),
    rollouts=Rollouts(open=GroupSpeaking, check=check_mismatch, count_bytes=count_rollout_bytes, measure=measure_length),
    export=plan_export,
    formats=FORMATS,
    inference=INFERENCE,
    State=VoicePolicyState,
    lora_targets=LORA_TARGETS,
    prepare=lambda config: check_models(config.options.judge),
    base_folders=("speech_tokenizer",),
    sketch=sketch,
)
