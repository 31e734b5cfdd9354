"""README's sounds are the median of the reported sentences, with what was said and what a recognizer wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio.waveform import Audio, encode_flac
from overtone.finetune.errors import UserError
from overtone.finetune.storage.synthetic_audio_mark import SyntheticMark, read_synthetic_mark
from overtone.recipes.speech.evaluation.systems import RECORDINGS
from overtone.recipes.speech.marked_audio_encoding import encode_marked_flac
from overtone.recipes.voice_clone.demo.comparison_clips import AFTER, BEFORE, ComparisonClip
from workshop.demo_models import readme_sounds

TEXT = "Every pilot opens the door."


def clip(heard: str) -> ComparisonClip:
    return ComparisonClip(TEXT, heard, Path("clip.flac"), Path("real.ogg"))


NONE, ONE, TWO, ALL = map(clip, (TEXT, "every pilot opens a door", "every pilot opens a window", ""))


def test_the_median_is_neither_the_best_nor_the_worst() -> None:
    assert readme_sounds.choose_median([ALL, NONE, TWO]) == 2
    assert readme_sounds.choose_median([NONE, NONE, ALL, ONE, NONE]) == 4, "the last of three with the same WER"
    assert readme_sounds.choose_median([ALL, NONE, TWO, ONE]) == 2, "the worse of the two in the middle"
    assert readme_sounds.choose_median([ONE, ONE, ONE, ONE]) == 2


def test_the_part_of_the_readme_has_the_text_and_marks_what_is_wrong() -> None:
    real = replace(NONE, path=readme_sounds.ROOT / "workshop" / "real.ogg")
    clips = {RECORDINGS: real, BEFORE: clip("every pilot opens the the door"), AFTER: clip("every pallet opens door")}
    part = readme_sounds.render_sounds(clips, "tiny.en")
    text, _, head, _, *rows = part.splitlines()
    assert text == f'All three say: "{TEXT}"' and "what Whisper tiny.en wrote" in head
    assert rows == [
        "| [recording](workshop/real.ogg) | every pilot opens the door | 0 % |",
        "| [base, which clones a clip](docs/demo_before.ogg) | every pilot opens the **the** door | 20 % |",
        "| [after training](docs/demo_after.ogg) | every **pallet** opens ~~the~~ door | 40 % |",
    ]


def test_only_the_part_between_the_marks_is_replaced() -> None:
    readme = f"before\n{readme_sounds.START}\nold\n{readme_sounds.END}\nafter\n"
    assert readme_sounds.replace_sounds(readme, "new") == readme.replace("old", "new")
    for broken in ("before\nafter\n", readme.replace(readme_sounds.END, "")):
        with pytest.raises(UserError, match="put these two lines where the sounds belong"):
            readme_sounds.replace_sounds(broken, "new")


def test_the_sounds_keep_their_mark_of_synthetic_speech(tmp_path: Path) -> None:
    wave = (0.3 * np.sin(2 * np.pi * 220 * np.arange(12_000) / 24_000)).astype(np.float32)
    (tmp_path / "spoken.flac").write_bytes(encode_marked_flac(wave, 24_000, SyntheticMark("me")))
    (tmp_path / "spoken.ogg").write_bytes(readme_sounds.encode_opus(tmp_path / "spoken.flac"))
    mark = read_synthetic_mark(tmp_path / "spoken.ogg")
    assert mark is not None and mark.model == "me" and abs(soundfile.info(tmp_path / "spoken.ogg").duration - 0.5) < 0.03
    (tmp_path / "real.flac").write_bytes(encode_flac(Audio(wave, 24_000)))
    with pytest.raises(UserError, match="real.flac is not marked as synthetic speech"):
        readme_sounds.encode_opus(tmp_path / "real.flac")


def test_an_unfinished_demo_and_our_own_judge_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a finished demo; run it first: make demo"):
        readme_sounds.main([str(tmp_path)])
    for part in ("export", "evaluation/clips/through-the-codec"):
        (tmp_path / part).mkdir(parents=True)
    with pytest.raises(UserError, match="--asr whisper-demo-en: it was trained on the demo's voices"):
        readme_sounds.main([str(tmp_path), "--asr", "whisper-demo-en"])
