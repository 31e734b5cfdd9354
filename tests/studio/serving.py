"""A studio in a process of its own, for tests with a browser."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import loopback

ROOT = Path(__file__).parents[2]


@contextmanager
def serve_studio(place: Path) -> Iterator[str]:
    """Serve a folder while open; yields the address."""
    port = loopback.free_port()
    command = [sys.executable, "-m", "overtone", "studio", str(place), "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("studio: http"), process.communicate()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
