"""Pieces of a real recording become clip files with measures."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio.waveform import MASTER_RATE, Audio, encode_flac
from overtone.data_prep.clips import extraction
from overtone.data_prep.recordings.recording_files import RecordingSource
from overtone.data_prep.recordings.user_transcripts import UserTranscript
from overtone.data_prep.segmentation.clip_segmentation import Lengths, Piece, TextUnit, WhisperScores
from overtone.data_prep.segmentation.vad import Region
from overtone.finetune.storage.synthetic_audio_mark import SyntheticMark, read_synthetic_mark

SOURCE = RecordingSource(Path("a.wav"), "a.wav", "0123456789abcdef", "me")


@pytest.fixture(scope="module")
def regions(said) -> list[Region]:
    return [Region(round(one["start"] * MASTER_RATE), round(one["end"] * MASTER_RATE)) for one in said]


def heard(language: str) -> WhisperScores:
    return WhisperScores(language=language, avg_logprob=-0.1, compression_ratio=1.2, no_speech_prob=0.0, temperature=0.0, complete=True)


def test_a_clip_id_contains_the_recording_and_the_times() -> None:
    piece = Piece(MASTER_RATE, 3 * MASTER_RATE + 12, ())
    assert extraction.make_clip_id(SOURCE, piece) == "0123456789ab_00001000_00003001"
    assert extraction.make_clip_path(SOURCE, piece) == "clips/01/0123456789ab_00001000_00003001.flac"


def test_a_whole_text_is_one_piece_and_each_utterance_is_one_piece(railway, regions, said) -> None:
    text = UserTranscript(text="All of it.")
    make_units = text.make_units(len(railway.samples), "english")
    (piece,) = extraction.divide_recording(text, make_units, regions, railway, Lengths())
    assert (piece.text, piece.start <= regions[0].start, piece.stop >= regions[-1].stop) == ("All of it.", True, True)
    timed = UserTranscript(utterances=said)
    pieces = extraction.divide_recording(timed, timed.make_units(len(railway.samples), "english"), regions, railway, Lengths())
    assert [piece.text for piece in pieces] == [one["text"] for one in said]


def test_pieces_with_a_text_are_written_at_one_gain_and_the_others_only_measured(railway, regions, said, tmp_path) -> None:
    pieces = [
        Piece(region.start, region.stop, (TextUnit(text=said[index]["text"] * (index != 1), start=0, stop=1),))
        for index, region in enumerate(regions[:3])
    ]
    made = extraction.write_clips(tmp_path, SOURCE, pieces, regions, railway, "english", extraction.measure_levels(railway, regions))
    assert [bool(clip.audio) for clip in made] == [True, False, True]
    assert len({clip.gain_db for clip in made}) == 1
    assert len({clip.quality.bandwidth_hz for clip in made}) == 1
    for clip in (made[0], made[2]):
        samples, _ = soundfile.read(tmp_path / clip.audio)
        ratio = np.abs(samples[200:-200]).max() / np.abs(railway.samples[clip.start : clip.stop][200:-200]).max()
        assert 20 * np.log10(ratio) == pytest.approx(clip.gain_db, abs=0.02)
    assert sorted(path.name for path in tmp_path.rglob("*.flac")) == sorted(Path(clip.audio).name for clip in made if clip.audio)
    assert extraction.make_existence_check(tmp_path)(made)
    (tmp_path / made[0].audio).unlink()
    assert not extraction.make_existence_check(tmp_path)(made)


def test_clips_of_a_marked_recording_are_marked(railway, regions, said, tmp_path) -> None:
    mark = SyntheticMark("me")
    (tmp_path / "a.flac").write_bytes(encode_flac(Audio(railway.samples[:24_000], MASTER_RATE), mark.comment))
    piece = Piece(regions[0].start, regions[0].stop, (TextUnit(text=said[0]["text"], start=0, stop=1),))
    source, levels = dataclasses.replace(SOURCE, path=tmp_path / "a.flac"), extraction.measure_levels(railway, regions)
    (made,) = extraction.write_clips(tmp_path, source, [piece], regions, railway, "english", levels)
    assert read_synthetic_mark(tmp_path / made.audio) == mark


def test_the_language_is_the_most_frequent_detected_one_unless_it_was_given(railway, regions, tmp_path) -> None:
    words = [TextUnit(text=" a", start=0, stop=1, heard=heard(language)) for language in ("german", "english", "english")]
    pieces = [Piece(regions[0].start, regions[0].stop, tuple(words)), Piece(regions[1].start, regions[1].stop, ())]
    levels = extraction.measure_levels(railway, regions)
    for requested, expected in ((None, ["english", "auto"]), ("french", ["french", "french"])):
        made = extraction.write_clips(tmp_path, SOURCE, pieces, regions, railway, requested, levels)
        assert [clip.language for clip in made] == expected


def test_the_cache_key_of_clips_contains_a_digest_of_each_module() -> None:
    assert len(set(extraction.compute_code_digests())) == 10
