"""Tests of `overtone pairs`: rows that voice_dpo reads, refusals before a model is loaded, and the verb of other recipes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from overtone.finetune import __main__ as verbs
from overtone.recipes.qwen3_tts.model.base_voices import make_speech_processor, read_base_voices
from overtone.recipes.speech.preferences import pair_dataset
from overtone.recipes.speech.serving import blind_server
from overtone.recipes.voice_dpo.recipe import RECIPE
from tests.recipes.speech.preferences import pair_fixtures
from tests.recipes.voice_clone.conftest import Ready


@pytest.fixture(scope="module")
def words(fresh: Ready, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return pair_fixtures.write_voice(fresh, tmp_path_factory.mktemp("a voice"))


def test_pairs_are_rows_that_voice_dpo_reads(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair_fixtures.stand_in(monkeypatch)
    out = tmp_path / "my pairs"
    assert verbs.main(["pairs", *words, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    voices = read_base_voices(Path(words[0]))
    processor = make_speech_processor(Path(words[0]), voices)
    rows = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    for row in rows:
        sample = RECIPE.read(row, processor, out)
        assert int(sample["frame_mask"].sum()) == len(row["chosen_codes"]) + len(row["rejected_codes"])
        assert row["chosen_measures"]["reward"] - row["rejected_measures"]["reward"] == pytest.approx(row["margin"])
        assert all((out / row[f"{side}_audio"]).is_file() for side in ("chosen", "rejected"))
    summary = json.loads((out / "summary.json").read_text())
    assert summary["pairs"] == len(rows) >= 1 and f"{out}/train.jsonl: {len(rows)} pairs of 2 texts" in printed
    assert summary["pairs"] + sum(summary["dropped"].values()) == 2 and summary["weights"]["similarity"] == 0.5


def test_people_decide_between_the_clips(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They prefer the clip with the lower reward for each text, also for one that the judge had no pair for."""
    pair_fixtures.stand_in(monkeypatch)
    out, command = tmp_path / "pairs", ["pairs", *words, "--val-share", "0", "--out", str(tmp_path / "pairs")]
    assert verbs.main(command) == 0
    before = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    trials, clips = blind_server.find_clips(out, tmp_path / "anna.jsonl")
    assert f"{out}: no model is loaded; the two clips of 2 texts are compared" in capsys.readouterr().out
    assert len(before) == 1 and len(trials.trials) == 2 and len(clips) == 4
    while (trial := trials.next) is not None:
        trials.answer(trial.key, "left" if trial.left == "lower reward" else "right")
    assert trials.outcome.wins == {"higher reward": 0, "lower reward": 2}
    with (tmp_path / "anna.jsonl").open("a") as file:
        file.write(json.dumps({"trial": "other", "choice": "left", "winner": "me"}) + "\n")
    assert verbs.main([*command, "--decisions", str(tmp_path / "anna.jsonl")]) == 0
    shown = "2 pairs decided by people, 1 in place of the judge's pair, 2 against its rewards; 0 ties; "
    assert f"{shown}1 answer dropped: about two models, not two clips\n" in capsys.readouterr().out
    after = {row["text"]: row for row in map(json.loads, (out / "train.jsonl").read_text().splitlines())}
    own = after[before[0]["text"]]
    assert (own["chosen_codes"], own["rejected_codes"]) == (before[0]["rejected_codes"], before[0]["chosen_codes"])
    voices = read_base_voices(Path(words[0]))
    processor = make_speech_processor(Path(words[0]), voices)
    assert len(after) == 2 and all(RECIPE.read(row, processor, out) for row in after.values())
    summary = json.loads((out / "summary.json").read_text())
    assert summary["pairs"] == 2 and summary["decisions"]["used"] == 2 and not summary["dropped"]
    monkeypatch.setattr(pair_dataset, "speak_missing", None)  # not reached: all clips would be spoken again, for nobody's answers
    other_seed = ["--seed", "9", "--decisions", str(tmp_path / "anna.jsonl")]
    assert verbs.main([*command, *other_seed]) == 2
    message = "no answer counts (2 about clips of another model, other settings or another folder, 1 about two models, not two clips)"
    assert message in capsys.readouterr().err
    monkeypatch.undo()
    pair_fixtures.stand_in(monkeypatch)
    (out / own["chosen_audio"]).write_bytes((out / own["rejected_audio"]).read_bytes())
    assert verbs.main([*command, "--decisions", str(tmp_path / "anna.jsonl")]) == 0
    assert "1 answer dropped: about a clip that is missing or has changed" in capsys.readouterr().out
    assert len(blind_server.find_clips(out, tmp_path / "bert.jsonl")[0].trials) == 1
    assert f"{out}: 1 text left out, whose clips are missing, have changed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--decisions", "gone.jsonl"], "--decisions gone.jsonl: No such file"),
        (["--samples", "1"], "--samples 1: must be at least 2"),
        (["--margin", "0"], "--margin 0: must be more than 0"),
        (["--margin", "nan"], "--margin nan: must be more than 0"),
        (["--weights", "beauty=1"], "--weights beauty: Extra inputs are not permitted; the measures are intelligibility"),
        (["--max-wer", "-1"], "--max-wer -1: must be 0 or more"),
        (["--weights", "pace"], "--weights pace: give MEASURE=NUMBER with one of intelligibility, similarity, pace, ending"),
        (["--weights", "intelligibility=0", "similarity=0"], "silence would be the best speech"),
        (["--temperature", "0"], "--temperature 0 is out of range"),
        (["--speaker", "carl"], "--speaker carl: "),
        (["--texts", "missing.txt"], "--texts missing.txt: No such file"),
        (["--data", "missing.jsonl"], "missing.jsonl"),
        (["--max-seconds", "0"], "--max-seconds 0 is out of range"),
    ],
)
def test_what_is_not_understood_is_refused(
    words: list[str], more: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair_fixtures.stand_in(monkeypatch)
    assert verbs.main(["pairs", *words, "--out", str(tmp_path / "out"), *more]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_another_dataset_is_not_replaced(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair_fixtures.stand_in(monkeypatch)
    (tmp_path / "train.jsonl").write_text("precious\n")
    assert verbs.main(["pairs", *words, "--out", str(tmp_path)]) == 2
    assert "has train.jsonl, and no clips.jsonl of this verb" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"] and (tmp_path / "train.jsonl").read_text() == "precious\n"


def test_a_recipe_without_pairs_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert verbs.main(["pairs", str(tmp_path), "--recipe", "csm"]) == 2
    assert "no recipe learns from pairs of clips of csm" in capsys.readouterr().err


def test_help_lists_measures_and_sampling(capsys: pytest.CaptureFixture[str]) -> None:
    assert verbs.main(["pairs", "--recipe", "voice_clone", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "--margin" in printed and "similarity=0.5" in printed and "--subtalker-temperature" in printed


def test_a_voice_that_cannot_be_trained_is_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair_fixtures.stand_in(monkeypatch)
    export = tmp_path / "export"
    shutil.copytree(words[0], export)
    content = json.loads((export / "voices.json").read_text())
    content["speakers"] = [one for one in content["speakers"] if one["name"] != "anna"]
    (export / "voices.json").write_text(json.dumps(content))
    assert verbs.main(["pairs", str(export), *words[1:], "--out", str(tmp_path / "out")]) == 2
    assert "lines.txt:1: speaker 'anna': voice_dpo cannot train this voice; it can train bert" in capsys.readouterr().err
    (export / "voices.json").unlink()
    assert verbs.main(["pairs", str(export), *words[1:], "--out", str(tmp_path / "out")]) == 2
    assert "it has no trained voices (voices.json)" in capsys.readouterr().err and not (tmp_path / "out").exists()
