"""Tests of `overtone.recipes.llm_reward.cli_arguments`."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.recipes.llm_reward.cli_arguments import make_generate_parser


def test_files_are_parsed() -> None:
    options = make_generate_parser().parse_args(["--rows", "a b.jsonl", "--out", "c.jsonl", "--allow-dropped", "system", "tools"])
    assert (options.rows, options.out, options.allow_dropped) == (Path("a b.jsonl"), Path("c.jsonl"), ["system", "tools"])


def test_a_text_and_a_file_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_generate_parser().parse_args(["--rows", "a.jsonl", "--text", "b"])
    assert "not allowed with" in capsys.readouterr().err
