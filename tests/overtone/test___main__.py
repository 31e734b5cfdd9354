"""One command has the verbs of data_prep and of finetune, each under its own name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import overtone.__main__
from overtone.__main__ import GROUPS, main
from overtone.data_prep import __main__ as data_prep
from overtone.finetune import __main__ as finetune

ROOT = Path(__file__).parents[2]
VERBS = [verb for group in GROUPS.values() for verb in group]


def test_every_verb_of_both_programs_is_one_of_these() -> None:
    assert len(VERBS) == len(set(VERBS)) == len(data_prep.VERBS) + len(finetune.VERBS) + 1 >= 25
    assert [*GROUPS["Prepare data"].values()] == [*data_prep.VERBS.values()]
    assert set(finetune.VERBS) < set(VERBS) and {"check-dataset", "export-dataset"} < set(VERBS)


def test_the_studio_belongs_to_neither_program(monkeypatch: pytest.MonkeyPatch) -> None:
    from overtone.studio.cli import studio

    monkeypatch.setattr(studio, "main", lambda words: len(words))
    assert main(["studio", "a", "--port", "1"]) == 3


def test_without_a_verb_they_are_listed_in_the_order_of_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert lines[0] == "usage: overtone VERB …" and listed == VERBS
    order = ["voice", "codes", "check-dataset", "plan", "train", "eval-voice", "export", "generate", "serve"]
    assert sorted(order, key=listed.index) == order


@pytest.mark.parametrize(
    ("verb", "program", "name"),
    [
        ("check", finetune, "check"),
        ("check-dataset", data_prep, "check"),
        ("export-dataset", data_prep, "export"),
        ("voice", data_prep, "voice"),
    ],
)
def test_each_verb_runs_in_its_program(verb: str, program: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(program, "run_verb", lambda *given: calls.append(given) or 3)
    assert main([verb, "a", "--flag"]) == 3 and calls == [(name, ["a", "--flag"])]


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("chek-dataset", "did you mean check-dataset?"),
        ("frobnicate", f"verbs are {', '.join(VERBS)}"),
        ("transcribe", "this is voice"),
        ("merge", "this is export: `overtone export RUN --to FOLDER` merges adapters"),
        ("verify", "this is check-dataset, or check for checkpoints, verify-audio for synthetic speech"),
        ("prepare", "this is `overtone voice`, `overtone text` or `overtone images`"),
    ],
)
def test_an_unknown_verb_is_refused_with_a_suggestion(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 2
    assert capsys.readouterr().err == f"error: unknown verb {word!r}; {hint}\n"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["check", "data"], "a dataset, not a run; datasets are read by: overtone check-dataset data"),
        (["export", "data", "--to", "out"], "a dataset, not a run; datasets are read by: overtone export-dataset data"),
        (["check-dataset", "run"], "a run, not a dataset; runs are read by: overtone check run"),
        (["export-dataset", "run", "--as", "voice", "--to", "out"], "a run, not a dataset; runs are read by: overtone export run"),
    ],
)
def test_a_verb_of_the_other_program_is_named(
    words: list[str], meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert capsys.readouterr().err == f"error: {words[1]}: {meant}\n"


def test_every_suggested_verb_exists() -> None:
    suggested = {hint.partition(":")[0].partition(" ")[0].rstrip(",") for hint in overtone.__main__.OTHER_NAMES.values()}
    assert len(suggested) >= 12 and {verb for verb in suggested if not verb.startswith("`")} <= set(VERBS)


def test_the_command_starts_as_a_module() -> None:
    started = [sys.executable, "-m", "overtone"]
    done = subprocess.run([*started, "where", "cpu.yaml"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"{ROOT / 'configs' / 'cpu.yaml'}\n"), done.stderr
    done = subprocess.run([*started, "check-dataset", "nothing"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and done.stderr.startswith("error: nothing does not exist")


@pytest.mark.parametrize("program", ["overtone", "finetune", "data_prep"])
def test_a_list_of_verbs_that_nobody_reads_gives_no_traceback(program: str) -> None:
    command = [sys.executable, "-m", program, "--help"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141
