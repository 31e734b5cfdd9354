"""Real voices with known faults: a conversation, two speakers in a folder, music, reverberation, flattened peaks, a very low level.

The prompts are those of Debian's packages asterisk-core-sounds-en-g722 and -fr-g722 (two women). The limits are tuned on the other half.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from overtone.data_prep.audio.waveform import Samples
from overtone.data_prep.cli import voice
from overtone.data_prep.clips import dnsmos
from overtone.data_prep.clips.duplicates import normalise_text
from overtone.data_prep.speakers import resemblyzer_encoder, voice_clusters
from tests.data_prep.telephone_prompts import FIVE_VOICES, VOICES, has_prompts, join_prompts, list_prompts
from workshop.benchmarks import background_sound

RATE = 16_000
SOUNDS = Path("/usr/share/asterisk/sounds")
SPEAKERS = {"allison": SOUNDS / "en_US_f_Allison", "june": SOUNDS / "fr_CA_f_June"}
NO_SPEECH = ("beep", "tone", "monkeys", "music", "silence", "ring", "congestion", "letters", "digits", "phonetic")
OF_THESE_RULES = {"two_voices", "guest_speaker", "other_speaker", "background_sound", "poor_sound", "flattened", "too_quiet"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(path.is_dir() for path in SPEAKERS.values()), reason="needs asterisk-core-sounds-en-g722 and asterisk-core-sounds-fr-g722"
    ),
]


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make` installs the packages of weights beside the environment."""
    monkeypatch.syspath_prepend(str(Path(sys.prefix) / "similarity"))
    if resemblyzer_encoder.find_weights() is None:
        pytest.skip("needs resemblyzer: " + resemblyzer_encoder.INSTALL)


@pytest.fixture
def needs_speechmos() -> None:
    if dnsmos.find_scorer() is None:
        pytest.skip("needs speechmos: " + dnsmos.INSTALL)


def read_prompts(speaker: str, count: int) -> list[Samples]:
    """Prompts of 1.2 to 8 s of the half that nothing was tuned on, spread over the package, each at the same level."""
    import av

    folder = SPEAKERS[speaker]
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.g722")) if 9600 <= path.stat().st_size <= 64000]
    names = [name for name in names if int(hashlib.sha256(name.encode()).hexdigest(), 16) % 2 and not any(w in name for w in NO_SPEECH)]
    found = []
    for name in names[:: len(names) // count][:count]:
        with av.open(str(folder / name), format="g722") as file:
            wave = np.concatenate([frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)]).astype(np.float32) / 32768
        found.append(wave * np.float32(0.06 / np.sqrt(np.mean(wave**2))))
    return found


def write_recording(path: Path, prompts: list[tuple[Samples, ...]], seed: int = 0) -> list[tuple[float, float]]:
    """Write a recording with one cue per item, which joins its prompts with pauses of 0.3 s; returns the cues' times in seconds."""
    chance, words = (
        random.Random(seed),
        ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet", "kilo", "lima", "mike", "november"],
    )
    pieces, cues, at = [np.zeros(RATE // 2, np.float32)], [], RATE // 2
    for parts in prompts:
        wave = np.concatenate([one for part in parts for one in (part, np.zeros(RATE * 3 // 10, np.float32))][:-1])
        text = ""
        while len(text) < 13 * len(wave) / RATE:
            text += chance.choice(words) + " "
        cues.append({"start": at / RATE, "end": (at + len(wave)) / RATE, "text": text.strip()})
        pieces += [wave, np.zeros(RATE * 6 // 10, np.float32)]
        at += len(wave) + RATE * 6 // 10
    path.parent.mkdir(parents=True, exist_ok=True)
    room = 10 ** (-75 / 20) * np.random.default_rng(seed).standard_normal(at, np.float32)
    soundfile.write(path, np.concatenate(pieces) + room, RATE, subtype="FLOAT")
    path.with_suffix(".json").write_text(json.dumps(cues))
    return [(float(str(cue["start"])), float(str(cue["end"]))) for cue in cues]


def prepare(folder: Path, *options: str) -> list[dict]:
    """All clips of the dataset; `reasons` is empty for kept ones, `before` says whether the other rules keep it."""
    voice.main([str(folder), "--out", str(folder.parent / "out"), "--transcripts", "--workers", "0", *(options or ("--speaker", "me"))])
    clips = []
    for name in ("train.jsonl", "val.jsonl", "rejects.jsonl"):
        file = folder.parent / "out" / name
        clips += [{"reasons": []} | json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    clips = [clip for clip in clips if clip.get("audio")]
    return [clip | {"before": not set(clip["reasons"]) - OF_THESE_RULES - {"guard"}} for clip in clips]


def holds(clip: dict, cue: tuple[float, float]) -> bool:
    return cue[0] < (clip["start"] + clip["end"]) / 2 < cue[1]


def count(clips: list[dict], wrong: Callable[[dict], bool]) -> tuple[int, int, int, int]:
    """(wrong before, kept before, wrong now, kept now)."""
    before, now = [one for one in clips if one["before"]], [one for one in clips if not set(one["reasons"]) - {"guard"}]
    found = sum(map(wrong, before)), len(before), sum(map(wrong, now)), len(now)
    print(f"wrong {found[0]} of {found[1]} kept before, {found[2]} of {found[3]} now")
    return found


def test_of_a_conversation_only_clips_of_one_voice_are_kept(tmp_path: Path) -> None:
    hers, other = read_prompts("allison", 44), read_prompts("june", 36)
    turns: list[tuple[Samples, ...]] = []
    who = []
    while hers and other:
        turns += [(hers.pop(),), (other.pop(),)]
        who += ["allison", "june"]
        if len(turns) % 6 == 0 and hers and other:
            turns.append((hers.pop(), other.pop()))
            who.append("both")
    turns += [(one,) for one in hers]
    who += ["allison"] * len(hers)
    cues = write_recording(tmp_path / "in" / "talk.wav", turns)

    def find_voice(clip: dict) -> str:
        return next((voice for cue, voice in zip(cues, who, strict=True) if holds(clip, cue)), "both")

    clips = prepare(tmp_path / "in")
    speaker = max(SPEAKERS, key=lambda name: sum(not clip["reasons"] and find_voice(clip) == name for clip in clips))
    wrong_before, before, wrong, now = count(clips, lambda clip: find_voice(clip) != speaker)
    assert wrong_before >= 0.4 * before and wrong <= 0.02 * now
    assert now >= 0.9 * sum(clip["before"] and find_voice(clip) == speaker for clip in clips)
    named = prepare(tmp_path / "in", "--diarize")
    voices = {(clip["speaker"], find_voice(clip)) for clip in named if not set(clip["reasons"]) - {"guard"}}
    assert len(voices) == 2 and {voice for _, voice in voices} == {"allison", "june"}


def test_a_cue_of_two_voices_is_divided_between_them(tmp_path: Path) -> None:
    """Twenty cues of two prompts, the second in a lower voice. `--align` knows where the words are."""
    pytest.importorskip("pocketsphinx")
    prompts = [one for one in list_prompts("en", "reported") if 1.2 <= len(one.samples) / RATE <= 7 and len(one.text.split()) >= 3]
    pieces, cues, spoken, at = [np.zeros(RATE // 2, np.float32)], [], [], RATE // 2
    for number in range(20):
        begin, text = at, []
        for prompt, rate in ((prompts[number], RATE), (prompts[45 + number], round(RATE / 0.82))):
            wave = soxr.resample(prompt.samples, RATE, rate)
            wave = (wave * (0.06 / np.sqrt(np.mean(wave**2)))).astype(np.float32)
            spoken.append((at / RATE, (at + len(wave)) / RATE, prompt.text, rate == RATE))
            pieces += [wave, np.zeros(RATE * 3 // 10, np.float32)]
            at += len(wave) + RATE * 3 // 10
            text.append(prompt.text)
        cues.append({"start": begin / RATE, "end": at / RATE - 0.3, "text": " ".join(text)})
        pieces.append(np.zeros(RATE // 2, np.float32))
        at += RATE // 2
    (tmp_path / "in").mkdir()
    room = 10 ** (-75 / 20) * np.random.default_rng(0).standard_normal(at, np.float32)
    soundfile.write(tmp_path / "in" / "talk.wav", np.concatenate(pieces) + room, RATE)
    (tmp_path / "in" / "talk.json").write_text(json.dumps(cues))
    for options, least in (((), 0), (("--align", "pocketsphinx"), 30)):
        kept = [one for one in prepare(tmp_path / "in", "--diarize", *options) if not set(one["reasons"]) - {"guard"}]
        wrong = []
        for one in kept:
            inside = [each for each in spoken if one["start"] < each[1] and one["end"] > each[0]]
            whole = normalise_text(" ".join(text for _, _, text, _ in inside))
            if len({is_first for *_, is_first in inside}) != 1 or normalise_text(one["text"]) not in whole:
                wrong.append(one["text"])
        print(f"cues of two voices {options}: {len(kept)} clips kept, of which wrong {wrong}")
        assert not wrong and len(kept) >= least


def test_two_speakers_in_a_folder_are_reported_and_one_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in SPEAKERS:
        for number, prompts in enumerate(np.array_split(np.array([(one,) for one in read_prompts(name, 40)], dtype=object), 4)):
            write_recording(tmp_path / "in" / f"{name}{number}.wav", [tuple(one) for one in prompts], number)
    clips = prepare(tmp_path / "in")
    assert "warning: speaker me has 2 voices" in capsys.readouterr().err
    assert sum(bool(set(clip["reasons"]) & {"two_voices", "guest_speaker"}) for clip in clips) == 0


@pytest.mark.parametrize("name", SPEAKERS)
def test_good_clips_of_one_speaker_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    write_recording(tmp_path / "in" / "talk.wav", [(one,) for one in read_prompts(name, 80)])
    clips = prepare(tmp_path / "in")
    assert "voices:" not in capsys.readouterr().err
    before = [clip for clip in clips if clip["before"]]
    about_voice = [clip for clip in before if set(clip["reasons"]) & {"two_voices", "guest_speaker", "other_speaker"}]
    about_sound = [clip for clip in before if set(clip["reasons"]) & OF_THESE_RULES]
    print(f"{name}: {len(before)} good clips, {len(about_voice)} rejected for the voice, {len(about_sound)} for any of the rules")
    assert len(about_voice) <= 0.02 * len(before) and len(about_sound) <= 0.07 * len(before)


@pytest.mark.parametrize("language", VOICES)
def test_single_words_of_a_speaker_are_no_guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str) -> None:
    """Six recordings of 25 prompts, each checked by itself. Half of the prompts are shorter than the windows that decide how many voices
    there are."""
    prompts = list_prompts(language, "reported")
    for number in range(6):
        recording = join_prompts(prompts[25 * number : 25 * (number + 1)], number)
        folder = tmp_path / "in" / f"recording{number}"
        folder.mkdir(parents=True)
        soundfile.write(folder / "talk.wav", recording.samples, RATE)
        (folder / "talk.json").write_text(json.dumps([vars(cue) for cue in recording.cues]))
    lost = []
    for seconds in (0.0, voice_clusters.LEAST_SECONDS):
        monkeypatch.setattr(voice_clusters, "LEAST_SECONDS", seconds)
        before = [clip for clip in prepare(tmp_path / "in", "--speaker-from", "folder") if clip["before"]]
        lost.append(sum(bool(set(clip["reasons"]) & {"two_voices", "guest_speaker"}) for clip in before))
        print(f"{language}, windows from {seconds} s on decide: {len(before)} good clips, {lost[-1]} rejected as another voice")
    assert lost[0] >= 0.04 * len(before), "the trap is one"
    assert lost[1] <= 0.02 * len(before)


def make_music(length: int) -> Samples:
    """Chords with a beat, RMS 1."""
    time, beat = np.arange(length) / RATE, np.arange(length) % (RATE // 2) / RATE
    notes = [(220, 277, 330), (196, 247, 294), (175, 220, 262), (165, 208, 247)]
    chord = (time // 1).astype(int) % 4
    tones = sum(np.sin(2 * np.pi * np.array([one[k] for one in notes])[chord] * h * time) / h for k in range(3) for h in range(1, 6))
    wave = tones * np.exp(-3 * beat) + 0.8 * np.random.default_rng(0).standard_normal(length) * np.exp(-60 * beat)
    return (wave / np.sqrt(np.mean(wave**2))).astype(np.float32)


def add_reverb(wave: Samples) -> Samples:
    """Reverberation of 0.6 s, 3 dB above the direct sound."""
    size = RATE * 6 // 10
    tail = np.random.default_rng(0).standard_normal(size) * 10 ** (-3 * np.arange(size) / size)
    tail *= 10 ** (3 / 20) / np.sqrt(np.sum(tail**2))
    tail[0] = 1
    length = len(wave) + size
    return np.fft.irfft(np.fft.rfft(wave, length) * np.fft.rfft(tail, length), length)[: len(wave)].astype(np.float32) / 2


FAULTS: dict[str, Callable[[Samples], Samples]] = {
    "music 20 dB below": lambda wave: wave + np.float32(0.1 * 0.06) * make_music(len(wave)),
    "reverberation": add_reverb,
    "peaks cut 8 dB above the mean level": lambda wave: np.clip(wave, -0.15, 0.15),
    "-68 dBFS in 16 bits": lambda wave: (np.round(wave * np.float32(10 ** (-68 / 20) / 0.06) * 32768) / 32768).astype(np.float32),
}


@pytest.mark.usefixtures("needs_speechmos")
@pytest.mark.parametrize("fault", FAULTS)
def test_clips_with_a_fault_are_rejected(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "in" / "talk.wav"
    write_recording(path, [(one,) for one in read_prompts("allison", 30)])
    wave, _ = soundfile.read(path, dtype="float32")
    soundfile.write(path, FAULTS[fault](wave), RATE, subtype="FLOAT")
    clips = prepare(tmp_path / "in")
    print(fault)
    _, before, _, now = count(clips, lambda _: True)
    assert before >= 20 and now <= 0.2 * before


@pytest.mark.usefixtures("needs_speechmos")
@pytest.mark.parametrize("language", FIVE_VOICES)
def test_a_background_is_found_and_a_voice_is_none(language: str) -> None:
    """The limits were chosen with the first two voices."""
    if not has_prompts(language):
        pytest.skip(f"needs asterisk-core-sounds-{language}-g722")
    clean = background_sound.judge(language, "g722", 40, lambda wave, _: wave)
    lost = sum("background_sound" in reasons for reasons in clean)
    print(f"{language}: {lost} of {len(clean)} clean clips rejected for their background")
    assert lost <= 0.03 * len(clean)
    for name, noise in background_sound.NOISES.items():
        noisy = background_sound.judge(language, "g722", 5, lambda wave, who, make=noise: background_sound.add(wave, make, who, 10))
        found = sum("background_sound" in reasons for reasons in noisy)
        print(f"{language}, {name} 10 dB below: {found} of {len(noisy)} found")
        assert noisy and found >= 0.95 * len(noisy)
