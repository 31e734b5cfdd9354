"""Served models have short names of their own, and answer to what was typed for them."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.serving.api_errors import Refusal
from overtone.recipes.serving.model_names import list_typed_names, name_models, require_model


def test_models_need_names_of_their_own_and_folders(tmp_path: Path) -> None:
    one, other = tmp_path / "one" / "me", tmp_path / "other" / "me"
    for folder in (one, other):
        folder.mkdir(parents=True)
    assert name_models({"one/me": one}) == {"me": one}
    with pytest.raises(UserError, match="would both have the name me; rename one"):
        name_models({"one/me": one, "other/me": other})
    with pytest.raises(UserError, match="none: no such folder; "):
        name_models({"none": tmp_path / "none"})


def test_a_name_that_no_answer_can_contain_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"me\xff")
    folder.mkdir()
    with pytest.raises(UserError, match=r"/me\\udcff': the folder's name is not valid UTF-8; rename the folder") as refusal:
        name_models({"me": folder})
    assert str(refusal.value).isascii()


def test_a_model_answers_to_the_name_that_was_typed(tmp_path: Path) -> None:
    """A run is served from a folder of its cache, whose name nobody typed."""
    cached = tmp_path / "runs" / "chat" / "cache" / "exports" / "step-00000120-0a1b2c3d"
    typed = list_typed_names({"runs/chat": cached, "exports/mine/": Path("exports/mine")})
    queue: Any = SimpleNamespace(typed=typed, names=(cached.name, "mine"))
    assert require_model(queue, "runs/chat") == require_model(queue, cached.name) == cached.name
    assert require_model(queue, "exports/mine/") == require_model(queue, "mine") == "mine"
    with pytest.raises(Refusal, match="the model 'chat' does not exist; models: step-00000120-0a1b2c3d, mine"):
        require_model(queue, "chat")
