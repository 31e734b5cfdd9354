"""The word error rate (WER) of held-out clips during training, for `checkpoint.best_by: sample/wer`.

Each of `sample.prompts` is a data file, such as the val.jsonl of the run. Its clips are transcribed greedily, and compared with their text
after Whisper's own normalization. The rate is of all words of all files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from overtone.finetune.config import Config
from overtone.finetune.data.jsonl_rows import visit_rows
from overtone.finetune.errors import UserError
from overtone.finetune.modeling.loading import resolve_source
from overtone.finetune.recipe import Answer, MeasuredAnswers, PreparedMetrics, Row
from overtone.finetune.storage import files
from overtone.finetune.storage.referenced_files import find_file
from overtone.recipes.speech.dataset_row_checks import check_text
from overtone.recipes.speech.evaluation.intelligibility import count_errors

from ..exporting.export_plan import read_defaults
from ..model import modeling
from ..model.sequence_layout import RecognizerProcessor, choose_language, choose_task, compute_features, read_clip, read_file_name
from .clip_transcription import Clip, load_model, transcribe_clips

WER, WORDS, WRONG = "wer", "words", "wrong_words"
SHOWN = 3
"""Transcripts of each file that the log shows: those with the most errors."""
ROWS_AT_ONCE = 256
LONGEST = 200
"""Characters of a transcript that the log shows."""


@dataclass(frozen=True)
class SpokenRow:
    """A row whose transcript is measured."""

    audio: Path
    text: str
    language: str
    """Whisper's code."""
    task: str


def prepare(config: Config[Any]) -> PreparedMetrics:
    """Read the data files once, and name the metrics. Raises `UserError` for a file or a row that cannot be measured."""
    base = resolve_source(config.model.source, config.model.revision)
    processor = modeling.make_processor(modeling.read_config(base), config.options)
    for name in config.sample.prompts:
        read_rows(Path(name), processor)
    digests = {name: files.digest(Path(name)) for name in config.sample.prompts}
    return PreparedMetrics((WER, WORDS, WRONG), {"data": {**digests}, "language": config.options.language, "task": config.options.task})


def read_rows(path: Path, processor: RecognizerProcessor) -> list[SpokenRow]:
    """The rows of a data file. Raises `UserError` with file and line for one without audio or text."""
    rows = list[SpokenRow]()

    def add_row(_: int, row: Row) -> None:
        audio = find_file(path.parent, read_file_name(row))
        if not audio.is_file():
            raise UserError(f"{audio} does not exist")
        rows.append(
            SpokenRow(audio, read_text(row), choose_language(row.get("language"), processor), choose_task(row.get("task"), processor))
        )

    visit_rows(path, add_row, "give data files whose clips are transcribed, such as the val.jsonl of the run", "sample.prompts:")
    return rows


def read_text(row: Row) -> str:
    """The words of a row. Raises `UserError` if it has none."""
    segments = row.get("segments")
    if row.get("text") is None and isinstance(segments, list):
        return " ".join(check_text(segment.get("text") if isinstance(segment, dict) else None) for segment in segments)
    return check_text(row.get("text"))


def sample(folder: Path, prompts: list[str]) -> list[Answer]:
    """For each data file the transcripts with the most errors, and the sums of words and of errors."""
    from whisper.tokenizer import LANGUAGES

    processor = modeling.make_processor(modeling.read_config(folder), read_defaults(folder))
    model, answers = load_model(folder), list[Answer]()
    for prompt in prompts:
        rows = read_rows(Path(prompt), processor)
        words = wrong = 0
        lines = list[tuple[int, str]]()
        for row, text in zip(rows, transcribe_rows(model, rows, processor.mels), strict=True):
            counts = count_errors(row.text, text, "english" if row.task == "translate" else LANGUAGES[row.language])
            if counts is None:
                continue
            words, wrong = words + counts.words, wrong + counts.wrong_words
            lines.append((counts.wrong_words, f"{row.text!r:.{LONGEST}} → {text!r:.{LONGEST}}"))
        worst = sorted(lines, key=lambda line: -line[0])[:SHOWN]
        answers.append(Answer("\n".join(line for _, line in worst), numbers={WORDS: float(words), WRONG: float(wrong)}))
    return answers


def transcribe_rows(model: Any, rows: list[SpokenRow], mels: int) -> Iterator[str]:
    """The transcript of each row. Only the spectrograms of `ROWS_AT_ONCE` rows are in memory, of a megabyte each."""
    for first in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[first : first + ROWS_AT_ONCE]
        yield from transcribe_clips(model, [Clip(compute_features(read_clip(row.audio), mels), row.language, row.task) for row in part])


def measure(answers: list[Answer]) -> MeasuredAnswers:
    """The WER in % of all words of all files; in the details, that of each file."""
    words, wrong = (sum(answer.numbers[name] for answer in answers) for name in (WORDS, WRONG))
    details: list[dict[str, JsonValue]] = [{WER: compute_rate(answer.numbers[WRONG], answer.numbers[WORDS])} for answer in answers]
    return MeasuredAnswers({WER: compute_rate(wrong, words)}, details)


def compute_rate(wrong: float, words: float) -> float:
    """Errors per 100 words."""
    return 100.0 * wrong / max(words, 1.0)
