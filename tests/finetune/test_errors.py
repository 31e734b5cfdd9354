"""A mistake of the user is one sentence and exit code 2; a bug keeps its traceback."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from overtone.finetune.errors import ElsewhereError, UserError, catch_user_errors
from tests.finetune import tiny

ROOT = Path(__file__).parents[2]


def test_a_verb_that_works_gives_its_own_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert catch_user_errors(len)(["a", "b", "c"]) == 3
    assert capsys.readouterr().err == ""


def test_a_user_error_is_one_sentence_on_stderr_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    def verb(_: list[str]) -> int:
        raise UserError("train.lr = -1: must be above zero")

    assert catch_user_errors(verb)([]) == 2
    assert capsys.readouterr() == ("", "error: train.lr = -1: must be above zero\n")


def test_an_error_that_another_rank_reports_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    def verb(_: list[str]) -> int:
        raise ElsewhereError("rank 0 failed: the disk is full")

    assert catch_user_errors(verb)([]) == 2
    assert capsys.readouterr() == ("", "")


def test_any_other_error_propagates() -> None:
    def verb(_: list[str]) -> int:
        raise KeyError("ours")

    with pytest.raises(KeyError):
        catch_user_errors(verb)([])


def test_control_characters_in_a_message_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: list[str]) -> int:
        raise UserError("the key \x1b]0;title\x07 of \u2028é\ud800\n  next line")

    assert catch_user_errors(fail)([]) == 2
    assert capsys.readouterr().err == "error: the key \\x1b]0;title\\x07 of \\u2028é\\ud800\n  next line\n"


@pytest.mark.parametrize("words", [("schema", "--recipe", "voice_clone"), ("generate", "--help")])
def test_output_that_nobody_reads_gives_no_traceback(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "finetune", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 128 + signal.SIGPIPE


def test_a_broken_pipe_to_another_process_is_no_lost_reader(capsys: pytest.CaptureFixture[str]) -> None:
    def verb(_: list[str]) -> int:
        raise BrokenPipeError("a worker has ended")

    with pytest.raises(BrokenPipeError, match="a worker"):
        catch_user_errors(verb)([])


def test_ctrl_c_while_a_run_indexes_its_data_prints_one_line(tmp_path: Path) -> None:
    config, recipe = tiny.config_in(tmp_path), tmp_path / "mine"
    shutil.copytree(tiny.FOLDER, recipe, ignore=shutil.ignore_patterns("__pycache__"))
    source = (recipe / "recipe.py").read_text()
    read = "def read(row: dict[str, Any], processor: Any, folder: Path) -> Sample:\n"
    assert read in source
    (recipe / "recipe.py").write_text(source.replace(read, f"{read}    import signal\n\n    signal.raise_signal(signal.SIGINT)\n"))
    own = ["--run.dir", str(tmp_path / "run"), "--model.source", str(config.model.source), "--data.train", str(config.data.train)]
    command = [sys.executable, str(ROOT / "finetune" / "train.py"), "--recipe", str(recipe), *own]
    # A shell that starts the tests in the background makes processes ignore SIGINT.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, preexec_fn=heed)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    assert [path.name for path in (tmp_path / "run" / "cache").glob(".train*")] == [], "no partly written index is left"
