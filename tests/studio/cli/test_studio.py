"""The verb starts a server that keeps nothing: its folder has the state."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from overtone.studio.cli import studio
from tests import loopback

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["none"], "none: no such folder; create it with: mkdir none"),
        ([".", "--port", "0"], "expected a port"),
        ([".", "--host", "0.0.0.0"], "would admit everyone"),
        ([".", "--prot", "1"], "did you mean --port?"),
    ],
)
def test_wrong_arguments(words: list[str], reason: str, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OVERTONE_TOKEN", raising=False)
    assert studio.main(words) == 2 and reason in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_a_folder_until_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    port = loopback.free_port()
    (tmp_path / "my models").mkdir()
    command = [sys.executable, "-m", "overtone", "studio", str(tmp_path / "my models"), "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"studio: http://127.0.0.1:{port}   (stop with Ctrl-C; jobs keep running)\n"
        status, headers, body = loopback.ask(f"http://127.0.0.1:{port}/", Accept="text/html")
        assert status == 200 and b"my models" in body and "unsafe" not in headers["content-security-policy"]
        process.send_signal(number)
        assert process.wait(60) == 0 and process.stdout.read() == ""
    finally:
        process.kill()
    assert list((tmp_path / "my models").iterdir()) == []
