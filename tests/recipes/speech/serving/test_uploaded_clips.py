"""Tests of `overtone.recipes.speech.serving.uploaded_clips`."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio.sandboxed_decoder import AudioDecoder
from overtone.data_prep.audio.waveform import AudioError, AudioLimits, read_audio
from overtone.finetune.errors import UserError
from overtone.recipes.speech.serving import uploaded_clips
from overtone.recipes.speech.serving.uploaded_clips import BOUNDS, KEPT_SECONDS, SMALLEST, Clips
from tests.data_prep.crafted_flac import flac

MINUTES = {"frames": 15 * 60 * 384_000, "rate": 384_000, "channels": 8}
"""A clip that once stopped the server: two gigabytes of samples in 190 kB."""


@pytest.fixture
def clips(tmp_path: Path) -> Iterator[Clips]:
    clips = Clips(tmp_path / "clips")
    yield clips
    clips.close()


def decoded(clips: Clips, path: Path | str) -> Path:
    return asyncio.run(clips.decode(str(path)))


def test_a_clip_is_decoded_once_and_without_loss(clips: Clips, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, (3 * 48_000, 2))
    soundfile.write(tmp_path / "a.flac", noise, 48_000)
    clip = clips.keep((tmp_path / "a.flac").read_bytes(), "My Voice.FLAC")
    assert clip.name == "clip.flac" and clips.find(str(clip)) == clip
    wave = decoded(clips, clip)
    assert np.array_equal(soundfile.read(wave, dtype="float32")[0], read_audio(clip, 24_000).samples)
    written = wave.stat().st_mtime_ns
    assert decoded(clips, clip) == wave and wave.stat().st_mtime_ns == written


def test_two_voices_on_two_channels_are_refused(clips: Clips, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    bursts = np.repeat(random.random(20) < 0.5, 24_000)
    soundfile.write(tmp_path / "a.flac", 0.1 * random.standard_normal((len(bursts), 2)) * np.stack([bursts, ~bursts], 1), 48_000)
    with pytest.raises(UserError, match="its channels have different sounds; upload one of them"):
        decoded(clips, clips.keep((tmp_path / "a.flac").read_bytes(), "a.flac"))


@pytest.mark.parametrize("declared", [None, 0], ids=["honest", "undeclared"])
def test_a_very_long_clip_is_refused_without_decoding(declared: int | None, clips: Clips) -> None:
    content = flac(**MINUTES, declared=declared)
    assert len(content) < 2**18
    clip = clips.keep(content, "a.flac")
    with pytest.raises(UserError, match="cannot be used .*at most .* are read"):
        decoded(clips, clip)
    assert not clip.with_name(uploaded_clips.DECODED).exists()
    assert BOUNDS.samples * 4 < 2**27


@pytest.mark.parametrize("name", ["a\r\nb.flac", "../../x.flac", "x.html", "", "\ud800", "a" * 5000 + ".wav", ".flac", "a.flac\x00"])
def test_only_a_common_extension_of_a_file_name_is_used(name: str, clips: Clips) -> None:
    clip = clips.keep(b"x", name)
    assert clip.name in ("clip", "clip.flac", "clip.wav") and clips.find(str(clip)) == clip


def test_only_paths_of_clips_are_found(clips: Clips, tmp_path: Path) -> None:
    clip = clips.keep(b"x", "a.wav")
    (tmp_path / "clip.wav").write_bytes(b"x")
    folder = tmp_path / "clips"
    for path in (tmp_path / "clip.wav", f"{folder}/../clip.wav", f"{clip.parent}/../{clip.parent.name}/clip.wav", clip.parent, f"{clip}\n"):
        assert clips.find(str(path)) is None, path
    for path in ("", "clip.wav", "http://x/clip.wav", f"{clip}\x00", clip.with_name(uploaded_clips.DECODED)):
        assert clips.find(str(path)) is None, path
        with pytest.raises(UserError, match="has been removed; upload it again"):
            decoded(clips, path)


def test_the_size_of_the_folder_is_limited_by_removing_the_oldest_clips(tmp_path: Path) -> None:
    clips = Clips(tmp_path / "clips", room=3 * SMALLEST)
    kept = []
    for at in range(5):
        kept.append(clips.keep(bytes([at]), "a.wav"))
        os.utime(kept[-1].parent, (time.time() - 100 + at,) * 2)
    assert [clip.is_file() for clip in kept] == [False, False, True, True, True], "a small file counts as one of SMALLEST"
    clips.keep(b"x" * 2 * SMALLEST, "a.wav")
    assert [clip.is_file() for clip in kept] == [False, False, False, False, True]
    clips.close()


def test_old_clips_are_removed(clips: Clips, monkeypatch: pytest.MonkeyPatch) -> None:
    old, young = clips.keep(b"x", "a.wav"), clips.keep(b"x", "a.wav")
    os.utime(old.parent, (time.time() - KEPT_SECONDS - 1,) * 2)
    swept = threading.Event()
    sweep = clips.sweep

    def sweep_and_report() -> None:
        sweep()
        swept.set()

    monkeypatch.setattr(clips, "sweep", sweep_and_report)
    monkeypatch.setattr(uploaded_clips, "SWEEP_SECONDS", 0.0)

    async def scenario() -> None:
        async with clips.sweeping(None):
            assert await asyncio.to_thread(swept.wait, 60)

    asyncio.run(scenario())
    assert not old.exists() and young.is_file()


class HeldDecoder(AudioDecoder):
    """Decodes when the test sets `go`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.begun, self.go = threading.Event(), threading.Event()

    def probe(self, path: Path, bounds: AudioLimits = BOUNDS) -> Any:
        self.begun.set()
        assert self.go.wait(60)
        raise AudioError("unreadable", "as the test says")


def test_decoding_does_not_block_the_event_loop(tmp_path: Path) -> None:
    """The loop is free during decoding. A second clip waits, and is not decoded if its client disconnects."""
    held = HeldDecoder(tmp_path / "decoding")
    clips = Clips(tmp_path / "clips", decoder=held)
    clip = clips.keep(b"x", "a.wav")

    async def scenario() -> None:
        first, second = (asyncio.create_task(clips.decode(str(clip))) for _ in range(2))
        assert await asyncio.to_thread(held.begun.wait, 60)
        assert not first.done() and not second.done()
        second.cancel()
        held.go.set()
        with pytest.raises(UserError, match="as the test says"):
            await first

    asyncio.run(scenario())
    clips.close()
