"""librosa is imported by one process at a time, since two processes that compile at once corrupt numba's cache."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from overtone.data_prep.audio import librosa_import

ROOT = Path(__file__).parents[3]
SLOW_MODULE = """
import os, time
def note(word):
    with open(os.environ["NOTES"], "a") as stream:
        stream.write(word)
note("in ")
time.sleep(0.3)
note("out ")
"""
PATCHED = "from overtone.data_prep.audio import librosa_import; librosa_import.COMPILED = ('slow_module',); librosa_import.import_librosa()"
HEARD = """
import numpy
from overtone.data_prep.clips.measurements import measure_pitch
time = numpy.arange(24_000, dtype=numpy.float32) / 24_000
print(measure_pitch(numpy.sin(2 * numpy.pi * 200 * time)))
"""


def run_together(count: int, program: str, environment: dict[str, str]) -> list[tuple[int, str]]:
    command, settings = [sys.executable, "-c", program], {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    started = [subprocess.Popen(command, cwd=ROOT, env=settings, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    return [(process.wait(), process.communicate()[0].strip()) for process in started]


def test_librosa_is_imported_by_one_process_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text(SLOW_MODULE)
    notes = tmp_path / "notes"
    environment = {"NOTES": str(notes), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    assert run_together(2, PATCHED, environment) == [(0, "")] * 2
    assert notes.read_text().split() == ["in", "out"] * 2


def test_librosa_is_imported_without_a_writable_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert librosa_import.import_librosa.__wrapped__().__name__ == "librosa"


def test_the_list_of_modules_that_numba_compiles_at_import_is_complete() -> None:
    package = Path(librosa_import.import_librosa().__file__).parent
    compiled = {path for path in package.rglob("*.py") if re.search(r"\b(guvectorize|numba\.vectorize)\b", path.read_text())}
    names = {f"librosa.{'.'.join(path.relative_to(package).with_suffix('').parts)}" for path in compiled}
    assert names == {*librosa_import.COMPILED, "librosa.beat"}


def test_no_other_module_imports_librosa() -> None:
    sources = [path for folder in ("data_prep", "finetune", "recipes", "workshop", "tests") for path in (ROOT / folder).rglob("*.py")]
    found = [path for path in sources if re.search(r"^\s*(from|import) librosa", path.read_text(), re.MULTILINE)]
    assert found == []


@pytest.mark.slow
def test_four_processes_with_an_empty_cache_and_one_after_them_compute_a_pitch(tmp_path: Path) -> None:
    """With an empty cache: each hears the tone, and so does who comes later; a torn cache ends processes by a signal."""
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "numba"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert run_together(4, HEARD, environment) + run_together(1, HEARD, environment) == [(0, "200.3")] * 5
    compiled = {path.name for path in (tmp_path / "numba").rglob("*.nbc")}
    wrapped = {name.removeprefix("guf-") for name in compiled if name.startswith("guf-")}
    assert wrapped and wrapped <= compiled, "each function has its wrapper"
