"""Traps for texts and copies on real recordings of two speakers: thresholds were chosen on the other half of the prompts.

    python -m pytest -q -s -m slow tests/data_prep/test_telephone_prompts.py

prints the figures of docs/data-preparation.md.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from overtone.data_prep import manifest
from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.cli import voice
from overtone.data_prep.clips.duplicates import normalise_text
from overtone.data_prep.segmentation import recording_parts, subtitle_sync
from tests.data_prep.telephone_prompts import (
    RATE,
    VOICES,
    PromptRecording,
    format_subtitles,
    join_prompts,
    list_prompts,
    needs_prompts,
)

pytestmark = [pytest.mark.slow, needs_prompts]
RECORDINGS, PROMPTS = 3, 30
DOUBTS = {"mistimed_text", "misfit_text", "same_text"}
"""Reasons of the checks of whole transcripts."""


@pytest.fixture(scope="module")
def spoken() -> dict[str, PromptRecording]:
    """Three recordings of thirty prompts per language, about nine minutes, by name."""
    made = {}
    for language in VOICES:
        prompts = list_prompts(language, "reported")
        for number in range(RECORDINGS):
            made[f"{language}/{number}"] = join_prompts(prompts[number * PROMPTS : (number + 1) * PROMPTS], number)
    return made


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, spoken: dict[str, PromptRecording]) -> Path:
    """A folder with the recordings in `raw`; the datasets share one output folder, and thus the stored results of speech detection."""
    folder = tmp_path_factory.mktemp("prompts")
    for name, recording in spoken.items():
        path = folder / "raw" / f"{name}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, recording.samples, RATE, subtype="PCM_16")
    return folder


def prepare(folder: Path, *options: str) -> tuple[int, list[dict], list[dict]]:
    """Exit code, kept rows and rejects of `overtone voice`."""
    out = folder / "out"
    for name in (manifest.TRAIN, manifest.VAL, manifest.REJECTS):
        (out / name).unlink(missing_ok=True)
    code = voice.main([str(folder / "raw"), "--out", str(out), "--speaker-from", "folder", "--workers", "0", *options])
    kept = [row for name in (manifest.TRAIN, manifest.VAL) for _, row in manifest.read_lines(out / name)]
    return code, kept, [row for _, row in manifest.read_lines(out / manifest.REJECTS)]


def count_wrong(kept: list[dict], spoken: dict[str, PromptRecording]) -> int:
    """Kept clips whose text is not that of the prompts whose middle is in the clip."""
    wrong = 0
    for row in kept:
        cues = spoken[row["source"].removesuffix(".wav")].cues
        said = " ".join(cue.text for cue in cues if row["start"] <= (cue.start + cue.end) / 2 <= row["end"])
        wrong += normalise_text(row["text"]) != normalise_text(said)
    return wrong


def write_subtitles(folder: Path, spoken: dict[str, PromptRecording], trap: str) -> None:
    for name, recording in spoken.items():
        language, number = name.split("/")
        cues = spoken[f"{language}/{(int(number) + 1) % RECORDINGS}"].cues if trap == "wrong" else recording.cues
        subtitles = format_subtitles(cues, late=1.0 if trap == "late" else 0.0)
        (folder / "raw" / f"{name}.srt").write_text(subtitles)


def list_kept_before(kept: list[dict], rejects: list[dict], rules: set[str]) -> list[dict]:
    """The clips that are kept without `rules`. Clips next to validation clips count as kept."""
    return [*kept, *(row for row in rejects if row.get("audio") and not set(row["reasons"]) - rules - {"guard"})]


@pytest.mark.parametrize("trap", ["right", "late", "wrong"])
def test_no_text_of_another_recording_or_of_late_subtitles_is_kept(workplace, spoken, trap, monkeypatch) -> None:
    write_subtitles(workplace, spoken, trap)
    with monkeypatch.context() as without:
        without.setattr(subtitle_sync, "measure_delay", lambda *_: 0.0)
        before = list_kept_before(*prepare(workplace, "--transcripts")[1:], DOUBTS)
    code, kept, rejects = prepare(workplace, "--transcripts")
    wrong, wrong_before = count_wrong(kept, spoken), count_wrong(before, spoken)
    doubted = sum(bool(DOUBTS & set(row["reasons"])) for row in rejects)
    print(f"\n{trap} subtitles: without the checks {len(before)}, of which wrong {wrong_before}; kept {len(kept)}, of which wrong {wrong}")
    assert trap == "right" or wrong_before > 0.3 * len(before), "the trap is one"
    assert wrong <= 0.04 * max(len(kept), 1)
    if trap == "wrong":
        assert code == 2 and not kept
    else:
        assert code == 0
        assert len(kept) >= 0.9 * (len(kept) + doubted)
        assert len(kept) > 100


def test_a_whisper_that_does_not_understand_keeps_nothing(workplace, tmp_path) -> None:
    """The demo Whisper under another name, on sentences outside of its grammar."""
    import torch

    from overtone.data_prep.transcription import whisper_engine

    model = whisper_engine.load_whisper("whisper-demo-en", "cpu")
    torch.save({"dims": vars(model.dims), "model_state_dict": model.state_dict()}, tmp_path / "other.pt")
    code, kept, rejects = prepare(workplace, "--whisper", str(tmp_path / "other.pt"))
    clips = sum(bool(row.get("text")) for row in [*kept, *rejects])
    before = list_kept_before(kept, rejects, DOUBTS)
    print(f"\nWhisper that does not understand: without the checks {len(before)}, kept {len(kept)} of {clips} clips with a text")
    assert len(kept) <= 0.04 * clips
    assert code == 2


def test_a_divided_recording_has_the_texts_of_the_whole(tmp_path, monkeypatch) -> None:
    """Three minutes in parts of one, by the demo Whisper, whose nonsense depends on every sample that it gets. Where no pause is longer
    than two seconds, windows near the end of a part differ from those of the whole recording."""
    path = tmp_path / "raw" / "en" / "talk.wav"
    path.parent.mkdir(parents=True)
    soundfile.write(path, join_prompts(list_prompts("en", "reported")[:50], 5, (0.3, 2.6)).samples, RATE)
    found = []
    for seconds in (60.0, 600.0):
        monkeypatch.setattr(recording_parts, "PART_SECONDS", seconds)
        _, kept, _ = prepare(tmp_path, "--whisper", "whisper-demo-en", "--speaker-check", "none", "--preset", "keep-all")
        found.append({(row["start"], row["end"]): row["text"] for row in kept})
    divided, whole = found
    same = sum(divided.get(place) == text for place, text in whole.items())
    print(f"\ndivided: {len(divided)} clips, {same} of the {len(whole)} of the whole recording")
    assert len(list((tmp_path / "out" / ".stages" / "words").iterdir())) >= 4, "three parts, and the whole"
    assert same >= 0.8 * len(whole)
    assert (
        abs(sum(end - start for start, end in divided) - sum(end - start for start, end in whole)) <= 0.02 * path.stat().st_size / 2 / RATE
    )


def write_copies(folder: Path) -> None:
    """Three recordings, each in several copies with one text: damaged, in eight formats, quieter and shifted."""
    from tests.data_prep.conftest import _write_m4a

    def put(name: str, samples: np.ndarray, rate: int, recording: PromptRecording, **form: object) -> None:
        path = folder / "raw" / "me" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".m4a":
            _write_m4a(path, samples, rate)
        else:
            soundfile.write(path, samples, rate, **form)
        path.with_suffix(".srt").write_text(format_subtitles(recording.cues))

    noise = np.random.default_rng(0)
    pcm = {"subtype": "PCM_16"}
    prompts = list_prompts("en", "reported")
    one, three = join_prompts(prompts[:20], 1), join_prompts(prompts[20:40], 3)
    two = join_prompts(list_prompts("fr", "reported")[:20], 2)
    put("one_1_clipped.wav", np.clip(4 * one.samples, -0.99, 0.99), RATE, one, **pcm)
    put("one_2_flattened.wav", 0.5 * np.clip(4 * one.samples, -0.99, 0.99), RATE, one, **pcm)
    put("one_3_noisy.wav", one.samples + 0.1 * one.samples.std() * noise.standard_normal(len(one.samples)), RATE, one, **pcm)
    put("one_4_clean.wav", one.samples, RATE, one, **pcm)
    at_24, at_8 = soxr.resample(two.samples, RATE, MASTER_RATE), soxr.resample(two.samples, RATE, 8000)
    put("two_flac.flac", two.samples, RATE, two)
    put("two_8k.wav", at_8, 8000, two, **pcm)
    put("two_ulaw.wav", at_8, 8000, two, subtype="ULAW")
    put("two_64k.mp3", two.samples, RATE, two, bitrate_mode="CONSTANT", compression_level=0.8)
    put("two_128k.mp3", at_24, MASTER_RATE, two, bitrate_mode="CONSTANT", compression_level=0.2)
    put("two_opus.opus", at_24, MASTER_RATE, two, format="OGG", subtype="OPUS")
    put("two_vorbis.ogg", two.samples, RATE, two)
    put("two_aac.m4a", at_24, MASTER_RATE, two)
    put("three_1.wav", three.samples, RATE, three, **pcm)
    put("three_2_quiet.wav", 0.1 * three.samples, RATE, three, **pcm)
    room = 0.0003 * noise.standard_normal(round(0.7373 * RATE))
    shifted = replace(three, cues=tuple(replace(cue, start=cue.start + 0.7373, end=cue.end + 0.7373) for cue in three.cues))
    put("three_3_shifted.wav", np.concatenate([room, three.samples]), RATE, shifted, **pcm)


def test_the_best_copy_wins_and_no_copy_validates(tmp_path) -> None:
    write_copies(tmp_path)
    code, kept, rejects = prepare(tmp_path, "--transcripts")
    before = Counter(row["source"].removeprefix("me/")[:3] for row in list_kept_before(kept, rejects, {"duplicate"}))
    by_source = Counter(row["source"].removeprefix("me/") for row in kept)
    by_text = Counter(normalise_text(row["text"]) for row in kept)
    sides = [{normalise_text(row["text"]) for row in kept if row["split"] == split} for split in ("train", "val")]
    print(
        f"\ncopies: without the comparison {dict(before)}, kept {dict(by_source)}; "
        f"texts in both splits: {len(sides[0] & sides[1])}; validation clips: {len(sides[1])}"
    )
    assert code == 0
    assert {name for name in by_source if name.startswith("one")} == {"one_4_clean.wav"}
    assert {name for name in by_source if name.startswith("two")} == {"two_flac.flac"}
    assert len([name for name in by_source if name.startswith("three")]) == 1
    assert {text for text, count in by_text.items() if count > 1} <= {"hotel"}, "which two prompts say"
    assert sides[1] and not sides[0] & sides[1]


@pytest.mark.parametrize("language", VOICES)
def test_second_takes_and_other_sentences_stay(tmp_path, language) -> None:
    """All prompts of a language, each in a recording of its own with its text: what is removed is listed."""
    from overtone.data_prep.clips.duplicates import DuplicateCandidate, find_duplicates
    from overtone.data_prep.clips.fingerprint_matching import FingerprintedClip
    from overtone.data_prep.clips.fingerprints import compute_fingerprint

    clips, texts, sounds = [], {}, {}
    for half in ("tuned", "reported"):
        for prompt in list_prompts(language, half):
            samples = soxr.resample(prompt.samples, RATE, MASTER_RATE)
            texts[prompt.name], sounds[prompt.name] = normalise_text(prompt.text), samples
            words = compute_fingerprint(samples, 0, len(samples))
            clips.append(DuplicateCandidate(FingerprintedClip(prompt.name, prompt.name, 0, len(samples), words), prompt.text, 0.0))
    found = find_duplicates(clips, sounds.__getitem__).kept
    others = {one: kept for one, kept in found.items() if texts[one] != texts[kept]}
    pairs = sum(count * (count - 1) // 2 for count in Counter(texts.values()).values())
    print(f"\n{language}: {len(clips)} prompts, {pairs} pairs with one text; removed {len(found)}, of which with another text {others}")
    assert len(found) <= 0.03 * len(clips)
