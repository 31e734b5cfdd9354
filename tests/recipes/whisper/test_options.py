"""The options of the recipe, and the schema that editors read."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from overtone.recipes.whisper.options import Options
from tests.recipes.whisper.tiny_whisper import FOLDER


def test_importing_the_options_does_not_import_torch() -> None:
    code = "import sys, overtone.recipes.whisper.options, overtone.recipes.whisper.verbs; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=FOLDER.parents[1])
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("wrong", [{"task": "summarize"}, {"time_masks": -1}, {"time_mask_share": 0}, {"mel_mask_bands": 0}, {"beam": 5}])
def test_other_values_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Options(**wrong)  # type: ignore[arg-type]


def test_the_schema_has_every_option() -> None:
    schema = json.loads((FOLDER / "config.schema.json").read_text())
    assert set(Options.model_fields) <= set(json.dumps(schema).replace('"', " ").split())
