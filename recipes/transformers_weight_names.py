"""Parameters and buffers of a transformers model in files: of which tensors of its base they consist, and their names when it is saved.

transformers is imported inside of functions: it takes seconds, and `generate --help` imports modules that import this one.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overtone.finetune.errors import UserError
from overtone.finetune.storage.strict_json import one_line
from overtone.finetune.storage.tensor_layouts import TensorLayout

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


def find_layouts(whole: PreTrainedModel, base: Path) -> dict[str, TensorLayout]:
    """Name of each parameter and saved buffer of a model → of which tensors of `base` it consists, as `from_pretrained` of the installed
    transformers would load it; without those that are stored as they are. Empty if `base` has no weights.

    transformers 5 renames modules, and makes one parameter of all experts of a layer; its own list of conversions is applied to layouts
    instead of tensors. Raises `UserError` for a conversion that does more than moving values, and for tensors that do not fit together.
    """
    from overtone.finetune.modeling.loading import tensor_shapes

    known = tensor_shapes(base) if any(base.glob("*.safetensors")) else {}
    own: dict[str, Tensor] = whole.state_dict(keep_vars=True)
    stored = {name: TensorLayout.of(name, shape) for name, shape in known.items()}
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
    except ImportError:  # before version 5, parameters have the names of the files
        prefix = find_prefix(whole, known)
        inner = {name: name.removeprefix(prefix) for name in own if prefix and name.startswith(prefix)}
        return {name: stored[place] for name, place in inner.items() if place in stored}
    found = convert_layouts(stored, get_model_conversion_mapping(whole), own, whole, base)
    return {name: layout for name, layout in found.items() if not layout.is_same(name)}


def convert_layouts(
    stored: Mapping[str, TensorLayout], transforms: Sequence[Any], own: Mapping[str, Tensor], whole: PreTrainedModel, base: Path
) -> dict[str, TensorLayout]:
    """Return what `transforms` of transformers make of the tensors in files, in the order in which it loads them: names of `own` →
    layouts."""
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    found: dict[str, TensorLayout] = {}
    composed: dict[str, Any] = {}
    for name in sorted(stored, key=dot_natural_key):
        new, pattern = rename_source_key(name, renamings, converters, whole.base_model_prefix, own)
        if new not in own and name in own:
            new, pattern = rename_source_key(name, [], [], whole.base_model_prefix, own)
        if new not in own:
            continue
        if pattern is None:
            found.setdefault(new, stored[name])
        else:
            if new not in composed:
                composed[new] = copy.deepcopy(by_pattern[pattern])
            composed[new].add_tensor(new, name, pattern, stored[name])
    for name, converter in composed.items():
        try:
            made = converter.convert(name, model=whole, config=whole.config)
        except Exception as error:  # of operations of transformers on layouts
            raise UserError(explain_conversion(name, converter, base, error)) from error
        found |= {new: layout[0] if isinstance(layout, list) else layout for new, layout in made.items()}
    return {name: layout for name, layout in found.items() if name in own}


def explain_conversion(name: str, converter: Any, base: Path, error: Exception) -> str:
    """Return why a parameter cannot be composed of the tensors of `base`, and what to do."""
    parts = ", ".join(pattern.replace("\\.", ".") for pattern in converter.source_patterns)
    if isinstance(error, NotImplementedError | AttributeError | TypeError):
        steps = ", ".join(type(each).__name__ for each in converter.operations)
        return (
            f"{base}: transformers {version('transformers')} computes {name} from {parts} by {steps}, which is not supported; "
            "use transformers 4.57, or another model"
        )
    return f"{base}: {name} cannot be composed of {parts}: {one_line(error):.200}; download the model again"


def find_prefix(whole: PreTrainedModel, known: Collection[str]) -> str:
    """The prefix of the backbone's parameters, if the base has only a backbone, whose tensors lack it; otherwise an empty string."""
    prefix = f"{whole.base_model_prefix}."
    return prefix if known and not any(name.startswith(prefix) for name in known) else ""


def find_file_names(whole: PreTrainedModel, names: Collection[str]) -> dict[str, str]:
    """Name of a parameter → its name in the files that the stock class saves, for `names`, whose values are saved as they are."""
    own: dict[str, Tensor] = {name: value for name, value in whole.state_dict(keep_vars=True).items() if name in names}
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before version 5
        return {name: name for name in own}
    saved = {id(value): name for name, value in revert_weight_conversion(whole, dict(own)).items()}
    if lost := [name for name, value in own.items() if id(value) not in saved]:
        raise UserError(
            f"{type(whole).__name__}: this version of transformers stores the new {lost[0]} in another form than it computes with, "
            "which is not supported; use transformers 4.57, or another model"
        )
    return {name: saved[id(value)] for name, value in own.items()}


def read_buffers(whole: PreTrainedModel, layouts: Mapping[str, TensorLayout], base: Path) -> dict[str, Tensor]:
    """Values of the saved buffers by their names in the model: statistics of batch normalization. `layouts`: from `find_layouts`."""
    from overtone.finetune.modeling.loading import open_base, tensor_shapes

    saved = whole.state_dict().keys() - dict(whole.named_parameters()).keys()
    if not saved or not any(base.glob("*.safetensors")):
        return {}
    known = tensor_shapes(base)
    with open_base(base, layouts) as read:
        return {name: read(name, None) for name in sorted(saved) if name in layouts or name in known}
