"""`overtone serve` of a recognizer: a real server with a real export, and OpenAI's client."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.whisper.serving import serve_command
from tests.loopback import free_port
from tests.recipes.whisper.tiny_whisper import FOLDER, write_tone


def test_a_limit_of_nothing_is_refused(exported: Path) -> None:
    with pytest.raises(UserError, match="--max-seconds 0 is too small"):
        serve_command.serve({"mine": exported}, ["--max-seconds", "0"])


@pytest.mark.slow
@pytest.mark.ci
def test_openai_s_client_gets_a_transcript(exported: Path, tmp_path: Path) -> None:
    import openai

    port = free_port()
    command = [sys.executable, "-m", "overtone", "serve", "--model", str(exported), "--port", str(port)]
    process = subprocess.Popen(command, cwd=FOLDER.parents[1], stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        assert process.stdout is not None
        assert any(re.search(rf"http://127.0.0.1:{port}/v1", line) for line in process.stdout)
        client = openai.OpenAI(api_key="none", base_url=f"http://127.0.0.1:{port}/v1", timeout=120)
        path = write_tone(tmp_path / "a.flac", seconds=2.0)
        found = client.audio.transcriptions.create(
            file=path, model=exported.name, response_format="verbose_json", timestamp_granularities=["word"], language="en"
        )
        assert found.duration == pytest.approx(2.0) and isinstance(found.text, str) and isinstance(found.words, list)
        with pytest.raises(openai.BadRequestError, match="cannot be transcribed"):
            client.audio.transcriptions.create(file=("a.wav", b"no sound"), model=exported.name)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
