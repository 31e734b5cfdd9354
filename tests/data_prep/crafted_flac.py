"""FLAC files written by hand (RFC 9639): minutes of constant sound in kilobytes, and headers that do not say the truth."""

from __future__ import annotations

BLOCK = 65_535
"""Samples of a channel in a frame: the most there can be."""


def flac(frames: int, rate: int, channels: int = 1, declared: int | None = None) -> bytes:
    """`frames` samples per channel, in blocks of ±1000. `declared`: what the header says there are (0: unknown)."""
    total = frames if declared is None else declared
    packed = (rate << 44) | ((channels - 1) << 41) | (15 << 36) | total
    info = BLOCK.to_bytes(2, "big") * 2 + bytes(6) + packed.to_bytes(8, "big") + bytes(16)
    blocks = [min(BLOCK, frames - at) for at in range(0, frames, BLOCK)]
    return b"fLaC\x80" + len(info).to_bytes(3, "big") + info + b"".join(_frame(at, size, channels) for at, size in enumerate(blocks))


def _frame(number: int, size: int, channels: int) -> bytes:
    head = bytes([0xFF, 0xF8, 0x70, (channels - 1) << 4]) + chr(number).encode("utf-8", "surrogatepass") + (size - 1).to_bytes(2, "big")
    head += bytes([_crc(head, 8, 0x07)])
    level = (1000 if number % 2 else -1000).to_bytes(2, "big", signed=True)
    body = head + (b"\x00" + level) * channels
    return body + _crc(body, 16, 0x8005).to_bytes(2, "big")


def _crc(data: bytes, width: int, polynomial: int) -> int:
    value, top, mask = 0, 1 << (width - 1), (1 << width) - 1
    for byte in data:
        value ^= byte << (width - 8)
        for _ in range(8):
            value = ((value << 1) ^ polynomial if value & top else value << 1) & mask
    return value
