"""The corpus: the same seed gives the same bytes, and existing clips are kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import soundfile

from overtone.finetune.errors import UserError
from workshop.demo_models.corpus import make_corpus
from workshop.demo_models.corpus.grammar import find_split
from workshop.demo_models.corpus.voices import KNOWN_VOICES, RATE, VOICES, SyntheticVoice

ONLY_FLITE = tuple(voice for voice in VOICES if voice.engine == "flite" and voice.name in ("kal16", "rms"))
needs_flite = pytest.mark.skipif(not shutil.which("flite"), reason="needs flite (Debian: apt-get install flite)")


@pytest.fixture
def two_voices(monkeypatch: pytest.MonkeyPatch) -> tuple[SyntheticVoice, ...]:
    """Two voices that need no other package, and a lexicon of two words."""
    monkeypatch.setattr(make_corpus, "VOICES", ONLY_FLITE)
    monkeypatch.setattr(make_corpus, "KNOWN_VOICES", ONLY_FLITE[:1])
    monkeypatch.setattr(make_corpus.grammar, "list_words", lambda: ["teacher", "garden"])
    return ONLY_FLITE


@pytest.mark.slow
@needs_flite
def test_two_runs_give_the_same_bytes(tmp_path: Path, two_voices: tuple[SyntheticVoice, ...]) -> None:
    for name in ("one", "two"):
        assert make_corpus.main([str(tmp_path / name), "--sentences-per-voice", "1"]) == 0
    one, two = ({path.relative_to(root): path.read_bytes() for path in root.rglob("*.*")} for root in (tmp_path / "one", tmp_path / "two"))
    assert one == two
    assert len(one) == 2 + 2 * len(two_voices) + 6 + len(make_corpus.SIZES) + len(make_corpus.FAR_SIZES), (
        "corpus.jsonl, lexicon.json; two sentences per voice and one per size; for the known voice one more, and five of words"
    )


@needs_flite
def test_an_interrupted_run_resumes_and_keeps_existing_clips(tmp_path: Path, two_voices: tuple[SyntheticVoice, ...]) -> None:
    rows = make_corpus.write_corpus(tmp_path, 0, 1)
    kept, lost = (tmp_path / rows[0]["audio"], tmp_path / rows[-1]["audio"])
    before = kept.stat().st_mtime_ns, lost.read_bytes()
    lost.unlink()
    assert make_corpus.write_corpus(tmp_path, 0, 1) == rows == list(make_corpus.read_corpus(tmp_path))
    assert (kept.stat().st_mtime_ns, lost.read_bytes()) == before
    assert {soundfile.info(tmp_path / row["audio"]).samplerate for row in rows} == {RATE}


def test_voices_share_the_held_out_sentences_but_no_training_sentences() -> None:
    lines = make_corpus.plan_lines(0, 5)
    train = [line.text for line in lines if line.split in ("train", "more")]
    held_out = [line.text for line in lines if line.split == "held_out"]
    assert len(set(train)) == len(train) == 5 * len(VOICES) + 7 * len(KNOWN_VOICES)
    assert {line.voice for line in lines if line.split == "more"} == set(KNOWN_VOICES)
    assert len(set(held_out)) == 5 and len(held_out) == 5 * len(VOICES)
    assert all(find_split(line.text) == line.split for line in lines if line.split in ("train", "held_out"))
    assert {find_split(text) for text in train} == {"train"}
    assert len({line.audio for line in lines}) == len(lines)


def test_random_words_are_planned_for_known_voices_without_repetition() -> None:
    lines = list(make_corpus.plan_random_words(0, 4, 40))
    assert len({line.text for line in lines}) == len(lines) == 40 * len(KNOWN_VOICES)
    assert sum(line.split == "words" for line in make_corpus.plan_lines(0, 40)) == 2 * len(lines)
    assert {line.voice for line in lines} == set(KNOWN_VOICES)
    words = {word for line in lines for word in line.text.rstrip(".").split()[1:]}
    assert {"Anna", "Sunday", "lamp"} <= words <= set(make_corpus.list_mid_sentence_words())


def test_resampled_voices_are_separate_speakers() -> None:
    lines = [line for line in make_corpus.plan_lines(0, 20) if line.split == "sizes"]
    speakers = {line.speaker for line in lines}
    assert len(lines) == 5 * len(speakers) and {line.size for line in lines} == set(make_corpus.SIZES)
    assert speakers >= {"slt-80", "slt-116", "ked-93"} and not speakers & {"slt", "ked"}
    assert {name for name in speakers if name.startswith("rms")} == {"rms-80", "rms-86", "rms-116"}, "only the far sizes of the new voice"
    assert all(line.audio.startswith(f"audio/{line.speaker}/sizes-") for line in lines)
    others = {line.text for line in make_corpus.plan_lines(0, 20) if line.split in ("train", "more", "held_out")}
    assert not {line.text for line in lines} & others


def test_every_known_voice_has_each_single_word() -> None:
    lines = [line for line in make_corpus.plan_lines(0, 3) if line.split == "alone"]
    words = make_corpus.list_mid_sentence_words()[:3]
    assert [(line.voice, line.text) for line in lines[:9:3]] == [(KNOWN_VOICES[0], f"{word}.") for word in words]
    assert {(line.voice, line.speed) for line in lines} == {(voice, speed) for voice in KNOWN_VOICES for speed in (1.0, 1.15, 1.3)}


def test_a_missing_corpus_is_reported_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"corpus\.jsonl is missing; create it: python -m"):
        next(iter(make_corpus.read_corpus(tmp_path)))
