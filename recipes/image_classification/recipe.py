"""image_classification: fine-tuning of any image classifier of transformers, with a new output layer for the labels of the data.

    overtone train --recipe image_classification --data.train data/photos/train.jsonl --data.val data/photos/val.jsonl

A sample is one image, and counts as one position: `train.micro_tokens` and `train.global_batch_tokens` are numbers of images. All images
get the size that the base's image processor gives them, so batches have no padding.
"""

from __future__ import annotations

import torch
from torch import nn

from overtone.finetune.config import Config, Data, Model
from overtone.finetune.modeling.loading import resolve_source
from overtone.finetune.recipe import Batch, Loaded, Recipe, Sample, Sketch, Term
from overtone.recipes import class_labels, transformers_meta_models, transformers_weight_names
from overtone.recipes.recipe_state_file import load_state, store_state
from overtone.recipes.transformers_release import describe_old_release

from . import image_processing
from .exporting.export_plan import plan_export
from .image_processing import ImageProcessing
from .model import modeling
from .options import Options
from .state import ClassifierState
from .verbs import INFERENCE


def load(config: Config[Options]) -> Loaded[ImageProcessing]:
    """The model on meta with one output for each label. Requires `prepare` to have run."""
    return make_loaded(config.model, config.options, load_state(config.run.dir, ClassifierState).labels)


def make_loaded(source: Model, options: Options, names: list[str]) -> Loaded[ImageProcessing]:
    """The model of the base's config.json for these labels. Raises `UserError` for a base that cannot be trained."""
    base = resolve_source(source.source, source.revision)
    processor = image_processing.load_image_processor(base)
    size = image_processing.find_input_size(processor, base)
    known = modeling.set_labels(modeling.read_config(base), names)
    whole = modeling.build_stock_model(known, base)
    model = modeling.ImageClassifier(whole, image_processing.read_normalization(processor), options.label_smoothing)
    layouts = transformers_weight_names.find_layouts(whole, base)
    unused = modeling.find_unused(model, size, base)
    return Loaded(
        model=model,
        processor=ImageProcessing(processor, size, tuple(names), options),
        blocks=transformers_meta_models.find_blocks(whole),
        base=base,
        trainable=lambda name: name not in unused,
        added=modeling.added_parameters(known, base, options.head),
        layouts=layouts,
        buffers=transformers_weight_names.read_buffers(whole, layouts, base),
        state=ClassifierState(labels=names),
        libraries=("pillow",),
        remarks=(f"{len(names):,} labels; images of {size[0]} × {size[1]} pixels", *describe_old_release()),
    )


def prepare(config: Config[Options]) -> None:
    """Find the labels in the training data."""
    store_state(config.run.dir, ClassifierState(labels=choose_labels(config.options, config.data, config.model)))


def choose_labels(options: Options, data: Data, model: Model) -> list[str]:
    """The labels of the data, or of the base; without data, as in a plan, those of the base."""
    base = resolve_source(model.source, model.revision)
    of_base = class_labels.read_base_labels(modeling.read_config(base), base)
    return class_labels.choose_labels(data, of_base if options.head == "base" else None) if data.training_files() else of_base


def sketch(config: Config[Options]) -> Sketch[ImageProcessing]:
    """For `overtone plan`: black images."""
    loaded = make_loaded(config.model, config.options, choose_labels(config.options, config.data, config.model))
    filler = {"pixels": torch.zeros(3, *loaded.processor.size, dtype=torch.uint8), "label": torch.tensor(0)}
    return Sketch(loaded, lambda count, positions: collate([filler] * (count * positions)), lambda: loaded.processor)


def collate(samples: list[Sample]) -> Batch:
    """`pixels` [B, 3, H, W] uint8 and `labels` [B]."""
    tensors = {"pixels": torch.stack([each["pixels"] for each in samples]), "labels": torch.stack([each["label"] for each in samples])}
    return Batch(tensors, {"cross_entropy": len(samples), "accuracy": len(samples)})


def loss(model: nn.Module, batch: Batch) -> dict[str, Term]:
    """Cross-entropy, and the number of images whose label was guessed."""
    nll, hits = model(batch.tensors)
    return {"cross_entropy": Term(nll, 1.0), "accuracy": Term(hits, 0.0)}


def show(sample: Sample, processing: ImageProcessing) -> str:
    """A line about a sample for a terminal."""
    height, width = sample["pixels"].shape[1:]
    copy = f", crops from {sample['copy'].shape[2]} × {sample['copy'].shape[1]}" if "copy" in sample else ""
    mean = ", ".join(f"{value:.0f}" for value in sample["pixels"].float().mean((1, 2)).tolist())
    return f"label {processing.labels[int(sample['label'])]!r}; {width} × {height} pixels{copy}; mean red, green, blue: {mean}"


RECIPE = Recipe(
    Options=Options,
    load=load,
    read=image_processing.read_image,
    length=lambda _: 1,
    collate=collate,
    loss=loss,
    export=lambda base, state, _, __: plan_export(base, state),
    formats=("transformers",),
    inference=INFERENCE,
    State=ClassifierState,
    files=lambda row: (image_processing.read_file_name(row),),
    prepare=prepare,
    augment=image_processing.augment,
    unit="images",
    show=show,
    sketch=sketch,
)
