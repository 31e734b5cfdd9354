"""The training model computes what the stock class computes, for several architectures."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig

from overtone.finetune.errors import UserError
from overtone.finetune.modeling.added_parameters import make_generator
from overtone.recipes import transformers_meta_models
from overtone.recipes.image_classification.model import modeling, tiny_checkpoint
from overtone.recipes.image_classification.model.modeling import ImageClassifier, Normalization

PLAIN = Normalization(1 / 255, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
SMALL: dict[str, dict[str, Any]] = {
    "vit": {key: value for key, value in tiny_checkpoint.CONFIG.items() if key != "model_type"},
    "dinov2": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 4},
    "convnext": {"num_stages": 2, "hidden_sizes": [16, 32], "depths": [1, 2], "patch_size": 2, "image_size": 16},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "layer_type": "basic"},
    "swin": {"image_size": 16, "patch_size": 2, "embed_dim": 12, "depths": [2, 1], "num_heads": [2, 2], "window_size": 4},
}


def build(kind: str, smoothing: float = 0.0) -> ImageClassifier:
    """A small random model on the CPU."""
    torch.manual_seed(0)
    config = modeling.set_labels(AutoConfig.for_model(kind, **SMALL[kind]), ["a", "b", "c"])
    return ImageClassifier(modeling.AutoModelForImageClassification.from_config(config), PLAIN, smoothing)


def make_batch() -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(1)
    return {"pixels": torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=chance), "labels": torch.tensor([0, 1, 2, 1])}


@pytest.mark.parametrize("kind", SMALL)
def test_sums_are_those_of_the_stock_class_on_normalized_images(kind: str) -> None:
    model, batch = build(kind).eval(), make_batch()
    pixels = (batch["pixels"].float() / 255 - torch.tensor(PLAIN.mean).view(3, 1, 1)) / torch.tensor(PLAIN.std).view(3, 1, 1)
    with torch.no_grad():
        expected = model.whole(pixel_values=pixels, labels=batch["labels"])
        nll, hits = model(batch)
    assert nll.item() == pytest.approx(4 * expected.loss.item(), rel=1e-5)
    assert hits.item() == (expected.logits.argmax(-1) == batch["labels"]).sum()
    assert {name for name, _ in model.named_parameters()} == {name for name, _ in model.whole.named_parameters()}


def test_label_smoothing_is_for_training_alone() -> None:
    plain, smooth, batch = build("vit"), build("vit", 0.3), make_batch()
    assert plain.eval()(batch)[0] == smooth.eval()(batch)[0]
    logits = smooth.train().compute_logits(batch["pixels"]).log_softmax(-1)
    chosen, spread = logits.gather(1, batch["labels"][:, None]).sum(), logits.mean(-1).sum()
    assert smooth(batch)[0].item() == pytest.approx(-(0.7 * chosen + 0.3 * spread).item(), rel=1e-5)


def test_a_replaced_layer_is_replaced_in_the_stock_model_and_in_copies() -> None:
    model, batch = build("vit"), make_batch()
    model.set_submodule("classifier", nn.Linear(64, 3))
    assert model.whole.classifier is model.classifier
    twin = copy.deepcopy(model).eval()
    with torch.no_grad():
        twin.classifier.weight.zero_()
        twin.classifier.bias.zero_()
    assert twin(batch)[0].item() == pytest.approx(4 * torch.log(torch.tensor(3.0)).item()) != model.eval()(batch)[0].item()


def test_statistics_of_batches_are_not_used_and_not_changed() -> None:
    model, batch = build("resnet").train(), make_batch()
    before = {name: value.clone() for name, value in model.named_buffers()}
    alone = [model({name: value[[number]] for name, value in batch.items()})[0].item() for number in range(4)]
    assert model(batch)[0].item() == pytest.approx(sum(alone), rel=1e-4)
    assert all(torch.equal(before[name], value) for name, value in model.named_buffers())


def test_the_head_is_what_depends_on_the_number_of_labels(tmp_path: Path) -> None:
    for kind, names in (("vit", {"classifier.weight", "classifier.bias"}), ("resnet", {"classifier.1.weight", "classifier.1.bias"})):
        config = modeling.set_labels(AutoConfig.for_model(kind, **SMALL[kind]), ["a", "b", "c"])
        assert modeling.find_head(config, tmp_path).keys() == names
    values = modeling.init_head(make_generator(0, "classifier.weight"), torch.Size([30, 64]))
    assert values.std().item() == pytest.approx(0.02, rel=0.1) and not modeling.init_head(torch.Generator(), torch.Size([3])).any()


@pytest.mark.parametrize("kind", SMALL)
def test_blocks_are_found_and_unused_parameters_are_not_trained(kind: str, tmp_path: Path) -> None:
    model = build(kind)
    blocks = transformers_meta_models.find_blocks(model.whole)
    assert blocks and sum(isinstance(module, blocks) for module in model.modules()) >= 2
    unused = modeling.find_unused(model, (16, 16), tmp_path)
    model.train()(make_batch())[0].backward()
    assert {name for name, parameter in model.named_parameters() if parameter.grad is None} == unused
    assert ("mask_token" in " ".join(unused)) == (kind == "dinov2")


def test_images_of_another_size_are_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not take the images .* of 20 × 20 pixels"):
        modeling.find_unused(build("vit"), (20, 20), tmp_path)


def test_models_that_take_no_plain_images_are_refused() -> None:
    kind = modeling.image_classifier()
    assert {"vit", "swin", "resnet", "clip"} <= set(kind.types) and not modeling.OTHERS & set(kind.types)
    assert kind.nested("clip", "clip_vision_model") and not kind.nested("vit", "clip_vision_model")
