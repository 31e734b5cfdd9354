"""Models of transformers before their weights are loaded: config.json, the model on the meta device, and its repeated blocks.

transformers and accelerate are imported inside of functions: they take seconds, and `generate --help` imports modules that import this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_security import Kind, admit
from overtone.finetune.storage.strict_json import one_line

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel


def is_part(kind: str, inner: str) -> bool:
    """Return whether the config of a model type contains one of the type `inner`, as gemma3's contains that of its vision model."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    parts = getattr(CONFIG_MAPPING[kind], "sub_configs", {}).values()
    return inner in {getattr(part, "model_type", "") for part in parts}


def read_config(base: Path, kind: Kind) -> PretrainedConfig:
    """The base's config. Raises `UserError` for a model of another kind, and one whose code is not in transformers itself."""
    from transformers import AutoConfig

    with admit(base, kind) as clean:
        try:
            return AutoConfig.from_pretrained(clean, trust_remote_code=False)
        except Exception as error:  # the versions of transformers check different things and raise different types
            raise UserError(
                f"{base}: config.json cannot be used ({type(error).__name__}: {one_line(error)}); download the model again"
            ) from error


def build_on_meta(make: Callable[[], Any], base: Path) -> Any:
    """Return what `make` makes of the config of `base`, with parameters on the meta device and real buffers. Raises `UserError` if it
    fails."""
    from accelerate import init_empty_weights

    from overtone.finetune.storage.construction_limits import LargeOnMeta, limit_construction

    with init_empty_weights(include_buffers=False), without_initialization(), limit_construction(base), LargeOnMeta():
        try:
            return make()
        except UserError:
            raise
        except Exception as error:  # sizes that do not fit together fail in many ways
            problem = f"{type(error).__name__}: {one_line(error):.200}"
            raise UserError(f"{base}: the model in config.json cannot be built ({problem}); download it again, or give another") from error


@contextmanager
def without_initialization() -> Iterator[None]:
    """While open, transformers 4 sets no initial weights: on the meta device there are none, and its rules for mixers of Mamba 2 (Bamba)
    fail there. In transformers 5 these rules also fill buffers, and skip what is on the meta device."""
    import transformers
    from transformers import PreTrainedModel

    initialize = PreTrainedModel.initialize_weights
    if transformers.__version__.startswith("4."):
        PreTrainedModel.initialize_weights = lambda _: None
    try:
        yield
    finally:
        PreTrainedModel.initialize_weights = initialize


@contextmanager
def explain_loading(folder: Path) -> Iterator[None]:
    """Raises `UserError` if `from_pretrained` fails on an exported folder while this is open."""
    try:
        yield
    except UserError as error:
        raise UserError(f"--model {folder}: {error}") from None
    except Exception as error:  # a damaged or hostile folder fails in many ways
        raise UserError(f"--model {folder}: cannot be loaded ({error}); export it again") from error


def find_blocks(whole: PreTrainedModel) -> tuple[type[nn.Module], ...]:
    """The classes of the repeated layers: those that the model lists as not to be split and that occur in stacks; for a model that lists
    none, all classes of transformers in its stacks."""
    from torch import nn

    stacked = {type(inner) for module in whole.modules() if isinstance(module, nn.ModuleList | nn.Sequential) for inner in module}
    with_weights = {
        kind for kind in stacked if any(type(each) is kind and any(True for _ in each.parameters()) for each in whole.modules())
    }
    listed = {kind for kind in with_weights if kind.__name__ in (whole._no_split_modules or ())}
    own = {kind for kind in with_weights if kind.__module__.startswith("transformers.")}
    return tuple(sorted(listed or own, key=lambda kind: kind.__name__))
