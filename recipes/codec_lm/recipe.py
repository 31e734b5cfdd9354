"""The codec_lm recipe: language models that speak in codec tokens, Orpheus-3B with SNAC first.

    overtone train --recipe codec_lm --data.train data/me/train.jsonl

What differs between makers is a row of `families.py`. Model, loss, packing and parallelism are those of every causal language model
(`recipes/language`); full fine-tuning, LoRA and QLoRA; several speakers. An export loads in stock transformers and contains the codec.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from overtone.finetune.config import Config
from overtone.finetune.modeling.loading import resolve_source
from overtone.finetune.recipe import Loaded, Recipe
from overtone.recipes.language import causal_lm_loss, collation
from overtone.recipes.language.model_loading import load_for_training, sketch_model
from overtone.recipes.language.modeling import loss_assumption_checks
from overtone.recipes.language.modeling.causal_model import CausalModel, read_config
from overtone.recipes.language.tokenization.tokenizer import check_vocabulary, load_tokenizer
from overtone.recipes.recipe_state_file import load_state, store_state
from overtone.recipes.speech.run_codec import open_run_codec
from overtone.recipes.speech.training_files import check_dataset_codec

from .exporting.export_plan import plan_export
from .families import choose_family
from .model import dataset_speakers, sequence_layout
from .model.sequence_layout import SpeechTextProcessor, find_token_ids
from .options import Options
from .state import CodecLmState
from .verbs import INFERENCE

# Audio packages, and what only generation needs, are imported inside the functions: training runs without them.


def load(config: Config[Options]) -> Loaded[SpeechTextProcessor]:
    """The model on meta, its processor, and the speakers in its state. Requires `prepare` to have run."""
    loaded = load_for_training(config)
    remark = {"speech": "supervised: the codes and the end of speech", "everything": "supervised: every token, those of the text too"}
    return replace(
        loaded.with_processor(load_processor(config.options, loaded)),
        state=load_state(config.run.dir, CodecLmState),
        remarks=(f"{remark[config.options.supervise]} (options.supervise: {config.options.supervise})", *loaded.remarks),
    )


def load_processor(options: Options, loaded: Loaded) -> SpeechTextProcessor:
    """The base's tokenizer with the family's tokens. Raises `UserError` for a base without them."""
    assert isinstance(loaded.model, CausalModel)
    processor = make_processor(options, loaded.base, loaded.model.config.max_position_embeddings)
    check_vocabulary(processor.tokenizer, loaded.model.vocabulary, loaded.base)
    return processor


def make_processor(options: Options, base: Path, positions: int) -> SpeechTextProcessor:
    """The processor for a base whose positions are known. Reads the base's small files only."""
    tokenizer = load_tokenizer(base, None)
    family = choose_family(base, tokenizer.get_vocab, options.family)
    ids = find_token_ids(tokenizer, family, base)
    return SpeechTextProcessor(tokenizer, family, ids, positions, options.speaker, options.supervise)


def prepare(config: Config[Options]) -> None:
    """Check base, codec and data before anything expensive, and store what the export needs in the run's cache."""
    base = resolve_source(config.model.source, config.model.revision)
    family = make_processor(config.options, base, read_config(base).max_position_embeddings).family
    codec = open_run_codec(config.options.codec, base, dataset_speakers.expect_codec(family))
    check_dataset_codec(config.data, codec)  # before the rows are checked: its message names the codec of the data
    speakers = dataset_speakers.collect_speakers(config.data, config.options.speaker, family)
    store_state(config.run.dir, dataset_speakers.make_recipe_state(config, family, speakers, codec.digest()))


RECIPE = Recipe(
    Options=Options,
    load=load,
    read=lambda row, processor, _: sequence_layout.read_row(row, processor),
    collate=collation.collate,
    loss=causal_lm_loss.compute_terms,
    base_distance=causal_lm_loss.COMPARISON,
    export=lambda base, state, _, __: plan_export(base, state),
    formats=("transformers",),
    inference=INFERENCE,
    State=CodecLmState,
    # The layers. Embeddings and head are not adapted: the meaning of a code does not depend on the voice.
    lora_targets=r"model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)",
    prepare=prepare,
    pack=collation.pack,
    pad=collation.pad,
    verify=loss_assumption_checks.check_batching,
    report=causal_lm_loss.add_perplexity,
    base_folders=("speech_codec",),
    sketch=lambda config: sketch_model(config, load_processor),
)
