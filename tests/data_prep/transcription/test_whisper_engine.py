"""Whisper on checkpoints of one layer: one always gives the same text, the other never stops."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import soxr
import torch
import whisper.timing
from torch.utils._python_dispatch import TorchDispatchMode

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio, convert_position
from overtone.data_prep.segmentation.vad import Region
from overtone.data_prep.transcription import packed_transcription, whisper_engine
from overtone.data_prep.transcription.whisper_engine import (
    compute_token_limit,
    describe_settings,
    digest_weights,
    fetch_weights,
    load_whisper,
)
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files

TEXT = "The night train to the north leaves from platform seven."
WINDOW = Region(MASTER_RATE // 4, 4 * MASTER_RATE)


@pytest.fixture(scope="module")
def hearing(one_sentence) -> Audio:
    return Audio(soxr.resample(one_sentence.samples, MASTER_RATE, SPEECH_RATE), SPEECH_RATE)


@pytest.fixture(scope="module")
def talk(hearing) -> Audio:
    """100 s."""
    return Audio(np.tile(hearing.samples, 25)[: 100 * SPEECH_RATE], SPEECH_RATE)


FULL = [Region(start * MASTER_RATE, (start + 15) * MASTER_RATE - 10 * start) for start in range(0, 96, 16)]
"""Six windows of which no two go into one pack, each a little shorter than the one before."""


@pytest.fixture(scope="module")
def speaking(whisper_that_says):
    return load_whisper(str(whisper_that_says(TEXT)), "cpu")


@pytest.fixture(scope="module")
def babbling(random_whisper):
    return load_whisper(str(random_whisper), "cpu")


def test_loading_whisper_disables_the_cudnn_backend_of_attention(random_whisper) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    load_whisper(str(random_whisper), "cpu")
    assert not torch.backends.cuda.cudnn_sdp_enabled(), "a cache that grows would need another plan for each token"


class Conversions(TorchDispatchMode):
    """Counts the conversions from fp32 to fp16."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and found.dtype == torch.float16 and args[0].dtype == torch.float32:
            self.count += 1
        return found


@pytest.mark.parametrize("checkpoint", ["says", "random"])
def test_weights_in_fp16_give_the_same_words_with_fewer_conversions(
    checkpoint, whisper_that_says, random_whisper, hearing, monkeypatch
) -> None:
    """A GPU computes in fp16; a CPU can too."""
    monkeypatch.setattr(whisper_engine, "_uses_fp16", lambda _model: False)
    model = load_whisper(str(random_whisper if checkpoint == "random" else whisper_that_says(TEXT)), "cpu")
    monkeypatch.setattr(whisper_engine, "_uses_fp16", lambda _model: True)
    found, converted = [], []
    for step in (lambda _model: None, whisper_engine.halve_products):
        step(model)
        with Conversions() as counted:
            found.append(whisper_engine.transcribe_recording(model, hearing, [WINDOW], "english"))
        converted.append(counted.count)
    assert found[0] == found[1]
    assert found[0] and not any(unit.error for unit in found[0])
    assert converted[1] < 0.3 * converted[0]


def test_a_model_that_computes_in_fp16_is_loaded_with_such_weights(random_whisper, monkeypatch) -> None:
    assert {one.dtype for one in load_whisper(str(random_whisper), "cpu").parameters()} == {torch.float32}
    monkeypatch.setattr(whisper_engine, "_uses_fp16", lambda _model: True)
    model = load_whisper(str(random_whisper), "cpu")
    assert model.decoder.blocks[0].attn.out.weight.dtype == model.encoder.conv1.weight.dtype == torch.float16
    assert model.decoder.token_embedding.weight.dtype == model.decoder.ln.weight.dtype == torch.float32


def test_words_have_text_times_and_confidence(speaking, hearing) -> None:
    units = whisper_engine.transcribe_recording(speaking, hearing, [WINDOW], None)
    assert "".join(unit.text for unit in units).strip() == TEXT
    assert len(units) == len(TEXT.split())
    assert all(WINDOW.start <= unit.start <= unit.stop <= WINDOW.stop for unit in units)
    assert all(one.start <= other.start for one, other in itertools.pairwise(units))
    assert {unit.heard.language for unit in units} == {"english"}
    assert all(unit.heard.avg_logprob > -0.1 and unit.heard.complete and unit.heard.temperature == 0 for unit in units)
    assert all(unit.heard.language_prob == 1 for unit in units)


def test_a_batch_gives_the_same_text_as_each_pack_alone(speaking, talk, monkeypatch) -> None:
    monkeypatch.setattr(packed_transcription, "BATCH", 2)
    windows = FULL[:3]
    together = whisper_engine.transcribe_recording(speaking, talk, windows, "english")
    alone = [unit for window in windows for unit in whisper_engine.transcribe_recording(speaking, talk, [window], "english")]
    assert len(together) == len(windows) * len(TEXT.split())
    assert [unit.text for unit in together] == [unit.text for unit in alone]


def test_clips_are_transcribed_together_as_each_alone(speaking, talk) -> None:
    """One of an odd length, one without sound, and one of two packs."""
    seconds, clips = (2, 0, 40, 3), []
    for number, length in enumerate(seconds):
        samples = talk.samples[number * SPEECH_RATE :][: length * SPEECH_RATE + (length == 3)]
        half = Region(0, length * MASTER_RATE // 2)
        clips.append((Audio(samples, SPEECH_RATE), [half, Region(half.stop, 2 * half.stop)] if length else []))
    together = whisper_engine.transcribe_clips(speaking, clips, "english")
    assert ["".join(unit.text for unit in units) for units in together] == [f" {TEXT}" * packs for packs in (1, 0, 2, 1)]
    assert [whisper_engine.transcribe_clips(speaking, [clip], "english")[0][0].heard for clip in clips if clip[1]] == [
        units[0].heard for units in together if units
    ]


def test_the_text_of_a_clip_is_that_of_its_words_and_takes_no_alignment(speaking, talk, monkeypatch) -> None:
    words = whisper_engine.transcribe_recording(speaking, talk, FULL[:2], "english")
    monkeypatch.setattr(whisper.timing, "find_alignment", None)
    units = whisper_engine.transcribe_clips(speaking, [(talk, FULL[:2])], "english")[0]
    assert 0 < len(units) < len(words) and "".join(unit.text for unit in units) == "".join(word.text for word in words)
    assert [unit.heard for unit in units] == [words[0].heard.model_copy(update={"language_prob": None})] * 2


def test_a_clip_that_is_retried_does_not_depend_on_the_others(babbling, talk, monkeypatch) -> None:
    """Retries draw random tokens; at a low temperature, this model would draw the same ones each time."""
    monkeypatch.setattr(whisper_engine, "_has_failed", lambda result, _: result.temperature == 0)
    monkeypatch.setattr(whisper_engine, "FALLBACK_TEMPERATURES", (50.0,))
    clips = [(Audio(talk.samples[start:][:SPEECH_RATE], SPEECH_RATE), [Region(0, MASTER_RATE)]) for start in (0, 9000, 21000)]
    together = [units[0] for units in whisper_engine.transcribe_clips(babbling, clips, "english")]
    alone = [whisper_engine.transcribe_clips(babbling, [clip], "english")[0][0] for clip in clips]
    assert [unit.text for unit in together] == [unit.text for unit in alone] and {unit.heard.temperature for unit in together} == {50.0}


def test_a_looping_clip_gets_as_many_tokens_as_alone(babbling, talk, monkeypatch) -> None:
    monkeypatch.setattr(whisper_engine, "_has_failed", lambda *_: False)
    clips = [(Audio(talk.samples[: seconds * SPEECH_RATE], SPEECH_RATE), [Region(0, seconds * MASTER_RATE)]) for seconds in (1, 20)]
    together = whisper_engine.transcribe_clips(babbling, clips, "english")
    alone = [whisper_engine.transcribe_clips(babbling, [clip], "english")[0] for clip in clips]
    assert together[0][0].text == alone[0][0].text and together[0][0].heard == alone[0][0].heard
    assert len(together[1][0].text) > len(together[0][0].text), "the longer one has more room"


def test_several_packs_are_decoded_with_beams(speaking, talk) -> None:
    units = whisper_engine.transcribe_recording(speaking, talk, FULL[:3], "english", beams=3)
    assert "".join(unit.text for unit in units) == 3 * f" {TEXT}" and not any(unit.error for unit in units)


def test_words_of_a_pack_without_pauses_are_mapped_back_to_the_recording(speaking, talk) -> None:
    """Three windows of 2 s, minutes apart for Whisper's taste: one sound, and each word in one of them."""
    windows = [Region(start * MASTER_RATE, (start + 2) * MASTER_RATE) for start in (1, 30, 60)]
    (packed,) = packed_transcription.pack_windows(windows)
    assert [(one.start / MASTER_RATE, one.stop / MASTER_RATE) for one in packed] == [(1, 3.4), (29.6, 32.4), (59.6, 62)]
    lengths = []
    hook = speaking.encoder.register_forward_pre_hook(lambda _module, inputs: lengths.append(inputs[0].shape))
    units = whisper_engine.transcribe_recording(speaking, talk, windows, "english")
    hook.remove()
    assert lengths == [(1, 80, 3000)]
    assert "".join(unit.text for unit in units).strip() == TEXT
    assert all(any(one.start <= unit.start <= unit.stop <= one.stop for one in packed) for unit in units)


def test_an_endless_text_stops_at_the_limit_and_is_retried_twice(babbling, hearing, monkeypatch) -> None:
    import whisper

    temperatures = []
    decode = whisper.decode

    def watched(model, mels, options):
        temperatures.append((options.temperature, len(mels), options.sample_len))
        return decode(model, mels, options)

    monkeypatch.setattr(whisper, "decode", watched)
    first = whisper_engine.transcribe_recording(babbling, hearing, [WINDOW], None)
    assert [temperature for temperature, _, _ in temperatures] == [0.0, 0.2, 0.6]
    assert all(limit == compute_token_limit(babbling, WINDOW.seconds) == 32 for _, _, limit in temperatures)
    assert first
    assert not any(unit.heard.complete for unit in first)
    assert whisper_engine.transcribe_recording(babbling, hearing, [WINDOW], None) == first


def test_only_failing_packs_are_tried_again(speaking, talk, monkeypatch) -> None:
    import whisper

    sizes = []
    decode = whisper.decode

    def first_pack_fails_once(model, mels, options):
        sizes.append(len(mels))
        results = decode(model, mels, options)
        if options.temperature == 0:
            object.__setattr__(results[0], "avg_logprob", -3.0)
        return results

    monkeypatch.setattr(whisper, "decode", first_pack_fails_once)
    units = whisper_engine.transcribe_recording(speaking, talk, FULL[:3], "english")
    assert sizes == [3, 1]
    assert sum(unit.heard.temperature == 0.2 for unit in units) == len(TEXT.split())


def test_a_confident_text_may_have_an_unlikely_language(speaking, hearing) -> None:
    units = whisper_engine.transcribe_recording(speaking, hearing, [WINDOW], "german")
    assert "".join(unit.text for unit in units).strip() == TEXT
    assert {(unit.heard.language, unit.heard.language_prob) for unit in units} == {("german", 0.0)}


def test_the_spectrogram_is_computed_where_the_model_is(talk) -> None:
    model = types.SimpleNamespace(device=torch.device("meta"), dims=types.SimpleNamespace(n_mels=80))
    mel = whisper_engine._compute_mel(model, talk, (FULL[0],))
    assert (mel.device.type, mel.shape) == ("meta", (80, 3000))


def test_every_pack_is_encoded_once_despite_retries(babbling, talk) -> None:
    """Detection of the language, three tries and the alignment of the words."""
    groups = []
    hook = babbling.encoder.register_forward_hook(lambda _module, inputs, _output: groups.append(len(inputs[0])))
    assert whisper_engine.transcribe_recording(babbling, talk, FULL, None)
    hook.remove()
    assert groups == [4, 2]


def test_word_times_match_those_of_whisper(speaking, hearing) -> None:
    """`find_alignment` is not public: this fails if it comes to need more of a model than it gets here."""
    import torch
    import whisper
    from whisper.timing import find_alignment
    from whisper.tokenizer import get_tokenizer

    tokenizer = get_tokenizer(True, num_languages=99, language="en", task="transcribe")
    samples = hearing.samples[: 2 * SPEECH_RATE]
    mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(samples), n_mels=80)
    with torch.no_grad():
        words = find_alignment(speaking, tokenizer, tokenizer.encode(" " + TEXT), mel, 200)
    times = [(round(word.start * MASTER_RATE), round(word.end * MASTER_RATE)) for word in words if word.word.strip(".")]
    units = whisper_engine.transcribe_recording(speaking, hearing, [Region(0, 2 * MASTER_RATE)], "english")
    assert len(times) == len(units) == len(TEXT.split())
    assert [unit.start for unit in units] == [start for start, _ in times]


def test_a_batch_that_does_not_fit_into_memory_is_halved(speaking, talk, monkeypatch) -> None:
    import torch
    import whisper

    sizes = []
    decode = whisper.decode

    def small_device(model, features, options):
        sizes.append(len(features))
        if len(features) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return decode(model, features, options)

    expected = whisper_engine.transcribe_recording(speaking, talk, FULL[:5], "english")
    monkeypatch.setattr(whisper, "decode", small_device)
    assert whisper_engine.transcribe_recording(speaking, talk, FULL[:5], "english") == expected
    assert sizes == [5, 2, 3, 1, 2]


def test_a_failed_pack_is_reported_and_the_others_transcribed(speaking, talk) -> None:
    samples = talk.samples.copy()
    samples[convert_position(FULL[3].start, MASTER_RATE, SPEECH_RATE) :][:SPEECH_RATE] *= 1e6

    def refusing(_module, inputs):
        if (inputs[0] > 3).any():
            raise RuntimeError("too loud for me\nand more that nobody reads")

    hook = speaking.encoder.register_forward_pre_hook(refusing)
    units = whisper_engine.transcribe_recording(speaking, Audio(samples, SPEECH_RATE), FULL, "english")
    hook.remove()
    (failed,) = [unit for unit in units if unit.error]
    assert (failed.text, failed.error) == ("", "RuntimeError: too loud for me")
    assert failed.start <= FULL[3].start < FULL[3].stop <= failed.stop
    assert len(units) - 1 == (len(FULL) - 1) * len(TEXT.split())


FRESH = """
import sys, numpy, torch
from overtone.data_prep.audio.waveform import Audio
from overtone.data_prep.transcription.whisper_engine import load_whisper, transcribe_recording
from overtone.data_prep.segmentation.vad import Region
torch.set_num_threads(1)
model = load_whisper(sys.argv[1], "cpu")
assert transcribe_recording(model, Audio(numpy.zeros(16000, "float32"), 16000), [Region(0, 24000)], "english")
print(torch.get_num_threads())
"""


def test_the_thread_count_that_word_timing_changes_is_restored(speaking, hearing, monkeypatch) -> None:
    from whisper import timing

    find_alignment, before = timing.find_alignment, torch.get_num_threads()

    def changes_threads(*given: object, **named: object) -> object:
        torch.set_num_threads(before + 1)
        return find_alignment(*given, **named)

    monkeypatch.setattr(timing, "find_alignment", changes_threads)
    try:
        assert whisper_engine.transcribe_recording(speaking, hearing, [WINDOW], "english")
        assert torch.get_num_threads() == before
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_word_timing_in_a_fresh_process_restores_the_thread_count(random_whisper) -> None:
    """numba sets OpenMP's count when its first parallel loop starts, so this needs an interpreter that has run none."""
    root = Path(__file__).resolve().parents[3]
    environment = os.environ | {"NUMBA_NUM_THREADS": "2", "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", FRESH, str(random_whisper)], env=environment, capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr


def test_the_limit_grows_with_the_window_up_to_what_the_model_can(speaking) -> None:
    assert compute_token_limit(speaking, 0.5) == 15
    assert compute_token_limit(speaking, 28.0) == 32


def test_another_rate_is_refused(speaking, one_sentence) -> None:
    with pytest.raises(ValueError, match="16000 Hz, not 24000"):
        whisper_engine.transcribe_recording(speaking, one_sentence, [WINDOW], None)


def test_beams_are_a_part_of_the_settings(random_whisper) -> None:
    one, five = (describe_settings(str(random_whisper), None, beams=beams) for beams in (None, 5))
    assert one | {"beams": 5} == five and one["beams"] == 1


def test_weights_are_identified_by_content_before_loading(random_whisper) -> None:
    assert digest_weights(str(random_whisper)) == files.digest(random_whisper)
    assert len(digest_weights("small")) == 64
    assert describe_settings("small", None) != describe_settings("tiny", None)
    assert describe_settings("small", None) != describe_settings("small", "english")
    with pytest.raises(UserError, match=r"--whisper smal: neither a file nor one of .*small"):
        digest_weights("smal")


def test_a_file_that_is_no_whisper_checkpoint_is_refused(tmp_path) -> None:
    (tmp_path / "notes.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(UserError, match="not a Whisper checkpoint"):
        load_whisper(str(tmp_path / "notes.pt"), "cpu")


def test_without_a_network_the_error_names_the_alternative(monkeypatch, tmp_path) -> None:
    import urllib.request
    from urllib.error import URLError

    def unreachable(*_args: object, **_kwargs: object):
        raise URLError("no route")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    for get in (lambda: load_whisper("tiny", "cpu"), lambda: fetch_weights("tiny")):
        with pytest.raises(UserError, match=r"--whisper /path/to/model\.pt"):
            get()


def test_cached_weights_are_not_downloaded(random_whisper, monkeypatch, tmp_path) -> None:
    import whisper

    assert fetch_weights(str(random_whisper)) == random_whisper
    (tmp_path / "whisper").mkdir()
    (tmp_path / "whisper" / "small.pt").write_bytes(random_whisper.read_bytes())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(whisper._MODELS, "small", f"http://nowhere.invalid/{files.digest(random_whisper)}/small.pt")
    assert fetch_weights("small") == tmp_path / "whisper" / "small.pt"
