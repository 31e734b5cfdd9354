"""Prompts files: what a line becomes, and which lines are refused, with their numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.speech.evaluation.seed_tts_eval.prompts import read_prompts
from tests.recipes.speech.evaluation.seed_tts_eval import stand_ins


def test_lines_become_utterances(tmp_path: Path) -> None:
    path = tmp_path / "meta.lst"
    path.write_text("a-1|The prompt. |prompt-wavs/a.wav|The text.\n\nb|Other.|/clips/b.wav|More text.|wavs/b.wav\n")
    first, second = read_prompts(path, "en")
    assert (first.name, first.prompt_text, first.prompt_wav, first.text) == (
        "a-1",
        "The prompt.",
        tmp_path / "prompt-wavs/a.wav",
        "The text.",
    )
    assert (second.name, second.prompt_wav) == ("b", Path("/clips/b.wav"))


def test_the_golden_prompts_files_are_read(tmp_path: Path) -> None:
    for language, count in (("en", 15), ("zh", 5)):
        path = tmp_path / f"{language}.lst"
        path.write_text("\n".join(stand_ins.read_golden()["languages"][language]["meta"]), encoding="utf-8")
        assert len(read_prompts(path, language)) == count  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a|b|c", "meta.lst:2: the line has 3 fields"),
        ("../a|p|c.wav|Text.", "meta.lst:2: the name '../a' cannot be a file name"),
        ("..|p|c.wav|Text.", "meta.lst:2: the name '..' cannot be a file name"),
        ("a|p| |Text.", "meta.lst:2: the line names no prompt wav"),
        ("a|p|c.wav|?!", "meta.lst:2: text '\\?!' has no words"),
        ("first|p|c.wav|Text.", "meta.lst:2: the name first occurs twice"),
    ],
)
def test_other_lines_are_refused(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "meta.lst"
    path.write_text(f"first|p|c.wav|Text.\n{line}\n")
    with pytest.raises(UserError, match=message):
        read_prompts(path, "en")


@pytest.mark.parametrize(("content", "message"), [(None, "No such file"), (b"\n", "has no lines name|"), (b"\xff", "not UTF-8")])
def test_other_files_are_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "meta.lst"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message.replace("|", r"\|")):
        read_prompts(path, "en")
