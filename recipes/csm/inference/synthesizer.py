"""A loaded CSM that speaks many requests, through `overtone.recipes.speech.interface.Voice`.

A request with a reference clip is a conversation of two turns of one speaker: the clip with its transcript, and the text. The model then
continues in the voice of the clip.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from overtone.data_prep.audio.waveform import AudioError, read_audio
from overtone.data_prep.audio_codecs.mimi_codec import LoadedMimiCodec, open_csm_codec
from overtone.data_prep.audio_codecs.mimi_stream_decoder import MimiStream, MimiStreamDecoder
from overtone.finetune.errors import UserError
from overtone.finetune.hardware import cudnn_sdpa
from overtone.finetune.modeling.loading import materialise
from overtone.finetune.storage.model_security import require_safetensors
from overtone.recipes.speech.continuous_speech_batch import NewFrames
from overtone.recipes.speech.decoding.token_sampling import FrameSampler, make_frame_sampler
from overtone.recipes.speech.frame_synthesizer import FrameVoice
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from overtone.recipes.speech.reference_cache import ReferenceClips

from ..model.model_config import read_config
from ..model.modeling import CsmTrainingModel, build_on_meta
from ..model.sampling_settings import SCHEME
from .decoding import CsmBatch, CsmDecoder
from .exported_folder import LANGUAGE, ExportedCsm


class CsmVoice(FrameVoice[Tensor, FrameSampler, MimiStream]):
    """Owns a loaded model, on the GPU in bf16 if there is one, with its codec in fp32; `close` frees its memory. Not thread-safe."""

    languages = (LANGUAGE,)

    def __init__(self, exported: ExportedCsm) -> None:
        super().__init__(exported, SCHEME)
        cudnn_sdpa.disable_cudnn()
        self.exported = exported
        codec = open_csm_codec("--model", str(exported.folder), None)
        self._codec: LoadedMimiCodec = codec.load("cuda:0" if torch.cuda.is_available() else "cpu")
        self._codec_decoder = MimiStreamDecoder(self._codec.model)
        self._decoder = CsmDecoder(load_model(exported.folder), exported.processor.tokens)
        self._reference_clips = ReferenceClips(self._encode_reference)

    @property
    def rate(self) -> int:
        """Sample rate of every wave, in Hz."""
        return self._codec.code_format.sample_rate

    def close(self) -> None:
        """Free the model's memory. The voice cannot be used afterwards."""
        self._codec = self._codec_decoder = self._decoder = self._reference_clips = None  # type: ignore[assignment]

    @property
    def frame_rate(self) -> float:
        """Frames of codes per second of speech."""
        return self._codec.code_format.sample_rate / self._codec.code_format.samples_per_frame

    def make_sampler(self, sampling: SpeechSampling) -> FrameSampler:
        """Implements `FrameVoice`."""
        return make_frame_sampler(SCHEME, self.exported.generation, sampling)

    def open_frames(self, requests: int) -> CsmBatch:
        """Implements `FrameVoice`."""
        return CsmBatch(self._decoder, requests)

    def decode_waves(self, requests: Sequence[SpeechRequest], codes: Sequence[Tensor]) -> list[np.ndarray]:  # noqa: ARG002
        """Implements `FrameVoice`."""
        waves = self._codec_decoder.decode(pad_sequence([*codes], batch_first=True).to(self._codec.model.device)).cpu().numpy()
        step = self._codec.code_format.samples_per_frame
        return [wave[: len(one) * step] for wave, one in zip(waves, codes, strict=True)]

    def open_stream(self, request: SpeechRequest) -> MimiStream:  # noqa: ARG002
        """Implements `FrameVoice`."""
        return MimiStream(self._codec_decoder)

    def decode_frames(self, new: Sequence[NewFrames[MimiStream]]) -> list[Tensor]:
        """Implements `FrameVoice`."""
        return [one.stream.feed(one.codes[None])[0] if len(one.codes) else torch.zeros(0) for one in new]

    @torch.inference_mode()
    def make_prompt(self, request: SpeechRequest) -> Tensor:
        """[S, H]: the turn of the reference clip, if there is one, and the turn of the text up to its first frame."""
        tokens, decoder, parts = self._decoder.tokens, self._decoder, []
        if request.reference is None:
            number = self.exported.numbers[self.exported.find_speaker(request.speaker)]
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
