"""Chats and images say what an installed transformers 4 lacks, and nothing with transformers 5."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import transformers

from overtone.finetune.errors import UserError
from overtone.recipes import transformers_release
from overtone.recipes.image_classification.model import modeling
from overtone.recipes.language.modeling import causal_model
from overtone.recipes.transformers_release import ENVIRONMENT, describe_old_release

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("installed", ["5.0.0rc3", "5.23.0", "10.0.0"])
def test_transformers_5_is_not_mentioned(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_release, "version", lambda _: installed)
    assert describe_old_release() == ()


@pytest.mark.parametrize("installed", ["4.57.3", "4.9"])
def test_transformers_4_is_said_with_what_it_lacks_and_the_other_environment(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_release, "version", lambda _: installed)
    (line,) = describe_old_release()
    assert line.startswith(f"transformers {installed}, ") and line.endswith(ENVIRONMENT) and "\n" not in line
    assert "grouped experts" in line and {"CVE-2026-4372", "CVE-2026-5241"} <= set(re.findall(r"CVE-[\d-]+", line))


def test_a_model_that_is_not_known_names_the_release_and_a_newer_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "brand_new"}')
    for installed, more in (("4.57.3", r" \(transformers 5 knows more; README\.md says how to install it\)"), ("5.23.0", "")):
        monkeypatch.setattr(transformers_release, "version", lambda _, installed=installed: installed)
        for read, kind in ((causal_model.read_config, "a causal language model"), (modeling.read_config, "an image classifier")):
            with pytest.raises(UserError, match=rf"model_type 'brand_new' is not {kind} of transformers {installed}{more}; give"):
                read(tmp_path)


def test_the_installed_release_is_described() -> None:
    assert bool(describe_old_release()) == transformers.__version__.startswith("4.")


def test_the_command_is_that_of_the_readme_and_installs_transformers_5() -> None:
    (install,) = re.findall(r"pip install .+$", ENVIRONMENT)
    assert install in (ROOT / "README.md").read_text(encoding="utf-8")
    (constraints,) = re.findall(r"-c (\S+)", install)
    assert re.search(r"^transformers==5\.", (ROOT / constraints).read_text(encoding="utf-8"), re.MULTILINE)
