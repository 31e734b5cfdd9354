"""Tests of `overtone.recipes.speech.preferences.pair_dataset`."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overtone.finetune import __main__ as verbs
from overtone.finetune.errors import UserError
from overtone.recipes.speech.frame_synthesizer import FrameVoice
from overtone.recipes.speech.preferences import pair_dataset
from overtone.recipes.speech.preferences.clip_decisions import ClipDecision, Decisions
from overtone.recipes.speech.preferences.pair_dataset import read_records
from overtone.recipes.speech.preferences.reward_weights import RewardWeights
from tests.recipes.speech.cli.test_select_voice import make_data, train_run
from tests.recipes.speech.preferences import pair_fixtures
from tests.recipes.speech.preferences.test_pair_selection import make_clip
from tests.recipes.voice_clone.conftest import Ready, write_corpus


@pytest.fixture(scope="module")
def words(fresh: Ready, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return pair_fixtures.write_voice(fresh, tmp_path_factory.mktemp("a voice"))


def make(words: list[str], out: Path, *more: str) -> list[dict[str, Any]]:
    assert verbs.main(["pairs", *words, "--out", str(out), *more]) == 0
    return [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]


def test_a_killed_run_resumes_with_the_same_pairs(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = pair_fixtures.stand_in(monkeypatch)
    whole = make(words, tmp_path / "whole")
    assert whole and len(heard) == 6 and len({record.seed for record in read_records(tmp_path / "whole").values()}) == 6
    speak = FrameVoice.speak_each
    calls = list[int]()

    def speak_until_killed(voice: Any, spoken: Any) -> Any:
        calls.append(len(spoken))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return speak(voice, spoken)

    monkeypatch.setattr(FrameVoice, "speak_each", speak_until_killed)
    assert verbs.main(["pairs", *words, "--out", str(tmp_path / "killed"), "--batch", "4"]) == 130
    records = (tmp_path / "killed" / "clips.jsonl").read_text()
    assert records.count("\n") == 4 and not (tmp_path / "killed" / "train.jsonl").exists()
    (tmp_path / "killed" / "clips.jsonl").write_bytes(records.encode() + b'{"text": "caf\xc3')  # torn within a character
    assert make(words, tmp_path / "killed", "--batch", "4") == whole
    assert calls == [4, 2, 2]


def test_other_weights_and_margins_need_no_new_clips(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = pair_fixtures.stand_in(monkeypatch)
    first = make(words, tmp_path / "out")
    count = len(heard)
    assert make(words, tmp_path / "out", "--margin", "50") == [] and len(heard) == count
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["dropped"] == {"the margin is too small": 1, "no clip ends well": 1} and summary["made_by"] == "overtone pairs"
    assert make(words, tmp_path / "out") == first and len(heard) == count
    other = make(words, tmp_path / "out", "--seed", "1")
    assert len(heard) == 2 * count and other != first, "another seed gives other clips"
    assert make(words, tmp_path / "out") == first and len(heard) == 2 * count


def test_a_missing_clip_is_spoken_again(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = pair_fixtures.stand_in(monkeypatch)
    rows = make(words, tmp_path / "out")
    before = read_records(tmp_path / "out")
    (tmp_path / "out" / rows[0]["chosen_audio"]).unlink()
    make(words, tmp_path / "out")
    after = read_records(tmp_path / "out")
    assert len(heard) == 7 and {key: one.codes for key, one in after.items()} == {key: one.codes for key, one in before.items()}


def test_a_model_that_decodes_greedily_needs_a_temperature(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pair_fixtures.stand_in(monkeypatch)
    export = tmp_path / "export"
    shutil.copytree(words[0], export)
    settings = json.loads((export / "generation_config.json").read_text())
    (export / "generation_config.json").write_text(json.dumps({**settings, "do_sample": False}))
    rest = [word for word in words[1:] if word not in ("--temperature", "1.0")]
    assert verbs.main(["pairs", str(export), *rest, "--out", str(tmp_path / "out")]) == 2
    assert "give --temperature 0.9" in capsys.readouterr().err


def test_a_line_of_several_passages_is_refused(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pair_fixtures.stand_in(monkeypatch)
    (tmp_path / "long.txt").write_text("It is never late! " * 60 + "\n")
    assert verbs.main(["pairs", *words, "--texts", str(tmp_path / "long.txt"), "--out", str(tmp_path / "out")]) == 2
    assert "long.txt:1: it would be spoken in" in capsys.readouterr().err


def test_two_processes_do_not_share_a_folder(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pair_fixtures.stand_in(monkeypatch)
    descriptor = pair_dataset.files.lock_folder(tmp_path / "out")
    assert descriptor and verbs.main(["pairs", *words, "--out", str(tmp_path / "out")]) == 2
    assert "is in use by a running process" in capsys.readouterr().err


def test_folders_of_the_user_stay(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair_fixtures.stand_in(monkeypatch)
    rows = make(words, tmp_path / "out")
    (tmp_path / "out" / "export-2024").mkdir()
    (tmp_path / "out" / "export-2024" / "thesis.txt").write_text("precious")
    (tmp_path / "out" / ".export.tmp-0123").mkdir()  # of a killed process
    assert make(words, tmp_path / "out") == rows
    assert (tmp_path / "out" / "export-2024" / "thesis.txt").read_text() == "precious"
    assert not [*(tmp_path / "out").glob(".export.tmp-*")]


def test_a_copy_of_the_model_needs_no_new_clips(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = pair_fixtures.stand_in(monkeypatch)
    shutil.copytree(words[0], tmp_path / "copy", copy_function=shutil.copyfile)
    own = [str(tmp_path / "copy"), *words[1:]]
    rows = make(words, tmp_path / "copy" / "pairs")
    assert len(heard) == 6 and make(own, tmp_path / "copy" / "pairs") == rows and len(heard) == 6
    settings = json.loads((tmp_path / "copy" / "generation_config.json").read_text())
    (tmp_path / "copy" / "generation_config.json").write_text(json.dumps({**settings, "repetition_penalty": 1.5}))
    make(own, tmp_path / "copy" / "pairs")
    assert len(heard) == 12, "another model"


def test_other_recordings_and_another_recognizer_judge_again(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = pair_fixtures.stand_in(monkeypatch)
    at = words.index("--data") + 1
    shutil.copytree(Path(words[at]).parent, tmp_path / "data")
    own = [*words[:at], str(tmp_path / "data" / Path(words[at]).name), *words[at + 1 :]]
    make(own, tmp_path / "out")
    monkeypatch.setattr(pair_dataset.intelligibility, "digest_whisper", lambda _: "of another file with the same name")
    make(own, tmp_path / "out")
    assert len(heard) == 12
    clip = tmp_path / "data" / json.loads(Path(own[at]).read_text().split("\n")[0])["audio"]
    clip.write_bytes(clip.read_bytes() + b"\0")
    make(own, tmp_path / "out")
    assert len(heard) == 18


def test_pairs_of_some_texts_validate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both speakers of a text are on one side, and more texts or a larger share do not move a text out of the validation."""
    monkeypatch.setattr(pair_dataset, "pair_text", lambda clips, *_: ([{"text": clips[0].text, "speaker": "anna"}], "", None))

    def divide(texts: int, share: float) -> tuple[list[str], list[str]]:
        items: list[Any] = [SimpleNamespace(key=f"{n}-{ord(who)}", text=f"Line {n}{who}") for n in range(texts) for who in ("!", ".")]
        plans: list[Any] = [SimpleNamespace(item=item, key=item.key) for item in items]
        given: Any = SimpleNamespace(
            out=tmp_path, weights=RewardWeights(), margin=0.1, max_wer=0.2, samples=2, val_share=share, decisions=()
        )
        records: Any = {item.key: SimpleNamespace(text=item.text, audio=item.key) for item in items}
        summary = pair_dataset.write_rows(items, plans, records, given, ())
        found = [
            [json.loads(line)["text"] for line in path.read_text().splitlines()] if (path := tmp_path / name).exists() else []
            for name in ("train.jsonl", "val.jsonl")
        ]
        assert (summary["pairs"], summary["val"]) == (len(items), len(found[1])) == (len(found[0]) + len(found[1]), len(found[1]))
        return found[0], found[1]

    _, few = divide(60, 0.3)
    trained, many = divide(90, 0.3)
    assert 10 < len(few) < 60 and {*few} == {text for text in many if int(text[5:-1]) < 60}
    assert not {text[:-1] for text in trained} & {text[:-1] for text in many} and {*many} < {*divide(90, 0.5)[1]}
    assert divide(90, 0)[1] == [] and not (tmp_path / "val.jsonl").exists()
    with pytest.raises(UserError, match="all 2 validate; give a smaller --val-share"):
        divide(1, 0.999)


def test_a_speaker_without_training_pairs_does_not_validate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """voice_dpo refuses a validation file with a voice that it does not train."""
    monkeypatch.setattr(pair_dataset, "pair_text", lambda clips, *_: ([vars(clip) for clip in clips], "", None))
    monkeypatch.setattr(pair_dataset, "compute_split_position", lambda text: float(text))
    clips = {"0.9": "anna", "0.1": "anna", "0.2": "bert"}
    items: list[Any] = [SimpleNamespace(key=text, text=text) for text in clips]
    plans: list[Any] = [SimpleNamespace(item=item, key=item.key) for item in items]
    records: Any = {text: SimpleNamespace(text=text, speaker=speaker, audio=text) for text, speaker in clips.items()}
    given: Any = SimpleNamespace(out=tmp_path, weights=RewardWeights(), margin=0.1, max_wer=0.2, samples=2, val_share=0.5, decisions=())
    summary = pair_dataset.write_rows(items, plans, records, given, ())
    assert [json.loads(line)["text"] for line in (tmp_path / "val.jsonl").read_text().splitlines()] == ["0.1"]
    assert (summary["pairs"], summary["val"]) == (2, 1)
    assert summary["dropped"] == {"would validate a speaker without training pairs; give a smaller --val-share, or more texts": 1}


def decide(*votes: tuple[str, str, tuple[int, int]]) -> Decisions:
    """Decisions about two clips each."""
    made = {key: make_clip(key, similarity) for key, similarity in (("a", 0.9), ("b", 0.5), ("c", 0.1))}
    found = [ClipDecision((made[first], made[second]), counts, 0) for first, second, counts in votes]
    return Decisions({frozenset(clip.audio for clip in one.clips): one for one in found})


@pytest.mark.parametrize(
    ("decisions", "chosen", "counts", "reason"),
    [
        (decide(), ["ac"], {}, ""),
        (decide(("a", "c", (2, 1))), ["ac"], {"used": 1, "in place of the judge's pair": 1}, ""),
        (decide(("a", "c", (0, 3))), ["ca"], {"used": 1, "in place of the judge's pair": 1, "against the judge": 1}, ""),
        (decide(("a", "c", (1, 1))), [], {"ties": 1}, "people preferred neither clip"),
        (decide(("a", "b", (0, 1))), ["ac", "ba"], {"used": 1, "against the judge": 1}, ""),
        (decide(("a", "b", (0, 0))), ["ac"], {"ties": 1}, ""),
    ],
)
def test_people_overrule_the_judge_about_the_same_clips(
    decisions: Decisions, chosen: list[str], counts: dict[str, int], reason: str
) -> None:
    """Of the clips a, b and c, the judge prefers a to c."""
    clips, found = [make_clip("a", 0.9), make_clip("b", 0.5), make_clip("c", 0.1)], Counter[str]()
    given: Any = SimpleNamespace(weights=RewardWeights(), margin=0.1, max_wer=0.2)
    rows, why, trial = pair_dataset.pair_text(clips, given, decisions, found)
    assert [f"{row['chosen_audio'][6]}{row['rejected_audio'][6]}" for row in rows] == chosen  # type: ignore[index]  # clips/a.flac
    assert +found == counts and why == reason and trial is not None and trial.clips == ["clips/a.flac", "clips/c.flac"]
    assert all(("answers" in row) == (counts.get("used") == 1) for row in rows[-1:])


def test_people_can_decide_where_the_judge_has_no_pair() -> None:
    clips, found = [make_clip("a", 0.9), make_clip("b", 0.5), make_clip("c", 0.1)], Counter[str]()
    given: Any = SimpleNamespace(weights=RewardWeights(), margin=9, max_wer=0.2)
    rows, why, trial = pair_dataset.pair_text(clips, given, decide(("c", "a", (1, 0))), found)
    assert [row["margin"] for row in rows] == [pytest.approx(-0.8 / 1.5 * 0.5)] and found["used"] == 1
    assert rows[0]["answers"] == {"for": 1, "against": 0, "same": 0} and why == "the margin is too small" and trial is not None
    assert pair_dataset.pair_text(clips, given, decide(), found)[:2] == ([], "the margin is too small")


def test_a_share_that_is_none_is_refused(words: list[str], tmp_path: Path, capsys: Any) -> None:
    assert verbs.main(["pairs", *words, "--out", str(tmp_path / "out"), "--val-share", "1"]) == 2
    assert "--val-share 1: expected a share" in capsys.readouterr().err


def test_links_at_the_names_of_its_files_lead_nowhere(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pair_fixtures.stand_in(monkeypatch)
    out, precious = tmp_path / "out", tmp_path / "precious.jsonl"
    rows = make(words, out, "--val-share", "0")
    precious.write_text("{}\n")
    for name in ("train.jsonl", "val.jsonl", "summary.json"):
        (out / name).unlink(missing_ok=True)
        (out / name).symlink_to(precious)
    assert make(words, out, "--val-share", "0") == rows and precious.read_text() == "{}\n"
    assert not any((out / name).is_symlink() for name in ("train.jsonl", "val.jsonl", "summary.json"))
    (out / "clips.jsonl").unlink()
    (out / "clips.jsonl").symlink_to(precious)
    assert verbs.main(["pairs", *words, "--out", str(out)]) == 2
    assert "clips.jsonl" in capsys.readouterr().err and precious.read_text() == "{}\n"


def test_equal_lines_give_one_pair(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    heard = pair_fixtures.stand_in(monkeypatch)
    rows = make(words, tmp_path / "once")
    texts = pair_fixtures.LINES.split("\n")[:2]
    lines = [{"text": text, **more} for text in texts for more in ({}, {"speaker": "Anna"})]
    lines[1]["text"] += " 🙂"  # which nobody speaks
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    own = list(words)
    own[own.index("--texts") + 1] = str(tmp_path / "lines.jsonl")
    capsys.readouterr()
    again = make(own, tmp_path / "twice")
    assert [row["chosen_codes"] for row in again] == [row["chosen_codes"] for row in rows] and len(heard) == 12
    printed, summary = capsys.readouterr().out, json.loads((tmp_path / "twice" / "summary.json").read_text())
    dropped, repeated = (next(note for note in summary["notes"] if part in note) for part in ("nobody speaks", "repeat"))
    assert dropped.startswith("1 text with parts that nobody speaks, which are dropped: ") and dropped in printed
    assert repeated.startswith("2 of 4 lines repeat an earlier one and were left out") and repeated in printed and summary["texts"] == 2


@pytest.mark.slow
def test_a_checkpoint_is_exported_into_a_folder_of_the_verb(nano: Path, words: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    heard = pair_fixtures.stand_in(monkeypatch)
    corpus = write_corpus(tmp_path / "data", make_data(tmp_path / "data"))
    run = train_run(corpus, nano, 1)
    own = [str(run), *words[1:]]
    own[own.index("--data") + 1] = str(corpus.train)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".export.tmp-0123").mkdir()  # of a killed process, whose clips.jsonl is empty
    (tmp_path / "out" / "clips.jsonl").touch()
    (tmp_path / "out" / "export-1").mkdir()  # of the user
    rows = make(own, tmp_path / "out")
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {".owner", "clips", "clips.jsonl", "export-1", "summary.json", "train.jsonl", "trials.jsonl"}
    assert make(own, tmp_path / "out") == rows and len(heard) == 6
