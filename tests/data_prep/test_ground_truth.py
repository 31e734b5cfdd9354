"""No word is clipped or lost, on recordings in which the time of every phone is known."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from overtone.data_prep import manifest
from overtone.data_prep.cli import voice
from tests.data_prep.spoken import VOICES, Sentence, needs_flite, record
from tests.ledger import record as record_promise

pytestmark = needs_flite
SLACK = 0.015
"""Seconds by which flite's own times, whole frames of 5 ms, may miss the sound. A phone lasts 30 to 150 ms."""


@dataclass(frozen=True)
class Prepared:
    """Recordings by name, and the dataset that was made of them."""

    said: dict[str, list[Sentence]]
    clips: list[dict[str, object]]
    rejects: list[dict[str, object]]


def prepared(folder: Path, count: int, recordings: int, seed: int, *options: str) -> Prepared:
    """The transcripts' times are wrong by up to 0.2 s, as those of people and of Whisper are."""
    chance, said = random.Random(seed), {}
    for number in range(recordings):
        name, speaker = f"{number:03d}.wav", VOICES[number % len(VOICES)]
        (folder / "raw" / speaker).mkdir(parents=True, exist_ok=True)
        path = folder / "raw" / speaker / name
        said[f"{speaker}/{name}"] = spoken = record(path, speaker, count, seed + number)
        rough = [
            {"start": max(0.0, one.start + chance.uniform(-0.2, 0.2)), "end": one.end + chance.uniform(-0.2, 0.2), "text": one.text}
            for one in spoken
        ]
        path.with_suffix(".transcript.json").write_text(json.dumps(rough))
    argv = [str(folder / "raw"), "--out", str(folder / "out"), "--transcripts", "--speaker-from", "folder", "--language", "en"]
    assert voice.main([*argv, *options]) == 0
    rows = [row for name in (manifest.TRAIN, manifest.VAL) for _, row in manifest.read_lines(folder / "out" / name)]
    return Prepared(said, rows, [row for _, row in manifest.read_lines(folder / "out" / manifest.REJECTS)])


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """About two minutes."""
    return prepared(tmp_path_factory.mktemp("few"), 12, 3, 1, "--workers", "0")


def spans(made: Prepared, name: str) -> list[tuple[float, float]]:
    return sorted((float(one["start"]), float(one["end"])) for one in [*made.clips, *made.rejects] if one["source"] == name)  # type: ignore[arg-type]


def clipped(made: Prepared) -> list[str]:
    """Clip edges inside a phone."""
    return [
        f"{name}: {edge:.3f} s in {sentence.text!r}"
        for name, said in made.said.items()
        for span in spans(made, name)
        for edge in span
        for sentence in said
        for start, end in sentence.phones
        if start + SLACK < edge < end - SLACK
    ]


def lost(made: Prepared) -> tuple[float, float]:
    """(seconds of speech that lie in no clip and in no reject, seconds of speech)."""
    missing, whole = 0.0, 0.0
    for name, said in made.said.items():
        inside = spans(made, name)
        for start, end in (phone for sentence in said for phone in sentence.phones):
            whole += end - start
            missing += (end - start) - sum(max(0.0, min(end, stop) - max(start, begin)) for begin, stop in inside)
    return missing, whole


def wrongly_told(made: Prepared) -> list[str]:
    """Kept clips whose text is not that of the sentences whose middle lies in them."""
    wrong = []
    for clip in made.clips:
        start, end = float(clip["start"]), float(clip["end"])  # type: ignore[arg-type]
        inside = [one.text for one in made.said[str(clip["source"])] if start < (one.start + one.end) / 2 < end]
        if clip["text"] != " ".join(inside):
            wrong.append(f"{clip['source']} {start:.2f}: {clip['text']!r}, said was {inside}")
    return wrong


def check(made: Prepared) -> None:
    """Nothing clipped, nothing lost, nothing said by the wrong clip."""
    edges = [edge for name in made.said for span in spans(made, name) for edge in span]
    missing, whole = lost(made)
    record_promise("no clip begins or ends inside a sound", len(edges), len(clipped(made)))
    share = missing / whole
    record_promise(
        "at most 0.1 % of all speech lies in no clip and in no reject", len(edges) // 2, int(share > 0.001), f"{share:.4%} of {whole:.0f} s"
    )
    record_promise("a clip's text is that of the sentences in it", len(made.clips), len(wrongly_told(made)))


def test_no_word_is_clipped_or_lost(few: Prepared) -> None:
    check(few)
    assert len(few.clips) >= 12 and lost(few)[1] > 60
    assert sum(len(str(clip["text"])) for clip in few.clips) >= 0.95 * sum(len(one.text) for said in few.said.values() for one in said)


def test_the_check_detects_a_cut_inside_a_word(few: Prepared) -> None:
    """The check itself: the same clips, moved by a tenth of a second."""
    moved = [{**clip, "start": float(clip["start"]) + 0.35} for clip in few.clips]  # type: ignore[arg-type]
    assert len(clipped(Prepared(few.said, moved, few.rejects))) > len(moved) // 2
    assert lost(Prepared(few.said, moved[1:], few.rejects))[0] > 1.0


@pytest.mark.slow
def test_an_hour_of_speech_has_no_clipped_or_lost_word(tmp_path: Path) -> None:
    made = prepared(tmp_path, count=120, recordings=9, seed=100)
    check(made)
    assert lost(made)[1] > 1800
