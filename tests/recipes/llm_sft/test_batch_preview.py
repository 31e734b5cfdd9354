"""A sample as a person reads it: every character once, what is learned marked, and nothing that commands the terminal."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recipes.language.chat_labels import tokenise
from recipes.llm_sft.batch_preview import show, visible
from tests.recipes.llm_sft.families import spaced, tokenizer

CHAT = [{"role": "user", "content": "Oslo, 漢?"}, {"role": "assistant", "content": "Cold.\nÆ 漢"}]


def shown(of: Any, row: dict[str, Any]) -> str:
    ids, mask = tokenise(row, of, "assistant")
    return show({"ids": torch.tensor(ids), "supervised": torch.tensor(mask)}, SimpleNamespace(tokenizer=of))


def test_brackets_where_there_is_no_terminal() -> None:
    told = shown(tokenizer("chatml"), {"messages": CHAT})
    text, count = told.rsplit("\n", 1)
    assert text == "<|im_start|>user\nOslo, 漢?<|im_end|>\n<|im_start|>assistant\n⟦Cold.\nÆ 漢<|im_end|>⟧\n"
    assert re.fullmatch(r"\(\d+ of \d+ tokens are supervised\)", count)


def test_colour_on_a_terminal_unless_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;32mCold.\nÆ 漢<|im_end|>\x1b[0m" in shown(tokenizer("chatml"), {"messages": CHAT})
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as inner:
            inner.setenv(name, value)
            assert "⟦Cold." in shown(tokenizer("chatml"), {"messages": CHAT})


def test_the_space_between_prompt_and_completion_is_kept() -> None:
    assert "What is the weather?⟦ It is cold.</s>⟧" in shown(spaced(), {"prompt": "What is the weather?", "completion": " It is cold."})


def test_a_text_does_not_command_the_terminal() -> None:
    told = shown(tokenizer("chatml"), {"messages": [{"role": "user", "content": "\x1b[2J\x07\u202e"}, CHAT[1]]})
    assert "\\x1b[2J\\x07\\u202e" in told and "\x1b" not in told
    assert visible("a\tb\nÆ 漢") == "a\tb\nÆ 漢"
