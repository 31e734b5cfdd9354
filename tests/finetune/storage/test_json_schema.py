"""Tests of `overtone.finetune.storage.json_schema`."""

from __future__ import annotations

import pytest

from overtone.finetune.storage.json_schema import SHOWN, JsonPart, parse_model, shorten_value, validate_json


class Speaker(JsonPart):
    name: str
    clips: int = 0


class Speakers(JsonPart):
    speakers: list[Speaker]


def test_a_valid_value_becomes_the_model_with_its_unknown_keys() -> None:
    found = parse_model(Speakers, {"speakers": [{"name": "ann"}], "later": 1})
    assert found.speakers[0].name == "ann"
    assert validate_json(Speakers, {"speakers": [{"name": "ann"}], "later": 1}) == {"speakers": [{"name": "ann", "clips": 0}], "later": 1}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "^the whole of it: "),
        ({"speakers": [{}]}, "^speakers.0.name: Field required$"),
        ({"speakers": [{"name": "ann", "clips": "1"}, {}]}, r"^speakers.0.clips: .* \(found '1'\), and 1 more$"),
    ],
)
def test_an_invalid_value_is_refused_by_its_first_key(value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_model(Speakers, value)


def test_a_long_value_is_shortened_for_a_message() -> None:
    assert shorten_value("é") == "'\\xe9'" and len(shorten_value("a" * 1000)) == SHOWN + 1
