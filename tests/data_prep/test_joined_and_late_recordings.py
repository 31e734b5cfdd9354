"""Recordings of several joined files, and films whose sound starts late: every sentence is found at its time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from overtone.data_prep.audio.waveform import MASTER_RATE, load_track, probe_recording
from overtone.data_prep.cli import voice
from tests.data_prep.audio.encoded_parts import encode, write_moved

LATE = 4.9
SENTENCES = 3
BARE = {"write_xing": "0", "id3v2_version": "0"}
Said = list[tuple[str, float, float]]
"""Text, start and end in seconds."""


def read_start(path: Path) -> tuple[np.ndarray, Said]:
    """The first sentences of a recording of the sample: samples [n, 1] and what is said."""
    said = json.loads(path.with_name(f"{path.stem}.transcript.json").read_text())[: SENTENCES + 1]
    samples = load_track(path, probe_recording(path), MASTER_RATE)[0].samples
    end = (said[SENTENCES - 1]["end"] + said[SENTENCES]["start"]) / 2
    return samples[: round(end * MASTER_RATE), None], [(one["text"], one["start"], one["end"]) for one in said[:SENTENCES]]


def write_subtitles(path: Path, said: Said) -> None:
    def format_clock(seconds: float) -> str:
        return f"00:{int(seconds // 60):02d}:{seconds % 60:06.3f}".replace(".", ",")

    cues = [f"{number}\n{format_clock(start)} --> {format_clock(stop)}\n{text}\n" for number, (text, start, stop) in enumerate(said, 1)]
    path.write_text("\n".join(cues))


def write_joined(path: Path, container: str, codec: str, samples: np.ndarray, said: Said) -> None:
    """Two files, divided between the sentences."""
    middle = round((said[1][2] + said[2][1]) / 2 * MASTER_RATE)
    path.write_bytes(b"".join(encode(container, codec, part, MASTER_RATE) for part in (samples[:middle], samples[middle:])))
    write_subtitles(path.with_suffix(".srt"), said)


@pytest.fixture(scope="module")
def prepared(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict[str, Said], dict[str, Said]]:
    """The summary, and what was found and what is said in each recording."""
    folder = tmp_path_factory.mktemp("joined")
    recordings = folder / "recordings"
    recordings.mkdir()
    spoken: dict[str, Said] = {}
    samples, spoken["book.mp3"] = read_start(sample / "rms" / "railway.ogg")
    write_joined(recordings / "book.mp3", "mp3", "libmp3lame", samples, spoken["book.mp3"])
    samples, spoken["radio.opus"] = read_start(sample / "slt" / "kitchen.mp3")
    write_joined(recordings / "radio.opus", "ogg", "libopus", samples, spoken["radio.opus"])
    samples, spoken["bare.mp3"] = read_start(sample / "rms" / "workshop.wav")
    (recordings / "bare.mp3").write_bytes(encode("mp3", "libmp3lame", samples, MASTER_RATE, BARE))
    write_subtitles(recordings / "bare.srt", spoken["bare.mp3"])
    samples, said = read_start(sample / "slt" / "harbour.flac")
    write_moved(recordings / "film.mkv", "matroska", "aac", samples, MASTER_RATE, lambda at: at + LATE, "mpeg4")
    spoken["film.mkv"] = [(text, start + LATE, stop + LATE) for text, start, stop in said]
    write_subtitles(recordings / "film.srt", spoken["film.mkv"])
    argv = [str(recordings), "--out", str(folder / "out"), "--transcripts", "--speaker", "me", "--language", "en", "--workers", "0"]
    assert voice.main([*argv, "--speaker-check", "none"]) == 0
    rows = [json.loads(line) for name in ("train", "val") for line in (folder / "out" / f"{name}.jsonl").read_text().split("\n") if line]
    found: dict[str, Said] = {name: [] for name in spoken}
    for row in sorted(rows, key=lambda row: row["start"]):
        found[row["source"]].append((row["text"], row["start"], row["end"]))
    return json.loads((folder / "out" / "summary.json").read_text()), found, spoken


def test_every_sentence_has_its_own_text_at_its_own_time(prepared) -> None:
    _, found, spoken = prepared
    for name, said in spoken.items():
        assert [text for text, _, _ in found[name]] == [text for text, _, _ in said], name
        for (_, start, stop), (_, first, last) in zip(found[name], said, strict=True):
            assert abs(start - first) < 0.25 and abs(stop - last) < 0.25, name


def test_the_summary_says_how_each_file_was_read(prepared) -> None:
    summary, _, spoken = prepared
    warnings = {one["source"]: one["warning"] for one in summary["sources"]}
    assert set(warnings) == set(spoken)
    assert warnings["book.mp3"].startswith("2 files joined into one, all read (the next begin at ")
    assert warnings["radio.opus"].startswith("2 files joined into one, all read (the next begin at ")
    assert warnings["film.mkv"].startswith("its sound starts 4.90 s after the other streams of the file")
    assert not any(word in warnings["bare.mp3"] for word in ("truncated", "damaged", "joined", "silence", "decoder"))
    lengths = {one["source"]: one["total"] / MASTER_RATE for one in summary["sources"]}
    for name, said in spoken.items():
        assert said[-1][2] < lengths[name] < said[-1][2] + 1.5
