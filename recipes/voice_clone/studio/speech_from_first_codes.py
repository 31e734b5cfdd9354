"""Speech with the first codes of recordings, whose other codes a model generates.

It sounds like speech of the model, and no word in it was read wrong: the first codes are those of the right words. So its WER comes from
sounds that the other codes blur, and from what the recognizer misses. In speech that a model generates alone, words that were read wrong
count as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from data_prep.audio.waveform import Samples
from data_prep.audio_codecs import qwen3_tts_codec
from data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER
from recipes.speech.decoding.token_sampling import GREEDY
from recipes.speech.interface import SpeechRequest, SpeechSampling
from recipes.voice_clone.inference.exported_folder import ExportedModel
from recipes.voice_clone.inference.prompt_embeddings import PromptEmbeddings
from recipes.voice_clone.inference.synthesizer import Synthesizer
from recipes.voice_clone.inference.talker_decoding import DecodingSession, TalkerDecoder


class GivenFirstCodes(DecodingSession):
    """Generates frames whose codebook 0 is given, greedily."""

    def __init__(self, decoder: TalkerDecoder, prompts: Sequence[PromptEmbeddings], first: Sequence[Tensor]) -> None:
        """`first`: codebook 0 [T] of each row."""
        end = decoder.ids.codec_eos
        self.given = pad_sequence([torch.cat([row, row.new_tensor([end])]) for row in first], padding_value=end)
        super().__init__(decoder, prompts, GREEDY, [0] * len(prompts), len(self.given) - 1)

    def choose_first(self, count: Tensor) -> None:
        """Codebook 0 of frame `count` [1]: the given one."""
        self.first.copy_(self.given.index_select(0, count)[0])


class FirstCodesSynthesizer(Synthesizer):
    """A loaded model that speaks the texts of recordings with the first codes of these, whatever the sampling settings."""

    def __init__(self, exported: ExportedModel, recordings: Mapping[str, Samples]) -> None:
        """`recordings`: text → samples [n] at 24 kHz."""
        super().__init__(exported)
        codec = qwen3_tts_codec.load_codec(exported.folder / CODEC_FOLDER, "cpu")
        self.first_codes = {text: self._encode(codec, wave) for text, wave in recordings.items()}

    def start_session(self, requests: Sequence[SpeechRequest], sampling: SpeechSampling) -> GivenFirstCodes:  # noqa: ARG002  # always greedy
        """Implements `FrameVoice`."""
        prompts = [self._embed_prompt(request, self._load_voice(request)) for request in requests]
        return GivenFirstCodes(self._decoder, prompts, [self.first_codes[request.text] for request in requests])

    def _encode(self, codec: object, wave: Samples) -> Tensor:
        """Codebook 0 [T] of a recording, on the model's device."""
        (codes,) = qwen3_tts_codec.encode_clips(codec, [wave])
        return torch.from_numpy(np.asarray(codes, dtype=np.int64)[:, 0]).to(self._decoder.first_table.device)
