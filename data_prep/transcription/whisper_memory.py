"""Memory of a Whisper model on a GPU, from its dimensions: weights are neither downloaded nor read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from overtone.data_prep.transcription import demo_whisper, faster_whisper_engine, whisper_conversion, whisper_engine
from overtone.data_prep.transcription.whisper_languages import WHISPER_OPTION
from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_resolver import resolve_model
from overtone.finetune.storage.model_security import CONFIG, load_pickled_weights

if TYPE_CHECKING:
    from torch import nn

PUBLISHED = {
    "tiny": (384, 6, 4, 4), "base": (512, 8, 6, 6), "small": (768, 12, 12, 12), "medium": (1024, 16, 24, 24), "large": (1280, 20, 32, 32),
    "turbo": (1280, 20, 32, 4), "large-v3-turbo": (1280, 20, 32, 4),
}  # fmt: skip
"""Published name without its version → width, attention heads, layers of the encoder and of the decoder (openai-whisper's model card)."""
MORE_BANDS = ("large", "large-v3", "large-v3-turbo", "turbo")
"""Published names with 128 mel bands, and a vocabulary with one more language."""


def count_gpu_bytes(name: str, option: str = WHISPER_OPTION) -> int | None:
    """Return the bytes of the weights as `load_whisper` places them on a GPU; None for a model of faster-whisper, whose files do not name
    its dimensions. Raises `UserError` for a name of no model."""
    import whisper
    from accelerate import init_empty_weights

    from overtone.finetune.storage.construction_limits import limit_construction  # imports torch

    dims = read_dimensions(name, option)
    if dims is None:
        return None
    try:
        with init_empty_weights(include_buffers=False), limit_construction(Path(name)):
            model = whisper.Whisper(whisper.ModelDimensions(**dims))
    except UserError:
        raise
    except Exception as error:  # an invalid file fails in many ways
        raise UserError(f"{option} {name}: not a Whisper checkpoint ({type(error).__name__}: {error})") from error
    whisper_engine.halve_products(model)
    return sum_bytes(model)


def sum_bytes(model: nn.Module) -> int:
    """Return the bytes of the parameters and buffers of a model; the sparse alignment heads of a Whisper are a few."""
    return sum(each.nbytes for each in (*model.parameters(), *model.buffers()) if not each.is_sparse)


def read_dimensions(name: str, option: str = WHISPER_OPTION) -> dict[str, int] | None:
    """Return the dimensions of openai-whisper, by their names there; None for a model of faster-whisper. Of a hub name, only config.json is
    downloaded. Raises `UserError` for a name of no model."""
    import whisper

    if faster_whisper_engine.is_faster_whisper(name, option):
        return None
    if demo_whisper.is_demo_name(name):
        return demo_whisper.load_description(option).dims
    if Path(name).is_file():
        dims = load_pickled_weights(Path(name), mapped=True).get("dims")
        if not isinstance(dims, dict):
            raise UserError(f"{option} {name}: not a Whisper checkpoint (no dims)")
        return dims
    if name not in whisper._MODELS and whisper_conversion.is_transformers_whisper(name):
        return whisper_conversion.read_dimensions(resolve_model(option, name, [CONFIG]), name, option)
    whisper_engine.digest_weights(name, option)  # refuses an unknown name
    return list_published_dimensions(name)


def list_published_dimensions(name: str) -> dict[str, int]:
    """Return the dimensions of a published model by its name."""
    base = name.removesuffix(".en")
    width, heads, encoder, decoder = PUBLISHED[base if base in PUBLISHED else base.partition("-")[0]]
    has_more = name in MORE_BANDS
    return {
        **{"n_mels": 128 if has_more else 80, "n_audio_ctx": 1500, "n_audio_state": width, "n_audio_head": heads, "n_audio_layer": encoder},
        **{"n_vocab": 51866 if has_more else 51864 if name.endswith(".en") else 51865, "n_text_ctx": 448},
        **{"n_text_state": width, "n_text_head": heads, "n_text_layer": decoder},
    }
