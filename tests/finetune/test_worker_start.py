"""A script that starts worker processes runs once, with and without the usual guard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import multiprocessing, os, sys
from overtone.finetune.worker_start import start_worker
print("the script runs", flush=True)
process = multiprocessing.get_context(sys.argv[1]).Process(target=os.write, args=(1, b"the worker runs\\n"))
start_worker(process)
process.join()
print(process.exitcode, __name__ in sys.modules and sys.modules["__main__"].SCRIPT)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_script_without_a_guard_runs_once(method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"SCRIPT = 'this'\n{SCRIPT}", encoding="utf-8")
    done = subprocess.run([sys.executable, script, method], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "the script runs\nthe worker runs\n0 this\n" and done.stderr == "", done
