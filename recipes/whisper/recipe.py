"""whisper: fine-tuning of OpenAI's Whisper on clips with their text, in any of its languages.

    overtone train --recipe whisper --data.train data/me/train.jsonl --data.val data/me/val.jsonl

A sample is one clip, and counts as one position: `train.micro_tokens` and `train.global_batch_tokens` are numbers of clips. The encoder
computes 30 s for each of them, whatever its length.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from overtone.finetune.config import Config
from overtone.finetune.modeling.loading import resolve_source
from overtone.finetune.recipe import BASE_DISTANCE, BaseDistance, Batch, Loaded, Recipe, Sample, Sketch, Term
from overtone.recipes.language.collation import make_filler
from overtone.recipes.transformers_meta_models import find_blocks

from .exporting import export_plan
from .model import modeling, sequence_layout
from .model.sequence_layout import FRAMES, RecognizerProcessor
from .model.spectrogram_masks import mask_sample
from .model.vocabulary_check import check_vocabulary
from .options import Options
from .state import WhisperState
from .verbs import INFERENCE

PLANNED_TOKENS = 64
"""Tokens of the text of each clip in `overtone plan`: about 15 seconds of speech."""


def load(config: Config[Options]) -> Loaded[RecognizerProcessor]:
    """The model on meta. Raises `UserError` for a base that is no Whisper."""
    options = config.options
    base = resolve_source(config.model.source, config.model.revision)
    known = modeling.read_config(base)
    processor = modeling.make_processor(known, options)
    code = None if options.language is None else sequence_layout.choose_language(options.language, processor)
    task = sequence_layout.choose_task(None, processor)
    check_vocabulary(base, processor)
    model = modeling.build_on_meta(known, base)
    kind = f"multilingual, {processor.languages} languages" if processor.multilingual else "English only"
    return Loaded(
        model=model,
        processor=processor,
        blocks=find_blocks(model.model),
        base=base,
        trainable=lambda name: modeling.is_trained(name, options.freeze_encoder),
        lora_targets=r"model\.decoder\..*(_proj|fc[12])" if options.freeze_encoder else None,
        state=WhisperState(language=code if processor.multilingual else None, task=task),
        libraries=("openai-whisper", "soundfile", "soxr", "av"),
        remarks=(f"Whisper, {kind}; {processor.mels} mel bands",),
    )


def sketch(config: Config[Options]) -> Sketch[RecognizerProcessor]:
    """For `overtone plan`: silence with texts of `PLANNED_TOKENS`."""
    loaded = load(config)
    filler = {"features": torch.zeros(loaded.processor.mels, FRAMES), **make_filler(PLANNED_TOKENS)}
    return Sketch(loaded, lambda count, positions: sequence_layout.collate([filler] * (count * positions)), lambda: loaded.processor)


def loss(model: nn.Module, batch: Batch) -> dict[str, Term]:
    """Negative log-likelihood of the text and its end, and the number of tokens that were predicted; with the states of a base in the
    batch, also the distance to it."""
    nll, hits, *distance = model(batch.tensors)
    terms = {"nll": Term(nll, 1.0), "accuracy": Term(hits, 0.0)}
    return {**terms, BASE_DISTANCE: Term(distance[0], 1.0)} if distance else terms


def compute_states(model: nn.Module, batch: Batch) -> Tensor:
    """One forward → the states [M, H] from which the supervised tokens are predicted."""
    states: Tensor = model(batch.tensors, result="states")
    return states


def show(sample: Sample, processor: RecognizerProcessor) -> str:
    """A clip's tokens for a terminal; those that are learned stand after the bar."""
    encoding = sequence_layout.load_tokenizer(processor, "en", "transcribe").encoding
    given = int((~sample["supervised"]).sum())
    ids = sample["ids"].tolist()
    return f"{encoding.decode(ids[:given])} | {encoding.decode(ids[given:])}; {sample['features'].shape[1] / 100:.2f} s with silence"


RECIPE = Recipe(
    Options=Options,
    load=load,
    read=sequence_layout.read,
    length=lambda _: 1,
    collate=sequence_layout.collate,
    loss=loss,
    export=lambda base, state, _, form: export_plan.plan_export(base, state, form),
    formats=export_plan.FORMATS,
    inference=INFERENCE,
    State=WhisperState,
    files=lambda row: (sequence_layout.read_file_name(row),),
    base_distance=BaseDistance(states=compute_states, head=lambda _: modeling.HEAD, term="nll"),
    augment=mask_sample,
    unit="clips",
    show=show,
    sketch=sketch,
)
