"""Speaker verification models of transformers: networks with an x-vector head, as in microsoft/wavlm-base-plus-sv."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.audio.waveform import SPEECH_RATE, Samples
from overtone.data_prep.parallel.torch_settings import disable_tf32
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.finetune.storage.model_classes import list_feature_extractors
from overtone.finetune.storage.model_resolver import resolve_model
from overtone.finetune.storage.model_security import CONFIG, Kind, admit, load_pickled_weights, require_weights
from overtone.finetune.storage.strict_json import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel, SequenceFeatureExtractor

PICKLED = "pytorch_model.bin"
SPEAKER_MODEL_FILES = ["*.json", "*.safetensors", PICKLED]
"""Files to download of a speaker model on the hub."""
TRAINED_WITH = ("masked_spec_embed", "objective.", "classifier.")
"""Parts of the names of weights that no embedding depends on: checkpoints may lack them."""
SHORTEST_SECONDS = 0.6
"""Minimum duration of a window: a shorter one hardly identifies the speaker; the convolutions of these networks need 0.03 s."""


@dataclass(frozen=True)
class XVectorEncoder:
    """Implements `SpeakerEncoder` of `data_prep/audio_codecs/interface.py`."""

    folder: Path
    digest: str
    sample_rate: ClassVar[int] = SPEECH_RATE

    def load(self, device: str = "cpu") -> LoadedXVectorEncoder:
        extractor, model = load_speaker_model(self.folder)
        return LoadedXVectorEncoder(extractor, model.to(device))


@dataclass(frozen=True)
class LoadedXVectorEncoder:
    """Implements `LoadedSpeakerEncoder` of `data_prep/audio_codecs/interface.py`."""

    extractor: SequenceFeatureExtractor
    model: PreTrainedModel
    sample_rate: ClassVar[int] = SPEECH_RATE
    shortest_seconds: ClassVar[float] = SHORTEST_SECONDS

    @property
    def dimensions(self) -> int:
        return int(self.model.config.xvector_output_dim)

    def embed(self, clip: Samples) -> NDArray[np.float32]:
        import torch

        with torch.inference_mode(), disable_tf32():
            inputs = self.extractor(clip, sampling_rate=SPEECH_RATE, return_tensors="pt").to(self.model.device)
            found: NDArray[np.float32] = self.model(**inputs).embeddings[0].float().cpu().numpy().copy()
            return found


def open_xvector_encoder(option: str, name: str) -> XVectorEncoder:
    """Open the encoder in a folder, or of a hub name. Raises `UserError`, in the name of the command-line `option`, for other models."""
    folder = resolve_model(option, name, SPEAKER_MODEL_FILES)
    try:
        load_speaker_model(folder)
    except (OSError, ValueError, KeyError, RuntimeError, UserError) as error:
        first = first_line(error)
        raise UserError(
            f"{option} {name}: not a speaker verification model of transformers ({first}); "
            "microsoft/wavlm-base-plus-sv is one, by this name or as a folder"
        ) from error
    named = [path for path in sorted(folder.iterdir()) if path.name in (CONFIG, "preprocessor_config.json", PICKLED)]
    digests = [f"{path.name} {files.digest(path)}" for path in (*named, *sorted(folder.glob("*.safetensors")))]
    return XVectorEncoder(folder, hashlib.sha256("\n".join(digests).encode()).hexdigest())


def load_speaker_model(folder: Path) -> tuple[SequenceFeatureExtractor, PreTrainedModel]:
    """Load the feature extractor and the model with an x-vector head. Raises `UserError` and the errors of transformers."""
    from transformers import AutoConfig, AutoFeatureExtractor, AutoModelForAudioXVector
    from transformers.models.auto.modeling_auto import MODEL_FOR_AUDIO_XVECTOR_MAPPING, MODEL_FOR_AUDIO_XVECTOR_MAPPING_NAMES

    types = frozenset(MODEL_FOR_AUDIO_XVECTOR_MAPPING_NAMES)
    classes = {"feature_extractor_type": list_feature_extractors(types)}
    kind = Kind("a speaker verification model of transformers", types, classes=classes)
    with admit(folder, kind) as clean:
        extractor = AutoFeatureExtractor.from_pretrained(clean, trust_remote_code=False)
        if any(folder.glob("*.safetensors")):
            model, loaded = AutoModelForAudioXVector.from_pretrained(
                clean, trust_remote_code=False, use_safetensors=True, output_loading_info=True
            )
        else:  # most published speaker models have no other file; only tensors are read from it
            weights = load_pickled_weights(folder / PICKLED)
            shape = AutoConfig.from_pretrained(clean, trust_remote_code=False)
            built = MODEL_FOR_AUDIO_XVECTOR_MAPPING[type(shape)]
            model, loaded = built.from_pretrained(None, config=shape, state_dict=weights, trust_remote_code=False, output_loading_info=True)
        require_weights(loaded["missing_keys"], TRAINED_WITH)
        return extractor, model.eval()
