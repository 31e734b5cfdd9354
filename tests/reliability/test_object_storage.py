"""Runs whose copies lie on a real S3 server: killed, their folder lost, killed inside an upload, and left without the server."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.finetune import tiny
from tests.reliability import object_storage, victims
from tests.reliability.object_storage import BUCKET, HeldLine, Server, run, served, start

pytestmark = pytest.mark.slow
COPIES = f"s3://{BUCKET}/runs/me"


def arguments(folder: Path, *more: object) -> list[str]:
    return victims.arguments(
        folder, "--run.dir", folder / "run", "--train.steps", 60, "--checkpoint.every", 5, "--checkpoint.keep", 2, "--log.trackers", "[]",
        *more,
    )  # fmt: skip


def copied(folder: Path, *more: object) -> list[str]:
    return ["train", *arguments(folder, "--checkpoint.copy_to", COPIES, *more)]


def steps(server: Server) -> list[str]:
    """Of the complete checkpoints there."""
    return sorted(name.split("/")[2] for name in server.names("runs/me/") if name.endswith("/manifest.json"))


def killed_when_a_copy_is_there(process: subprocess.Popen[str], server: Server) -> None:
    deadline = time.monotonic() + 600
    while not steps(server) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    said, _ = process.communicate()
    assert process.returncode == -9, said


def whole(folder: Path) -> dict[str, str]:
    """The weights of a run that was left alone."""
    run(0, "train", *arguments(folder))
    return victims.weights(folder / "run")


def test_a_killed_run_without_its_folder_resumes_and_exports_from_its_copy(tmp_path: Path) -> None:
    expected = whole(tmp_path / "whole")
    with served() as server:
        folder = tmp_path / "copied"
        command = copied(folder)
        server.put("data/train.jsonl", (folder / "train.jsonl").read_bytes())
        (folder / "train.jsonl").unlink()
        command[command.index("--data.train") + 1] = f"s3://{BUCKET}/data/train.jsonl"
        killed_when_a_copy_is_there(start(server.port, *command), server)
        shutil.rmtree(folder / "run")
        said = run(server.port, *command)
        assert f"resuming from {COPIES}/step-" in said and f"{COPIES} is locked by {folder}/run, process" in said
        assert victims.weights(folder / "run") == expected
        assert len(steps(server)) <= 2 and "step-00000060" in steps(server) and "runs/me/owner.json" not in server.names()

        given = ["--base", folder / "base", "--recipe", tiny.FOLDER]
        run(server.port, "export", COPIES, "--to", f"s3://{BUCKET}/exports/me", *given)
        run(server.port, "export", folder / "run", "--to", folder / "export", *given)
        assert server.get("exports/me/model.safetensors") == (folder / "export" / "model.safetensors").read_bytes()
        again = run(server.port, "export", COPIES, "--to", f"s3://{BUCKET}/exports/me", *given, code=2)
        assert f"--to s3://{BUCKET}/exports/me already exists" in again


def test_a_partial_upload_is_no_checkpoint_and_the_next_run_removes_it(tmp_path: Path) -> None:
    expected = whole(tmp_path / "whole")
    with served() as server:
        line = HeldLine(server.port, r"PUT \S*step-00000005/manifest\.json")
        folder = tmp_path / "copied"
        process = start(line.port, *copied(folder))
        assert line.reached.wait(600), process.communicate()[0]
        process.kill()
        process.communicate()
        line.close()
        left = server.names("runs/me/step-")
        assert "runs/me/step-00000005/state.json" in left and steps(server) == []
        shutil.rmtree(folder / "run")
        said = run(server.port, *copied(folder))
        assert f"{COPIES}/step-00000005: it has no manifest.json, so its upload was not finished" in said
        assert victims.weights(folder / "run") == expected
        assert {name.split("/")[2] for name in server.names("runs/me/step-")} == set(steps(server))


def test_losing_the_server_stops_no_step_and_the_same_command_uploads_the_rest(tmp_path: Path) -> None:
    folder = tmp_path / "copied"
    with served() as server:
        process = start(server.port, *copied(folder))
        deadline = time.monotonic() + 600
        while not steps(server) and time.monotonic() < deadline:
            time.sleep(0.02)
        server.end()
        said, _ = process.communicate(timeout=900)
        assert (
            process.returncode == 2 and re.search(r"warning: step-\d+ was not copied", said) and "step-00000060 was not copied to" in said
        ), said
        assert len(victims.losses(folder / "run")) == 60
        returned = Server(server.port)
        try:
            run(returned.port, *copied(folder))
            assert steps(returned) == ["step-00000060"]
        finally:
            returned.end()


def test_a_wrong_bucket_or_address_is_reported_at_once(tmp_path: Path) -> None:
    with served() as server:
        for place, port, words in (
            ("s3://no-such-bucket/me", server.port, "there is no such object or bucket"),
            (COPIES, object_storage.loopback.free_port(), "check the network, the credentials"),
        ):
            said = run(port, "train", *arguments(tmp_path / "run", "--checkpoint.copy_to", place), code=2)
            assert place in said and words in said and "Traceback" not in said
