"""Forced alignment with any `Wav2Vec2ForCTC` of transformers whose vocabulary is characters, from a folder or the hub."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from overtone.data_prep.alignment import ctc_viterbi
from overtone.data_prep.alignment.ctc_viterbi import Emissions, TokenPath
from overtone.data_prep.alignment.interface import UNALIGNED_SCORE, AlignedUnit, TextAlignment, find_starts
from overtone.data_prep.audio.waveform import SPEECH_RATE, Samples
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.finetune.storage.hub_download import commit_of
from overtone.finetune.storage.model_resolver import resolve_model
from overtone.finetune.storage.model_security import CONFIG, Kind, admit, check_config, read_object, require_safetensors, require_weights

if TYPE_CHECKING:
    from transformers import Wav2Vec2ForCTC

KIND = Kind("a Wav2Vec2 model of transformers with a CTC head", frozenset({"wav2vec2"}))
VOCABULARY, PREPROCESSOR = "vocab.json", "preprocessor_config.json"
PATTERNS = (CONFIG, VOCABULARY, PREPROCESSOR, "model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
TRAINED_WITH = ("masked_spec_embed",)
"""Weight that only training needs and published checkpoints may lack (facebook/wav2vec2-base-960h)."""
SEPARATORS = ("|", " ")
"""Tokens between words."""
LEAST_SCORE = -1.0
"""Nats per frame below the best free path. A character that is not spoken costs five to ten nats, and speech has 0.2 to 0.3 characters per
frame of 20 ms, so a wrong text is near -2; measured only with constructed emissions, not with published weights."""
LEAST_KNOWN = 0.5
"""Share of the words that the vocabulary must cover for a score."""
FORM = 1
"""Version of the results: increase it when the code gives other scores or times."""


@dataclass(frozen=True)
class CtcAligner:
    """Implements `Aligner` of `data_prep/alignment/interface.py`."""

    folder: Path
    digest: str

    @property
    def weight_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("*.safetensors"))

    def load(self, device: str) -> LoadedCtcAligner:
        """Load the model and its vocabulary. Raises `UserError` for weights that do not load."""
        from transformers import Wav2Vec2ForCTC

        tokens = read_vocabulary(self.folder)
        settings = read_object(self.folder / PREPROCESSOR) if (self.folder / PREPROCESSOR).is_file() else {}
        with admit(self.folder, KIND) as clean:
            try:
                model, loaded = Wav2Vec2ForCTC.from_pretrained(
                    clean, trust_remote_code=False, use_safetensors=True, output_loading_info=True
                )
                require_weights(loaded["missing_keys"], TRAINED_WITH)
            except UserError as error:
                raise UserError(f"--align {self.folder}: {error}") from None
            except (OSError, ValueError, RuntimeError) as error:
                raise UserError(f"--align {self.folder}: the model does not load ({error}); download it again") from error
        model = model.float().eval().to(device)
        if model.config.pad_token_id is None or max(tokens.values()) >= model.config.vocab_size:
            raise UserError(f"--align {self.folder}: {VOCABULARY} does not fit {CONFIG}; download the model again")
        return LoadedCtcAligner(model, tokens, int(model.config.pad_token_id), bool(settings.get("do_normalize", True)))


@dataclass(frozen=True)
class LoadedCtcAligner:
    """Implements `LoadedAligner` of `data_prep/alignment/interface.py`."""

    model: Wav2Vec2ForCTC
    tokens: dict[str, int]
    """Character → token."""
    blank: int
    normalizes: bool
    """True if the model was trained on samples with zero mean and unit variance."""

    def align(self, samples: Samples, words: Sequence[str]) -> TextAlignment:
        encoded = self._encode(words)
        unknown = len(words) - len({index for index, _ in encoded if index is not None})
        if not words or unknown > (1 - LEAST_KNOWN) * len(words):
            return TextAlignment(score=None, unknown=unknown)
        emissions = self.compute_emissions(samples)
        path = ctc_viterbi.align_tokens(emissions, [token for _, token in encoded], self.blank)
        if path is None:
            return TextAlignment(score=UNALIGNED_SCORE, unknown=unknown)
        score = (path.log_prob - ctc_viterbi.score_free_path(emissions)) / len(emissions) - LEAST_SCORE
        return TextAlignment(score=round(max(score, UNALIGNED_SCORE), 3), words=self._time_words(path, encoded), unknown=unknown)

    def locate(self, samples: Samples, words: Sequence[str], starts: Sequence[int] = ()) -> tuple[AlignedUnit, ...]:
        encoded, emissions = self._encode(words), self.compute_emissions(samples)
        tokens = [token for _, token in encoded]
        begins = find_starts([index for index, _ in encoded], starts)
        path = ctc_viterbi.align_tokens(emissions, tokens, self.blank, part=True, starts=begins) if encoded else None
        if path is None or (path.log_prob - ctc_viterbi.score_free_path(emissions)) / len(emissions) < LEAST_SCORE:
            return ()
        return self._time_words(path, encoded)

    def compute_emissions(self, samples: Samples) -> Emissions:
        """Return the log-probabilities [T, V] of a clip, `samples` [n] at 16 kHz; [0, V] if it is shorter than a frame."""
        import torch

        shortest = self._count_frame_samples()
        if len(samples) < shortest:
            return np.zeros((0, self.model.config.vocab_size), np.float32)
        waves = samples.astype(np.float32)
        if self.normalizes:
            waves = (waves - waves.mean()) / np.sqrt(waves.var() + 1e-7)  # as Wav2Vec2FeatureExtractor does
        with torch.inference_mode():
            logits = self.model(torch.from_numpy(waves)[None].to(self.model.device)).logits[0]
            return logits.log_softmax(dim=-1).cpu().numpy()

    def _count_frame_samples(self) -> int:
        """Return the number of samples that the first frame sees; fewer samples give no frame."""
        samples = 1
        for kernel, stride in zip(reversed(self.model.config.conv_kernel), reversed(self.model.config.conv_stride), strict=True):
            samples = (samples - 1) * stride + kernel
        return samples

    @functools.cached_property
    def _frame_seconds(self) -> float:
        return math.prod(self.model.config.conv_stride) / SPEECH_RATE

    def _encode(self, words: Sequence[str]) -> list[tuple[int | None, int]]:
        """Return (index of the word, token) of every known character; the index of a separator between two words is None."""
        separator = next((self.tokens[one] for one in SEPARATORS if one in self.tokens), None)
        encoded: list[tuple[int | None, int]] = []
        for index, word in enumerate(words):
            found = [(index, token) for character in word if (token := self._find_token(character)) is not None]
            if found and encoded and separator is not None:
                encoded.append((None, separator))
            encoded += found
        return encoded

    def _find_token(self, character: str) -> int | None:
        return next((self.tokens[form] for form in (character, character.lower(), character.upper()) if form in self.tokens), None)

    def _time_words(self, path: TokenPath, encoded: list[tuple[int | None, int]]) -> tuple[AlignedUnit, ...]:
        times: dict[int, tuple[int, int]] = {}
        for span in path.spans:
            index = encoded[span.position][0]
            if index is not None:
                times[index] = (times.get(index, (span.start, 0))[0], span.stop)
        return tuple(
            AlignedUnit(index, round(start * self._frame_seconds, 3), round(stop * self._frame_seconds, 3))
            for index, (start, stop) in sorted(times.items())
        )


def open_ctc_aligner(option: str, name: str) -> CtcAligner:
    """Open the aligner of a model: a folder, or a name on the hub. Raises `UserError`, in the name of the command-line `option`, for a
    model without a CTC head or without a vocabulary of characters."""
    folder = resolve_model(option, name, [CONFIG, VOCABULARY])
    try:
        config = check_config(folder, KIND)
        if "Wav2Vec2ForCTC" not in (config.get("architectures") or ["Wav2Vec2ForCTC"]):
            raise UserError(f"{folder / CONFIG}: the model has no CTC head; give one that was fine-tuned for speech recognition")
        read_vocabulary(folder)
    except UserError as error:
        raise UserError(f"{option} {name}: {error}") from None
    folder = resolve_model(option, name, PATTERNS, commit_of(folder))
    require_safetensors(folder, option)
    read = sorted(path for pattern in PATTERNS for path in folder.glob(pattern))
    return CtcAligner(folder, ",".join([f"ctc-{FORM}", *(files.digest(path) for path in read)]))


def read_vocabulary(folder: Path) -> dict[str, int]:
    """Return character → token of vocab.json, without special tokens. Raises `UserError` for a vocabulary per language or without
    letters."""
    path = folder / VOCABULARY
    if not path.is_file():
        raise UserError(f"{folder} has no {VOCABULARY}; expected a model whose tokens are characters")
    found = read_object(path)
    if any(not isinstance(token, int) or token < 0 for token in found.values()):
        raise UserError(f"{path}: expected one token number for each character; give a model for one language")
    tokens = {character: token for character, token in found.items() if len(character) == 1}
    if not any(character.isalpha() for character in tokens):
        raise UserError(f"{path} has no letters; expected a model whose tokens are characters")
    return tokens
