"""The plan of a replica: the options of `serve`, the token and nothing else of the environment, and the files that every machine needs."""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.serving.replica import make_plan, open_replica_folder
from overtone.recipes.serving.server_options import add_server_options

TOKEN = "0123456789abcdef"


def options(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_server_options(parser)
    return parser.parse_args(argv)


def test_a_replica_gets_the_token_and_no_other_secret(tmp_path: Path) -> None:
    seen: list[Any] = []

    def open_app(policy: Any) -> Any:
        seen.append(policy.token)
        return nullcontext()

    plan = make_plan(options("--batch", "3", "--queue", "5"), [tmp_path], {"OVERTONE_TOKEN": TOKEN, "HF_TOKEN": "x"}, open_app)
    plan.open_app()
    assert seen == [TOKEN] and plan.secrets == {"OVERTONE_TOKEN": TOKEN} and TOKEN not in repr(plan)
    assert (plan.slots, plan.room, plan.files) == (3, 5, (tmp_path,))


def test_other_machines_need_a_token(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="would admit everyone"):
        make_plan(options("--host", "0.0.0.0"), [tmp_path], {}, nullcontext)  # type: ignore[arg-type]


def test_the_folder_of_a_killed_replica_is_removed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen(["true"])
    dead.wait()
    (killed := tmp_path / f".overtone-replica-{dead.pid}.tmp-01").mkdir()
    (killed / "clip").touch()
    (alive := tmp_path / f".overtone-replica-{os.getppid()}.tmp-02").mkdir()
    (aside := tmp_path / "aside").mkdir()
    (planted := tmp_path / f".overtone-replica-{dead.pid}.tmp-03").symlink_to(aside)
    with open_replica_folder() as folder:
        assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700
        assert sorted(tmp_path.iterdir()) == sorted((folder, alive, aside, planted))
    assert sorted(tmp_path.iterdir()) == sorted((alive, aside, planted))
