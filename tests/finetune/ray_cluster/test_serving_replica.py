"""A replica opens the app of its recipe where the command was started, and closes it when it is deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overtone.finetune.ray_cluster import serving_replica
from overtone.finetune.ray_cluster.serving_replica import ReplicaArguments, ServingReplica


def test_the_app_is_open_while_the_replica_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = []

    @contextmanager
    def open_app() -> Iterator[str]:
        events.append(Path.cwd())
        yield "app"
        events.append("closed")

    def plan(*given: Any) -> Any:
        events.append(given)
        return SimpleNamespace(open_app=open_app)

    monkeypatch.chdir("/")
    monkeypatch.setattr(serving_replica, "load_inference", lambda _: SimpleNamespace(plan_replica=plan))
    replica = ServingReplica(ReplicaArguments("llm_sft", {"me": "/models/me"}, ["--batch", "2"], {}, str(tmp_path)))
    assert replica.__serve_build_asgi_app__() == "app"
    assert events == [({"me": Path("/models/me")}, ["--batch", "2"], {}), tmp_path]
    del replica
    assert events[-1] == "closed"
