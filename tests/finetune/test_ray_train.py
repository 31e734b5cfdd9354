"""Ray's part of the command line, and errors before Ray or torch is imported. Training is in tests/launch/test_ray.py."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from overtone.finetune import ray_train
from overtone.finetune.config_sources import parse_arguments
from overtone.finetune.errors import UserError
from overtone.finetune.ray_cluster.verb_arguments import ClusterOptions
from overtone.finetune.ray_train import Engine, format_arguments, split_arguments
from tests.finetune import fork_server, tiny

ROOT = Path(__file__).parents[2]


def divided(*argv: str) -> tuple[Engine, list[str]]:
    engine, rest = split_arguments(parse_arguments(["--recipe", "voice_clone", *argv]))
    return engine, format_arguments(rest)


def test_ray_s_flags_are_separated_from_training_arguments() -> None:
    engine, rest = divided(
        *("--num-workers", "2:8", "--train.lr", "1e-5", "--storage", "/shared", "--config", "a.yaml", "--use-gpu=true"),
        *("--ray-address", "10.0.0.1:6379", "--max-failures", "0", "--run.dir", "runs/x"),
    )
    assert engine == Engine(2, 8, ClusterOptions(Path("/shared"), True, "10.0.0.1:6379", 0))
    assert rest == ["--recipe=voice_clone", "--config=a.yaml", "--train.lr=1e-5"], "run.dir is the driver's to resolve"


def test_the_defaults_of_ray_s_flags() -> None:
    assert divided("--num-workers", "4")[0] == Engine(4, 4, ClusterOptions(Path(), None, None, 3))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], r"--num-workers None: expected a number \(8\) or a range \(2:8\)"),
        (["--num-workers", "0"], "--num-workers 0: expected a number"),
        (["--num-workers", "8:2"], "--num-workers 8:2: expected a number"),
        (["--num-workers", "2:"], "--num-workers 2:: expected a number"),
        (["--num-workers", "many"], "--num-workers many: expected a number"),
        (["--num-workers", "2", "--use-gpu", "yes"], "--use-gpu yes: expected auto, true, false"),
        (["--num-workers", "2", "--max-failures", "-1"], "--max-failures -1: expected a number from 0"),
    ],
)
def test_an_invalid_flag_is_refused(argv: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        divided(*argv)


def test_a_mistake_in_the_config_comes_before_ray_and_torch() -> None:
    script = (
        "import sys; from overtone.finetune import ray_train; code = ray_train.main(sys.argv[1:]);"
        "assert code == 2 and not {'ray', 'torch'} & set(sys.modules), code"
    )
    command = [sys.executable, "-c", script, "--recipe", "voice_clone", "--num-workers", "2", "--train.speed", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "train.speed" in done.stderr, done.stderr


def test_missing_data_is_reported_before_ray_is_imported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert ray_train.main(["--recipe", str(tiny.FOLDER), "--num-workers", "2", "--data.train", "gone.jsonl"]) == 2
    assert "data.train: gone.jsonl does not exist" in capsys.readouterr().err


def test_object_storage_is_refused_as_a_shared_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert ray_train.main(["--recipe", str(tiny.FOLDER), "--num-workers", "2", "--storage", "s3://bucket/runs"]) == 2
    assert "--checkpoint.copy_to s3://bucket/runs keeps copies" in capsys.readouterr().err


def test_missing_ray_is_reported_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, find = tiny.config_in(tmp_path), importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find(name, *rest))
    inputs = ["--model.source", str(config.model.source), "--data.train", str(config.data.train), "--run.dir", str(tmp_path / "run")]
    assert ray_train.main(["--recipe", str(tiny.FOLDER), *inputs, "--num-workers", "2"]) == 2
    assert capsys.readouterr().err == "error: Ray is not installed; `pip install 'overtone[ray]'`, on every machine of the cluster\n"
    assert not (tmp_path / "run").exists()


def test_a_missing_cluster_is_an_error(tmp_path: Path) -> None:
    config = tiny.config_in(tmp_path)
    inputs = ["--model.source", str(config.model.source), "--data.train", str(config.data.train)]
    argv = ["--recipe", tiny.FOLDER, *inputs, "--num-workers", "2", "--ray-address", "127.0.0.1:1"]
    done = fork_server.run_command("finetune/ray_train.py", *argv)
    assert done.returncode == 2 and done.stderr.startswith("error: no Ray cluster at 127.0.0.1:1: "), done.stderr
