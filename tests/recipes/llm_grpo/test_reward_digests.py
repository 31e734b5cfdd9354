"""What of the rewards changes their digests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.llm_grpo.options import Rewards
from overtone.recipes.llm_grpo.reward_digests import digest_rewards


def digest(**rewards: Any) -> dict[str, str]:
    return digest_rewards(Rewards.model_validate(rewards, strict=False))


JUDGE = {"url": "http://127.0.0.1:9/v1", "model": "a"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"regular_expression": {"pattern": "a"}}, {"regular_expression": {"pattern": "b"}}),
        ({"numeric_answer": {}}, {"numeric_answer": {"tolerance": 0.1}}),
        ({"judge": JUDGE}, {"judge": {**JUDGE, "url": "http://127.0.0.1:8/v1"}}),
        ({"judge": JUDGE}, {"judge": {**JUDGE, "model": "b"}}),
        ({"judge": JUDGE}, {"judge": {**JUDGE, "instruction": "Rate it."}}),
    ],
)
def test_a_setting_that_decides_a_reward_changes_its_digest(before: dict[str, Any], after: dict[str, Any]) -> None:
    found, other = digest(length={}, **before), digest(length={}, **after)
    assert found.keys() == other.keys() and {name for name in found if found[name] != other[name]} == {*before}


def test_other_settings_change_no_digest() -> None:
    assert digest(length={}, judge=JUDGE) == digest(
        length={"weight": 3.0}, judge={**JUDGE, "seconds": 1.0, "key_variable": "KEY"}, seconds=3.0
    )
    assert not any("127.0.0.1" in value for value in digest(judge=JUDGE).values())


def test_files_are_compared_by_content(tmp_path: Path) -> None:
    functions, schema = tmp_path / "functions.py", tmp_path / "schema.json"

    def write(code: str, content: str) -> dict[str, str]:
        functions.write_text(code)
        schema.write_text(content)
        return digest(functions=functions, json_schema={"file": schema})

    first = write("a", "{}")
    assert write("b", "{}") == {**first, "functions": write("b", "{}")["functions"]} != first
    assert write("a", '{"type": "string"}')["json_schema"] != first["json_schema"] and write("a", "{}") == first
    schema.rename(tmp_path / "moved.json")
    assert digest(functions=functions, json_schema={"file": tmp_path / "moved.json"}) == first
    with pytest.raises(UserError, match=r"^options\.rewards\.json_schema\.file: .*schema\.json: No such file"):
        digest(json_schema={"file": schema})
