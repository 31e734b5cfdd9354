"""The checked copy of a model: which files are linked, dropped and reported, or refused."""

from __future__ import annotations

import ast
import inspect
import json
import os
import pickle
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from overtone.finetune.errors import UserError
from overtone.finetune.storage import model_security
from overtone.finetune.storage.model_security import Kind, admit, check_config, load_pickled_weights

CODEC = Kind("a codec", {"codec"})
CLASSES = {"tokenizer_class": {"LlamaTokenizer"}}
KIND = Kind("a model of these tests", {"llama", "phi3"}, lambda *given: given == ("phi3", "vision"), CLASSES, {"codec": CODEC})


@pytest.fixture(autouse=True)
def every_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is printed once in a process."""
    model_security._report_once.cache_clear()
    monkeypatch.delenv("LOCAL_RANK", raising=False)


def write_model(folder: Path, config: Any, **files: Any) -> Path:
    folder.mkdir(parents=True)
    for name, content in {"config.json": config, **files}.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_only_data_is_in_the_clean_copy_and_weights_take_no_room(tmp_path: Path) -> None:
    names = ("model.safetensors", "tokenizer.json", "merges.txt", "spiece.model", "chat_template.jinja")
    others = ("modeling_mine.py", "pytorch_model.bin", "training_args.bin", "adapter_config.json", "notes.json", "rows.jsonl")
    others += ("audio_tokenizer_config.json", "config.4.0.json", "config.4.0+x.safetensors.index.json", "training_config.json")
    folder = write_model(tmp_path / "model", {"model_type": "llama"}, **dict.fromkeys((*names, *others), "[]"))
    write_model(folder / "codec", {"model_type": "codec"}, **{"model.safetensors": ""})
    write_model(folder / "other", {"model_type": "codec"})
    write_model(folder / "additional_chat_templates", {}, **{"tools.jinja": "", "run.py": ""})
    with admit(folder, KIND) as clean:
        found = {path.relative_to(clean).as_posix() for path in clean.rglob("*") if path.is_file()}
        expected = {*names, "config.json", "codec/config.json", "codec/model.safetensors", "additional_chat_templates/tools.jinja"}
        assert found == expected
        assert (clean / "model.safetensors").resolve() == folder / "model.safetensors"
        assert not (clean / "config.json").is_symlink(), "settings are copies, so that they cannot change after the check"
    assert not clean.exists() and (folder / "model.safetensors").exists()


def test_keys_that_lead_to_code_are_dropped_and_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model_type": "phi3",
        "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
        "_attn_implementation_internal": "somebody/kernels",
        "attn_implementation": None,
        "_name_or_path": "microsoft/phi-3",
        "vision": {"trust_remote_code": True, "_name_or_path": "/somewhere", "layers": [{"experts_implementation": "a/b", "size": 3}]},
        "hidden_size": 64,
        "cache_implementation": "hybrid",
        "_attn_implementation": "sdpa",
        "configuration_files": ["config.4.0.json"],
        "attribute_map": {"harmless": "_attn_implementation"},
        "transformers_weights": "../other.safetensors",
        "\x1b[2J": {"auto_map": "\x1b[2J"},
    }
    tokenizer = {
        "auto_map": {"AutoTokenizer": ["mine.Mine", None]},
        "tokenizer_class": "AutoModelForCausalLM",
        "processor_class": "Phi3Processor",
        "vocab_file": "/etc/passwd",
        "tokenizer_file": None,
    }
    folder = write_model(tmp_path / "model", config, **{"tokenizer_config.json": tokenizer})
    for _ in range(2):
        with admit(folder, KIND) as clean:
            assert json.loads((clean / "config.json").read_text()) == {
                "model_type": "phi3",
                "_name_or_path": "microsoft/phi-3",
                "vision": {"layers": [{"size": 3}]},
                "hidden_size": 64,
                "cache_implementation": "hybrid",
                "\x1b[2J": {},
            }
            assert json.loads((clean / "tokenizer_config.json").read_text()) == {}
    (first, second) = capsys.readouterr().err.splitlines()
    assert first.startswith(f"warning: {folder}/config.json: ignored ") and "never run" in first
    for place in ("auto_map", "_attn_implementation_internal", "vision.trust_remote_code: true", "vision.layers[0].experts_implementation"):
        assert place in first
    for place in ("configuration_files", "attribute_map", "transformers_weights", r"\x1b[2J.auto_map: " + r'"\u001b[2J"'):
        assert place in first
    assert "attn_implementation: null" not in first and "sdpa" not in first, "what was empty or plain is not worth a word"
    assert all(each.isprintable() for each in first + second), "a terminal obeys nothing of it"
    assert 'tokenizer_class: "AutoModelForCausalLM"' in second and 'vocab_file: "/etc/passwd"' in second


def test_one_process_of_a_machine_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "model", {"model_type": "llama", "auto_map": {"AutoConfig": "a.B"}})
    monkeypatch.setenv("LOCAL_RANK", "1")
    check_config(folder, KIND)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("LOCAL_RANK", "0")
    check_config(folder, KIND)
    assert "auto_map" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"model_type": "lightglue", "trust_remote_code": True},
            "model_type 'lightglue' is not a model of these tests; the folder contains",
        ),
        ({"model_type": "vit"}, "model_type 'vit' is not a model of these tests; give the folder"),
        ({"model_type": ["llama"]}, r"model_type \['llama'\] is not"),
        ({}, "model_type None is not"),
        (
            {"model_type": "llama", "inner": [{"model_type": "lightglue"}]},
            "contains a config of model_type 'lightglue', which is not a part of a model of these tests",
        ),
        ({"model_type": "phi3", "inner": {"model_type": "detr", "backbone": "somebody/else"}}, "model_type 'detr', which is not a part of"),
        ({"model_type": "phi3", "inner": {"model_type": ["vision"]}}, r"model_type \['vision'\], which is not a part of"),
        ({"model_type": "\x1b]0;title\x07"}, r"model_type '\\x1b\]0;title\\x07' is not"),
        ("[]", "contains a list instead of a JSON object"),
        ("{", "is not JSON"),
        ('{"a":' * 100_000, "is not JSON"),
        ('{"a":' * 900 + "1" + "}" * 900, "is nested more than 100 deep"),
        ("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "is not JSON"),
    ],
)
def test_unsafe_files_are_refused_before_a_library_reads_them(config: Any, message: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", config)
    with pytest.raises(UserError, match=rf"{folder}/config\.json.*{message}"), admit(folder, KIND):
        pytest.fail("admitted")


def test_a_part_of_another_type_is_refused_too(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", {"model_type": "llama"})
    write_model(folder / "codec", {"model_type": "llama"})
    with pytest.raises(UserError, match=r"codec/config\.json: model_type 'llama' is not a codec"), admit(folder, KIND):
        pytest.fail("admitted")
    assert not list(Path(os.environ.get("TMPDIR", "/tmp")).glob(f".overtone-model*/{folder.name}"))


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing/config\.json: no model there"):
        check_config(tmp_path / "missing", KIND)


@pytest.mark.parametrize("named", ["../other.safetensors", "/etc/passwd", "pytorch_model.bin", 3, None])
def test_an_index_names_nothing_outside_the_folder(named: Any, tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": named}}
    folder = write_model(tmp_path / "model", {"model_type": "llama"}, **{"model.safetensors.index.json": index})
    with pytest.raises(UserError, match=r"index\.json: weight_map names .*not a safetensors file"), admit(folder, KIND):
        pytest.fail("admitted")


def test_pickled_weights_are_refused_with_the_way_to_convert_them(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match=rf"--model {tmp_path}: its weights are pickles .* Convert them: python -c .*weights_only=True"):
        model_security.require_safetensors(tmp_path, "--model")
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    model_security.require_safetensors(tmp_path, "--model")


def test_quantized_weights_are_refused_where_a_library_loads_them(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2), "weight_scale": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=rf"--model {tmp_path}: weight_scale is a part of a quantized weight"):
        model_security.require_safetensors(tmp_path, "--model")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(UserError, match=rf"--model {tmp_path}: its weights are stored in fp8"):
        model_security.require_safetensors(tmp_path, "--model")


class Harmful:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return open, (str(self.canary), "w")


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle", "garbage", "empty"])
def test_a_pickle_runs_nothing(form: str, tmp_path: Path) -> None:
    path, canary = tmp_path / "model.pt", tmp_path / "canary"
    if form in ("zip", "legacy"):
        torch.save({"dims": {}, "model_state_dict": Harmful(canary)}, path, _use_new_zipfile_serialization=form == "zip")
    else:
        path.write_bytes({"pickle": pickle.dumps(Harmful(canary)), "garbage": b"\x80\x02nonsense", "empty": b""}[form])
    with pytest.raises(UserError, match=r"model\.pt does not contain plain weights"):
        load_pickled_weights(path)
    assert not canary.exists()


def test_plain_weights_are_read(tmp_path: Path) -> None:
    torch.save({"dims": {"n": 3}, "weights": {"a": torch.ones(2)}}, tmp_path / "model.pt")
    found = load_pickled_weights(tmp_path / "model.pt")
    assert found["dims"] == {"n": 3} and torch.equal(found["weights"]["a"], torch.ones(2))
    torch.save([torch.ones(1)], tmp_path / "list.pt")
    with pytest.raises(UserError, match=r"contains a list instead of a dictionary of weights"):
        load_pickled_weights(tmp_path / "list.pt")


def test_the_list_of_types_that_open_others_is_that_of_the_installed_transformers() -> None:
    found = {kind for kind in CONFIG_MAPPING_NAMES if _opens_others(CONFIG_MAPPING[kind])}
    assert len(CONFIG_MAPPING_NAMES) > 300
    assert found - model_security.OPENS_OTHERS == set(), "a config class opens other models; add its type"


def _opens_others(config: type) -> bool:
    tree = ast.parse(textwrap.dedent(inspect.getsource(config)))
    return any(isinstance(node, ast.Attribute) and node.attr == "from_pretrained" for node in ast.walk(tree))


def test_invalid_settings_are_dropped_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_model(tmp_path / "model", {"model_type": "llama"}, **{"special_tokens_map.json": "[]", "generation_config.json": ""})
    with admit(folder, KIND) as clean:
        assert [path.name for path in clean.iterdir()] == ["config.json"]
    said = capsys.readouterr().err
    assert "special_tokens_map.json: ignored" in said and "generation_config.json: ignored" in said


def test_an_index_is_written_anew(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors"}, "model_type": "lightglue", "metadata": {"total_size": 3}}
    folder = write_model(tmp_path / "model", {"model_type": "llama"}, **{"model.safetensors.index.json": index})
    with admit(folder, KIND) as clean:
        assert json.loads((clean / "model.safetensors.index.json").read_text()) == {
            "metadata": {},
            "weight_map": {"a": "model-1.safetensors"},
        }


def test_the_document_that_was_checked_is_the_one_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "model", {"model_type": "llama"})
    check = model_security.check_config

    def swapped(*given: Any) -> dict[str, Any]:
        found = check(*given)
        (folder / "config.json").write_text('{"model_type": "lightglue"}')
        return found

    monkeypatch.setattr(model_security, "check_config", swapped)
    with admit(folder, KIND) as clean:
        assert json.loads((clean / "config.json").read_text()) == {"model_type": "llama"}


def test_while_a_copy_is_open_transformers_cannot_run_python_files(tmp_path: Path) -> None:
    from transformers import dynamic_module_utils

    own = dynamic_module_utils.get_class_in_module
    folder = write_model(tmp_path / "model", {"model_type": "llama"})
    with admit(folder, KIND):
        with admit(folder, KIND), pytest.raises(ValueError, match="never run"):
            dynamic_module_utils.get_class_in_module("C", "code.py")
        assert dynamic_module_utils.get_class_in_module is not own
    assert dynamic_module_utils.get_class_in_module is own


def test_an_export_copies_data_of_the_base_and_nothing_that_a_link_leads_to(tmp_path: Path) -> None:
    base, secret = write_model(tmp_path / "base", {"model_type": "llama"}), tmp_path / "id_rsa"
    secret.write_text("PRIVATE KEY")
    contents = {
        "LICENSE": "mine",
        "tokenizer.json": "{}",
        "run.py": "",
        "pytorch_model.bin": "",
        "tokenizer_config.json": '{"auto_map": {}, "a": 1}',
    }
    for name, content in contents.items():
        (base / name).write_text(content)
        model_security.copy_for_export(base / name, base, tmp_path / "out" / name)
    (base / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": "x.Y"}, "a": 1}')
    model_security.copy_for_export(base / "tokenizer_config.json", base, tmp_path / "out" / "tokenizer_config.json")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["LICENSE", "tokenizer.json", "tokenizer_config.json"]
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text()) == {"a": 1}
    (base / "LICENSE").unlink()
    (base / "LICENSE").symlink_to(secret)
    with pytest.raises(UserError, match=r"LICENSE is a link to .*id_rsa, outside of the base, and would be exported"):
        model_security.copy_for_export(base / "LICENSE", base, tmp_path / "out" / "LICENSE2")


def test_the_hubs_own_links_are_followed(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / ("0123456789" * 4), tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "5f").write_text("licence")
    (snapshot / "LICENSE").symlink_to("../../blobs/5f")
    model_security.copy_for_export(snapshot / "LICENSE", snapshot, tmp_path / "out" / "LICENSE")
    assert (tmp_path / "out" / "LICENSE").read_text() == "licence"


@pytest.mark.parametrize("name", ["AutoTokenizer", "RagTokenizer", "AutoProcessor", "mine.LlamaTokenizer", "LlamaTokenizer.mine"])
def test_class_names_that_could_open_other_folders_are_dropped(tmp_path: Path, name: str) -> None:
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"tokenizer_class": name}))
    assert model_security.cleaned(path) == ({}, [f'tokenizer_class: "{name}"'])
