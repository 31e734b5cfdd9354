"""Tests of `overtone.recipes.whisper.cli_arguments`."""

from __future__ import annotations

from pathlib import Path

from overtone.recipes.whisper.cli_arguments import make_generate_parser, make_serve_parser


def test_recordings_are_parsed() -> None:
    options = make_generate_parser().parse_args(["--audio", "a.wav", "b c.mp3", "--words", "--language", "de"])
    assert (options.audio, options.words, options.language) == ([Path("a.wav"), Path("b c.mp3")], True, "de")


def test_the_server_has_the_options_of_all_servers_and_a_limit() -> None:
    options = make_serve_parser().parse_args(["--port", "8000", "--max-seconds", "60"])
    assert (options.port, options.max_seconds, options.queue) == (8000, 60.0, 16)
