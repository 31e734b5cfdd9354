"""Small encoded files for tests of joined recordings and of packet times."""

from __future__ import annotations

import io
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

LAYOUTS = {1: "mono", 2: "stereo"}


def chirp(seconds: float, rate: int, channels: int = 1, start: float = 300.0) -> np.ndarray:
    """[n, channels] of a rising tone: every moment differs from every other, and so do the channels."""
    t = np.arange(round(seconds * rate)) / rate
    wave = np.sin(2 * np.pi * (start * t + 150 * t**2))
    return np.stack([wave * (0.4 - 0.1 * channel) for channel in range(channels)], axis=1).astype(np.float32)


def encode(container: str, codec: str, samples: np.ndarray, rate: int, options: dict[str, str] | None = None) -> bytes:
    """Samples [n, channels] as a file, by FFmpeg's names."""
    target = io.BytesIO()
    with av.open(target, "w", format=container, options=options or {}) as file:
        stream = file.add_stream(codec, rate=rate, layout=LAYOUTS[samples.shape[1]])
        for packet in _encode_packets(stream, samples, rate):
            file.mux(packet)
    return target.getvalue()


Move = Callable[[float], float]


def write_moved(path: Path, container: str, codec: str, samples: np.ndarray, rate: int, move: Move, picture: str = "") -> Path:
    """Write a file whose packets are at `move(seconds)`, with a film of the codec `picture` from 0 s if it is given."""
    with av.open(str(path), "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate, layout=LAYOUTS[samples.shape[1]])
        film = file.add_stream(picture, rate=25, width=64, height=64, pix_fmt="yuv420p") if picture else None
        packets = list(_encode_packets(stream, samples, rate))
        if film is not None:
            for number in range(3):
                frame = av.VideoFrame(64, 64, "yuv420p")
                frame.pts = number
                packets += film.encode(frame)
            packets += film.encode(None)
        packets.sort(key=lambda packet: packet.dts * packet.time_base)
        for packet in packets:
            if packet.stream is stream and packet.pts is not None:
                packet.pts = packet.dts = round(Fraction(move(float(packet.pts * packet.time_base))) / packet.time_base)
            file.mux(packet)
    return path


def _encode_packets(stream: av.AudioStream, samples: np.ndarray, rate: int) -> list[av.Packet]:
    """Of a stream that was added to a file; PCM in packets of 1024 samples."""
    layout = LAYOUTS[samples.shape[1]]
    if stream.codec.name == "wmav2":
        stream.bit_rate = 64_000
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T, np.float32), format="fltp", layout=layout)
    frame.sample_rate, frame.pts = rate, 0
    fitting = av.AudioResampler(
        format=stream.format.name, layout=layout, rate=rate, frame_size=1024 if stream.codec.name.startswith("pcm") else None
    )
    pieces = [*fitting.resample(frame), *fitting.resample(None), None]
    return [packet for piece in pieces for packet in stream.encode(piece)]
