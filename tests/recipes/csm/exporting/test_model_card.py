"""The model card: voices with their numbers, data, base, consent."""

from __future__ import annotations

from overtone.finetune.exporting.model_card_metadata import split_card
from overtone.recipes.csm.exporting.model_card import write_model_card
from overtone.recipes.csm.state import CsmState

STORED = {
    "speakers": [{"name": "ann", "id": 3, "clips": 12, "seconds": 90.0}],
    "data": {"name": "me/train.jsonl", "sha256": "ab" * 32, "clips": 12},
    "base": {"name": "sesame/csm-1b", "revision": "abc"},
}
STATE = CsmState.model_validate(STORED)


def test_the_card_names_voices_data_and_base() -> None:
    header, text = split_card(write_model_card(STATE, {"license": "apache-2.0"}))
    assert header["base_model"] == "sesame/csm-1b" and header["license"] == "apache-2.0" and header["library_name"] == "transformers"
    assert "| ann | 3 | 12 | 1.5 |" in text and "sesame/csm-1b@abc" in text and "**Consent.**" in text and "**Synthetic speech.**" in text
    assert '{"role": "3", "content": [{"type": "text"' in text


def test_a_base_in_a_folder_is_no_name_on_the_hub() -> None:
    header, _ = split_card(write_model_card(CsmState.model_validate({**STORED, "base": {"name": "tiny", "revision": None}}), {}))
    assert "base_model" not in header
