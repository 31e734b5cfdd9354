"""`overtone review` up to the start of its server; test_review_server.py tests the server."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys

import pytest

from overtone.data_prep import __main__
from overtone.data_prep.clips.review_decisions import REVIEW
from tests.data_prep.cli.test_report import ROOT
from tests.data_prep.example_clips import clip, dataset


@pytest.fixture
def folder(tmp_path):
    """A dataset with nothing to listen to."""
    for name in ("train.jsonl", "val.jsonl", "rejects.jsonl"):
        (tmp_path / name).write_text("")
    (tmp_path / "summary.json").write_text(dataset(tmp_path, [clip("a")], []).summary.model_dump_json())
    return tmp_path


def fails(capsys, *argv: object) -> str:
    assert __main__.main(["review", *map(str, argv)]) == 2
    return capsys.readouterr().err


def test_bad_requests_name_the_thing_and_the_way_out(folder, tmp_path, capsys) -> None:
    assert "--port 0: expected a port from 1 to 65535" in fails(capsys, folder, "--port", 0)
    assert "is not a folder; create a dataset with" in fails(capsys, tmp_path / "absent")
    (folder / REVIEW).write_text("{}\n")
    assert "review.jsonl:1: id: Field required" in fails(capsys, folder)


def test_a_missing_package_is_named_with_the_command_that_installs_it(folder, capsys, monkeypatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "uvicorn" else found(name, *rest))
    assert "review needs uvicorn, which is not installed; install it with: pip install 'overtone[review]'" in fails(capsys, folder)


def test_a_dataset_without_audio_and_a_taken_port_are_refused(folder, capsys) -> None:
    assert "has no clips with audio" in fails(capsys, folder)
    (folder / "clips").mkdir()
    (folder / "clips" / "a.flac").write_bytes(b"")
    (folder / "train.jsonl").write_text('{"id": "a", "audio": "clips/a.flac", "text": "Hello."}\n')
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "cannot be opened (Address already in use); choose another" in fails(capsys, folder, "--port", taken.getsockname()[1])


def test_the_help_of_report_and_review_imports_no_large_package() -> None:
    code = (
        "import sys\nfrom overtone.data_prep.__main__ import main\n"
        "for verb in ('report', 'review'):\n    try: main([verb, '--help'])\n    except SystemExit: pass\n"
        "assert not {'torch', 'uvicorn', 'librosa'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("dataset folder of overtone voice") == 2
