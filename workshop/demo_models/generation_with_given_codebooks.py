"""Speech with the codes of recordings in the first codebooks, whose other codes a model generates.

With the first codebook alone, it sounds like speech of the model, and no word in it was read wrong: the first codes are those of the right
words. So its WER comes from sounds that the other codes blur, and from what the recognizer misses. In speech that a model generates alone,
words that were read wrong count as well. With more given codebooks, the WER shows which of them matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from overtone.data_prep.audio.waveform import Samples
from overtone.data_prep.audio_codecs import qwen3_tts_codec
from overtone.data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER
from overtone.recipes.speech.decoding.token_sampling import GREEDY, CodeSampler, FrameSampler
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from overtone.recipes.voice_clone.inference.decoding import DecodingSession, TalkerDecoder
from overtone.recipes.voice_clone.inference.exported_folder import ExportedModel
from overtone.recipes.voice_clone.inference.prompt_embeddings import PromptEmbeddings
from overtone.recipes.voice_clone.inference.synthesizer import Synthesizer


@dataclass(frozen=True)
class GivenThenGreedy(CodeSampler):
    """For one frame: first the given codes, each [B], one after the other, then the most likely ones."""

    given: Iterator[Tensor] = field(default_factory=lambda: iter(()))

    def choose(self, scores: Tensor, random: Tensor) -> Tensor:
        """Implements `CodeChooser`."""
        chosen = next(self.given, None)
        return super().choose(scores, random) if chosen is None else chosen


class GivenCodes(DecodingSession):
    """Generates frames whose first codebooks are given, greedily."""

    def __init__(self, decoder: TalkerDecoder, prompts: Sequence[PromptEmbeddings], codes: Sequence[Tensor]) -> None:
        """`codes`: codes [T, K] of each row in the first K codebooks, with the same K from 1 to all."""
        end = decoder.ids.codec_eos
        self.given = pad_sequence([functional.pad(row, (0, 0, 0, 1), value=end) for row in codes], padding_value=end)
        super().__init__(decoder, prompts, GREEDY, [0] * len(prompts), len(self.given) - 1)

    def choose_first(self, count: Tensor) -> None:
        """Codebook 0 of frame `count` [1]: the given one."""
        self.first.copy_(self.given.index_select(0, count)[0, :, 0])

    def run_frame(self, size: int) -> None:
        """Run a frame as the base class does, with the given codes of the frame."""
        others = self.given.index_select(0, self.frame)[0, :, 1:]
        # A row that has ended has no codes; the tables have no row for the end.
        others = others.clamp(max=self.decoder.ids.codebook_size - 1)
        self.sampler = FrameSampler(GREEDY.first, GivenThenGreedy(greedy=True, given=iter(others.unbind(1))))
        super().run_frame(size)


class GivenCodesSynthesizer(Synthesizer):
    """A loaded model that speaks the texts of recordings with the codes of these in the first codebooks, whatever the sampling settings."""

    def __init__(self, exported: ExportedModel, recordings: Mapping[str, Samples], codebooks: int) -> None:
        """`recordings`: text → samples [n] at 24 kHz. `codebooks`: how many are given, at least 1."""
        super().__init__(exported)
        codec = qwen3_tts_codec.load_codec(exported.folder / CODEC_FOLDER, "cpu")
        self.codes = {text: self._encode(codec, wave)[:, :codebooks] for text, wave in recordings.items()}

    def start_session(self, requests: Sequence[SpeechRequest], sampling: SpeechSampling) -> GivenCodes:  # noqa: ARG002  # always greedy
        """Implements `FrameVoice`."""
        prompts = [self.make_prompt(request) for request in requests]
        return GivenCodes(self._decoder, prompts, [self.codes[request.text] for request in requests])

    def _encode(self, codec: object, wave: Samples) -> Tensor:
        """The codes [T, codebooks] of a recording, on the model's device."""
        (codes,) = qwen3_tts_codec.encode_clips(codec, [wave])
        return torch.from_numpy(np.asarray(codes, dtype=np.int64)).to(self._decoder.first_table.device)
