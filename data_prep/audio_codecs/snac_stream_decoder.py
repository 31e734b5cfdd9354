"""Decodes codes to sound in chunks; every sample equals that of decoding all codes at once.

SNAC's decoder consists of convolutions that look back and ahead, so a frame can be decoded when a few more are known. Each window is
decoded with as many frames before and after it as the convolutions reach. Its noise is a function of the frame's number
(`data_prep/audio_codecs/snac_noise.py`), and so the same in every window. (The package of Orpheus' authors decodes windows of four frames
and keeps the second, which is less context than the convolutions reach.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from overtone.data_prep.audio_codecs.snac_codec import LoadedSnacCodec

CHUNK_FRAMES = 300
"""Frames per chunk when the sound is not streamed: 26 s with Orpheus; limits the memory of the convolutions."""


class StreamingSnacDecoder:
    """Decodes a growing sequence of codes. Owns the frames that are still needed."""

    def __init__(self, codec: LoadedSnacCodec) -> None:
        self._codec, self._reach = codec, count_context_frames(codec)
        self._frames: Tensor | None = None
        self._first = self._done = 0

    def feed(self, codes: Tensor, last: bool = False) -> Tensor:
        """Decode the next frames [T, codebooks], and return the samples [n] float32, on the CPU, that are now final; all of them if these
        frames are the `last`."""
        # A session's chunks are on its device, its results on the CPU.
        self._frames = codes if self._frames is None else torch.cat([self._frames, codes.to(self._frames.device)])
        known = self._first + len(self._frames)
        ready = known if last else max(self._done, known - self._reach)
        if ready == self._done:
            return torch.zeros(0)
        start = max(0, self._done - self._reach)
        audio = self._codec.decode_frames(self._frames[start - self._first :][None], start)[0]
        step = self._codec.config.samples_per_frame
        final = audio[(self._done - start) * step : (ready - start) * step].float().cpu()
        self._done, kept = ready, max(0, ready - self._reach)
        self._frames, self._first = self._frames[kept - self._first :], kept
        return final


def count_context_frames(codec: LoadedSnacCodec) -> int:
    """Return the number of frames before and after a frame that its sound depends on, rounded up, from kernels, dilations and strides."""
    reach, rate = 0.0, 1
    for layer in codec.model.decoder.modules():
        if isinstance(layer, nn.ConvTranspose1d):
            reach += layer.kernel_size[0] / layer.stride[0] / rate
            rate *= layer.stride[0]
        elif isinstance(layer, nn.Conv1d):
            reach += layer.dilation[0] * (layer.kernel_size[0] - 1) / 2 / rate
    return math.ceil(reach / codec.config.vq_strides[0])


def decode_codes(codec: LoadedSnacCodec, codes: Tensor) -> Tensor:
    """Decode [T, codebooks] to [samples] float32 on the CPU, in chunks that limit the memory."""
    stream = StreamingSnacDecoder(codec)
    return torch.cat([*(stream.feed(piece) for piece in codes.split(CHUNK_FRAMES)), stream.feed(codes[:0], last=True)])
