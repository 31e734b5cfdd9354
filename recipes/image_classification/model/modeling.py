"""An image classifier of transformers, with a forward that returns sums over images. Parameters keep the names of the stock class."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Generator, Size, Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from transformers import AutoModelForImageClassification

from overtone.finetune.errors import UserError
from overtone.finetune.modeling.fake_tensor_weights import drop_storage
from overtone.finetune.storage.model_classes import list_image_processors
from overtone.finetune.storage.model_security import Kind
from overtone.finetune.storage.strict_json import one_line
from overtone.recipes import transformers_meta_models
from overtone.recipes.transformers_release import name_release

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

OTHERS = frozenset({"timm_wrapper", "shieldgemma2", "perceiver", "imagegpt", "siglip2"})
"""Types that transformers lists as image classifiers, but that take no plain images: models of other libraries, of text and images, of
lists of colours, and of patches."""
HEAD_STD = 0.02
"""Standard deviation of a new output layer; transformers' usual `initializer_range`."""


@dataclass(frozen=True)
class Normalization:
    """pixel · factor, minus `mean`, divided by `std` of the channel, as the image processor does it."""

    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


class ImageClassifier(nn.Module):
    """A stock model, with its parameters under the stock names, that normalizes images and computes the loss."""

    whole: PreTrainedModel
    scale: Tensor
    shift: Tensor

    def __init__(self, whole: PreTrainedModel, normalization: Normalization, label_smoothing: float) -> None:
        """`whole`: an image classifier of transformers."""
        super().__init__()
        self.__dict__["whole"] = whole  # past nn.Module, which would put `whole.` before every name
        # The dicts themselves: a layer that is replaced in this module, by one with an adapter, is replaced in the stock model too.
        self._modules, self._parameters = whole._modules, whole._parameters
        self.label_smoothing = label_smoothing
        scale = normalization.factor / torch.tensor(normalization.std)
        self.register_buffer("scale", scale.view(3, 1, 1), persistent=False)
        self.register_buffer("shift", (torch.tensor(normalization.mean) / torch.tensor(normalization.std)).view(3, 1, 1), persistent=False)

    def forward(self, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """`pixels` [B, 3, H, W] uint8 and `labels` [B] → sums over the images, fp32: cross-entropy in nats, and correct guesses."""
        logits = self.compute_logits(tensors["pixels"])
        smoothing = self.label_smoothing if self.training else 0.0
        nll = functional.cross_entropy(logits, tensors["labels"], reduction="sum", label_smoothing=smoothing)
        return nll, (logits.detach().argmax(-1) == tensors["labels"]).sum().float()

    def compute_logits(self, pixels: Tensor) -> Tensor:
        """`pixels` [B, 3, H, W] uint8 → [B, labels] fp32."""
        values = pixels.float() * self.scale - self.shift
        # A parameter's type at this moment: the compute type for those of the root; other units cast their own inputs.
        logits: Tensor = self.whole(pixel_values=values.to(next(self.parameters()).dtype)).logits
        return logits.float()

    def train(self, mode: bool = True) -> ImageClassifier:
        """Set the mode as nn.Module does, but batch normalization keeps the statistics of the base: those of a micro-batch would make the
        loss depend on how a step is divided, and small batches have useless ones."""
        super().train(mode)
        self.whole.training = mode
        for module in self.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
        return self


def image_classifier() -> Kind:
    """The kind of model folder that this recipe accepts."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES

    types = frozenset(MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES) - OTHERS
    processors = list_image_processors(types)
    classes = {
        "image_processor_type": processors,
        "feature_extractor_type": [name.replace("ImageProcessor", "FeatureExtractor") for name in processors],  # of folders from before
    }
    return Kind(f"an image classifier of {name_release()}", types, transformers_meta_models.is_part, classes)


def read_config(base: Path) -> PretrainedConfig:
    """The base's config. Raises `UserError` for a model of another kind."""
    return transformers_meta_models.read_config(base, image_classifier())


def set_labels(config: PretrainedConfig, labels: list[str]) -> PretrainedConfig:
    """A copy of a config with these labels."""
    config = copy.deepcopy(config)
    config.id2label, config.label2id = dict(enumerate(labels)), {label: number for number, label in enumerate(labels)}
    config.problem_type = "single_label_classification"
    if config.architectures is None:  # some types have several classes, and choose by this key
        config.architectures = []
    return config


def build_stock_model(config: PretrainedConfig, base: Path) -> PreTrainedModel:
    """The stock class with parameters on the meta device and real buffers. Raises `UserError` if it cannot be built."""
    return transformers_meta_models.build_on_meta(lambda: AutoModelForImageClassification.from_config(config), base)


def find_head(config: PretrainedConfig, base: Path) -> dict[str, tuple[int, ...]]:
    """Name → shape of the parameters whose shape depends on the number of labels: the output layer, or several of them."""
    one, more = (build_stock_model(set_labels(config, [*"ab", *"cd"[:extra]]), base) for extra in (1, 2))
    sizes = {name: tuple(parameter.shape) for name, parameter in one.named_parameters()}
    return {name: tuple(parameter.shape) for name, parameter in more.named_parameters() if sizes[name] != tuple(parameter.shape)}


def init_head(generator: Generator, shape: Size) -> Tensor:
    """Initial values of an output layer: a matrix of small random numbers, or a bias of zeros."""
    return torch.zeros(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * HEAD_STD


def added_parameters(config: PretrainedConfig, base: Path, head: str) -> Mapping[str, Callable[[Generator, Size], Tensor]]:
    """`Loaded.added` for a value of `options.head`."""
    return dict.fromkeys(find_head(config, base), init_head) if head == "fresh" else {}


def find_unused(model: ImageClassifier, size: tuple[int, int], base: Path) -> set[str]:
    """Names of parameters that get no gradient, such as a mask token or a pooling head of the pretraining. Training them would be an error.
    Found by a forward and a backward pass without storage. Raises `UserError` if the model does not take images of this size."""
    traced = copy.deepcopy(model)
    drop_storage(traced, torch.float32)
    tensors = {"pixels": torch.zeros(2, 3, *size, dtype=torch.uint8), "labels": torch.zeros(2, dtype=torch.int64)}
    try:
        traced.train()(tensors)[0].backward()
    except (ValueError, RuntimeError, TypeError) as error:
        raise UserError(
            f"{base}: the model does not take the images that its image processor makes, of {size[0]} × {size[1]} pixels "
            f"({one_line(error):.200}); compare config.json with preprocessor_config.json"
        ) from error
    return {name for name, parameter in traced.named_parameters() if parameter.grad is None}
