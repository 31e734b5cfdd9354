"""Metadata of model cards: what the hub's own library reads from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from overtone.finetune.errors import UserError
from overtone.finetune.exporting.model_card_metadata import (
    THIS_MODEL,
    add_metadata,
    describe_target,
    make_model_index,
    name_model,
    read_base_metadata,
    render_header,
)


@pytest.mark.parametrize(
    ("readme", "found"),
    [
        ("---\nlicense: apache-2.0\nlanguage:\n- en\n- de\ntags: [x]\n---\n# Model", {"license": "apache-2.0", "language": ["en", "de"]}),
        (
            "---\nlicense: other\nlicense_name: qwen\nlicense_link: https://q\n---",
            {"license": "other", "license_name": "qwen", "license_link": "https://q"},
        ),
        *(
            ("---\nlicense: [a, 1]\nlanguage: {}\n---\n", {}),
            ("# No header", {}),
            ("---\n{[\n---\n", {}),
            ("---\n- a\n---\n", {}),
            ("# Model\n\n---\nlicense: mit\n---\n", {}),
            ("---\nlicense: mit\nx: a---b\n---\n", {"license": "mit"}),
            (None, {}),
        ),
    ],
    ids=["lists", "other", "types", "none", "broken", "list", "rules in the text", "dashes in a value", "missing"],
)
def test_license_and_languages_of_the_base_are_read(tmp_path: Path, readme: str | None, found: dict[str, Any]) -> None:
    if readme is not None:
        (tmp_path / "README.md").write_text(readme)
    assert read_base_metadata(tmp_path) == found


def test_the_hubs_library_reads_results_that_were_added_twice() -> None:
    card = render_header({"license": "mit", "language": ["de"], "base_model": None}) + "\n# A --- voice\n---\n"
    for value in (9.0, 8.25):
        card = add_metadata(
            card, {"model-index": make_model_index("exports/me", "text-to-speech", {"val.jsonl": {"wer": value, "cer": 1.0}})}
        )
    found = ModelCard(card)
    assert (found.data.license, found.data.language, found.data.base_model) == (
        "mit",
        ["de"],
        None,
    ) and found.text.strip() == "# A --- voice\n---"
    assert found.data.model_name == "exports/me" and found.data.eval_results is not None
    results = [(one.task_type, one.dataset_name, one.metric_type, one.metric_value) for one in found.data.eval_results]
    assert results == [("text-to-speech", "val.jsonl", "wer", 8.25), ("text-to-speech", "val.jsonl", "cer", 1.0)]


@pytest.mark.parametrize(
    "card",
    ["# No header", "---\nlicense: mit\n", "text\n---\nlicense: mit\n---\n", "---\n- a\n---\n"],
    ids=["none", "open", "late", "list"],
)
def test_a_card_without_a_header_is_refused(card: str) -> None:
    with pytest.raises(UserError, match="does not begin with a YAML header"):
        add_metadata(card, {})


def test_examples_name_the_model_without_folders_of_this_machine() -> None:
    assert name_model(f"load({THIS_MODEL!r})".encode(), "me/voice") == b"load('me/voice')"
    targets = ("exports/me", Path("exports/me"), "/home/someone/me", "s3://bucket/exports/me/", "~/me")
    assert [describe_target(target) for target in targets] == ["exports/me", "exports/me", "me", "me", "me"]
    assert describe_target("../../clients/acme/x") == "x"
