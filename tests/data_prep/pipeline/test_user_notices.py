"""Warnings and notes about recordings."""

from __future__ import annotations

from overtone.data_prep.pipeline.user_notices import Notice, format_notice, join_all_texts, print_notices


def test_a_line_names_three_recordings_and_counts_the_others(capsys) -> None:
    names = tuple(f"{number}.wav" for number in range(5))
    print_notices([Notice(text="too quiet", recordings=names), Notice(text="all is well", is_warning=False)])
    assert capsys.readouterr().err == "warning: 0.wav, 1.wav, 2.wav and 2 more: too quiet\nnote: all is well\n"
    assert format_notice(Notice(text="too quiet", recordings=names[:1])) == "warning: 0.wav: too quiet"


def test_the_texts_of_a_recording_are_those_of_all_its_notices_once() -> None:
    both = Notice(text="late", recordings=("a", "b"))
    assert join_all_texts([both, Notice(text="cut", recordings=("b",)), Notice(text="of all"), both]) == {"a": "late", "b": "late; cut"}
