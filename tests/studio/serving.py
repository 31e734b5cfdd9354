"""A studio in a process of its own, for tests with a browser."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests import loopback

ROOT = Path(__file__).parents[2]


def start_studio(place: Path, port: int, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a studio, and return its process once it answers."""
    command = [sys.executable, "-m", "overtone", "studio", str(place), "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("studio: http"), line + process.stdout.read()
    return process


@contextmanager
def serve_studio(place: Path) -> Iterator[str]:
    """Serve a folder while open; yields the address."""
    port = loopback.free_port()
    process = start_studio(place, port)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
