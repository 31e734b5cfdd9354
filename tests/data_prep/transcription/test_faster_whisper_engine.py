"""faster-whisper on a converted checkpoint of one layer that always gives the same text."""

from __future__ import annotations

import base64
import importlib.util
import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import soxr

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio
from overtone.data_prep.cli import voice
from overtone.data_prep.segmentation.clip_segmentation import TextUnit
from overtone.data_prep.segmentation.vad import Region
from overtone.data_prep.transcription import faster_whisper_engine, packed_transcription, whisper_engine
from overtone.finetune.errors import UserError

TEXT = "The night train to the north leaves from platform seven."
WINDOW = Region(MASTER_RATE // 4, 4 * MASTER_RATE)
FULL = [Region(start * MASTER_RATE, (start + 15) * MASTER_RATE) for start in range(0, 48, 16)]
"""Windows of which no two go into one pack."""
needs_faster_whisper = pytest.mark.skipif(
    importlib.util.find_spec("faster_whisper") is None, reason="faster-whisper is not installed: pip install '.[faster-whisper]'"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The converted checkpoint."""
    from ctranslate2.converters import TransformersConverter

    made, converted = tmp_path_factory.mktemp("transformers"), tmp_path_factory.mktemp("converted") / "model"
    _tokenizer().save_pretrained(made)
    (made / "preprocessor_config.json").write_text('{"feature_size": 80, "feature_extractor_type": "WhisperFeatureExtractor"}')
    _saying(TEXT).save_pretrained(made)
    TransformersConverter(str(made), copy_files=["tokenizer.json", "preprocessor_config.json"]).convert(str(converted))
    config = json.loads((converted / "config.json").read_text())
    languages = list(_whispers_own().all_language_tokens)  # the converter takes them from published models only
    (converted / "config.json").write_text(json.dumps(config | {"lang_ids": languages}))
    return converted


def _whispers_own():
    from whisper.tokenizer import get_tokenizer

    return get_tokenizer(True, num_languages=99, language="en", task="transcribe")


def _tokenizer():
    """Whisper's vocabulary, without the merges that only long texts to be encoded need."""
    import whisper
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import WhisperTokenizerFast
    from transformers.models.whisper.tokenization_whisper import bytes_to_unicode

    letters = bytes_to_unicode()
    lines = (Path(whisper.__file__).parent / "assets" / "multilingual.tiktoken").read_text().splitlines()
    words = {"".join(letters[byte] for byte in base64.b64decode(word)): int(rank) for word, rank in (line.split() for line in lines)}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = _whispers_own().encoding._special_tokens
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in sorted(special, key=special.get)])
    end = "<|endoftext|>"
    return WhisperTokenizerFast(tokenizer_object=tokenizer, unk_token=end, bos_token=end, eos_token=end)


def _saying(text: str):
    """Each text position's embedding points at the next token, and the layers add nothing."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    layers = {f"{side}_{what}": 1 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    widths = {"encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "d_model": 64}
    model = WhisperForConditionalGeneration(WhisperConfig(vocab_size=51865, **layers, **widths))
    own = _whispers_own()
    says = [own.to_language_token("en"), own.transcribe, own.no_timestamps, *own.encode(" " + text)]
    decoder = model.model.decoder
    with torch.no_grad():
        torch.nn.init.normal_(decoder.embed_tokens.weight)
        for name, value in decoder.layers.named_parameters():
            if "out_proj" in name or "fc2" in name:
                value.zero_()
        positions = decoder.embed_positions.weight
        positions.copy_(10 * decoder.embed_tokens.weight[says + [own.eot] * (len(positions) - len(says))])
    model.generation_config.update(alignment_heads=[[0, 0]], suppress_tokens=[], begin_suppress_tokens=[220, own.eot])
    return model


@pytest.fixture(scope="module")
def speaking(folder):
    return whisper_engine.load_whisper(f"faster-whisper:{folder}", "cpu")


@pytest.fixture(scope="module")
def talk(one_sentence) -> Audio:
    """50 s."""
    samples = soxr.resample(one_sentence.samples, MASTER_RATE, SPEECH_RATE)
    return Audio(np.tile(samples, 13)[: 50 * SPEECH_RATE], SPEECH_RATE)


def said(units: list[TextUnit]) -> str:
    return "".join(unit.text for unit in units).strip()


@needs_faster_whisper
def test_words_have_text_times_and_confidence(speaking, talk) -> None:
    units = whisper_engine.transcribe_recording(speaking, talk, [WINDOW], None)
    assert said(units) == TEXT and len(units) == len(TEXT.split())
    assert all(WINDOW.start <= unit.start <= unit.stop <= WINDOW.stop for unit in units)
    assert all(one.start <= other.start for one, other in itertools.pairwise(units))
    assert {unit.heard.language for unit in units} == {"english"}
    assert all(unit.heard.avg_logprob > -0.1 and unit.heard.complete and unit.heard.language_prob == 1 for unit in units)


@needs_faster_whisper
def test_the_text_of_a_clip_is_that_of_its_words_and_takes_no_alignment(speaking, talk, monkeypatch) -> None:
    words = whisper_engine.transcribe_recording(speaking, talk, FULL[:2], "english")
    monkeypatch.setattr(type(speaking), "find_alignment", None)
    units = whisper_engine.transcribe_clips(speaking, [(talk, FULL[:2])], "english")[0]
    assert 0 < len(units) < len(words) and "".join(unit.text for unit in units) == "".join(word.text for word in words)
    assert units[0].heard == words[0].heard and all(FULL[0].start <= unit.start < unit.stop <= FULL[1].stop for unit in units)


@needs_faster_whisper
def test_words_of_each_pack_are_inside_its_region(speaking, talk) -> None:
    units = whisper_engine.transcribe_recording(speaking, talk, FULL, "english")
    assert [said([unit for unit in units if one.start <= unit.start and unit.stop <= one.stop]) for one in FULL] == [TEXT] * 3
    assert len(units) == 3 * len(TEXT.split()) and all(unit.heard.language_prob is None for unit in units)


@needs_faster_whisper
def test_pauses_between_the_regions_of_a_pack_are_removed(speaking, talk) -> None:
    windows = [Region(start * MASTER_RATE, (start + 2) * MASTER_RATE) for start in (1, 20, 40)]
    (packed,) = packed_transcription.pack_windows(windows)
    units = whisper_engine.transcribe_recording(speaking, talk, windows, "english")
    assert said(units) == TEXT
    assert all(any(one.start <= unit.start <= unit.stop <= one.stop for one in packed) for unit in units)


@needs_faster_whisper
def test_a_pack_is_followed_by_silence_as_in_openai_whisper(speaking, talk) -> None:
    import whisper

    pack = (WINDOW,)
    expected = whisper.log_mel_spectrogram(whisper.pad_or_trim(packed_transcription.join_samples(talk, pack)))
    np.testing.assert_allclose(faster_whisper_engine._compute_features(speaking, talk, pack), expected, atol=1e-3)


@needs_faster_whisper
def test_each_pack_has_the_language_that_is_detected_in_it(speaking, talk, monkeypatch) -> None:
    found = iter([("<|en|>", 0.9), ("<|de|>", 0.8), ("<|en|>", 0.7)])
    model = SimpleNamespace(
        is_multilingual=True, generate=speaking.model.generate, align=speaking.model.align, encode=speaking.model.encode
    )
    model.detect_language = lambda encoded: [[next(found)] for _ in range(encoded.shape[0])]
    model.device, model.device_index = "cpu", [0]
    monkeypatch.setattr(speaking, "model", model)
    units = whisper_engine.transcribe_recording(speaking, talk, FULL, None)
    by_window = [{(unit.heard.language, unit.heard.language_prob) for unit in units if one.start <= unit.start < one.stop} for one in FULL]
    assert by_window == [{("english", 0.9)}, {("german", 0.8)}, {("english", 0.7)}]
    assert len(units) == 3 * len(TEXT.split())


@needs_faster_whisper
def test_published_models_are_transcribed_by_this_engine_on_a_cpu(monkeypatch, tmp_path) -> None:
    import faster_whisper

    choose = faster_whisper_engine.choose_engine
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert (choose("small", "cpu"), choose("large-v3", "cpu")) == ("faster-whisper:small", "faster-whisper:large-v3")
    assert choose("small", "cuda") == "small"
    for other in ("faster-whisper:small", "whisper-demo-en", "owner/model", str(tmp_path / "small.pt")):
        assert choose(other, "cpu") == other
    (tmp_path / "whisper").mkdir()
    (tmp_path / "whisper" / "small.pt").touch()
    monkeypatch.setattr(faster_whisper, "download_model", lambda name, local_files_only: name)
    assert choose("small", "cpu") == "faster-whisper:small"

    def fail(name: str, local_files_only: bool) -> str:
        raise FileNotFoundError(name)

    monkeypatch.setattr(faster_whisper, "download_model", fail)
    assert choose("small", "cpu") == "small", "the weights of openai-whisper are there"
    monkeypatch.setattr(faster_whisper_engine, "find_spec", lambda name: None)
    assert choose("base", "cpu") == "base"


@needs_faster_whisper
def test_voice_names_the_engine_of_a_published_model(folder, one_sentence, tmp_path, monkeypatch, capsys) -> None:
    import faster_whisper

    monkeypatch.setattr(
        faster_whisper_engine, "choose_engine", lambda name, device: f"faster-whisper:{folder}" if name == "small" else name
    )
    (tmp_path / "in").mkdir()
    soundfile.write(tmp_path / "in" / "take.wav", one_sentence.samples, one_sentence.rate)
    given = [str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--whisper", "small", "--workers", "0", "--device", "cpu"]
    assert voice.main([*given, "--language", "en", "--val-share", "0"]) == 0
    note = "--whisper small: faster-whisper, which is installed, transcribes with the same weights"
    assert note in capsys.readouterr().err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert any(note in one["text"] for one in summary["notices"])
    assert summary["settings"]["text"]["faster-whisper"] == faster_whisper.__version__


@needs_faster_whisper
def test_voice_accepts_a_faster_whisper_model(folder, one_sentence, tmp_path) -> None:
    (tmp_path / "in").mkdir()
    soundfile.write(tmp_path / "in" / "take.wav", one_sentence.samples, one_sentence.rate)
    asked = [str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--whisper", f"faster-whisper:{folder}", "--workers", "0"]
    assert voice.main([*asked, "--language", "en", "--val-share", "0"]) == 0
    (row,) = (json.loads(line) for line in (tmp_path / "out" / "train.jsonl").read_text().splitlines())
    assert row["text"] == TEXT


@needs_faster_whisper
def test_a_text_cut_by_the_token_limit_is_incomplete(speaking, talk, monkeypatch) -> None:
    monkeypatch.setattr(faster_whisper_engine, "MOST_TOKENS", 5)
    units = whisper_engine.transcribe_recording(speaking, talk, [WINDOW], "english")
    assert TEXT.startswith(said(units)) and not any(unit.heard.complete for unit in units)


@needs_faster_whisper
def test_a_failed_transcription_has_the_error(speaking, talk, monkeypatch) -> None:
    monkeypatch.setattr(faster_whisper_engine, "MOST_TOKENS", -10)
    (unit,) = whisper_engine.transcribe_recording(speaking, talk, [FULL[0]], "english")
    assert unit.text == "" and unit.error.startswith("TypeError: generate()")


@needs_faster_whisper
def test_weights_are_identified_by_content_and_other_folders_refused(folder, tmp_path, monkeypatch) -> None:
    assert whisper_engine.fetch_weights(f"faster-whisper:{folder}") == folder / "model.bin"
    assert len(whisper_engine.describe_settings(f"faster-whisper:{folder}", None)["weights"]) == 64
    assert whisper_engine.describe_settings("faster-whisper:small", None) != whisper_engine.describe_settings(
        "faster-whisper:small", "english"
    )
    with pytest.raises(UserError, match="neither a folder with model.bin nor downloadable weights .*tiny"):
        whisper_engine.load_whisper(f"faster-whisper:{tmp_path}", "cpu")
    (tmp_path / "model.bin").write_bytes(b"nothing of the kind")
    with pytest.raises(UserError, match="not a CTranslate2 Whisper model"):
        whisper_engine.load_whisper(f"faster-whisper:{tmp_path}", "cpu")


def test_a_missing_faster_whisper_is_named_with_the_command_that_installs_it(monkeypatch) -> None:
    monkeypatch.setattr(faster_whisper_engine, "find_spec", lambda _name: None)
    for ask in (
        lambda name: whisper_engine.load_whisper(name, "cpu"),
        lambda name: whisper_engine.describe_settings(name, None),
        whisper_engine.fetch_weights,
    ):
        with pytest.raises(UserError, match=r"pip install 'overtone\[faster-whisper\]'"):
            ask("faster-whisper:small")
    assert not faster_whisper_engine.is_faster_whisper("small")


@needs_faster_whisper
def test_ctranslate2_links_no_cuda_library_but_the_checked_one() -> None:
    """By the names in its binaries: another release may want another version, or cuDNN."""
    import ctranslate2

    package = Path(ctranslate2.__file__).parent
    binaries = [*package.glob("*.so"), *package.with_name("ctranslate2.libs").glob("*.so*")]
    named = {name for path in binaries for name in re.findall(rb"lib(?:cublas|cudnn|cudart|curand)\w*\.so[.\d]*", path.read_bytes())}
    assert named == {faster_whisper_engine.CUBLAS.encode()}


def no_library(_path: str) -> None:
    raise OSError("libcublas.so.12: cannot open shared object file")


def test_a_missing_cuda_library_is_named_before_any_download(monkeypatch) -> None:
    monkeypatch.setattr(faster_whisper_engine.ctypes, "CDLL", no_library)
    monkeypatch.setattr(faster_whisper_engine, "files_of", lambda _package: None)
    monkeypatch.setattr(faster_whisper_engine, "fetch_weights", lambda _name: pytest.fail("nothing is fetched"))
    with pytest.raises(UserError, match="--whisper faster-whisper:small: .*libcublas.so.12.*pip install nvidia-cublas-cu12; or use"):
        faster_whisper_engine.check_device("faster-whisper:small", "cuda:1")
    faster_whisper_engine.check_device("faster-whisper:small", "cpu")


def test_a_cuda_library_inside_its_package_is_opened(tmp_path, monkeypatch) -> None:
    """The loader does not look into site-packages; once open, the library is found by its name."""
    opened = []

    def open_library(path: str) -> None:
        opened.append(path)
        if path == faster_whisper_engine.CUBLAS:
            no_library(path)

    inside = SimpleNamespace(name=faster_whisper_engine.CUBLAS, locate=lambda: tmp_path / faster_whisper_engine.CUBLAS)
    monkeypatch.setattr(faster_whisper_engine.ctypes, "CDLL", open_library)
    monkeypatch.setattr(faster_whisper_engine, "files_of", lambda _package: [SimpleNamespace(name="LICENSE"), inside])
    faster_whisper_engine.check_device("faster-whisper:small", "cuda")
    assert opened == [faster_whisper_engine.CUBLAS, str(tmp_path / faster_whisper_engine.CUBLAS)]
    monkeypatch.setattr(faster_whisper_engine.ctypes, "CDLL", no_library)
    with pytest.raises(UserError, match="install nvidia-cublas-cu12 again"):
        faster_whisper_engine.check_device("faster-whisper:small", "cuda")


@needs_faster_whisper
def test_voice_checks_the_cuda_library_before_it_reads_recordings(folder, one_sentence, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "in").mkdir()
    soundfile.write(tmp_path / "in" / "take.wav", one_sentence.samples, one_sentence.rate)
    monkeypatch.setattr(faster_whisper_engine.ctypes, "CDLL", no_library)
    monkeypatch.setattr(faster_whisper_engine, "files_of", lambda _package: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(voice, "process_recordings", lambda *_: pytest.fail("a recording is read"))
    asked = [str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--whisper", f"faster-whisper:{folder}", "--device", "cuda"]
    assert voice.main(asked) == 2
    assert "pip install nvidia-cublas-cu12" in capsys.readouterr().err


@needs_faster_whisper
def test_each_worker_uses_its_gpu(folder, monkeypatch) -> None:
    """torch says `cuda:1` in one word, CTranslate2 in two; what it does with them cannot be tried without a GPU."""
    import faster_whisper

    asked = []
    monkeypatch.setattr(faster_whisper_engine.ctypes, "CDLL", lambda _library: None)
    monkeypatch.setattr(faster_whisper, "WhisperModel", lambda *_args, **options: asked.append(options))
    for device in ("cpu", "cuda", "cuda:1"):
        faster_whisper_engine.load_model(f"{faster_whisper_engine.PREFIX}{folder}", device)
    assert [(one["device"], one["device_index"]) for one in asked] == [("cpu", 0), ("cuda", 0), ("cuda", 1)]
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 3)  # that of a rank of a training
    for device in ("cuda", "cuda:0", "cpu"):
        faster_whisper_engine.load_model(f"{faster_whisper_engine.PREFIX}{folder}", device)
    assert [one["device_index"] for one in asked[3:]] == [3, 0, 0]


@needs_faster_whisper
def test_another_rate_is_refused(speaking, one_sentence) -> None:
    with pytest.raises(ValueError, match="16000 Hz, not 24000"):
        whisper_engine.transcribe_recording(speaking, one_sentence, [WINDOW], None)
