"""The commands of docs/exports.md for lm-evaluation-harness: they score what the export answers, by the chat template of the training."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from overtone.finetune.cli.export import main as export
from tests.launch.launching import ALONE, ROOT
from tests.recipes.llm_sft import tiny_runs

HARNESS = Path(sys.prefix) / "lm-eval"
"""Where `make test-real` installs locked/lm-eval.txt, beside the environment."""
PAGE = (ROOT / "docs" / "exports.md").read_text(encoding="utf-8").partition("\n## lm-evaluation-harness\n")[2].partition("\n## ")[0]
COMMANDS = [line for line in PAGE.splitlines() if line.startswith("lm_eval run ")]
(TASK,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
TEMPLATE = " --apply_chat_template"


def test_the_page_names_the_locked_version_and_applies_the_template() -> None:
    (version,) = re.findall(r"^lm-eval==(\S+)", (ROOT / "locked" / "lm-eval.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert f"pip install 'lm_eval[hf]=={version}'" in PAGE
    assert len(COMMANDS) == 2 and all(TEMPLATE in command for command in COMMANDS)


def score(command: str, home: Path) -> float:
    """Run a command of the page in `home`, without a network; returns the share of right answers."""
    environment = {**ALONE, "PYTHONPATH": os.pathsep.join([str(HARNESS)]), "HF_HUB_OFFLINE": "1", "HF_HOME": str(home / "hf")}
    words = [sys.executable, "-m", *shlex.split(command), "--device", "cpu", "--output_path", "scores"]
    done = subprocess.run(words, cwd=home, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    newest = max((home / "scores").rglob("results_*.json"), key=lambda path: path.stat().st_mtime_ns)
    return float(json.loads(newest.read_text(encoding="utf-8"))["results"]["mine"]["exact_match,none"])


@pytest.mark.slow
def test_held_out_chats_are_scored_by_the_template_of_the_export(tmp_path: Path) -> None:
    if not HARNESS.is_dir():
        pytest.skip("SKIPPED: `make test-real` installs lm-evaluation-harness")
    run = tiny_runs.trained(tmp_path, tiny_runs.FULL)
    assert export([str(run), "--to", str(tmp_path / "exports" / "me")]) == 0
    (tmp_path / "data" / "chats").mkdir(parents=True)
    asked = [*tiny_runs.rows(), {"messages": [{"role": "user", "content": "Good day."}, {"role": "assistant", "content": "No."}]}]
    (tmp_path / "data" / "chats" / "val.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "mine.yaml").write_text(TASK)
    own = COMMANDS[1]
    assert score(own, tmp_path) == pytest.approx(2 / 3)  # the model has learned two of the three answers
    assert score(own.replace(TEMPLATE, ""), tmp_path) == 0
