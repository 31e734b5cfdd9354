"""Speech with the codes of recordings in the first codebooks, whose other codes a model generates.

With the first codebook alone, it sounds like speech of the model, and no word in it was read wrong: the first codes are those of the right
words. So its WER comes from sounds that the other codes blur, and from what the recognizer misses. In speech that a model generates alone,
words that were read wrong count as well. With more given codebooks, the WER shows which of them matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from overtone.data_prep.audio.waveform import Samples
from overtone.data_prep.audio_codecs import qwen3_tts_codec
from overtone.data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER
from overtone.recipes.qwen3_tts.inference.decoding import TalkerBatch, TalkerDecoder
from overtone.recipes.qwen3_tts.inference.exported_folder import ExportedModel
from overtone.recipes.qwen3_tts.inference.prompt_embeddings import PromptEmbeddings
from overtone.recipes.qwen3_tts.inference.synthesizer import Synthesizer
from overtone.recipes.speech.decoding.token_sampling import CodeSampler, FrameSampler
from overtone.recipes.speech.interface import SpeechRequest

GREEDY = FrameSampler(CodeSampler(greedy=True), CodeSampler(greedy=True))


@dataclass(frozen=True)
class GivenThenGreedy(CodeSampler):
    """For one frame: first the given codes, each [B], one after the other, then the most likely ones."""

    given: Iterator[Tensor] = field(default_factory=lambda: iter(()))

    def choose(self, scores: Tensor, random: Tensor) -> Tensor:
        """Implements `CodeChooser`."""
        chosen = next(self.given, None)
        return super().choose(scores, random) if chosen is None else chosen


@dataclass(frozen=True)
class GivenPrompt(PromptEmbeddings):
    """A prompt, and the codes [T, K] of its frames in the first K codebooks, with K from 1 to all."""

    codes: Tensor


class GivenCodes(TalkerBatch):
    """Generates frames whose first codebooks are given, greedily. All requests have the same number of given codebooks."""

    def __init__(self, decoder: TalkerDecoder, requests: int) -> None:
        super().__init__(decoder, requests)
        self.given: dict[int, Tensor] = {}
        """Row → given codes [T + 1, K], of which the last ones are end of speech."""

    @torch.inference_mode()
    def join(self, prompt: PromptEmbeddings, sampler: FrameSampler, seed: int, limit: int) -> int:  # noqa: ARG002  # always greedy
        """Implements `FrameBatch` for a `GivenPrompt`."""
        assert isinstance(prompt, GivenPrompt)
        row = super().join(prompt, GREEDY, seed, max(1, len(prompt.codes)))
        self.given[row] = functional.pad(prompt.codes, (0, 0, 0, 1), value=self.decoder.ids.codec_eos)
        self.first[row] = self.given[row][0, 0]
        return row

    def choose_first(self, count: Tensor) -> Tensor:
        """Codebook 0 of frame `count` [rows]: the given one."""
        return self._find_given(count)[:, 0]

    def run_frame(self, size: int) -> None:
        """Run a frame as the base class does, with the given codes of the frame."""
        # A row that has ended has no codes; the tables have no row for the end.
        others = self._find_given(self.frame)[:, 1:].clamp(max=self.decoder.ids.codebook_size - 1)
        self.others = GivenThenGreedy(greedy=True, given=iter(others.unbind(1)))
        super().run_frame(size)

    def _find_given(self, count: Tensor) -> Tensor:
        """The given codes [rows, K] of frame `count` [rows]; end of speech after the last one, and in rows without a request."""
        codebooks = max((codes.shape[1] for codes in self.given.values()), default=1)
        found = self.codes.new_full((self.cache.rows, codebooks), self.decoder.ids.codec_eos)
        for row, codes in self.given.items():
            found[row] = codes[min(int(count[row]), len(codes) - 1)]
        return found


class GivenCodesSynthesizer(Synthesizer):
    """A loaded model that speaks the texts of recordings with the codes of these in the first codebooks, whatever the sampling settings."""

    def __init__(self, exported: ExportedModel, recordings: Mapping[str, Samples], codebooks: int) -> None:
        """`recordings`: text → samples [n] at 24 kHz. `codebooks`: how many are given, at least 1."""
        super().__init__(exported)
        codec = qwen3_tts_codec.load_codec(exported.folder / CODEC_FOLDER, "cpu")
        self.codes = {text: self._encode(codec, wave)[:, :codebooks] for text, wave in recordings.items()}

    def make_prompt(self, request: SpeechRequest) -> GivenPrompt:
        """Implements `FrameVoice`."""
        return GivenPrompt(**vars(super().make_prompt(request)), codes=self.codes[request.text])

    def open_frames(self, requests: int) -> GivenCodes:
        """Implements `FrameVoice`."""
        return GivenCodes(self._decoder, requests)

    def _encode(self, codec: object, wave: Samples) -> Tensor:
        """The codes [T, codebooks] of a recording, on the model's device."""
        (codes,) = qwen3_tts_codec.encode_clips(codec, [wave])
        return torch.from_numpy(np.asarray(codes, dtype=np.int64)).to(self._decoder.first_table.device)
