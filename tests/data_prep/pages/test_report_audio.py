"""Players and spectrograms in the report show the audio of their clip."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import soundfile
from matplotlib.image import imread

from data_prep.audio.librosa_import import import_librosa
from data_prep.pages import report_audio
from data_prep.pages.quality_rule_effects import build_candidate_clips, find_weaknesses, list_rules
from data_prep.pages.report_audio import BANDS, COLUMNS, choose_clips, draw_spectrogram, render_clips
from finetune.errors import UserError
from tests.data_prep.example_clips import clip, dataset, whole

RATE = 24_000


def tone(hertz: float, seconds: float) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * RATE)) / RATE)).astype(np.float32)


def chosen(kept, rejected, tmp_path):
    made = dataset(tmp_path, kept, rejected)
    return choose_clips(kept, rejected, find_weaknesses(build_candidate_clips(made), list_rules(made)))


def test_the_worst_clips_are_those_nearest_to_a_limit_and_none_is_shown_twice(tmp_path) -> None:
    kept = [clip(f"c{at:02d}", snr_db=16.0 + at) for at in range(60)]
    rejected = [clip(f"r{at:02d}", ("noisy",), snr_db=14.0 - at) for at in range(8)]
    others = [whole("x.mp3", "unreadable"), clip("mute", ("noisy",), snr_db=14.5, audio=""), clip("twin", ("duplicate",))]
    choice = chosen(kept, [*rejected, *others], tmp_path)
    assert [one.id for one in choice.worst] == [f"c{at:02d}" for at in range(20)]
    assert [one.id for one in choice.best] == [f"c{at:02d}" for at in range(59, 39, -1)]
    assert [one.id for one in choice.nearest] == [f"r{at:02d}" for at in range(8)]


@pytest.mark.parametrize("count", [0, 1, 2, 7, 39, 41])
def test_few_clips_are_divided_between_worst_and_best(count, tmp_path) -> None:
    choice = chosen([clip(f"c{at:02d}", snr_db=16.0 + at) for at in range(count)], [], tmp_path)
    ids = [one.id for one in (*choice.worst, *choice.best)]
    assert len(ids) == len(set(ids)) == (min(count, 40) if count > 1 else 0)


def test_a_spectrogram_shows_a_tone_at_its_frequency_and_time() -> None:
    quiet = 1e-4 * np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    picture = imread(io.BytesIO(draw_spectrogram(np.concatenate([tone(1000, 1.0), quiet]))), format="png")
    assert picture.shape[0] == BANDS
    dark = 1 - picture[:, :, :3].mean(axis=2)
    half = picture.shape[1] // 2
    row = int(dark[:, : half - 5].mean(axis=1).argmax())
    assert import_librosa().mel_frequencies(n_mels=BANDS + 2, fmax=RATE / 2)[BANDS - row] == pytest.approx(1000, rel=0.05)
    assert dark[:, half + 5 :].mean() < 0.1 < dark[row, : half - 5].mean()


def test_spectrograms_of_long_short_and_silent_clips_are_valid() -> None:
    assert imread(io.BytesIO(draw_spectrogram(tone(300, 20.0))), format="png").shape[1] <= COLUMNS + 2
    assert imread(io.BytesIO(draw_spectrogram(np.zeros(3000, np.float32))), format="png").shape[0] == BANDS


def written(folder, names: list[str], seconds: float = 0.5) -> None:
    (folder / "clips").mkdir()
    for at, name in enumerate(names):
        soundfile.write(folder / "clips" / f"{name}.flac", tone(200 + 10 * at, seconds), RATE)


def test_players_embed_the_clip_files_up_to_a_size_limit(tmp_path, monkeypatch) -> None:
    kept = [clip(f"c{at}", snr_db=16.0 + at) for at in range(4)]
    written(tmp_path, [one.id for one in kept])
    choice = chosen(kept, [], tmp_path)
    shown = render_clips(tmp_path, choice)
    for one in shown.values():
        kind, _, data = one.player.partition(",")
        assert kind == "data:audio/flac;base64"
        assert base64.b64decode(data) == (tmp_path / one.clip.audio).read_bytes()
    monkeypatch.setattr(report_audio, "AUDIO_BYTES", len(shown["c0"].player) + 10)
    less = render_clips(tmp_path, choice)
    assert [id for id, one in less.items() if one.player] == ["c0"]
    assert all(one.picture and one.missing == "the size limit for embedded audio is reached" for id, one in less.items() if id != "c0")


def test_an_unreadable_clip_is_reported_and_one_outside_the_folder_refused(tmp_path) -> None:
    kept = [clip("c0"), clip("c1", snr_db=16.0)]
    written(tmp_path, ["c1"])
    (tmp_path / "clips" / "c0.flac").write_bytes(b"no sound")
    choice = report_audio.ClipSelection(kept, [], [])
    shown = render_clips(tmp_path, choice)
    assert "cannot be read" in shown["c0"].missing and not shown["c0"].player
    assert shown["c1"].player
    with pytest.raises(UserError, match="leads outside"):
        render_clips(tmp_path, report_audio.ClipSelection([clip("c2", audio="../c2.flac")], [], []))
