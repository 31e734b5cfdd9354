"""The training files of a speech run."""

from __future__ import annotations

from pathlib import Path

from overtone.recipes.speech.training_files import describe_training_files


def test_the_order_of_a_mixture_does_not_change_its_description(tmp_path: Path) -> None:
    paths = [tmp_path / name / "train.jsonl" for name in ("me", "replay")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(path.parent.name)
    found = describe_training_files(paths)
    assert found == describe_training_files(paths[::-1]) and found[0] == "me/train.jsonl, replay/train.jsonl"
    assert found[1] not in (describe_training_files(paths[:1])[1], describe_training_files(paths[1:])[1])
