"""Tests of `overtone.recipes.language.cli.verbs`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from overtone.recipes.language.cli.verbs import INFERENCE
from overtone.recipes.language.text_generator import TextGenerator
from tests.recipes.llm_sft import tiny_runs

ROOT = Path(__file__).parents[4]


def test_an_export_answers_samples_and_programs(exported: Path) -> None:
    assert INFERENCE.sample is not None and INFERENCE.load_text_generator is not None
    prompts, answers = zip(*tiny_runs.CHATS, strict=True)
    assert [answer.text for answer in INFERENCE.sample(exported, [*prompts])] == [*answers]
    assert isinstance(INFERENCE.load_text_generator(exported), TextGenerator)


def test_help_is_printed_without_torch() -> None:
    script = (
        "import sys; from overtone.recipes.language.cli.verbs import INFERENCE;"
        "[show() for show in INFERENCE.help.values()]; print(sorted(INFERENCE.help), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "['chat', 'generate', 'ray-serve', 'serve'] False", done.stderr
    assert "--prompt-file" in done.stdout and "--context" in done.stdout
