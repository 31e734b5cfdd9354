"""No content of `state.json` or `manifest.json` ends in a traceback: each is read, or refused with the name of its key."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from overtone.finetune.checkpointing.checkpoint_metadata import DEEPEST, State, parse_json, parse_manifest, parse_state
from overtone.finetune.storage.json_schema import shorten_value
from tests.finetune import tiny


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


WHOLE = tiny.state(3, recent=[[1.0, 2.0]], validation_loss=0.5, lora={"rank": 2, "alpha": 4}, skipped=1)
STRANGE = (None, "x", -1, 2.5, 10**400, 1e400, True, [], {}, [[]], {"a": {"b": 1}}, nested(DEEPEST), "\ud800")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key of nested objects and lists."""
    for key, child in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(child, (*path, key))


def changed(path: tuple[Any, ...], new: Any = ..., /) -> dict[str, Any]:
    """WHOLE with another value at `path`, or without it."""
    *above, last = path
    result = copy.deepcopy(WHOLE)
    inner: Any = result
    for key in above:
        inner = inner[key]
    if new is ...:
        del inner[last]
    else:
        inner[last] = new
    return result


def test_valid_metadata_is_read_back_unchanged() -> None:
    again = parse_state(json.dumps(WHOLE))
    assert {**again, "lora": WHOLE["lora"]} == WHOLE
    assert again["lora"] == {"rank": 2, "alpha": 4.0, "dropout": 0.0, "targets": None, "rslora": False, "dora": False}
    assert again.keys() == State.model_fields.keys()
    assert parse_state(json.dumps({**WHOLE, "later": [1]}))["later"] == [1], "a key that a later version writes"


@pytest.mark.parametrize("share", ["0", "2", "1/0", "-1/2", "0.5", "1e999", "9" * 500, "3/2"])
def test_a_share_that_is_no_fraction_of_one_is_refused(share: str) -> None:
    source = {"name": "a", "share": share, "digest": "x", "rows": 1, "positions": 1}
    with pytest.raises(ValueError, match=r"data\.sources\.0\.share"):
        parse_state(json.dumps({**WHOLE, "data": {**WHOLE["data"], "sources": [source]}}))
    valid = {**WHOLE["data"], "sources": [{**source, "share": "1/3"}]}
    assert parse_state(json.dumps({**WHOLE, "data": valid}))["data"] == valid


def test_every_key_with_every_odd_value_is_read_or_refused_by_name() -> None:
    refused = 0
    for path in places(WHOLE):
        for strange in (*STRANGE, ...):
            try:
                parse_state(json.dumps(changed(path, strange)))
            except ValueError as error:
                refused += 1
                named = str(error).split(": ")[0]
                assert named.split(".")[0] == str(path[0]) or "nested" in named, (path, strange, error)
                assert len(str(error)) < 300
    assert refused > 250, "most of them"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("step",), "3", "step: Input should be a valid integer (found '3')"),
        (("step",), 10**9, "step: Input should be less than or equal to 99999999 (found 1000000000)"),
        (("step",), True, "step: Input should be a valid integer (found True)"),
        (("place", "micro"), -1, "place.micro: Input should be greater than or equal to 0 (found -1)"),
        (("place",), ..., "place: Field required"),
        (("base",), "me", "base: Input should be a valid dictionary or instance of BaseDigest (found 'me')"),
        (("lora", "rank"), 0, "lora.rank: Input should be greater than or equal to 1 (found 0)"),
        (("validation_loss",), float("nan"), "validation_loss: Input should be a finite number (found nan)"),
        (("recent",), [[1.0]], "recent.0: List should have at least 2 items after validation, not 1 (found [1.0])"),
    ],
)
def test_the_key_and_its_value_are_named(path: tuple[str, ...], value: Any, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_state(json.dumps(changed(path, value)))
    assert str(caught.value) == words


@pytest.mark.parametrize("data", [b"[" * 10**5, b'{"a":' * 10**5, b"9" * 5000, b"\xff", b"", json.dumps(nested(DEEPEST + 1)).encode()])
def test_invalid_or_truncated_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(data)
    assert parse_json(json.dumps(nested(DEEPEST - 1))) == nested(DEEPEST - 1)


def test_an_invalid_manifest_is_refused_by_key() -> None:
    document, shard = {"bytes": 3, "digest": "ab"}, {"bytes": 9, "digest": "cd", "weights_bytes": 4, "weights_digest": "ef"}
    whole = {"format": 1, "step": 3, "files": {"state.json": document, "rank-00001-of-00001.safetensors": shard}}
    undivided = {**document, "weights_bytes": None, "weights_digest": None}
    assert parse_manifest(whole) == {**whole, "files": {**whole["files"], "state.json": undivided}}
    for files, words in (([], "files: "), ({"a": 1}, "files.a: "), ({"a": {"bytes": -1, "digest": ""}}, "files.a.bytes: ")):
        with pytest.raises(ValueError, match=f"^{words}"):
            parse_manifest({**whole, "files": files})


def test_a_value_is_shown_as_ascii_and_short() -> None:
    assert shorten_value("\ud800ä") == r"'\ud800\xe4'" and len(shorten_value("x" * 10**6)) < 100
