"""llm_reward: reward models, from pairs of answers, and text classifiers, from rows with labels: any decoder of transformers with a head
that returns values of a sequence, read at its last token.

Sums over pairs or rows are divided by global counts. Both answers of a pair are in one packed row, or in two padded ones.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from overtone.finetune.config import Config, Data, Model
from overtone.finetune.errors import UserError
from overtone.finetune.modeling.loading import resolve_source, tensor_shapes
from overtone.finetune.recipe import Loaded, Recipe, Sample, Sketch
from overtone.recipes.class_labels import choose_labels, read_base_labels
from overtone.recipes.language import collation
from overtone.recipes.language.chat_model_loading import ChatProcessor, load_chat_model, read_given_template, sketch_chat_model
from overtone.recipes.language.modeling import loss_assumption_checks
from overtone.recipes.language.modeling.causal_model import CausalModel, read_config
from overtone.recipes.language.sequence_scorer import find_pad
from overtone.recipes.recipe_state_file import load_state, store_state
from overtone.recipes.transformers_weight_names import find_layouts, read_buffers

from .exporting.export_plan import plan_export
from .model import modeling
from .options import Options
from .sequence_losses import collate, compute_terms, pack, report
from .sequence_rows import ScoringProcessor, list_unused_keys, read, show
from .state import RewardState
from .verbs import INFERENCE

MOST_SHOWN = 10
"""Most classes that the log names."""


def prepare(config: Config[Options]) -> None:
    """Find the classes in the training data."""
    store_state(config.run.dir, make_state(config.options, config.data, config.model))


def make_state(options: Options, data: Data, model: Model) -> RewardState:
    """The state of a run. A plan without data has the classes of the base, or two. Raises `UserError` for unusable labels."""
    labels = list[str]()
    if options.objective == "classification":
        base = resolve_source(model.source, model.revision) if options.head == "base" else None
        of_base = None if base is None else read_base_labels(read_config(base), base)
        labels = choose_labels(data, of_base) if data.training_files() else of_base or ["0", "1"]
    template = read_given_template(options)
    return RewardState(chat_template=template, objective=options.objective, centering=options.centering, labels=labels)


def load(config: Config[Options]) -> Loaded[ScoringProcessor]:
    """The model on meta with its head. Requires `prepare` to have run. Raises `UserError` for a base that cannot be trained."""
    state = load_state(config.run.dir, RewardState)
    loaded = load_chat_model(config, state)
    return add_head(loaded, config.options.head, config.model.lora is None, state).with_processor(
        make_processor(loaded.processor, state, loaded.base)
    )


def sketch(config: Config[Options]) -> Sketch[ScoringProcessor]:
    """The base in shape only, with batches of filler, for `overtone plan`."""
    state, sketched = make_state(config.options, config.data, config.model), sketch_chat_model(config)
    base = sketched.loaded.base
    processor = lambda: make_processor(sketched.processor(), state, base)  # noqa: E731
    make_batch = pack if config.data.packing else collate
    fill = lambda count, positions: make_batch([make_filler(positions, state, config.data.packing)] * count)  # noqa: E731
    return Sketch(add_head(sketched.loaded, config.options.head, config.model.lora is None, state), fill, processor)


def make_processor(chats: ChatProcessor[Options], state: RewardState, base: Path) -> ScoringProcessor:
    """The processor of a run."""
    pad = chats.tokenizer.convert_tokens_to_ids(find_pad(chats.tokenizer, base))
    return ScoringProcessor(chats.tokenizer, chats.options, tuple(state.labels), pad)


def add_head(loaded: Loaded, head: Literal["fresh", "base"], trains_all: bool, state: RewardState) -> Loaded:
    """A loaded causal language model with a head of `state.outputs` values in place of its own. `head`: `Options.head`; `trains_all`: not
    only adapters. Raises `UserError` for a base without the head that `options.head: base` needs."""
    assert isinstance(loaded.model, CausalModel)
    base, fresh = loaded.base, head == "fresh"
    whole, model = modeling.build_stock(base, state.outputs), modeling.SequenceScorer(loaded.model, state.outputs, state.centering)
    modeling.check_names(model, whole, base)
    has_weights = any(base.glob("*.safetensors"))  # a plan needs none
    if not fresh and has_weights and tensor_shapes(base).get(modeling.WEIGHT, (0,))[0] != state.outputs:
        raise UserError(
            f"options.head: base, but {base} has no {modeling.WEIGHT} with {state.outputs} outputs; give an export of this recipe with the "
            "same objective, or use options.head: fresh"
        )
    layouts = find_layouts(whole, base)
    classes = ", ".join(f"{number} {name}" for number, name in enumerate(state.labels[:MOST_SHOWN]))
    more = ", …" if len(state.labels) > MOST_SHOWN else ""
    kept = f"head: that of the base, {'trained' if trains_all else 'frozen, as all of it beside the adapters'}"
    return replace(
        loaded,
        model=model,
        added={modeling.WEIGHT: modeling.init_head} if fresh else {},
        layouts=layouts,
        buffers=read_buffers(whole, layouts, base),
        state=state,
        remarks=(
            *loaded.remarks,
            *([f"{len(state.labels):,} classes: {classes}{more}"] if state.labels else ["one reward for a sequence"]),
            *([] if fresh else [kept]),
        ),
    )


def make_filler(positions: int, state: RewardState, packing: bool) -> Sample:
    """A sample of that many positions, where only the length matters. Without packing, sides are padded to the longer one: one that is as
    long as the pair needs the most memory."""
    ids = torch.zeros(positions, dtype=torch.int64)
    if state.labels:
        return {"ids": ids, "label": torch.tensor(0), "classes": torch.tensor(len(state.labels))}
    return {"ids": ids, "chosen": torch.tensor(positions // 2 if packing else positions - 1), "margin": torch.tensor(0.0)}


RECIPE = Recipe(
    Options=Options,
    load=load,
    prepare=prepare,
    read=read,
    list_unused=list_unused_keys,
    collate=collate,
    loss=compute_terms,
    report=report,
    export=lambda base, state, _, __: plan_export(base, state),
    formats=("transformers",),
    inference=INFERENCE,
    State=RewardState,
    pack=pack,
    pad=collation.pad,
    verify=lambda model, loaded, config: loss_assumption_checks.check_batching(modeling.StatesAsLogits(model), loaded, config),
    unit="tokens",
    base_folders=("additional_chat_templates",),
    sketch=sketch,
    show=show,
)
