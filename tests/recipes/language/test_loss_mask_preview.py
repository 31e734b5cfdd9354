"""Tests of `overtone.recipes.language.loss_mask_preview`."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from overtone.recipes.language.loss_mask_preview import escape_controls, render_sample
from overtone.recipes.language.tokenization.sft_tokenization import tokenize_row
from tests.recipes.llm_sft.families import spaced, tokenizer

CHAT = [{"role": "user", "content": "Oslo, 漢?"}, {"role": "assistant", "content": "Cold.\nÆ 漢"}]


def render(of: Any, row: dict[str, Any]) -> str:
    ids, mask = tokenize_row(row, of, "assistant")
    return render_sample({"ids": torch.tensor(ids), "supervised": torch.tensor(mask)}, SimpleNamespace(tokenizer=of))


def test_supervised_text_is_in_brackets_without_a_terminal() -> None:
    text, count = render(tokenizer("chatml"), {"messages": CHAT}).rsplit("\n", 1)
    assert text == "<|im_start|>user\nOslo, 漢?<|im_end|>\n<|im_start|>assistant\n⟦Cold.\nÆ 漢<|im_end|>⟧\n"
    assert re.fullmatch(r"\(\d+ of \d+ tokens are supervised\)", count)


def test_supervised_text_is_coloured_on_a_terminal_unless_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;32mCold.\nÆ 漢<|im_end|>\x1b[0m" in render(tokenizer("chatml"), {"messages": CHAT})
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as inner:
            inner.setenv(name, value)
            assert "⟦Cold." in render(tokenizer("chatml"), {"messages": CHAT})


def test_the_space_between_prompt_and_completion_is_kept() -> None:
    assert "What is the weather?⟦ It is cold.</s>⟧" in render(spaced(), {"prompt": "What is the weather?", "completion": " It is cold."})


def test_control_characters_are_escaped() -> None:
    text = render(tokenizer("chatml"), {"messages": [{"role": "user", "content": "\x1b[2J\x07\u202e"}, CHAT[1]]})
    assert "\\x1b[2J\\x07\\u202e" in text and "\x1b" not in text
    assert escape_controls("a\tb\nÆ 漢") == "a\tb\nÆ 漢"
