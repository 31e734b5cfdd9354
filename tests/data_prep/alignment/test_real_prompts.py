"""Real recordings with wrong transcripts: telephone prompts of the Debian packages `asterisk-core-sounds-en-g722` and
`asterisk-core-sounds-en`, read by a professional speaker. The limit of the aligner was chosen on the other half of the prompts.

  python -m pytest -q -s -m slow tests/data_prep/alignment/test_real_prompts.py
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import soundfile
import soxr

from overtone.data_prep.alignment.pocketsphinx_aligner import (
    LEAST_SCORE,
    NARROW_LEAST_SCORE,
    LoadedPocketsphinxAligner,
    open_pocketsphinx_aligner,
)
from overtone.data_prep.cli import voice

SOUNDS = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
TEXTS = Path("/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz")
RATE, PAUSE_SECONDS, PROMPTS_PER_RECORDING = 16000, 0.7, 34
RECORDINGS = 2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (SOUNDS.is_dir() and TEXTS.is_file()), reason="needs the Debian packages asterisk-core-sounds-en(-g722)"),
]


class Prompt(NamedTuple):
    """A prompt in a joined recording, times in seconds."""

    start: float
    stop: float
    text: str


@functools.cache
def list_prompts() -> tuple[tuple[str, np.ndarray], ...]:
    """(text, samples [n] at 16 kHz) of every second prompt with at least three words."""
    pytest.importorskip("pocketsphinx")
    lines = gzip.decompress(TEXTS.read_bytes()).decode(errors="replace").splitlines()
    named = sorted(tuple(map(str.strip, line.split(":", 1))) for line in lines if ":" in line and not line.startswith(";"))
    usable = [
        (text, SOUNDS / f"{name}.g722")
        for name, text in named
        if (SOUNDS / f"{name}.g722").is_file() and not re.search(r"[\[(<]", text) and len(text.split()) >= 3
    ]
    return tuple((text, decode_g722(path)) for text, path in usable[1::2])


def decode_g722(path: Path) -> np.ndarray:
    import av

    with av.open(str(path), format="g722") as container:
        frames = [frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)]
    return np.concatenate(frames).astype(np.float32) / 32768


def join_prompts(folder: Path) -> dict[str, list[Prompt]]:
    """Write recordings of joined prompts; returns their prompts by name."""
    folder.mkdir()
    noise, recordings = np.random.default_rng(0), {}
    everything = list_prompts()
    for first in range(0, RECORDINGS * PROMPTS_PER_RECORDING, PROMPTS_PER_RECORDING):
        pause = (noise.normal(size=int(PAUSE_SECONDS * RATE)) * 1e-4).astype(np.float32)
        parts, prompts, at = [pause], list[Prompt](), len(pause)
        for text, samples in everything[first : first + PROMPTS_PER_RECORDING]:
            prompts.append(Prompt(at / RATE, (at + len(samples)) / RATE, text))
            parts += [samples, pause]
            at += len(samples) + len(pause)
        name = f"part{first // PROMPTS_PER_RECORDING}"
        soundfile.write(folder / f"{name}.wav", np.concatenate(parts), RATE)
        recordings[name] = prompts
    return recordings


def write_cues(path: Path, prompts: list[Prompt], texts: list[str] | None = None, late: float = 0.0) -> None:
    utterances = [
        {"start": one.start + late, "end": one.stop + late, "text": text}
        for one, text in zip(prompts, texts or [one.text for one in prompts], strict=True)
    ]
    path.write_text(json.dumps(utterances))


def join_cues(prompts: list[Prompt]) -> list[Prompt]:
    """One cue for every eight prompts: longer than a clip may be."""
    groups = [prompts[first : first + 8] for first in range(0, len(prompts), 8)]
    return [Prompt(group[0].start, group[-1].stop, " ".join(one.text for one in group)) for group in groups]


def insert_unspoken(prompts: list[Prompt], others: list[str]) -> tuple[list[Prompt], list[str]]:
    """Behind every third prompt, in the pause, a cue with the text of a prompt of another recording."""
    cues: list[Prompt] = []
    for at, one in enumerate(prompts):
        cues.append(one)
        if at % 3 == 1:
            cues.append(Prompt(one.stop + 0.1, one.stop + PAUSE_SECONDS - 0.1, others[at]))
    return cues, [one.text for one in cues]


def write_trap(trap: str, folder: Path, recordings: dict[str, list[Prompt]]) -> None:
    names = sorted(recordings)
    for name, other in zip(names, [*names[1:], names[0]], strict=True):
        prompts = recordings[name]
        texts = [one.text for one in prompts]
        swapped = [*texts[:1], *(text for pair in zip(texts[2::2], texts[1::2], strict=False) for text in pair), *texts[-1:]]
        path = folder / f"{name}.json"
        path.unlink(missing_ok=True)
        if trap == "one plain text":
            (folder / f"{name}.txt").write_text(" ".join(texts))
        elif trap == "cues of half a minute":
            write_cues(path, join_cues(prompts))
        elif trap == "texts of neighbours swapped":
            write_cues(path, prompts, swapped)
        elif trap == "cues that nobody speaks":
            write_cues(path, *insert_unspoken(prompts, [one.text for one in recordings[other]]))
        elif trap == "subtitles of another recording":
            write_cues(path, recordings[other])
        else:
            write_cues(path, prompts, late=1.0 if trap == "subtitles a second late" else 0.0)


def normalize(text: str) -> str:
    return " ".join(re.findall(r"[a-z']+|\d", text.lower()))


def count_kept(out: Path, recordings: dict[str, list[Prompt]]) -> tuple[int, int]:
    """Kept clips with the right text, and with a wrong one. Right: the text holds every prompt of which 90 % are in the clip, and nothing
    but words of the prompts of which more than 0.2 s are in it."""
    rows = [json.loads(line) for name in ("train.jsonl", "val.jsonl") if (out / name).is_file() for line in (out / name).open()]
    right = 0
    for row in rows:
        shared = [(one, min(one.stop, row["end"]) - max(one.start, row["start"])) for one in recordings[Path(row["source"]).stem]]
        whole = normalize(" ".join(one.text for one, seconds in shared if seconds > 0.9 * (one.stop - one.start)))
        right += whole in normalize(row["text"]) and normalize(row["text"]) in normalize(
            " ".join(one.text for one, sec in shared if sec > 0.2)
        )
    return right, len(rows) - right


def prepare(folder: Path, out: Path, *options: str) -> None:
    for name in ("train.jsonl", "val.jsonl"):
        (out / name).unlink(missing_ok=True)  # a run that keeps nothing leaves those of the run before
    voice.main([str(folder), "--out", str(out), "--transcripts", "--language", "en", "--workers", "0", "--device", "cpu", *options])


TRAPS = (
    "subtitles of another recording",
    "texts of neighbours swapped",
    "cues that nobody speaks",
    "subtitles a second late",
    "cues of half a minute",
    "one plain text",
)
RIGHT = "right subtitles"
LIMITS = {RIGHT: 0.9, "subtitles a second late": 0.8}
"""Trap → share of the good clips that must stay."""


class Counts(NamedTuple):
    """(right, wrong) of the kept clips."""

    alone: tuple[int, int]
    """Without a model."""
    aligned: tuple[int, int]


class SharedSearches:
    """Results of the aligner's searches by what they depend on: the traps have the same sound, and many of the same texts."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made, self.shared = 0, 0
        for name in ("align", "locate", "_score_free_phones"):
            patch.setattr(LoadedPocketsphinxAligner, name, self.remember(getattr(LoadedPocketsphinxAligner, name)))

    def remember(self, search: Callable[..., object]) -> Callable[..., object]:
        known: dict[tuple[object, ...], object] = {}

        def find(aligner: LoadedPocketsphinxAligner, samples: np.ndarray, *rest: Sequence[object]) -> object:
            key = (hashlib.sha256(samples.tobytes()).digest(), *map(tuple, rest))
            self.shared += key in known
            if key not in known:
                self.made += 1
                known[key] = search(aligner, samples, *rest)
            return known[key]

        return find


class Prompts:
    """The recordings. Owns the stored results, which the traps share."""

    def __init__(self, folder: Path, searches: SharedSearches) -> None:
        self.folder, self.out, self.searches = folder / "recordings", folder / "out", searches
        self.recordings = join_prompts(self.folder)

    @functools.cached_property
    def good(self) -> int:
        """Clips that the right subtitles give without a model."""
        return self.count(RIGHT)[0]

    def count(self, trap: str, *options: str) -> tuple[int, int]:
        """(right, wrong) of the kept clips."""
        write_trap(trap, self.folder, self.recordings)
        prepare(self.folder, self.out, *options)
        return count_kept(self.out, self.recordings)

    def measure(self, trap: str) -> Counts:
        began, (made, shared) = time.process_time(), (self.searches.made, self.searches.shared)
        counts = Counts(self.count(trap), self.count(trap, "--align", "pocketsphinx"))
        print(
            f"\n{trap}: (right, wrong) without a model {counts.alone}, with pocketsphinx {counts.aligned}; "
            f"{time.process_time() - began:.0f} CPU s, {self.searches.made - made} searches, {self.searches.shared - shared} shared"
        )
        return counts


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prompts]:
    with pytest.MonkeyPatch.context() as patch:
        yield Prompts(tmp_path_factory.mktemp("prompts"), SharedSearches(patch))


@pytest.mark.parametrize("trap", [RIGHT, *TRAPS])
def test_wrong_texts_are_rejected_and_right_ones_kept(prompts: Prompts, trap: str) -> None:
    good, found = prompts.good, prompts.measure(trap)
    assert good > 50
    assert found.alone[1] <= 0.04 * max(sum(found.alone), 1)
    assert found.aligned[1] <= 0.01 * good
    for right in (found.alone[0], found.aligned[0]):
        assert right >= LIMITS.get(trap, 0.0) * good


def test_texts_of_speech_in_the_band_of_a_telephone() -> None:
    """The lower limit rejects fewer right texts, and still nine of ten wrong ones."""
    aligner, spoken = open_pocketsphinx_aligner("--align").load("cpu"), list_prompts()[::6]
    narrow = [soxr.resample(soxr.resample(samples, RATE, 8000), 8000, RATE) for _, samples in spoken]
    texts = [text.split() for text, _ in spoken]
    right = [aligner.align(samples, text).score for samples, text in zip(narrow, texts, strict=True)]
    wrong = [aligner.align(samples, text).score for samples, text in zip(narrow, texts[1:] + texts[:1], strict=True)]
    difference = LEAST_SCORE - NARROW_LEAST_SCORE
    lost, lost_before = sum(score < 0 for score in right), sum(score < difference for score in right)
    accepted, accepted_before = sum(score >= 0 for score in wrong), sum(score >= difference for score in wrong)
    print(
        f"\n{len(spoken)} prompts at 8 kHz: {lost} right texts rejected ({lost_before} by the limit for 16 kHz), "
        f"{accepted} wrong ones accepted ({accepted_before})"
    )
    assert len(spoken) >= 20 and lost < lost_before
    assert lost <= 0.25 * len(spoken) and accepted <= 0.1 * len(spoken)
