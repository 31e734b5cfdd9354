"""One cause is one line of the message, however many rows it affects."""

from __future__ import annotations

from pathlib import Path

from overtone.finetune.data.row_problems import RowProblem, format_row_problems

PATH = Path("train.jsonl")


def test_a_cause_of_all_rows_is_one_line() -> None:
    problems = [RowProblem(line, "the row has no audio_codes; make them") for line in range(1, 3790)]
    assert format_row_problems(PATH, problems, 3789) == "train.jsonl: all 3,789 rows: the row has no audio_codes; make them"


def test_messages_that_differ_in_values_only_are_one_cause() -> None:
    problems = [RowProblem(3, "130 positions do not fit 64"), RowProblem(5, "70 positions do not fit 64"), RowProblem(9, "no text")]
    assert format_row_problems(PATH, problems, 40).splitlines() == [
        "3 invalid rows:",
        "  train.jsonl:3: 130 positions do not fit 64 (2 rows: lines 3, 5)",
        "  train.jsonl:9: no text",
    ]
    whole = format_row_problems(PATH, problems[:2], 2)
    assert whole == "train.jsonl: all 2 rows: 130 positions do not fit 64 (line 3, and likewise in the others)"
    quoted = [RowProblem(1, "speaker 'a' is unknown"), RowProblem(2, "speaker 'b' is unknown")]
    assert len(format_row_problems(PATH, quoted, 3).splitlines()) == 2


def test_one_row_is_singular_and_has_its_line() -> None:
    assert format_row_problems(PATH, [RowProblem(7, "no text")], 9) == "1 invalid row:\n  train.jsonl:7: no text"
    assert format_row_problems(PATH, [RowProblem(1, "no text")], 1) == "1 invalid row:\n  train.jsonl:1: no text"


def test_many_lines_and_many_causes_are_counted() -> None:
    problems = [RowProblem(line, "no text") for line in range(1, 26)]
    shown = format_row_problems(PATH, problems, 30)
    assert shown.endswith("train.jsonl:1: no text (25 rows: lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …)")
    causes = [RowProblem(number, f"cause {'x' * number}") for number in range(1, 26)]
    assert format_row_problems(PATH, causes, 30).splitlines()[-1] == "  … and 15 more"
