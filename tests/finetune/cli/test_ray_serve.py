"""What `ray-serve` refuses before Ray starts, and the arguments that it passes to the recipe."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from overtone.finetune.cli import ray_serve
from overtone.finetune.errors import UserError
from overtone.finetune.exporting.export_provenance import CARD


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that names its recipe; reaching a cluster is an error."""
    monkeypatch.setattr(ray_serve.cluster_connection, "connect", lambda _: pytest.fail("Ray was started"))
    monkeypatch.setattr(ray_serve, "require_ray_serve", lambda: None)
    folder = tmp_path / "an export"
    folder.mkdir()
    (folder / CARD).write_text(json.dumps({"recipe": "llm_sft"}))
    (folder / "config.json").write_text("{}")
    return folder


def refuse(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The message of a command that fails."""
    assert ray_serve.main([*map(str, arguments)]) != 0
    return capsys.readouterr().err


@pytest.mark.parametrize("number", ["0", "2:1", "many", "-1", "1:", ""])
def test_a_number_of_replicas_that_is_none_is_refused(number: str) -> None:
    with pytest.raises(UserError, match=r"--replicas .*: expected a number \(2\) or a range"):
        ray_serve.parse_replicas([f"--replicas={number}"])


def test_the_rest_goes_to_the_recipe() -> None:
    count, rest = ray_serve.parse_replicas(["--port", "9", "--replicas", "2:5", "--use-gpu", "false", "--batch", "3"])
    assert (count.fewest, count.most, count.gpu, count.address) == (2, 5, False, None) and rest == ["--port", "9", "--batch", "3"]
    with pytest.raises(UserError, match="--use-gpu maybe: expected auto, true, false"):
        ray_serve.parse_replicas(["--use-gpu", "maybe"])


def test_options_of_serve_are_checked_before_ray_starts(
    exported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OVERTONE_TOKEN", raising=False)
    assert "--host 0.0.0.0 would admit everyone" in refuse(capsys, "--model", exported, "--host", "0.0.0.0")
    assert "--batch -1 is too small" in refuse(capsys, "--model", exported, "--batch", -1)
    assert "cannot be read" in refuse(capsys, "--model", exported, "--token-file", exported / "no file")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert f"port {taken.getsockname()[1]}" in refuse(capsys, "--model", exported, "--port", taken.getsockname()[1])


def test_a_recipe_without_replicas_names_serve(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (exported / CARD).write_text(json.dumps({"recipe": "whisper"}))
    assert "the recipe whisper has no server with replicas; start one with `" in refuse(capsys, "--model", exported)


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_serve.importlib.util, "find_spec", lambda name: None if name == "grpc_reflection" else object())
    with pytest.raises(UserError, match=r"Ray Serve needs grpc_reflection, .*pip install 'overtone\[ray-serve\]'"):
        ray_serve.require_ray_serve()
