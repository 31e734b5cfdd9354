"""The csm recipe: trains Sesame CSM-1B on one or more voices and exports a folder that transformers' own class loads.

    python -m finetune train --recipe csm --data.train data/me/train.jsonl

Features: full fine-tuning, with or without the text embedding, or LoRA; several speakers, each with a number in the prompt; training of the
depth decoder on a share of the frames. The codec (Mimi) is not trained; an export contains that of the base. Each clip is a conversation of
one turn: earlier turns as context are not trained.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.config import Config
from finetune.recipe import BASE_STATES, BaseDistance, Batch, ExportPlan, Loaded, Recipe, Sample, Sketch, Term

from .arguments import VERBS
from .options import Options

# Modules that import torch are imported inside the functions: `finetune generate` and `serve` import this file before they parse their
# options, and their --help must not wait for torch.

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .model.sequence_layout import CsmProcessing, CsmTokens


HEAD = "lm_head"
"""The head of codebook 0."""


def load(config: Config[Options]) -> Loaded:
    """The model on the meta device, without its codec. Requires `prepare` to have run."""
    from recipes.speech.trained_voices import load_state

    from .model.dataset_speakers import read_numbers

    loaded, tokens = make_loaded(config)
    state = load_state(config)
    return replace(loaded, processor=make_processor(config, loaded.base, tokens, read_numbers(state)), state=state)


def make_loaded(config: Config[Options]) -> tuple[Loaded, CsmTokens]:
    """The model of the base's config.json, without processor and state, and its ids."""
    from finetune.modeling.loading import resolve_source

    from .model import csm_model
    from .model.model_config import read_config
    from .model.sequence_layout import CsmTokens

    options = config.options
    base = resolve_source(config.model.source, config.model.revision)
    model_config = read_config(base)
    loaded = Loaded(
        model=csm_model.build_on_meta(
            model_config, options.depth_weight, options.depth_share, chunked_head=config.train.base_distance > 0 and not adapts_head(config)
        ),
        processor=None,
        blocks=csm_model.BLOCKS,
        base=base,
        trainable=select_trainable(options.trainable),
    )
    return loaded, CsmTokens.from_config(model_config)


def adapts_head(config: Config[Options]) -> bool:
    """Whether the head of codebook 0 gets a LoRA adapter."""
    pattern = config.model.lora.targets if config.model.lora else None
    return pattern is not None and re.fullmatch(pattern, HEAD) is not None


def make_processor(config: Config[Options], base: Path, tokens: CsmTokens, speakers: dict[str, int]) -> CsmProcessing:
    """The processor that turns rows into samples."""
    from .model.sequence_layout import CsmProcessing, load_tokenizer

    return CsmProcessing(load_tokenizer(base, tokens), tokens, speakers, config.options.speaker)


def sketch(config: Config[Options]) -> Sketch:
    """For `finetune plan`: clips that consist almost only of frames."""
    from .model import sequence_layout
    from .model.dataset_speakers import assign_numbers, collect_speakers

    loaded, tokens = make_loaded(config)

    def make_plan_processor() -> CsmProcessing:
        names = [*collect_speakers(config, tokens)]
        return make_processor(config, loaded.base, tokens, assign_numbers(loaded.base, names))

    return Sketch(
        loaded=loaded,
        batch=lambda count, positions: sequence_layout.collate([sequence_layout.make_dummy_sample(positions, tokens)] * count),
        processor=make_plan_processor,
    )


def select_trainable(trainable: str) -> Callable[[str], bool]:
    """For a value of `options.trainable`, a function that returns whether a parameter is trained."""
    return lambda name: trainable == "full" or not name.startswith("embed_text_tokens.")


def read(row: dict[str, Any], processor: Any, _: Path) -> Sample:
    """One row as tensors; see `sequence_layout.lay_out_clip`."""
    from .model import sequence_layout

    return sequence_layout.read_row(row, processor)


def length(sample: Sample) -> int:
    """S, text and speech positions together; one second of speech is 12.5 positions."""
    return len(sample["ids"])


def collate(samples: list[Sample]) -> Batch:
    """Samples padded on the right to [B, S]."""
    from .model import sequence_layout

    return sequence_layout.collate(samples)


def loss(model: nn.Module, batch: Batch) -> dict[str, Term]:
    """Losses of codebook 0 (`backbone`) and of the other codebooks (`depth`), end frames included, and their numbers of correct top-1
    guesses; with the states of a base in the batch, also the distance to it on codebook 0."""
    sums: dict[str, Tensor] = model(batch.tensors)
    weights: dict[str, float] = model.weights  # type: ignore[assignment]
    return {name: Term(value, weights[name]) for name, value in sums.items()}


def compute_states(model: nn.Module, batch: Batch) -> Tensor:
    """The backbone's states [N, H] that predict codebook 0. The backbone predicts no text."""
    states: Tensor = model(batch.tensors, result="states")[BASE_STATES]
    return states


def prepare(config: Config[Options]) -> None:
    """Find the speakers in the data, and check all rows' codes."""
    from finetune.modeling.loading import resolve_source

    from .model import dataset_speakers
    from .model.model_config import read_config
    from .model.sequence_layout import CsmTokens

    base = resolve_source(config.model.source, config.model.revision)
    dataset_speakers.prepare_speakers(config, base, CsmTokens.from_config(read_config(base)))
    if config.sample.prompts:
        from recipes.speech.evaluation import training_samples
        from recipes.speech.trained_voices import load_state

        training_samples.check_prompts(config.sample.prompts, list(dataset_speakers.read_numbers(load_state(config))))


def export(base: Path, state: dict[str, Any], _: dict[str, Tensor], __: str) -> ExportPlan:
    """How the trained tensors become a folder for transformers. There are no buffers, and there is one format."""
    from .exporting import exported_files

    return exported_files.make_plan(base, state)


RECIPE = Recipe(
    Options=Options,
    load=load,
    read=read,
    length=length,
    collate=collate,
    loss=loss,
    base_distance=BaseDistance(states=compute_states, head=lambda _: HEAD, term="backbone"),
    export=export,
    formats=("transformers",),
    inference=VERBS.inference,
    # The layers of backbone and depth decoder. Embeddings and heads are not adapted: the meaning of a code does not depend on the voice.
    lora_targets=r"(backbone_model|depth_decoder\.model)\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)",
    prepare=prepare,
    sketch=sketch,
)
