"""Tests of `overtone.recipes.whisper.cli_arguments`."""

from __future__ import annotations

from pathlib import Path

from overtone.recipes.whisper.cli_arguments import make_generate_parser


def test_recordings_are_parsed() -> None:
    options = make_generate_parser().parse_args(["--audio", "a.wav", "b c.mp3", "--words", "--language", "de"])
    assert (options.audio, options.words, options.language) == ([Path("a.wav"), Path("b c.mp3")], True, "de")
