"""What is printed cannot control the terminal; data that another program reads is exact."""

from __future__ import annotations

import io

import pytest

from finetune.terminal import print_coloured, print_content, print_diagnostic, print_line, printable

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
