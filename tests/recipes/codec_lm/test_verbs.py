"""Tests of `overtone.recipes.codec_lm.verbs`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from overtone.recipes.codec_lm.verbs import INFERENCE


@pytest.mark.parametrize(("verb", "option"), [("generate", "--unconstrained"), ("serve", "--port")])
def test_each_verb_prints_its_options(verb: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        INFERENCE.help[verb]()
    assert end.value.code == 0 and option in capsys.readouterr().out


def test_help_of_generate_loads_no_torch() -> None:
    script = (
        "import sys; from overtone.recipes.codec_lm.verbs import INFERENCE\n"
        "try: INFERENCE.help['generate']()\nexcept SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.splitlines()[-1] == "False"
