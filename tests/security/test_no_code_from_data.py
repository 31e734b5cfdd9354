"""Folders that try to run code, put before the real verbs: each ends in a sentence, and nothing of the folder has run.

Each hostile file would write `canary`. The attacks are real: where the installed transformers still falls for one, a test shows it.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoTokenizer

import overtone.finetune.__main__
from overtone.data_prep.audio_codecs import qwen3_tts_speaker_encoder
from overtone.data_prep.audio_codecs.qwen3_tts_codec import find_codec, load_codec
from overtone.data_prep.audio_codecs.selection import open_codec
from overtone.data_prep.transcription.whisper_engine import load_whisper
from overtone.finetune.errors import UserError
from overtone.finetune.exporting.export_provenance import CARD
from overtone.recipes.language import answer_generation
from overtone.recipes.language.modeling.causal_model import build_on_meta, read_config
from overtone.recipes.language.tokenization.tokenizer import load_tokenizer
from overtone.recipes.llm_sft.model import tiny_checkpoint
from overtone.recipes.qwen3_tts.inference import stock_qwen_tts
from overtone.recipes.qwen3_tts.inference.exported_folder import ExportedModel
from overtone.recipes.speech.evaluation.speaker_similarity import load_independent_encoder
from overtone.recipes.voice_clone.model import tiny_checkpoint as voice_model
from tests.finetune import tiny as byte_model
from tests.finetune.storage.test_model_security import Harmful

VOICES = pytest.mark.skipif(importlib.util.find_spec("qwen_tts") is None, reason="qwen-tts is not in the environment for chats")
OPEN_TO_IT = pytest.mark.skipif(not transformers.__version__.startswith("4."), reason="transformers 5 has the fix; the gate stays")


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint.build(tmp_path_factory.mktemp("chat") / "model")


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """The file that hostile code writes; at the end of the test it must not be there, nor any module that the test made."""
    path = tmp_path / "canary"
    yield path
    assert not path.exists(), "code of the folder has run"
    assert not [name for name, module in sys.modules.items() if str(getattr(module, "__file__", "")).startswith(str(tmp_path))]


def write_code(path: Path, canary: Path, body: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"open({str(canary)!r}, 'w').write('ran')\n{body}")


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **changes}))


VERBS = {
    "generate": ["--text", "hi", "--prompt", "hi"],
    "chat": [],
    "serve": ["--port", "0"],
    "eval-voice": ["--data", "rows.jsonl"],
}


@pytest.mark.parametrize("name", ["./evil", "evil", "{}/evil", "file://{}/evil", "recipes/../evil", "..", "", None, ["llm_sft"], {"a": 1}])
@pytest.mark.parametrize("verb", VERBS)
def test_an_export_does_not_choose_the_code_that_runs(
    verb: str, name: Any, canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_code(tmp_path / "evil" / "recipe.py", canary)
    change(tmp_path / "evil" / CARD, recipe=name.format(tmp_path) if isinstance(name, str) else name)
    change(tmp_path / "evil" / "config.json")
    assert overtone.finetune.__main__.main([verb, "--model", "evil", *VERBS[verb]]) == 2
    assert f"evil/{CARD} names the recipe" in (said := capsys.readouterr().err) and "--recipe PATH" in said


@pytest.mark.parametrize("verb", [*VERBS, "export", "select"])
def test_a_checkpoint_does_not_choose_the_code_that_runs(
    verb: str, canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from overtone.finetune.checkpointing import checkpoint

    monkeypatch.chdir(tmp_path)
    write_code(tmp_path / "evil" / "recipe.py", canary)
    step = tmp_path / "run" / "checkpoints" / "step-00000001"
    step.mkdir(parents=True)
    change(step / "state.json", **byte_model.state(1, recipe="./evil"))
    (step / "manifest.json").write_text("{}")
    monkeypatch.setattr(checkpoint, "find_problem", lambda _, with_moments: None)  # a forger can write a manifest that fits
    how = {"export": ["run", "--to", "out"], "select": ["run"]}.get(verb) or ["--model", "run", *VERBS[verb]]
    assert overtone.finetune.__main__.main([verb, *how]) == 2
    assert "state.json names the recipe './evil'" in capsys.readouterr().err


def lightglue(folder: Path, canary: Path) -> dict[str, Any]:
    """CVE-2026-5241: a config whose class opens another one, and hands on what the file says of trust."""
    body = "from transformers import PretrainedConfig\nclass Mine(PretrainedConfig):\n    model_type = 'mine'\n"
    write_code(folder / "inner" / "configuration.py", canary, body)
    change(folder / "inner" / "config.json", model_type="mine", auto_map={"AutoConfig": "configuration.Mine"})
    nested = {"model_type": "mine", "_name_or_path": str(folder / "inner")}
    return {"model_type": "lightglue", "trust_remote_code": True, "keypoint_detector_config": nested}


@OPEN_TO_IT
def test_the_nested_config_is_a_real_attack_on_plain_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    ran = tmp_path / "ran"
    change(tmp_path / "config.json", **lightglue(tmp_path, ran))
    AutoConfig.from_pretrained(tmp_path)
    assert ran.exists()


def test_a_nested_config_runs_nothing_here(chat_model: Path, canary: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(chat_model, tmp_path / "model")
    own = json.loads((folder / "config.json").read_text())
    for config in (lightglue(tmp_path / "a", canary), {**own, "inner": lightglue(tmp_path / "b", canary)}):
        (folder / "config.json").write_text(json.dumps(config))
        for read in (read_config, lambda base: load_tokenizer(base, None), answer_generation.load_model):
            with pytest.raises(UserError, match=r"config\.json"):
                read(folder)


def test_settings_that_lead_to_other_files_run_nothing(chat_model: Path, canary: Path, tmp_path: Path) -> None:
    """A version of config.json, and a model inside another, as transformers 4.57 follows them."""
    folder = shutil.copytree(chat_model, tmp_path / "model")
    hidden = "config.4.0+x.safetensors.index.json"
    change(folder / "config.json", configuration_files=[hidden])
    change(folder / hidden, weight_map={}, **lightglue(tmp_path / "a", canary))
    assert answer_generation.load_model(folder).model.config.model_type == "qwen3"
    other = tmp_path / "other"
    other.mkdir()
    change(other / "config.json", **lightglue(tmp_path / "b", canary))
    inner = {"model_type": "detr", "use_timm_backbone": False, "use_pretrained_backbone": True, "backbone": str(other)}
    (folder / "config.json").write_text(json.dumps({"model_type": "fuyu", "text_config": inner}))
    for read in (read_config, lambda base: build_on_meta(base, None), answer_generation.load_model):
        with pytest.raises(UserError, match=r"model_type 'detr', which is not a part of a causal language model"):
            read(folder)


@VOICES
def test_a_voice_model_opens_no_other_tokenizer(canary: Path, tmp_path: Path) -> None:
    model = voice_model.build(tmp_path / "model")
    (tmp_path / "other").mkdir()
    change(tmp_path / "other" / "config.json", **lightglue(tmp_path / "c", canary))
    named = {"audio_tokenizer_class": "AutoConfig", "audio_tokenizer_name_or_path": str(tmp_path / "other")}
    change(model / "audio_tokenizer_config.json", **named)
    change(model / "processor_config.json", audio_tokenizer=named)
    assert stock_qwen_tts.load(model).model.tts_model_type == "base"


def test_an_alias_of_a_key_downloads_no_kernel(chat_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(chat_model, tmp_path / "model")
    change(folder / "config.json", attribute_map={"harmless": "_attn_implementation"}, harmless="attacker/kernel")
    assert read_config(folder)._attn_implementation != "attacker/kernel"
    assert answer_generation.load_model(folder).model.config._attn_implementation in ("sdpa", "eager")


def with_code(folder: Path, canary: Path) -> None:
    """As ordinary repositories carry it (Phi-3): Python files, and `auto_map` that points to them."""
    for name in ("configuration_mine", "modeling_mine", "tokenization_mine"):
        write_code(folder / f"{name}.py", canary)
    write_code(folder / "custom_generate" / "generate.py", canary)
    change(folder / "config.json", auto_map={"AutoConfig": "configuration_mine.C", "AutoModelForCausalLM": "modeling_mine.M"})
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenization_mine.T", None]})
    change(folder / "generation_config.json", trust_remote_code=True, custom_generate=str(folder))


def test_a_repository_with_code_loads_without_running_it_or_asking(
    chat_model: Path, canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(chat_model, tmp_path / "model")
    with_code(folder, canary)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a person was asked to trust code"))
    assert (
        overtone.finetune.__main__.main(
            ["generate", "--model", str(folder), "--recipe", "llm_sft", "--prompt", "hi", "--max-new-tokens", "2"]
        )
        == 0
    )
    said = capsys.readouterr().err
    assert f"{folder}/config.json: ignored auto_map" in said and "tokenizer_config.json: ignored auto_map" in said


def test_a_tokenizer_that_is_only_code_is_refused(chat_model: Path, canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(chat_model, tmp_path / "model")
    with_code(folder, canary)
    (folder / "tokenizer.json").unlink()
    change(folder / "tokenizer_config.json", tokenizer_class="MineTokenizer")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a person was asked to trust code"))
    with pytest.raises(UserError, match=r"its tokenizer cannot be loaded .*; the model's own code is never run"):
        load_tokenizer(folder, None)


@pytest.mark.skipif(not transformers.__version__.startswith("4."), reason="transformers 5 does not ask")
def test_plain_transformers_asks_to_trust_the_code(chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(chat_model, tmp_path / "model")
    with_code(folder, tmp_path / "ran")
    (folder / "tokenizer.json").unlink()
    change(folder / "tokenizer_config.json", tokenizer_class="MineTokenizer")
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "n")  # type: ignore[func-returns-value]
    with pytest.raises(ValueError, match="trust"):
        AutoTokenizer.from_pretrained(folder)
    assert asked


def test_pickled_weights_are_not_read(chat_model: Path, canary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(chat_model, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save({"a": Harmful(canary)}, folder / "pytorch_model.bin")
    assert overtone.finetune.__main__.main(["generate", "--model", str(folder), "--recipe", "llm_sft", "--prompt", "hi"]) == 2
    assert "its weights are pickles (pytorch_model.bin)" in (said := capsys.readouterr().err) and "Convert them: python -c" in said


def test_an_adapter_does_not_lead_to_another_folder(chat_model: Path, canary: Path, tmp_path: Path) -> None:
    folder, other = shutil.copytree(chat_model, tmp_path / "model"), tmp_path / "other"
    other.mkdir()
    torch.save({"a": Harmful(canary)}, other / "pytorch_model.bin")
    change(folder / "adapter_config.json", base_model_name_or_path=str(other), peft_type="LORA", auto_mapping={"a": "b"})
    torch.save({"a": Harmful(canary)}, folder / "adapter_model.bin")
    assert answer_generation.load_model(folder).model.config.model_type == "qwen3"


@pytest.mark.parametrize("form", ["zip", "legacy"])
def test_a_whisper_file_runs_nothing(form: str, canary: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.pt"
    torch.save({"dims": {}, "model_state_dict": Harmful(canary)}, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(UserError, match=rf"--whisper {path}: not a Whisper checkpoint"):
        load_whisper(str(path), "cpu")


def test_a_speaker_model_runs_nothing(canary: Path, tmp_path: Path) -> None:
    torch.save({"a": Harmful(canary)}, tmp_path / "pytorch_model.bin")
    write_code(tmp_path / "modeling_mine.py", canary)
    for kind in ("wavlm", "lightglue", "mine"):
        change(tmp_path / "config.json", model_type=kind, auto_map={"AutoConfig": "modeling_mine.C"})
        change(tmp_path / "preprocessor_config.json", feature_extractor_type="Wav2Vec2FeatureExtractor")
        with pytest.raises(UserError, match=f"--speaker-model {tmp_path}: not a speaker verification model"):
            load_independent_encoder(str(tmp_path))


def test_a_codec_or_a_speaker_encoder_runs_nothing(canary: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "speech_tokenizer").mkdir(parents=True)
    for folder in (model, model / "speech_tokenizer"):
        (folder / "config.json").write_text(json.dumps(lightglue(tmp_path / folder.name, canary)))
        (folder / "model.safetensors").write_bytes(b"")
    for find in (
        find_codec,
        open_codec,
        lambda name: qwen3_tts_speaker_encoder.open_qwen_speaker_encoder("--model", name),
        lambda name: ExportedModel.inspect(Path(name)),
    ):
        with pytest.raises(UserError, match=f"--model {model}: .*model_type 'lightglue' is not"):
            find(str(model))


def load_voice(voice: Path) -> None:
    """Load all parts of a voice model."""
    stock_qwen_tts.load(voice)
    load_codec(find_codec(str(voice)), "cpu")
    qwen3_tts_speaker_encoder.load_encoder(voice)
    ExportedModel.inspect(voice).processor  # noqa: B018 - loads the tokenizer


@pytest.mark.parametrize("kind", ["chat", pytest.param("voice", marks=VOICES)])
def test_libraries_read_only_the_clean_copies(kind: str, tmp_path: Path) -> None:
    """Every loader of the project under Python's audit hook: no file of a model's own folder is opened outside of this package, nothing
    of it is imported or executed, and nothing is unpickled."""
    build, load = (voice_model.build, load_voice) if kind == "voice" else (tiny_checkpoint.build, answer_generation.load_model)
    model = build(tmp_path / "model")
    seen: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not watching:
            return
        if event in ("pickle.find_class", "import", "exec") and (event == "pickle.find_class" or str(arguments).find(str(tmp_path)) >= 0):
            seen.append(f"{event} {arguments}")
        if event == "open" and str(arguments[0]).startswith(str(model)):
            opened.append(str(arguments[0]))
            if by := [frame.filename for frame in traceback.extract_stack() if "/site-packages/transformers/" in frame.filename]:
                seen.append(f"open {arguments[0]} by {by[-1]}")

    opened: list[str] = []
    watching = True
    sys.addaudithook(hook)
    try:
        load(model)
    finally:
        watching = False
    assert [path for path in opened if path.endswith("config.json")], "the hook sees the gate itself"
    assert seen == []
