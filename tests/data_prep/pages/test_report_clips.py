"""Players in the report play their clip, and the chosen clips are the best, the worst and the nearest to a limit."""

from __future__ import annotations

import base64

import pytest
import soundfile

from overtone.data_prep.pages import report_clips
from overtone.data_prep.pages.quality_rule_effects import build_candidate_clips, find_weaknesses, list_rules
from overtone.data_prep.pages.report_clips import choose_clips, render_clips
from overtone.finetune.errors import UserError
from tests.data_prep.example_clips import clip, dataset, whole
from tests.data_prep.pages.test_spectrogram_images import RATE, tone


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
    monkeypatch.setattr(report_clips, "AUDIO_BYTES", len(shown["c0"].player) + 10)
    less = render_clips(tmp_path, choice)
    assert [id for id, one in less.items() if one.player] == ["c0"]
    assert all(one.picture and one.missing == "the size limit for embedded audio is reached" for id, one in less.items() if id != "c0")


def test_an_unreadable_clip_is_reported_and_one_outside_the_folder_refused(tmp_path) -> None:
    kept = [clip("c0"), clip("c1", snr_db=16.0)]
    written(tmp_path, ["c1"])
    (tmp_path / "clips" / "c0.flac").write_bytes(b"no sound")
    choice = report_clips.ClipSelection(kept, [], [])
    shown = render_clips(tmp_path, choice)
    assert "cannot be read" in shown["c0"].missing and not shown["c0"].player
    assert shown["c1"].player
    with pytest.raises(UserError, match="leads outside"):
        render_clips(tmp_path, report_clips.ClipSelection([clip("c2", audio="../c2.flac")], [], []))
