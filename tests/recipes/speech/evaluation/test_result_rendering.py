"""Tests of `overtone.recipes.speech.evaluation.result_rendering`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from overtone.recipes.speech.evaluation import result_rendering
from overtone.recipes.speech.evaluation.systems import RECORDINGS
from tests.recipes.voice_clone.evaluated import BASE, STEPS, TEXTS, evaluation


def test_the_json_has_all_results(tmp_path: Path) -> None:
    found = json.loads(json.dumps(result_rendering.build_record(evaluation(tmp_path)), allow_nan=False))
    assert list(found["figures"]) == [RECORDINGS, *STEPS, BASE]
    assert found["figures"]["step 100"]["unseen"]["texts"] == 6 and found["figures"]["step 100"]["unseen"]["wer"] == 10.0
    assert found["similarity"]["own encoder"]["another speaker"] == 0.3
    assert len(found["clips"]) == TEXTS * 5
    clip = next(one for one in found["clips"] if one["system"] == BASE and one["key"] == "eval-00")
    assert clip["ended"] is False and clip["errors"]["wrong_words"] == 3 and clip["seconds"] == 2.2
    assert {row["verdict"] for row in found["compared"] if row["metric"] == "wer"} == {"better"}
    assert found["settings"] == {"model": "runs/me", "asr": None}


def test_the_markdown_says_whether_training_helped(tmp_path: Path) -> None:
    text = result_rendering.render_markdown(evaluation(tmp_path))
    assert f"WER, unseen texts: **better than {BASE}**. 30 → 10 % (−20; 95 % interval −20 to −20; 6 texts)" in text
    assert "Not ended, unseen texts: **no clear difference from" in text and "Clipped, " not in text, "no system has clipped samples"
    assert "## Texts that are not in the training data" in text and "## Texts of the training data" in text
    row = next(line for line in text.splitlines() if line.startswith("| step 300 |"))
    assert row.startswith("| step 300 | 6 | 10 | 2 | 0.725 | 0.5 |")
    assert "- A note." in text and "faster from step 100 to step 300" in text
    table = [line.count("|") for line in text.splitlines() if line.startswith("|")]
    assert len(set(table[:7])) == 1, "all lines of the first table have equally many cells"


def test_the_first_line_sums_up_the_verdicts(tmp_path: Path) -> None:
    whole = evaluation(tmp_path)
    first, *others = result_rendering.verdicts(whole)
    better = "; ".join(f"{metric} ({group})" for group in ("unseen", "seen") for metric in ("WER", "CER", "Similarity, own encoder"))
    assert first == f"Better than {BASE}: {better}. No clear difference: Not ended (unseen)."
    assert len(others) == 7 and others[0].startswith("WER, unseen texts: **better than")
    unseen = replace(
        whole, clips={name: [clip for clip in clips if clip.item.group == "unseen"][:5] for name, clips in whole.clips.items()}
    )
    few = "WER; CER; Similarity, own encoder; Not ended"
    assert result_rendering.verdicts(unseen)[0] == f"Too few texts to compare with {BASE}: {few}.", "one set of texts needs no name"


def test_with_one_text_the_markdown_asks_for_more(tmp_path: Path) -> None:
    whole = evaluation(tmp_path)
    one = replace(whole, clips={name: clips[:1] for name, clips in whole.clips.items()})
    assert "is unknown: fewer than two texts were spoken by both the base and the trained voice. Give more; from 6 texts on" in (
        result_rendering.render_markdown(one)
    )


def test_without_a_base_the_markdown_says_that_nothing_was_compared(tmp_path: Path) -> None:
    whole = evaluation(tmp_path)
    alone = replace(whole, systems=whole.systems[:-1], clips={name: clips for name, clips in whole.clips.items() if name != BASE})
    assert (
        "Whether training helped is unknown: there is no base to compare with. Give it with --base FOLDER."
        in result_rendering.render_markdown(alone)
    )
