"""A loaded model speaks the memorized clips, streams what it speaks, and continues a reference clip as the stock class does."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file, save_file

from overtone.finetune.errors import UserError
from overtone.recipes.csm.inference.synthesizer import CsmVoice
from overtone.recipes.csm.speech_registration import CsmFolder
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from tests.recipes.csm.tiny_csm import LearnedCsm
from tests.recipes.voice_clone.tones import exhaust

GREEDY, FRAME = SpeechSampling(greedy=True, max_seconds=2), 1920


@pytest.fixture(scope="module")
def voice(learned: LearnedCsm) -> Iterator[CsmVoice]:
    voice = CsmFolder.inspect(learned.folder).open()
    yield voice
    voice.close()


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half a second at another rate than the codec's, with a partial last frame."""
    path = tmp_path_factory.mktemp("clip") / "clip.flac"
    soundfile.write(path, 0.3 * np.random.default_rng(0).standard_normal(8100).clip(-1, 1), 16000)
    return path


def test_memorized_clips_are_spoken_as_the_stock_class_speaks_them(learned: LearnedCsm, voice: CsmVoice) -> None:
    spoken = voice.speak([SpeechRequest(row["text"], row["speaker"]) for row in learned.rows], GREEDY)
    for one, row in zip(spoken, learned.rows, strict=True):
        with torch.no_grad():
            expected = learned.stock.codec_model.decode(torch.tensor(row["audio_codes"]).T[None]).audio_values[0, 0].clip(-1, 1)
        assert one.ended and one.rate == 24000 and one.wave.dtype == np.float32 and one.wave.std() > 0.05
        np.testing.assert_allclose(one.wave, expected.numpy(), atol=1e-3)  # the tiny codec's waves are 30 times full scale
    (cut,) = voice.speak([SpeechRequest(learned.rows[0]["text"], "ann")], SpeechSampling(greedy=True, max_seconds=0.2))
    assert not cut.ended and len(cut.wave) == 3 * FRAME
    assert voice.speak([], GREEDY) == []


@pytest.mark.parametrize("sampling", [GREEDY, SpeechSampling(temperature=50.0, seed=3, max_seconds=2)], ids=["to its end", "sampled"])
def test_a_stream_equals_the_speech_generated_at_once(learned: LearnedCsm, voice: CsmVoice, sampling: SpeechSampling) -> None:
    request = SpeechRequest(learned.rows[2]["text"] if sampling.greedy else "A text that it has not learned.", "bob")
    (whole,) = voice.speak([request], sampling)
    chunks = [*itertools.islice(voice.stream(request, sampling), 9)]
    assert len(chunks) > 1 and len(chunks[0]) == FRAME, "the first chunk has one frame"
    np.testing.assert_allclose(np.concatenate(chunks), whole.wave, atol=1e-3)
    result = exhaust(voice.stream(request, sampling))
    assert result.wave.shape == whole.wave.shape and result.ended == whole.ended


def test_the_seed_determines_the_sampled_speech(voice: CsmVoice) -> None:
    settings = [SpeechSampling(seed=seed, max_seconds=0.5) for seed in (1, 2, 1)]
    one, other, again = (voice.speak([SpeechRequest("New.", "ann")], sampling)[0].wave for sampling in settings)
    assert np.array_equal(one, again) and not np.array_equal(one, other)


def test_a_reference_clip_is_an_earlier_turn_of_the_stock_conversation(learned: LearnedCsm, voice: CsmVoice, clip: Path) -> None:
    """The same frames as of the stock class, which gets the clip's sound and lays out the conversation by its own processor."""
    from transformers import AutoProcessor

    from overtone.data_prep.audio.waveform import read_audio

    processor = AutoProcessor.from_pretrained(learned.folder)
    sound = read_audio(clip, 24000).samples
    padded = np.pad(sound, (0, -len(sound) % FRAME))
    turns = [
        {"role": "2", "content": [{"type": "text", "text": "Yes, I do."}, {"type": "audio", "path": padded}]},
        {"role": "2", "content": [{"type": "text", "text": "Then come."}]},
    ]
    inputs = processor.apply_chat_template(turns, tokenize=True, return_dict=True)
    inputs.pop("token_type_ids", None)
    expected = learned.stock.generate(**inputs, do_sample=False, depth_decoder_do_sample=False, max_new_tokens=10)[0]
    request = SpeechRequest("Then come.", None, reference=clip, reference_text="Yes, I do.")
    (spoken,) = voice.speak([request], SpeechSampling(greedy=True, max_seconds=0.8))
    count = len(spoken.codes)  # by the version of transformers, the model ends before the limit of ten
    assert spoken.codes.tolist() == expected[:count].tolist() and not expected[count:, :-1].any()
    without = voice.speak([SpeechRequest("Then come.", "ann")], GREEDY)[0].wave
    assert not np.array_equal(voice.speak([request], GREEDY)[0].wave[:FRAME], without[:FRAME])


def test_a_changed_or_broken_clip_is_noticed(voice: CsmVoice, clip: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(clip, tmp_path / "clip.flac"))
    first = voice._reference_clips.get(copy)
    assert first.shape == (7, 4) and voice._reference_clips.get(clip) is first, "the same content"
    soundfile.write(copy, 0.1 * np.sin(np.arange(8000)), 16000)
    assert voice._reference_clips.get(copy) is not first
    copy.write_bytes(b"noise")
    with pytest.raises(UserError, match=r"--reference .*clip\.flac is not usable"):
        voice._reference_clips.get(copy)


def test_a_clip_that_fills_the_model_is_refused(voice: CsmVoice, tmp_path: Path) -> None:
    clip = tmp_path / "long.wav"
    soundfile.write(clip, 0.1 * np.sin(np.arange(165 * 8000)), 8000)
    with pytest.raises(UserError, match=r"long\.wav and the texts fill the model's 2048 positions; shorten the clip"):
        voice.speak([SpeechRequest("Hi.", None, reference=clip, reference_text="Ho.")], GREEDY)


def test_what_the_model_is(voice: CsmVoice, learned: LearnedCsm) -> None:
    assert voice.speakers == ("ann", "bob") and voice.languages == ("english",) and voice.can_clone
    assert (voice.rate, voice.frame_rate) == (24000, 12.5)
    assert voice.default_temperature == 0.9 and voice.samples_by_default
    assert voice.created == int((learned.folder / "config.json").stat().st_mtime)
    with pytest.raises(UserError, match="CSM speaks only english"):
        voice.check_language("german", "ann")
    with pytest.raises(UserError, match="it has ann, bob"):
        voice.speak([SpeechRequest("Hi.", "zoe")], GREEDY)


def test_a_model_file_that_lacks_weights_is_refused(learned: LearnedCsm, tmp_path: Path) -> None:
    folder = shutil.copytree(learned.folder, tmp_path / "damaged")
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"damaged does not match the model in 1 tensors:\n +lm_head\.weight"):
        CsmFolder.inspect(folder).open()


def test_the_released_folder_has_two_sets_of_weights(learned: LearnedCsm, voice: CsmVoice, tmp_path: Path) -> None:
    """`model.safetensors` has other names than transformers' class, whose weights are in files that a key of config.json names."""
    folder = shutil.copytree(learned.folder, tmp_path / "released")
    (folder / "model.safetensors").rename(folder / "transformers-00001-of-00001.safetensors")
    names = dict.fromkeys(load_file(folder / "transformers-00001-of-00001.safetensors"), "transformers-00001-of-00001.safetensors")
    (folder / "transformers.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    save_file({"backbone.norm.scale": torch.zeros(32)}, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "transformers_weights": "transformers.safetensors.index.json"}))
    request = SpeechRequest(learned.rows[0]["text"], "ann")
    with closing(CsmFolder.inspect(folder).open()) as released:
        (found,), (expected,) = released.speak([request], GREEDY), voice.speak([request], GREEDY)
    assert np.array_equal(found.wave, expected.wave)
