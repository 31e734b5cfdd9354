"""Speech with the first codes of recordings, whose other codes a model generates.

It sounds like speech of the model, and no word in it was read wrong: the first codes are those of the right words. So its WER comes from
sounds that the other codes blur, and from what the recognizer misses. In speech that a model generates alone, words that were read wrong
count as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from data_prep.audio.waveform import Samples
from data_prep.audio_codecs import qwen3_tts_codec
from data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER
from recipes.speech.decoding.token_sampling import GREEDY
from recipes.voice_clone.inference import reference_package, waveform_streaming
from recipes.voice_clone.inference.exported_metadata import ExportedModel
from recipes.voice_clone.inference.prompt_embeddings import PromptEmbedder, PromptEmbeddings, VoiceConditioning
from recipes.voice_clone.inference.talker_decoding import DecodingSession, TalkerDecoder
from recipes.voice_clone.model.sequence_layout import tokenize_text

BATCH = 16
LANGUAGE = "english"


class GivenFirstCodes(DecodingSession):
    """Generates frames whose codebook 0 is given."""

    def __init__(self, decoder: TalkerDecoder, prompts: Sequence[PromptEmbeddings], first: Sequence[Tensor]) -> None:
        """`first`: codebook 0 [T] of each row."""
        end = decoder.ids.codec_eos
        self.given = pad_sequence([torch.cat([row, row.new_tensor([end])]) for row in first], padding_value=end)
        super().__init__(decoder, prompts, GREEDY, [0] * len(prompts), len(self.given) - 1)

    def choose_first(self, count: Tensor) -> None:
        """Codebook 0 of frame `count` [1]: the given one."""
        self.first.copy_(self.given.index_select(0, count)[0])


class TrainedVoice:
    """Owns a loaded `custom_voice` export, with one of its speakers, and its codec."""

    def __init__(self, folder: Path, speaker: str) -> None:
        self.exported = ExportedModel.read(folder)
        self.model: Any = reference_package.load(folder).model
        self.codec = qwen3_tts_codec.load_codec(folder / CODEC_FOLDER, "cpu")
        self.decoder = TalkerDecoder(self.model.talker, self.exported.ids)
        self.embedder = PromptEmbedder(self.model.talker, self.exported.ids)
        self.conditioning = VoiceConditioning(self.decoder.first_table[self.exported.speakers[self.exported.speaker(speaker)]])

    def generate(self, texts: Sequence[str], waves: Sequence[Samples]) -> list[Samples]:
        """The texts with the first codes of their recordings [n] at 24 kHz; each as long as its recording."""
        return [
            wave
            for start in range(0, len(texts), BATCH)
            for wave in self._generate_batch(texts[start : start + BATCH], waves[start : start + BATCH])
        ]

    @torch.inference_mode()
    def _generate_batch(self, texts: Sequence[str], waves: Sequence[Samples]) -> list[Samples]:
        codes = [torch.from_numpy(np.asarray(one, dtype=np.int64)) for one in qwen3_tts_codec.encode_clips(self.codec, waves)]
        session = GivenFirstCodes(self.decoder, [self.embed(text) for text in texts], [one[:, 0] for one in codes])
        for _ in session.frames():
            pass
        generated = pad_sequence([result.codes for result in session.results()], batch_first=True)
        decoded = waveform_streaming.decode_codes(self.model.speech_tokenizer.model.decoder, generated).numpy()
        return [one[: len(wave)] for one, wave in zip(decoded, waves, strict=True)]

    def embed(self, text: str) -> PromptEmbeddings:
        """The prompt for a text."""
        tokens, language = tokenize_text(text, self.exported.processor), self.exported.ids.languages[LANGUAGE]
        return self.embedder.embed(tokens, language, self.conditioning, streamed=False)
