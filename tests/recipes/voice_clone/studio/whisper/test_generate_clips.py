"""Generated clips: codebook 0 is that of the recording, the rest is what the base would have generated after it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from data_prep.audio.waveform import read_audio
from finetune.errors import UserError
from finetune.storage import demo_models
from recipes.speech.decoding.token_sampling import GREEDY
from recipes.voice_clone.inference.talker_decoding import DecodingSession
from recipes.voice_clone.studio.base import pack_base
from recipes.voice_clone.studio.corpus import make_new_voice
from recipes.voice_clone.studio.whisper import generate_clips
from recipes.voice_clone.studio.whisper.generate_clips import FRAME, ROWS, GivenFirstCodes, LoadedBase
from recipes.voice_clone.studio.whisper.training_clips import load_generated_clips

TEXT = "Every pilot opens the door."
CLIP = sorted((make_new_voice.FOLDER / "known" / "slt").iterdir())[0]


@pytest.fixture(scope="module")
def base() -> LoadedBase:
    torch.set_num_threads(1)
    return LoadedBase(demo_models.folder_of(pack_base.NAME))


def test_the_base_generates_its_own_codes_again_when_its_first_codes_are_given(base: LoadedBase) -> None:
    """And others when other first codes are given; a batch with a shorter row changes nothing."""
    prompt = base.embed(TEXT, base.encode_voice(CLIP))
    session = DecodingSession(base.decoder, [prompt], GREEDY, [0], 20)
    for _ in session.frames():
        pass
    own = session.results()[0].codes
    assert len(own) == 20, "the test needs some frames"
    other = own[:, 0].roll(3)
    again = GivenFirstCodes(base.decoder, [prompt, prompt, prompt], [own[:, 0], own[:7, 0], other])
    for _ in again.frames():
        pass
    whole, short, changed = (result.codes for result in again.results())
    assert torch.equal(whole, own) and torch.equal(short, own[:7])
    assert torch.equal(changed[:, 0], other) and not torch.equal(changed[:, 1:], own[:, 1:])


def test_generated_clips_have_the_length_and_the_words_of_their_sources(base: LoadedBase) -> None:
    """The words: their loudness rises and falls with that of the source."""
    samples = read_audio(CLIP, 24_000).samples[: 2 * 24_000]
    (wave,) = base.generate([TEXT], [base.encode_voice(CLIP)], [samples])
    assert len(wave) == len(samples)
    loudness = [np.log(np.square(sound[: len(sound) // 480 * 480].reshape(-1, 480)).mean(1) + 1e-5) for sound in (wave, samples)]
    assert np.corrcoef(*loudness)[0, 1] > 0.7 > abs(np.corrcoef(loudness[0], np.roll(loudness[1], 25))[0, 1])
    assert np.abs(wave - samples).max() > 0.01


def test_training_sentences_of_known_voices_are_chosen_each_with_a_reference_of_its_voice(tmp_path: Path) -> None:
    rows = [{"audio": f"audio/{voice}/{n}.flac", "text": f"{voice} {n}", "speaker": voice} for voice in "ab" for n in range(20)]
    chosen = generate_clips.choose_clips(rows, tmp_path, 30, seed=1)
    assert len({row["audio"] for row, _ in chosen}) == 30 and chosen == generate_clips.choose_clips(rows, tmp_path, 30, seed=1)
    for row, clip in chosen:
        assert clip.path == tmp_path / row["audio"] and clip.text == row["text"]
        assert clip.reference.parent == clip.path.parent and 0 <= clip.shift < FRAME
    assert len({clip.shift for _, clip in chosen}) > 20 and len({clip.reference for _, clip in chosen}) > 10
    assert len(generate_clips.choose_clips(rows, tmp_path, 99, seed=1)) == 40


@pytest.mark.slow
def test_the_command_writes_clips_for_training_and_none_of_the_new_voice(noise_corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate_clips.main(["--corpus", str(noise_corpus), "--clips", "5", "--workers", "2"]) == 0
    rows = [json.loads(line) for line in (noise_corpus / ROWS).read_text().splitlines()]
    assert len(rows) == 5 and not any(row["new_voice"] for row in rows) and {row["split"] for row in rows} == {"train"}
    assert "5 clips" in capsys.readouterr().out
    loaded = load_generated_clips(noise_corpus)
    for row, clip in zip(rows, loaded, strict=True):
        length = soundfile.info(noise_corpus / row["audio"]).frames
        assert clip.row == row and len(clip.pcm) == pytest.approx(length * 2 / 3, abs=1)


def test_no_clips_and_a_missing_corpus_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--clips 0: must be at least 1"):
        generate_clips.main(["--clips", "0"])
    with pytest.raises(UserError, match=r"corpus\.jsonl is missing; create it"):
        generate_clips.main(["--corpus", str(tmp_path)])
    with pytest.raises(UserError, match=r"generated\.jsonl is missing; create it: .*generate_clips --corpus"):
        load_generated_clips(tmp_path)
