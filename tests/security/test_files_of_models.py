"""Folders of models whose settings or files lead to other files, or have no end: put before the real verbs, and shown to succeed without
the gate where the installed transformers still allows them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

import overtone.finetune.__main__
from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files
from overtone.finetune.storage.model_security import admit
from overtone.recipes.language import answer_generation
from overtone.recipes.language.modeling.causal_model import causal_language_model
from overtone.recipes.language.tokenization.tokenizer import load_tokenizer
from overtone.recipes.llm_sft.model import tiny_checkpoint

GENERATE = ["--recipe", "llm_sft", "--prompt", "hi", "--max-new-tokens", "2"]


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint.build(tmp_path_factory.mktemp("chat") / "model")


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **changes}))


@pytest.fixture
def folder(chat_model: Path, tmp_path: Path) -> Path:
    return shutil.copytree(chat_model, tmp_path / "model")


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """Every path that Python opens during the test."""
    found: list[str] = []
    watching = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open":
            found.append(str(arguments[0]))

    sys.addaudithook(hook)
    yield found
    watching = False


JAPANESE = {"tokenizer_class": "GPTNeoXJapaneseTokenizer", "emoji_file": "{secret}", "vocab_file": "{secret}"}
ROCBERT = {"tokenizer_class": "RoCBertTokenizer", "word_shape_file": "{secret}", "word_pronunciation_file": "{secret}"}
POSITIONAL = {"tokenizer_class": "RoCBertTokenizer", "init_inputs": ["{secret}", "{secret}", "{secret}"]}
REFUSED = {
    "luke": {"tokenizer_class": "LukeTokenizer", "entity_vocab_file": "{secret}"},
    "marian": {"tokenizer_class": "MarianTokenizer", "source_spm": "{secret}", "target_spm": "{secret}"},
    "fsmt": {"tokenizer_class": "FSMTTokenizer", "src_vocab_file": "{secret}", "tgt_vocab_file": "{secret}"},
    "japanese bert": {"tokenizer_class": "BertJapaneseTokenizer", "mecab_kwargs": {"mecab_option": "-r {secret}"}},
}


def fill(settings: Any, secret: Path) -> Any:
    return json.loads(json.dumps(settings).replace("{secret}", str(secret)))


@pytest.mark.parametrize("target", ["file", "pipe", "device"])
@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("settings", [JAPANESE, ROCBERT, POSITIONAL], ids=["japanese", "rocbert", "positional"])
def test_a_tokenizer_opens_only_files_of_the_copy(
    settings: Any, file: str, target: str, folder: Path, tmp_path: Path, opened: list[str], time_limit: None
) -> None:
    secret = tmp_path / "secret"
    {"file": lambda: secret.write_text("{}"), "pipe": lambda: os.mkfifo(secret), "device": lambda: secret.symlink_to("/dev/zero")}[target]()
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\n<|endoftext|>\n")
    (folder / "tokenizer_config.json").unlink()
    change(folder / "tokenizer_config.json", tokenizer_class=settings["tokenizer_class"])
    change(folder / file, **fill(settings, secret))
    opened.clear()
    with pytest.raises(UserError, match="tokenizer"):
        load_tokenizer(folder, None)
    assert str(secret) not in opened and any(path.endswith("tokenizer_config.json") for path in opened)


@pytest.mark.skipif(int(transformers.__version__.partition(".")[0]) > 4, reason="transformers 5 prefers the files of the folder")
def test_the_named_file_is_a_real_attack_on_plain_transformers(folder: Path, tmp_path: Path, opened: list[str]) -> None:
    (folder / "tokenizer.json").unlink()
    (tmp_path / "secret").write_text("{}")
    (folder / "vocab.txt").write_text("a\n")
    change(folder / "tokenizer_config.json", **fill(JAPANESE, tmp_path / "secret"))
    transformers.AutoTokenizer.from_pretrained(folder)
    assert str(tmp_path / "secret") in opened


@pytest.mark.parametrize("name", REFUSED)
def test_other_classes_of_tokenizers_are_refused(name: str, folder: Path, tmp_path: Path, opened: list[str]) -> None:
    change(folder / "tokenizer_config.json", **fill(REFUSED[name], tmp_path / "secret"))
    with pytest.raises(UserError, match=r"tokenizer_class '\w+' is not the class of a causal language model"):
        load_tokenizer(folder, None)
    assert str(tmp_path / "secret") not in opened
    (folder / "tokenizer_config.json").write_text("{}")
    change(folder / "config.json", tokenizer_class=REFUSED[name]["tokenizer_class"])
    with pytest.raises(UserError, match=r"config\.json: tokenizer_class '\w+' is not the class of"):
        load_tokenizer(folder, None)


def test_legitimate_settings_are_as_they_were(folder: Path) -> None:
    tokens = {"bos_token": "/", "unk_token": {"content": "</s>", "__type": "AddedToken"}, "additional_special_tokens": ["etc", "."]}
    change(folder / "tokenizer_config.json", **tokens, chat_template="{{ '/etc/passwd' }}", padding_side="left", errors="replace")
    change(folder / "special_tokens_map.json", bos_token="/")
    with admit(folder, causal_language_model()) as clean:
        for name in ("tokenizer_config.json", "special_tokens_map.json", "config.json", "generation_config.json"):
            kept = json.loads((clean / name).read_text()) if (clean / name).exists() else {}
            given = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
            assert {key: value for key, value in given.items() if key not in ("vocab_file", "merges_file", "tokenizer_file")} == kept


NAMES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors", "vocab.json", "x.txt")


@pytest.mark.parametrize("name", [*NAMES, "merges.txt", "tokenizer.model", "chat_template.jinja", "model.safetensors.index.json"])
def test_pipes_sockets_and_devices_in_a_folder_are_not_opened(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], time_limit: None
) -> None:
    def make_socket() -> None:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(name)

    monkeypatch.chdir(folder)
    ways: dict[str, Callable[[], None]] = {
        "a named pipe": lambda: os.mkfifo(name),
        "a device": lambda: Path(name).symlink_to("/dev/zero"),
        "a socket": make_socket,
    }
    for kind, make in ways.items():
        Path(name).unlink(missing_ok=True)
        make()
        code = overtone.finetune.__main__.main(["generate", "--model", str(folder), *GENERATE])
        said = capsys.readouterr().err
        assert "has no config.json" in said if name == "config.json" else f"it is {kind}, not a regular file" in said and name in said, said
        assert code == (0 if name == "generation_config.json" else 2) or name == "tokenizer_config.json"


def test_every_file_is_read_once(chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file of the model becomes another one as soon as the gate has read it: the libraries read only the copy."""
    folder = shutil.copytree(chat_model, tmp_path / "model")
    expected = load_tokenizer(folder, None)
    (folder / "chat_template.jinja").write_text(expected.chat_template)
    read, replaced = input_files.read_bytes, list[str]()

    def replace_after(path: Path, *given: Any) -> bytes:
        content = read(path, *given)
        if path.parent == folder:
            replaced.append(path.name)
            path.unlink()
            path.write_text('{"model_type": "lightglue", "tokenizer_class": "LukeTokenizer", "auto_map": {"AutoConfig": "x.Y"}}')
        return content

    monkeypatch.setattr(input_files, "read_bytes", replace_after)
    found = load_tokenizer(folder, None)
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= set(replaced)
    assert found.get_vocab() == expected.get_vocab() and found.chat_template == expected.chat_template
    with pytest.raises(UserError, match="lightglue"):
        answer_generation.load_model(folder)


LIMITED = """
import json, os, resource, sys
from pathlib import Path
import overtone.recipes.language.answer_generation, transformers.models.qwen3.modeling_qwen3, overtone.finetune.__main__
virtual = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (virtual + 2**30,) * 2)
for folder in sys.argv[1:]:
    arguments = ["--model", folder, "--recipe", "llm_sft", "--prompt", "hi", "--max-new-tokens", "2"]
    code = overtone.finetune.__main__.main(["generate", *arguments])
    print(json.dumps([Path(folder).name, code]), flush=True)
"""
"""Memory beyond that of the imported libraries is limited to 1 GiB."""


@pytest.mark.slow
@pytest.mark.ci
def test_files_of_any_size_end_in_a_sentence(chat_model: Path, tmp_path: Path) -> None:
    folders, expected = [], {}
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json", "vocab.json", "chat_template.jinja", "a.index.json"):
        for kind in ("1 GiB", "20 GiB", "brackets", "zero"):
            folder = shutil.copytree(chat_model, tmp_path / f"{name} {kind}")
            path = folder / ("model.safetensors.index.json" if name.startswith("a.") else name)
            path.unlink(missing_ok=True)
            if kind == "brackets":
                path.write_bytes(b"[" + b"[]," * 20_000_000 + b"[]]")
            elif kind == "zero":
                path.symlink_to("/dev/zero")
            else:
                path.touch()
                os.truncate(path, int(kind.split()[0]) * 2**30)
            folders.append(folder)
            expected[folder.name] = path.name
    command = [sys.executable, "-c", LIMITED, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2])
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-3000:]
    ended = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert {name for name, code in ended.items() if code != 2} <= {name for name in ended if name.startswith("tokenizer_config")}
    assert set(ended) == set(expected)
    for name, file in expected.items():
        assert f"{tmp_path / name}/{file}" in done.stderr or (name == "config.json zero" and "no config.json" in done.stderr), name
