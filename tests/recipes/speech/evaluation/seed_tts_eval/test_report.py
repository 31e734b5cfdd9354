"""The report says what the figures are, what they depend on, and what is missing."""

from __future__ import annotations

from overtone.recipes.speech.evaluation.seed_tts_eval.report import ProtocolReport, ProtocolScores, build_record, render_markdown
from overtone.recipes.speech.evaluation.seed_tts_eval.word_error_rate import count_utterance_errors

ERRORS = {"a": count_utterance_errors("One two.", " One too.", "en"), "b": count_utterance_errors("Yes.", " Yes.", "en")}
SCORES = ProtocolScores(ERRORS, {"a": 0.5, "b": 0.6254}, {"c": "its prompt clips/c.wav"}, dnsmos={"mos_overall": 3.1})


def make_report(*differences: str) -> ProtocolReport:
    return ProtocolReport(3, {"me": SCORES}, [], differences, {"seed": 7})


def test_the_record_has_the_protocols_figures() -> None:
    record = build_record(make_report("Something."))
    assert record["protocol"] == "seed-tts-eval" and record["comparable"] is False and record["utterances"] == 3
    (found,) = record["systems"].values()
    assert (found["wer_percent"], found["sim"], found["sim_variance"]) == (25.0, 0.563, 0.004)
    assert found["scored"] == {"wer": 2, "sim": 2} and found["missing"] == {"c": "its prompt clips/c.wav"}
    assert found["per_utterance"]["a"] == {"wer": 0.5, "transcript": " One too.", "sim": 0.5} and found["own"] == {}
    assert build_record(make_report())["comparable"] is True


def test_the_page_lists_differences_missing_files_and_settings() -> None:
    page = render_markdown(make_report("Only 3 of 9 utterances were spoken (--limit)."))
    assert "| me | 25.0 | 0.563 | 3 | 1 |" in page
    assert "- Only 3 of 9" in page and "- c: its prompt clips/c.wav" in page and "- seed: 7" in page
    assert "| me | 3.1 |" in page.partition("own figures")[2]
    assert "can be compared with those of papers" in render_markdown(make_report()) and "–" not in page


def test_unknown_figures_are_dashes() -> None:
    page = render_markdown(ProtocolReport(1, {"me": ProtocolScores({}, {}, {})}, [], [], {}))
    assert "| me | – | – | 1 | 0 |" in page and "own figures" not in page
