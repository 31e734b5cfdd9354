"""Remote copies of checkpoints: uploaded during training, complete once their manifest is there, and sufficient to resume from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from overtone.finetune.addresses import RemoteAddress
from overtone.finetune.checkpointing import checkpoint, remote_copies, remote_lease
from overtone.finetune.checkpointing.late_evaluations import LateEvaluation, write_evaluation
from overtone.finetune.checkpointing.remote_copies import MANIFEST, download_checkpoint, download_newest, list_copies
from overtone.finetune.config import Config
from overtone.finetune.distributed.process_group import World, join, leave
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import read_log
from overtone.finetune.storage import remote
from overtone.finetune.training import run as training_run
from tests.finetune import tiny


def config_in(folder: Path, *more: tuple[str, str]) -> Config:
    fast = (("checkpoint.every", "2"), ("checkpoint.keep", "2"), ("log.trackers", "[]"))
    return tiny.config_in(folder, *fast, ("checkpoint.copy_to", name_remote(folder)), *more)


def name_remote(folder: Path) -> RemoteAddress:
    return RemoteAddress(f"file://{folder}/remote/run")


def trained(world: World, config: Config) -> str:
    tiny.let_go(config.run.dir)
    return training_run.train(world, config, tiny.RECIPE)


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_log(folder / "run" / "log.jsonl") if event["event"] == kind]


OTHER = {"digest": "other", "rows": 8, "positions": 90, "sources": []}
"""The data of another run."""


def local(folder: Path, step: int) -> Path:
    return folder / "run" / "checkpoints" / f"step-{step:08d}"


def weights(folder: Path) -> dict[str, str]:
    newest = checkpoint.find(folder / "run")
    listed = json.loads((newest / MANIFEST).read_text())["files"]
    return {newest.name: "", **{name: entry["digest"] for name, entry in listed.items() if name.endswith(".safetensors")}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six steps with its remote copies. Copy it before changing it."""
    folder = tmp_path_factory.mktemp("copied")
    trained(join((), folder), config_in(folder))
    leave()
    tiny.let_go(folder / "run")
    return folder


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Iterator[Path]:
    yield shutil.copytree(made, tmp_path / "copied")


def test_each_checkpoint_is_copied_and_the_lock_is_released(made: Path) -> None:
    there = list_copies(name_remote(made))
    assert "step-00000006" in there and len(there) <= 2 and remote_lease.OBJECT not in remote.list_files(name_remote(made))
    assert all(remote.read(f"{name_remote(made)}/step-00000006/{path.name}") == path.read_bytes() for path in local(made, 6).iterdir())
    assert [event["step"] for event in events(made, "copied")][-1] == 6
    assert not [*(made / "run" / "cache").glob(".copy*")]


def test_the_manifest_is_uploaded_after_all_other_files(copied: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then there is no checkpoint: a process that is killed on the way leaves none that looks whole."""
    url, sent, put = name_remote(copied), list[tuple[str, bool]](), LocalFileSystem.put_file

    def noted(self: LocalFileSystem, source: str, target: str, **more: Any) -> None:
        sent.append((Path(source).name, any(MANIFEST in inside for inside in list_copies(url).values())))
        put(self, source, target, **more)

    remote.remove(url, MANIFEST)
    monkeypatch.setattr(LocalFileSystem, "put_file", noted)
    assert trained(world, config_in(copied)) == "finished"
    names = [name for name, _ in sent]
    assert names[-1] == MANIFEST and sorted(names) == sorted(path.name for path in local(copied, 6).iterdir()) and len(names) >= 4
    assert not any(whole for _, whole in sent), "with the manifest there while a file is still to come it would look whole"


def test_a_run_without_its_folder_resumes_from_its_copies_to_the_same_weights(
    copied: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, url = weights(copied), name_remote(copied)
    remote.remove(url, MANIFEST)
    remote.upload(local(copied, 4), f"{url}/step-00000004", MANIFEST)
    shutil.rmtree(copied / "run")
    assert trained(world, config_in(copied)) == "finished"
    assert "resuming from " + url + "/step-00000004" in capsys.readouterr().out
    assert weights(copied) == whole and "step-00000006" in list_copies(url)


def test_a_run_with_a_local_checkpoint_downloads_none(copied: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    url = name_remote(copied)
    remote.remove(url, MANIFEST)
    assert trained(world, config_in(copied)) == "finished"
    assert "resuming from " + url not in capsys.readouterr().out
    assert [*list_copies(url)] == ["step-00000006"], "what the process before had not sent is sent"


def test_damaged_and_unfinished_copies_are_skipped_with_their_reasons(copied: Path) -> None:
    url, run = name_remote(copied), copied / "run"
    for step in (4, 6):
        remote.upload(local(copied, step), f"{url}/step-{step:08d}", MANIFEST)
    remote.write(f"{url}/step-00000006/state.json", b"{}")
    remote.write(f"{url}/step-00000008/state.json", b"{}")
    shutil.rmtree(run)
    path, passed_over = download_newest(url, run)
    assert path == run / "checkpoints" / "step-00000004" and checkpoint.find_problem(path) is None
    assert passed_over == [
        f"{url}/step-00000008: it has no manifest.json, so its upload was not finished",
        f"{url}/step-00000006: state.json does not match its digest",
    ]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000004"]


def test_a_copy_replaces_a_damaged_checkpoint_of_the_same_step(copied: Path) -> None:
    damaged = local(copied, 6)
    remote.upload(damaged, f"{name_remote(copied)}/step-00000006", MANIFEST)
    (damaged / "state.json").write_text("{}")
    path, _ = download_newest(name_remote(copied), copied / "run")
    assert path == damaged and checkpoint.find_problem(path) is None


def test_copies_of_a_later_format_are_refused(copied: Path) -> None:
    sealed = checkpoint.seal({"format": checkpoint.FORMAT + 1, "step": 9, "files": {}})
    remote.write(f"{name_remote(copied)}/step-00000009/{MANIFEST}", sealed)
    with pytest.raises(UserError, match="use the version that wrote it, or a newer one"):
        download_newest(name_remote(copied), copied / "run")


def test_a_name_that_leads_outside_is_refused(copied: Path) -> None:
    inside = list_copies(name_remote(copied))["step-00000006"]
    with pytest.raises(UserError, match="leads outside of"):
        remote_copies._download_copy(
            name_remote(copied).child("step-00000006"), {**inside, "../../escaped": inside["state.json"]}, copied / "here"
        )
    assert not (copied / "escaped").exists()


# --- what is kept there


def test_copies_are_pruned_like_local_checkpoints_and_unfinished_ones_are_deleted(copied: Path) -> None:
    url = name_remote(copied)
    for step in (4, 6):
        remote.upload(local(copied, step), f"{url}/step-{step:08d}", MANIFEST)
    for step, changes in ((2, {"validation_loss": 0.5, "evaluation": {"loss": 0.5}}), (3, {}), (5, {"data": OTHER})):
        state = json.dumps({**checkpoint.read_state(local(copied, 6)), "step": step, **changes})
        remote.write(f"{url}/step-{step:08d}/state.json", state.encode())
        remote.write(f"{url}/step-{step:08d}/{MANIFEST}", b"{}")
    remote.write(f"{url}/step-00000001/state.json", b"{}")
    remote_copies.prune(url, 2, "step-00000006", copied)
    assert [checkpoint.step_of(Path(name)) for name in list_copies(url)] == [6, 5, 4, 2], "the newest two, the best, and another run's"


def test_an_evaluation_of_a_later_launch_keeps_the_best_copy(copied: Path) -> None:
    url = name_remote(copied)
    shutil.copytree(local(copied, 4), local(copied, 2))
    for step in (2, 4, 6):
        remote.upload(local(copied, step), f"{url}/step-{step:08d}", MANIFEST)
    late = LateEvaluation(
        validation_loss=0.5, evaluation={"loss": 0.5}, best_by=None, best_value=0.5, stale_evaluations=0, validation="rows"
    )
    write_evaluation(local(copied, 2), late)
    remote_copies.prune(url, 2, "step-00000006", copied / "run")
    assert [checkpoint.step_of(Path(name)) for name in list_copies(url)] == [6, 4, 2]


def test_another_runs_checkpoint_is_not_replaced(copied: Path) -> None:
    url, mine = name_remote(copied), local(copied, 6)
    assert remote_copies.has_complete_copy(mine, url)
    remote.write(f"{url}/{mine.name}/{MANIFEST}", b"{}")
    assert not remote_copies.has_complete_copy(mine, url), "the same run's, made another time"
    remote.write(f"{url}/{mine.name}/state.json", json.dumps({**checkpoint.read_state(mine), "data": OTHER}).encode())
    with pytest.raises(UserError, match="step-00000006 is a checkpoint of another run; choose another checkpoint.copy_to"):
        remote_copies.has_complete_copy(mine, url)


# --- what goes wrong


def test_a_failing_destination_is_logged_stops_no_step_and_is_an_error_at_the_end(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LocalFileSystem, "put_file", lambda *_, **__: (_ for _ in ()).throw(ConnectionResetError("the line is cut")))
    with pytest.raises(UserError, match=r"step-00000006 was not copied to file:.*the line is cut.*the same command uploads it again"):
        trained(world, config_in(tmp_path))
    assert len(events(tmp_path, "step")) == 6 and checkpoint.find(tmp_path / "run").name == "step-00000006"
    failures = [event["failures"] for event in events(tmp_path, "copy failed")]
    assert (
        len(failures) >= 1 and failures == sorted(failures) and "training continues, and the next save retries" in capsys.readouterr().out
    )
    assert json.loads((tmp_path / "run" / "exit.json").read_text())["reason"] == "failed" and list_copies(name_remote(tmp_path)) == {}
    monkeypatch.undo()
    assert trained(world, config_in(tmp_path)) == "finished"
    assert [*list_copies(name_remote(tmp_path))] == ["step-00000006"]


def test_a_destination_of_another_run_is_refused_before_a_model_is_loaded(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_lease, "BEAT_SECONDS", 0.05)
    with (
        remote_lease.Lease(name_remote(tmp_path), "/runs/another"),
        pytest.raises(UserError, match="is in use by a running process .*/runs/another"),
    ):
        trained(world, config_in(tmp_path))
    assert not (tmp_path / "run").exists()


# --- for an export


def test_a_copy_is_fetched_by_its_own_url_by_step_or_as_the_newest(copied: Path, tmp_path: Path) -> None:
    url = name_remote(copied)
    remote.upload(local(copied, 4), f"{url}/step-00000004", MANIFEST)
    assert download_checkpoint(url, None, tmp_path / "a").name == "step-00000006"
    assert (
        download_checkpoint(url, 4, tmp_path / "b").name
        == download_checkpoint(url.child("step-00000004"), None, tmp_path / "c").name
        == "step-00000004"
    )
    for place, step, words in (
        (url, 5, "contains no valid step-00000005; existing: step-00000006, step-00000004"),
        (url.child("step-00000004"), 6, "is not of step 6"),
        (RemoteAddress(f"{url}s"), None, "contains no valid checkpoint; existing: none"),
    ):
        with pytest.raises(UserError, match=words):
            download_checkpoint(place, step, tmp_path / "d")


def test_an_unfinished_upload_does_not_count_for_retention(copied: Path) -> None:
    url = name_remote(copied)
    remote.upload(local(copied, 4), f"{url}/step-00000004", MANIFEST)
    state = json.dumps({**checkpoint.read_state(local(copied, 6)), "step": 5})
    remote.write(f"{url}/step-00000005/state.json", state.encode())
    remote_copies.prune(url, 2, "step-00000006", copied)
    assert [checkpoint.step_of(Path(name)) for name in list_copies(url)] == [6, 4]
