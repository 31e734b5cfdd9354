"""A figure is stale if the code that its benchmark measures has changed since the run; comments do not count."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from workshop import stale_figures
from workshop.benchmarks import _table
from workshop.benchmarks._table import Flags
from workshop.stale_figures import MEASURED, find_record, list_stale, strip_texts, write_record


def test_every_benchmark_names_files_that_exist() -> None:
    assert set(MEASURED) == {path.stem for path in (stale_figures.ROOT / "workshop" / "benchmarks").glob("[a-z]*.py")}
    patterns = {pattern for patterns in MEASURED.values() for pattern in patterns}
    assert {pattern for pattern in patterns if not any(stale_figures.ROOT.glob(pattern))} == set()


def test_comments_and_docstrings_are_not_code() -> None:
    plain = "X = 1\ndef f(a):\n    return 'text'\n"
    assert strip_texts(plain) == strip_texts('"""About."""\nX = 1  # one\n"""What X is."""\ndef f(a):\n    """Do."""\n    return "text"\n')
    assert strip_texts(plain) != strip_texts(plain.replace("text", "other"))


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one benchmark, `speed`, of one file, and two pages."""
    for name, text in {
        "code/a.py": "X = 1\n",
        "README.md": "[fast](workshop/benchmarks/results/speed.md)",
        "docs/guide.md": "`python workshop/benchmarks/speed.py`",
        "docs/other.md": "[overspeed](workshop/benchmarks/results/overspeed.md)",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "Add a"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(stale_figures, "ROOT", tmp_path)
    monkeypatch.setattr(stale_figures, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(stale_figures, "MEASURED", {"speed": ("code/*.py",)})
    return tmp_path


def publish(clone: Path, quick: bool = False, is_whole: bool = True) -> str:
    _table.publish("speed", Flags(quick, clone / "results"), ["s"], [["1"]], "A note.", is_whole)
    return (clone / "results" / "speed.md").read_text()


def test_a_change_of_the_measured_code_makes_figures_stale(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert publish(clone).endswith(f"\n\nA note.\n\n{write_record('speed')}\n")
    (clone / "code" / "a.py").write_text("X = 1  # the same\n")
    assert stale_figures.main() == 0 and capsys.readouterr().out.endswith("1 of 1 benchmarks ran on the code that is here\n")
    (clone / "code" / "a.py").write_text("X = 2\n")
    (line,) = list_stale()
    assert line.startswith("speed (README.md, docs/guide.md): other code; last changed by ") and line.endswith(", Add a")
    assert stale_figures.main() == 1
    publish(clone)
    assert list_stale() == []


def test_a_quick_run_leaves_no_record_and_a_part_keeps_the_one_of_the_whole(clone: Path) -> None:
    assert find_record(publish(clone, is_whole=False)) == ""
    whole = find_record(publish(clone))
    (clone / "code" / "a.py").write_text("X = 2\n")
    assert find_record(publish(clone, is_whole=False)) == whole != write_record("speed")
    assert find_record(publish(clone, quick=True)) == ""
    assert "no record" in list_stale()[0]
