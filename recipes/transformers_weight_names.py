"""Names of the parameters and buffers of a transformers model in files: in those it saves, and in those of its base.

transformers is imported inside of functions: it takes seconds, and `generate --help` imports modules that import this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


def find_file_names(whole: Any) -> dict[str, str]:
    """Name of each parameter and saved buffer of a model → its name in files. transformers 5 renamed modules of many models, and
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
            "this recipe does not support; use transformers 4.57, or another model"
        )
    return {name: saved[id(value)] for name, value in own.items()}


def find_base_names(file_names: Mapping[str, str], whole: Any, base: Path) -> dict[str, str]:
    """Name in files of the stock class → name in the base: without the prefix of the backbone, if the base has only a backbone."""
    from finetune.modeling.loading import tensor_shapes

    prefix = f"{whole.base_model_prefix}."
    known = tensor_shapes(base) if any(base.glob("*.safetensors")) else {}
    plain = bool(known) and not any(name.startswith(prefix) for name in known)
    return {name: name.removeprefix(prefix) if plain else name for name in file_names.values()}


def read_buffers(whole: Any, names: Mapping[str, str], base: Path) -> dict[str, Tensor]:
    """Values of the saved buffers by their names in the model: statistics of batch normalization. `names`: in the model → in the base."""
    from finetune.modeling.loading import open_base, tensor_shapes

    saved = whole.state_dict().keys() - dict(whole.named_parameters()).keys()
    if not saved or not any(base.glob("*.safetensors")):
        return {}
    known = tensor_shapes(base)
    with open_base(base, names) as read:
        return {name: read(name, None) for name in sorted(saved) if names[name] in known}
