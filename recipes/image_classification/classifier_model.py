"""An image classifier of transformers, with a forward that returns sums over images. Parameters keep the names of the stock class."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Generator, Size, Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from transformers import AutoConfig, AutoModelForImageClassification

from finetune.errors import UserError
from finetune.modeling import loading
from finetune.planning.activation_memory import drop_storage
from finetune.storage.model_security import Kind, admit
from finetune.storage.strict_json import one_line

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

    whole: Any
    scale: Tensor
    shift: Tensor

    def __init__(self, whole: Any, normalization: Normalization, label_smoothing: float) -> None:
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
        """As in nn.Module, but batch normalization keeps the statistics of the base: those of a micro-batch would make the loss depend on
        how a step is divided, and small batches have useless ones."""
        super().train(mode)
        self.whole.training = mode
        for module in self.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
        return self


def image_classifier() -> Kind:
    """The kind of model folder that this recipe accepts."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES

    return Kind("an image classifier of transformers", frozenset(MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES) - OTHERS, is_part)


def is_part(kind: str, inner: str) -> bool:
    """Whether the config of a model type contains one of the type `inner`, as clip's contains that of its vision model."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    parts = getattr(CONFIG_MAPPING[kind], "sub_configs", {}).values()
    return inner in {getattr(part, "model_type", "") for part in parts}


def read_config(base: Path) -> Any:
    """The base's config. Raises `UserError` for a model of another kind."""
    with admit(base, image_classifier()) as clean:
        try:
            return AutoConfig.from_pretrained(clean, trust_remote_code=False)
        except Exception as error:  # the versions of transformers check different things and raise different types
            raise UserError(f"{base}: config.json cannot be used ({type(error).__name__}: {one_line(error)}); download it again") from error


def read_base_labels(config: Any) -> list[str]:
    """The labels of a base's own output layer, in order."""
    return [str(config.id2label[number]) for number in range(config.num_labels)]


def set_labels(config: Any, labels: list[str]) -> Any:
    """A copy of a config with these labels."""
    config = copy.deepcopy(config)
    config.id2label, config.label2id = dict(enumerate(labels)), {label: number for number, label in enumerate(labels)}
    config.problem_type = "single_label_classification"
    if config.architectures is None:  # some types have several classes, and choose by this key
        config.architectures = []
    return config


def build_stock_model(config: Any, base: Path) -> Any:
    """The stock class with parameters on the meta device and real buffers. Raises `UserError` if it cannot be built."""
    with init_empty_weights(include_buffers=False):
        try:
            return AutoModelForImageClassification.from_config(config)
        except Exception as error:
            problem = f"{type(error).__name__}: {one_line(error):.200}"
            raise UserError(f"{base}: the model in config.json cannot be built ({problem}); give another model") from error


def find_head(config: Any, base: Path) -> dict[str, tuple[int, ...]]:
    """Name → shape of the parameters whose shape depends on the number of labels: the output layer, or several of them."""
    one, more = (build_stock_model(set_labels(config, [*"ab", *"cd"[:extra]]), base) for extra in (1, 2))
    sizes = {name: tuple(parameter.shape) for name, parameter in one.named_parameters()}
    return {name: tuple(parameter.shape) for name, parameter in more.named_parameters() if sizes[name] != tuple(parameter.shape)}


def init_head(generator: Generator, shape: Size) -> Tensor:
    """Initial values of an output layer: a matrix of small random numbers, or a bias of zeros."""
    return torch.zeros(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * HEAD_STD


def added_parameters(config: Any, base: Path, head: str) -> Mapping[str, Callable[[Generator, Size], Tensor]]:
    """`Loaded.added` for a value of `options.head`."""
    return dict.fromkeys(find_head(config, base), init_head) if head == "fresh" else {}


def find_blocks(whole: Any) -> tuple[type[nn.Module], ...]:
    """The classes of the repeated layers: those that the model lists as not to be split and that occur in stacks; for a model that lists
    none, all classes in its stacks."""
    stacked = {type(inner) for module in whole.modules() if isinstance(module, nn.ModuleList | nn.Sequential) for inner in module}
    with_weights = {
        kind for kind in stacked if any(type(each) is kind and any(True for _ in each.parameters()) for each in whole.modules())
    }
    listed = {kind for kind in with_weights if kind.__name__ in (whole._no_split_modules or ())}
    own = {kind for kind in with_weights if kind.__module__.startswith("transformers.")}
    return tuple(sorted(listed or own, key=lambda kind: kind.__name__))


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


def find_file_names(whole: Any) -> dict[str, str]:
    """Name of each parameter and saved buffer of the model → its name in files. transformers 5 renamed modules of many models, and
    translates when it loads and saves."""
    own: dict[str, Tensor] = dict(whole.state_dict(keep_vars=True))
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before version 5
        return {name: name for name in own}
    saved = {id(value): name for name, value in revert_weight_conversion(whole, dict(own)).items()}
    if lost := [name for name, value in own.items() if id(value) not in saved]:
        raise UserError(
            f"{type(whole).__name__}: this version of transformers stores {lost[0]} in another form than it computes with, which "
            "image_classification does not support; use transformers 4.57, or another model"
        )
    return {name: saved[id(value)] for name, value in own.items()}


def find_base_names(file_names: Mapping[str, str], whole: Any, base: Path) -> dict[str, str]:
    """Name in files of the stock class → name in the base: without the prefix of the backbone, if the base has only a backbone."""
    prefix = f"{whole.base_model_prefix}."
    known = loading.tensor_shapes(base) if any(base.glob("*.safetensors")) else {}
    plain = bool(known) and not any(name.startswith(prefix) for name in known)
    return {name: name.removeprefix(prefix) if plain else name for name in file_names.values()}


def read_buffers(whole: Any, names: Mapping[str, str], base: Path) -> dict[str, Tensor]:
    """Values of the saved buffers by their names in the model: statistics of batch normalization. `names`: in the model → in the base."""
    saved = whole.state_dict().keys() - dict(whole.named_parameters()).keys()
    if not saved or not any(base.glob("*.safetensors")):
        return {}
    known = loading.tensor_shapes(base)
    with loading.open_base(base, names) as read:
        return {name: read(name, None) for name in sorted(saved) if names[name] in known}
