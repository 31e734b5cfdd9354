"""What is printed cannot control the terminal; data that another program reads is exact."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from overtone.finetune.exporting.export_provenance import CARD
from overtone.finetune.monitoring.run_records import CHECKPOINTS
from overtone.finetune.terminal import announce_torch, is_terminal, print_coloured, print_content, print_diagnostic, print_line, printable

ROOT = Path(__file__).parents[2]

HOSTILE = "clip \x1b]0;owned\x07\x1b[2J\r\x9b31m\x7f\u202egpj\u2066\u2028\ud800.wav"
ESCAPED = r"clip \x1b]0;owned\x07\x1b[2J\r\x9b31m\x7f\u202egpj\u2066\u2028\ud800.wav"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_line(HOSTILE)
    print_diagnostic(HOSTILE)
    assert capsys.readouterr() == (f"{ESCAPED}\n", f"{ESCAPED}\n")


@pytest.mark.parametrize("text", ["", "one\n\ttwo", "é 日本\u3000語", "a\u00a0b", "می\u200cخواهم", "👩\u200d🚀"])
def test_text_of_any_script_is_left_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_content_is_escaped_on_a_terminal_only() -> None:
    terminal, file = Terminal(), io.StringIO()
    print_content("\x1b[2J", terminal)
    print_content("\x1b[2J", file, end="")
    assert (terminal.getvalue(), file.getvalue()) == ("\\x1b[2J\n", "\x1b[2J")


def test_an_object_in_place_of_a_stream_is_no_terminal() -> None:
    class Cell:
        """What a notebook may put in place of a stream: no descriptor, and not all methods."""

        def __init__(self) -> None:
            self.shown = ""

        def write(self, text: str) -> int:
            self.shown += text
            return len(text)

        def flush(self) -> None:
            pass

    cell = Cell()
    print_content("\x1b[2J", cell)
    assert (cell.shown, is_terminal(cell), is_terminal(Terminal())) == ("\x1b[2J\n", False, True)


def test_of_escape_sequences_only_colours_stay(capsys: pytest.CaptureFixture[str]) -> None:
    print_coloured("\x1b[1;32mgreen\x1b[0m \x1b[8mhidden\x1b[2J\x1b[31m")
    assert capsys.readouterr().out == "\x1b[1;32mgreen\x1b[0m \\x1b[8mhidden\\x1b[2J\x1b[31m\n"


def test_letters_that_the_output_cannot_encode_are_escaped() -> None:
    raw = io.BytesIO()
    latin = io.TextIOWrapper(raw, encoding="latin-1")
    print_content("café – 日", latin)
    assert raw.getvalue() == b"caf\xe9 \\u2013 \\u65e5\n"


def test_each_line_is_flushed() -> None:
    raw = io.BytesIO()
    kept = io.TextIOWrapper(raw, encoding="utf-8")
    print_content("step 1", kept)
    assert raw.getvalue() == b"step 1\n"


def test_torch_is_announced_only_while_it_is_not_imported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torch", sys.modules.get("torch", sys))
    announce_torch("the model mine")
    assert capsys.readouterr().err == ""
    monkeypatch.delitem(sys.modules, "torch")
    announce_torch("the model mine")
    assert capsys.readouterr() == ("", "loading torch and the model mine …\n")


WITHOUT_TORCH = """
import json, sys
class Torch(BaseException): ...
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise Torch
sys.meta_path.insert(0, Finder())
from overtone.finetune.__main__ import main
for words in json.loads(sys.argv[1]):
    try:
        print("ended", words[0], main(words), file=sys.stderr)
    except Torch:
        print("imports torch:", words[0], file=sys.stderr)
"""
"""A program that runs verbs until they import torch."""


def test_every_verb_says_that_it_loads_torch_before_it_does(tmp_path: Path) -> None:
    """Its import takes seconds, in which a user sees nothing else."""
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / CARD).write_text(json.dumps({"recipe": "llm_sft", "format": "transformers"}))
    (tmp_path / "export" / "config.json").write_text("{}")
    (tmp_path / "run" / CHECKPOINTS / "step-00000001").mkdir(parents=True)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    of_a_model = ("generate", "chat", "serve", "eval-voice")
    calls = [[verb, "--model", model] for verb in of_a_model for model in ("export", "run")]
    calls += [["select", "run"], ["export", "run", "--to", "new"], ["plan", "--recipe", "llm_sft"]]
    calls += [[*words, "--recipe", "llm_sft", "--data.train", "rows.jsonl"] for words in (["plan", "--show-batch"], ["train"])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, json.dumps(calls)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    refused = ["eval-voice", "--model", "export"]
    assert re.search(
        r"^error: --model export: the recipe llm_sft has no evaluation of voices; .*\nended eval-voice 2$", done.stderr, re.MULTILINE
    )
    announced = re.findall(r"^loading torch and .* …\nimports torch: (.+)$", done.stderr, re.MULTILINE)
    assert announced == [words[0] for words in calls if words[0] != "train" and words != refused], done.stderr
    assert re.search(r"^loading torch and the recipe llm_sft …$", done.stdout, re.MULTILINE), "train prints it among its other lines"


PROGRAM = """
import logging, sys, threading, warnings
from overtone.finetune.terminal import protect_terminal
protect_terminal()
bad = "\\x1b[2J https://me:s3cr3t@host/a?s3cr3t"
logging.getLogger("library").warning("log %s", bad)
try:
    raise OSError(bad)
except OSError:
    logging.exception("logged")
warnings.warn("warned " + bad)
thread = threading.Thread(target=lambda: 1 / len([bad].remove(bad) or []), name="worker")
thread.start()
thread.join()
raise ValueError(bad)
"""


def test_what_python_and_libraries_print_is_safe_as_well() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert "\x1b" not in done.stderr and "s3cr3t" not in done.stderr
    safe = "\\x1b[2J https://***@host/a?***"
    errors = ("in thread worker:", "ZeroDivisionError", f"ValueError: {safe}")
    for text in (f"log {safe}", f"OSError: {safe}", f"UserWarning: warned {safe}", *errors):
        assert text in done.stderr, text


def test_progress_bars_of_libraries_only_go_to_a_terminal() -> None:
    """By the variable that huggingface_hub and transformers read; what the user has set stays."""
    name = "HF_HUB_DISABLE_PROGRESS_BARS"
    program = f"import os; from overtone.finetune.terminal import protect_terminal; protect_terminal(); print(os.environ.get({name!r}))"

    def run(stderr: int, **variables: str) -> str:
        environment = {key: value for key, value in os.environ.items() if key != name} | variables
        return subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=60, env=environment, check=True
        ).stdout.strip()

    inside, outside = os.openpty()
    try:
        assert (run(subprocess.PIPE), run(subprocess.PIPE, **{name: "0"}), run(outside)) == ("1", "0", "None")
    finally:
        os.close(inside)
        os.close(outside)


def test_the_secrets_of_addresses_are_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("https://me:s3cr3t@host/a")
    print_diagnostic("https://host/a?s3cr3t")
    print_coloured("https://host/b?s3cr3t")
    assert capsys.readouterr() == ("https://***@host/a\nhttps://host/b?***\n", "https://host/a?***\n")
