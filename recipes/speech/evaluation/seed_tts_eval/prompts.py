"""The prompts file of Seed-TTS-eval: `name|prompt text|prompt wav|text`, or with the recording of the text as a fifth field.

Format: README of https://github.com/BytedanceSpeech/seed-tts-eval. A relative path is relative to the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from overtone.finetune.data.row_problems import RowProblem, format_row_problems
from overtone.finetune.errors import UserError
from overtone.finetune.storage.text_lines import read_lines
from overtone.recipes.speech.evaluation.seed_tts_eval.word_error_rate import Language, normalize

NAME = re.compile(r"(?!\.{1,2}$)[^/\\\x00-\x1f]{1,200}")
FIELDS = "name|prompt text|prompt wav|text"


@dataclass(frozen=True)
class Prompt:
    """One utterance of the protocol."""

    name: str
    """Its speech is `name.wav`."""
    prompt_text: str
    prompt_wav: Path
    """It may be missing: the public scripts skip such an utterance."""
    text: str
    """The text to speak."""
    line: int = 0
    """Line number in the prompts file, from 1."""


def read_prompts(path: Path, language: Language) -> list[Prompt]:
    """The utterances of a prompts file. Raises one `UserError` with the file and line of each line that is not one."""
    try:
        lines = read_lines(path)
    except OSError as error:
        raise UserError(f"--data {path}: {error.strerror}; give a prompts file of Seed-TTS-eval, such as en/meta.lst") from None
    except UnicodeDecodeError as error:
        raise UserError(f"--data {path}: not UTF-8 ({error}); give a prompts file of Seed-TTS-eval, such as en/meta.lst") from None
    found, problems, rows = dict[str, Prompt](), list[RowProblem](), 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        rows += 1
        try:
            prompt = replace(parse_prompt(line, path.parent, language), line=number)
            if prompt.name in found:
                raise UserError(f"the name {prompt.name} occurs twice; rename one of the two utterances")
            found[prompt.name] = prompt
        except UserError as error:
            problems.append(RowProblem(number, str(error)))
    if problems:
        raise UserError(format_row_problems(path, problems, rows))
    if not found:
        raise UserError(f"--data {path}: has no lines {FIELDS}; give a prompts file of Seed-TTS-eval, such as en/meta.lst")
    return list(found.values())


def parse_prompt(line: str, folder: Path, language: Language) -> Prompt:
    """The utterance of one line. Raises `UserError`."""
    fields = line.strip().split("|")
    if len(fields) not in (4, 5):
        raise UserError(f"the line has {len(fields)} fields between `|`; expected {FIELDS}")
    name, prompt_text, prompt_wav, text = fields[:4]
    if not NAME.fullmatch(name):
        raise UserError(f"the name {name!r} cannot be a file name; rename the utterance")
    if not prompt_wav.strip():
        raise UserError("the line names no prompt wav; add the path of a clip of the voice")
    if not normalize(text, language).strip():
        raise UserError(f"text {text!r} has no words once punctuation is removed; correct it, or remove the line")
    return Prompt(name, prompt_text.strip(), folder / prompt_wav, text)
