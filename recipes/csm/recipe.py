"""The csm recipe: trains Sesame CSM-1B on one or more voices and exports a folder that transformers' own class loads.

    overtone train --recipe csm --data.train data/me/train.jsonl

Features: full fine-tuning, with or without the text embedding, or LoRA; several speakers, each with a number in the prompt; training of the
depth decoder on a share of the frames; earlier clips of the recording as context. The codec (Mimi) is not trained; an export contains that
of the base.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from overtone.finetune.config import Config
from overtone.finetune.modeling.loading import resolve_source
from overtone.finetune.modeling.lora_adapters import is_targeted
from overtone.finetune.recipe import BASE_STATES, BaseDistance, Batch, ContextRows, Loaded, Recipe, Sketch
from overtone.recipes.recipe_state_file import load_state
from overtone.recipes.speech.multi_term_loss import compute_weighted_sums

from .exporting.export_plan import plan_export
from .model import dataset_speakers, modeling, sequence_layout
from .model.dataset_speakers import assign_numbers, collect_speakers
from .model.model_config import read_config
from .model.sequence_layout import CsmProcessing, CsmTokens, load_tokenizer
from .options import Options, limit_context
from .state import CsmState
from .verbs import INFERENCE

HEAD = "lm_head"
"""The head of codebook 0."""


def load(config: Config[Options]) -> Loaded[CsmProcessing]:
    """The model on the meta device, without its codec. Requires `prepare` to have run."""
    loaded, tokens = make_loaded(config)
    state = load_state(config.run.dir, CsmState)
    processor = make_processor(config.options, loaded.base, tokens, state.numbers())
    return replace(loaded.with_processor(processor), state=state, remarks=describe_context(state))


def make_loaded(config: Config[Options]) -> tuple[Loaded, CsmTokens]:
    """The model of the base's config.json, without processor and state, and its ids."""
    options = config.options
    base = resolve_source(config.model.source, config.model.revision)
    model_config = read_config(base)
    loaded = Loaded(
        model=modeling.build_on_meta(
            model_config,
            base,
            options.depth_weight,
            options.depth_share,
            chunked_head=config.train.base_distance > 0 and not is_targeted(config.model.lora, HEAD),
        ),
        processor=None,
        blocks=modeling.BLOCKS,
        base=base,
        trainable=select_trainable(options.trainable),
    )
    return loaded, CsmTokens.from_config(model_config)


def make_processor(options: Options, base: Path, tokens: CsmTokens, speakers: dict[str, int]) -> CsmProcessing:
    """The processor that turns rows into samples."""
    return CsmProcessing(load_tokenizer(base, tokens), tokens, speakers, options.speaker, options.context_loss)


def describe_context(state: CsmState) -> tuple[str, ...]:
    """The line of the log about the clips before a clip; none without context."""
    if not (context := state.context):
        return ()
    return (
        f"context: {context.clips:,} of {state.data.clips:,} training clips follow 1 to {context.turns} earlier clips of their recording, "
        f"{context.seconds:g} s on average; the loss is that of {'the clip' if context.loss == 'last' else 'all of them'}",
    )


def sketch(config: Config[Options]) -> Sketch[CsmProcessing]:
    """For `overtone plan`: clips that consist almost only of frames."""
    loaded, tokens = make_loaded(config)

    def make_plan_processor() -> CsmProcessing:
        names = [*collect_speakers(config.data, config.options.speaker, tokens)]
        return make_processor(config.options, loaded.base, tokens, assign_numbers(loaded.base, names))

    return Sketch(
        loaded=loaded,
        batch=lambda count, positions: sequence_layout.collate([sequence_layout.make_dummy_sample(positions, tokens)] * count),
        processor=make_plan_processor,
    )


def select_trainable(trainable: str) -> Callable[[str], bool]:
    """For a value of `options.trainable`, a function that returns whether a parameter is trained."""
    return lambda name: trainable == "full" or not name.startswith("embed_text_tokens.")


def compute_states(model: nn.Module, batch: Batch) -> Tensor:
    """The backbone's states [N, H] that predict the targets of codebook 0. The backbone predicts no text."""
    states: Tensor = model(batch.tensors, result="states")[BASE_STATES]
    return states


def prepare(config: Config[Options]) -> None:
    """Find the speakers in the data, and check all rows' codes."""
    base = resolve_source(config.model.source, config.model.revision)
    dataset_speakers.prepare_speakers(config, base, CsmTokens.from_config(read_config(base)))


RECIPE = Recipe(
    Options=Options,
    load=load,
    read=lambda row, processor, _: sequence_layout.read_row(row, processor),
    context=ContextRows(sequence_layout.locate_clip, limit_context, sequence_layout.join_turns),
    collate=sequence_layout.collate,
    loss=compute_weighted_sums,
    base_distance=BaseDistance(states=compute_states, head=lambda _: HEAD, term="backbone"),
    export=lambda base, state, _, __: plan_export(base, state),
    formats=("transformers",),
    inference=INFERENCE,
    State=CsmState,
    # The layers of backbone and depth decoder. Embeddings and heads are not adapted: the meaning of a code does not depend on the voice.
    lora_targets=r"(backbone_model|depth_decoder\.model)\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)",
    prepare=prepare,
    sketch=sketch,
)
