"""A loaded CSM that speaks many requests, through `recipes.speech.interface.Voice`.

A request with a reference clip is a conversation of two turns of one speaker: the clip with its transcript, and the text. The model then
continues in the voice of the clip.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from data_prep.audio.waveform import AudioError, read_audio
from data_prep.audio_codecs.mimi_codec import LoadedMimiCodec, open_csm_codec
from data_prep.audio_codecs.mimi_streaming import MimiStream, decode_codes
from finetune.errors import UserError
from finetune.hardware import sdpa_backends
from finetune.modeling.loading import materialise
from finetune.storage.model_security import require_safetensors
from recipes.speech.decoding.frame_loop import growing_chunk_sizes
from recipes.speech.decoding.token_sampling import make_frame_sampler
from recipes.speech.interface import SpeechRequest, SpeechResult, SpeechSampling
from recipes.speech.loaded_voice import LoadedVoice
from recipes.speech.reference_clips import ReferenceClips

from ..model.csm_model import CsmTrainingModel, build_on_meta
from ..model.model_config import read_config
from .exported_folder import LANGUAGE, ExportedCsm, check_language
from .frame_decoding import CsmDecoder, CsmSession
from .sampling_settings import SCHEME


class CsmVoice(LoadedVoice):
    """Owns a loaded model, on the GPU in bf16 if there is one, with its codec in fp32; `close` frees its memory. Not thread-safe."""

    can_clone, languages = True, (LANGUAGE,)

    def __init__(self, exported: ExportedCsm) -> None:
        super().__init__(exported, exported.speakers, SCHEME.resolve(exported.generation, SpeechSampling()))
        sdpa_backends.disable_cudnn()
        self.exported = exported
        codec = open_csm_codec("--model", str(exported.folder), None)
        self._codec: LoadedMimiCodec = codec.load("cuda:0" if torch.cuda.is_available() else "cpu")
        self.rate, self.frame_rate = codec.sample_rate, codec.frame_rate
        self._decoder = CsmDecoder(load_model(exported.folder), exported.processor.tokens)
        self._reference_clips = ReferenceClips(self._encode_reference)

    def close(self) -> None:
        """Free the model's memory. The voice cannot be used afterwards."""
        self._codec = self._decoder = self._reference_clips = None  # type: ignore[assignment]

    def check_language(self, language: str | None, speaker: str | None) -> None:  # noqa: ARG002  # of the protocol
        """Raise `UserError` for a language other than English."""
        check_language(language)

    def speak(self, requests: Sequence[SpeechRequest], sampling: SpeechSampling) -> list[SpeechResult]:
        """Speech for each request, in order, generated as one batch. With the same seed, a request gives the same codes alone or in a
        batch."""
        if not requests:
            return []
        session = self._start_session(requests, sampling)
        for _ in session.frames():
            pass
        results = session.results()
        codes = pad_sequence([one.codes for one in results], batch_first=True)
        waves = decode_codes(self._codec.model, codes.to(self._codec.model.device)).cpu().numpy()
        step = self._codec.code_format.samples_per_frame
        return [SpeechResult(wave[: len(one.codes) * step], self.rate, one.ended) for wave, one in zip(waves, results, strict=True)]

    def stream(self, request: SpeechRequest, sampling: SpeechSampling) -> Generator[np.ndarray, None, SpeechResult]:
        """Chunks [samples] float32 as they are generated; concatenated they are the wave of `speak`. The generator returns the result."""
        session, stream = self._start_session([request], sampling), MimiStream(self._codec.model)
        chunks = [np.zeros(0, np.float32)]
        for piece in session.chunks(growing_chunk_sizes()):
            chunks.append(stream.feed(piece.transpose(0, 1))[0].cpu().numpy())
            yield chunks[-1]
        return SpeechResult(np.concatenate(chunks), self.rate, session.results()[0].ended)

    def _start_session(self, requests: Sequence[SpeechRequest], sampling: SpeechSampling) -> CsmSession:
        for request in requests:
            self.check(request)
        prompts = [self._embed_prompt(request) for request in requests]
        sampler, frames = make_frame_sampler(SCHEME, self.exported.generation, sampling), math.ceil(sampling.max_seconds * self.frame_rate)
        return CsmSession(self._decoder, prompts, sampler, [sampling.seed] * len(prompts), frames)

    @torch.inference_mode()
    def _embed_prompt(self, request: SpeechRequest) -> Tensor:
        """[S, H]: the turn of the reference clip, if there is one, and the turn of the text up to its first frame."""
        tokens, decoder, parts = self._decoder.tokens, self._decoder, []
        if request.reference is None:
            number = self.exported.speakers[self.exported.complete(request).speaker or ""]
        else:
            number = self.exported.free_number
            frames = self._reference_clips.get(request.reference)
            parts.append(decoder.embed_text(self.exported.tokenize(request.reference_text or "", number)))
            parts.append(decoder.embed_frames(torch.cat([frames, torch.full_like(frames[:1], tokens.frame_end)])))
        prompt = torch.cat([*parts, decoder.embed_text(self.exported.tokenize(request.text, number))])
        if len(prompt) >= (most := tokens.positions):
            raise UserError(f"--reference {request.reference} and the texts fill the model's {most} positions; shorten the clip")
        return prompt

    def _encode_reference(self, reference: Path) -> Tensor:
        """The codes [T, codebooks] of a clip."""
        try:
            clip = read_audio(reference, self.rate).samples
        except (AudioError, OSError) as error:
            raise UserError(f"--reference {reference} is not usable ({error}); give another clip") from None
        (codes,) = self._codec.encode([clip])
        return torch.from_numpy(codes.astype(np.int64)).to(self._decoder.table.device)


def load_model(folder: Path) -> CsmTrainingModel:
    """The weights without the codec's, on the GPU in bf16 if there is one, else on the CPU in fp32. Raises `UserError`.

    Not by the stock class: the released folder has two sets of weights, and the class finds its own by a key of config.json that is not
    admitted (`REDIRECTING_KEYS` of model_security).
    """
    device, dtype = (torch.device("cuda:0"), torch.bfloat16) if torch.cuda.is_available() else (torch.device("cpu"), torch.float32)
    require_safetensors(folder, "--model")
    model = build_on_meta(read_config(folder), folder)
    materialise(model, folder, {}, device, seed=0)
    for parameter in model.parameters():  # not the buffers: rotary frequencies stay in fp32
        parameter.data = parameter.data.to(dtype)
    return model.eval().requires_grad_(False)
