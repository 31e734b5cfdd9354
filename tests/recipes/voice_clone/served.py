"""A real server process for tests, and what it serves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overtone.finetune.exporting.export_provenance import CARD
from tests import loopback

ROOT = Path(__file__).resolve().parents[3]


def carded(folder: Path) -> Path:
    """An export that knows its recipe, as the verb `export` leaves it."""
    (folder / CARD).write_text(json.dumps({"recipe": "voice_clone"}))
    return folder


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    process: subprocess.Popen[str]
    port: int
    temporary: Path
    """Its place for temporary files."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, key: str = "none", retries: int = 0) -> Any:
        """OpenAI's own."""
        from openai import OpenAI

        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=retries, timeout=120)

    def ask(self, path: str, data: bytes | None = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers in lower case, body."""
        return loopback.ask(f"{self.url}{path}", data, **headers)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Exit code."""
        self.process.send_signal(how)
        return self.process.wait(timeout=60)


@contextmanager
def server(folders: list[Path], temporary: Path, *argv: str, **environment: str) -> Iterator[Served]:
    """Serve the folders until the block ends, or the test ends it."""
    port = loopback.free_port()
    command = [sys.executable, "-m", "finetune", "serve", "--port", str(port), *argv]
    command += [part for folder in folders for part in ("--model", str(folder))]
    with running(command, port, temporary, **environment) as served:
        yield served


@contextmanager
def running(command: list[str], port: int, temporary: Path, **environment: str) -> Iterator[Served]:
    """Run a command that serves at the port until the block ends, or the test ends it."""
    temporary.mkdir(parents=True, exist_ok=True)
    surroundings = os.environ | {"TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"} | environment
    process = subprocess.Popen(command, cwd=ROOT, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    printed = []
    for line in process.stdout:
        printed.append(line)
        if line.startswith("serve: http"):
            break
    else:
        raise AssertionError("".join(printed))
    try:
        yield Served(process, port, temporary)
    finally:
        process.kill()
        process.wait()
