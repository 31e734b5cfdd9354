"""Copies of checkpoints elsewhere: sent beside the training, complete by their manifest alone, and enough to go on from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from finetune.checkpointing import checkpoint, remote_copies, run_lock
from finetune.checkpointing.remote_copies import MANIFEST, bring, copies_at, fetch
from finetune.config import Config
from finetune.distributed.process_group import World, join, leave
from finetune.errors import UserError
from finetune.monitoring.event_log import read_log
from finetune.storage import remote
from finetune.training import run as training_run
from tests.finetune import tiny


def config_in(folder: Path, *more: tuple[str, str]) -> Config:
    fast = (("checkpoint.every", "2"), ("checkpoint.keep", "2"), ("log.trackers", "[]"))
    return tiny.config_in(folder, *fast, ("checkpoint.copy_to", elsewhere(folder)), *more)


def elsewhere(folder: Path) -> str:
    return f"file://{folder}/elsewhere/run"


def trained(world: World, config: Config) -> str:
    tiny.let_go(config.run.dir)
    return training_run.train(world, config, tiny.RECIPE)


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_log(folder / "run" / "log.jsonl") if event["event"] == kind]


OTHER = {"digest": "other", "rows": 8, "positions": 90}
"""The data of another run."""


def local(folder: Path, step: int) -> Path:
    return folder / "run" / "checkpoints" / f"step-{step:08d}"


def weights(folder: Path) -> dict[str, str]:
    newest = checkpoint.find(folder / "run")
    listed = json.loads((newest / MANIFEST).read_text())["files"]
    return {newest.name: "", **{name: entry["digest"] for name, entry in listed.items() if name.endswith(".safetensors")}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six steps with its copies elsewhere. Copy it before changing it."""
    folder = tmp_path_factory.mktemp("copied")
    trained(join((), folder), config_in(folder))
    leave()
    tiny.let_go(folder / "run")
    return folder


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Iterator[Path]:
    yield shutil.copytree(made, tmp_path / "copied")


def test_each_checkpoint_is_copied_and_the_place_is_free_again(made: Path) -> None:
    there = copies_at(elsewhere(made))
    assert "step-00000006" in there and len(there) <= 2 and run_lock.OBJECT not in remote.find(elsewhere(made))
    assert all(remote.read(f"{elsewhere(made)}/step-00000006/{path.name}") == path.read_bytes() for path in local(made, 6).iterdir())
    assert [event["step"] for event in events(made, "copied")][-1] == 6
    assert not [*(made / "run" / "cache").glob(".copy*")]


def test_the_manifest_is_sent_when_all_else_has_arrived(copied: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then there is no checkpoint: a process that is killed on the way leaves none that looks whole."""
    url, sent, put = elsewhere(copied), list[tuple[str, bool]](), LocalFileSystem.put_file

    def noted(self: LocalFileSystem, source: str, target: str, **more: Any) -> None:
        sent.append((Path(source).name, any(MANIFEST in inside for inside in copies_at(url).values())))
        put(self, source, target, **more)

    remote.remove(url, MANIFEST)
    monkeypatch.setattr(LocalFileSystem, "put_file", noted)
    assert trained(world, config_in(copied)) == "finished"
    names = [name for name, _ in sent]
    assert names[-1] == MANIFEST and sorted(names) == sorted(path.name for path in local(copied, 6).iterdir()) and len(names) >= 4
    assert not any(whole for _, whole in sent), "with the manifest there while a file is still to come it would look whole"


def test_a_run_whose_folder_is_lost_goes_on_from_its_copies_to_the_same_weights(
    copied: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, url = weights(copied), elsewhere(copied)
    remote.remove(url, MANIFEST)
    remote.upload(local(copied, 4), f"{url}/step-00000004", MANIFEST)
    shutil.rmtree(copied / "run")
    assert trained(world, config_in(copied)) == "finished"
    assert "resuming from " + url + "/step-00000004" in capsys.readouterr().out
    assert weights(copied) == whole and "step-00000006" in copies_at(url)


def test_a_run_with_a_checkpoint_of_its_own_takes_none(copied: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    url = elsewhere(copied)
    remote.remove(url, MANIFEST)
    assert trained(world, config_in(copied)) == "finished"
    assert "resuming from " + url not in capsys.readouterr().out
    assert [*copies_at(url)] == ["step-00000006"], "what the process before had not sent is sent"


def test_damaged_and_unfinished_copies_are_passed_over_with_their_reasons(copied: Path) -> None:
    url, run = elsewhere(copied), copied / "run"
    for step in (4, 6):
        remote.upload(local(copied, step), f"{url}/step-{step:08d}", MANIFEST)
    remote.write(f"{url}/step-00000006/state.json", b"{}")
    remote.write(f"{url}/step-00000008/state.json", b"{}")
    shutil.rmtree(run)
    path, passed_over = bring(url, run)
    assert path == run / "checkpoints" / "step-00000004" and checkpoint.problem_with(path) is None
    assert passed_over == [
        f"{url}/step-00000008: it has no manifest.json, so its upload was not finished",
        f"{url}/step-00000006: state.json does not match its digest",
    ]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000004"]


def test_a_copy_replaces_a_damaged_checkpoint_of_the_same_step(copied: Path) -> None:
    damaged = local(copied, 6)
    remote.upload(damaged, f"{elsewhere(copied)}/step-00000006", MANIFEST)
    (damaged / "state.json").write_text("{}")
    path, _ = bring(elsewhere(copied), copied / "run")
    assert path == damaged and checkpoint.problem_with(path) is None


def test_copies_of_a_later_format_are_refused(copied: Path) -> None:
    sealed = checkpoint.seal({"format": checkpoint.FORMAT + 1, "step": 9, "files": {}})
    remote.write(f"{elsewhere(copied)}/step-00000009/{MANIFEST}", sealed)
    with pytest.raises(UserError, match="use the version that wrote it, or a newer one"):
        bring(elsewhere(copied), copied / "run")


def test_a_name_that_leads_outside_is_refused(copied: Path) -> None:
    inside = copies_at(elsewhere(copied))["step-00000006"]
    with pytest.raises(UserError, match="leads outside of"):
        remote_copies._receive(f"{elsewhere(copied)}/step-00000006", {**inside, "../../escaped": inside["state.json"]}, copied / "here")
    assert not (copied / "escaped").exists()


# --- what is kept there


def test_copies_are_pruned_as_the_runs_own_folder_is_and_what_was_left_unfinished_goes(copied: Path) -> None:
    url = elsewhere(copied)
    for step in (4, 6):
        remote.upload(local(copied, step), f"{url}/step-{step:08d}", MANIFEST)
    for step, changes in ((2, {"validation_loss": 0.5}), (3, {}), (5, {"data": OTHER})):
        state = json.dumps({**checkpoint.read_state(local(copied, 6)), "step": step, **changes})
        remote.write(f"{url}/step-{step:08d}/state.json", state.encode())
        remote.write(f"{url}/step-{step:08d}/{MANIFEST}", b"{}")
    remote.write(f"{url}/step-00000001/state.json", b"{}")
    remote_copies.prune(url, 2, "step-00000006")
    assert [checkpoint.step_of(Path(name)) for name in copies_at(url)] == [6, 5, 4, 2], "the newest two, the best, and another run's"


def test_another_runs_checkpoint_is_not_replaced(copied: Path) -> None:
    url, mine = elsewhere(copied), local(copied, 6)
    assert remote_copies.is_there(mine, url)
    remote.write(f"{url}/{mine.name}/{MANIFEST}", b"{}")
    assert not remote_copies.is_there(mine, url), "the same run's, made another time"
    remote.write(f"{url}/{mine.name}/state.json", json.dumps({**checkpoint.read_state(mine), "data": OTHER}).encode())
    with pytest.raises(UserError, match="step-00000006 is a checkpoint of another run; choose another checkpoint.copy_to"):
        remote_copies.is_there(mine, url)


# --- what goes wrong


def test_a_place_that_fails_is_told_stops_no_step_and_is_an_error_at_the_end(
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
    assert json.loads((tmp_path / "run" / "exit.json").read_text())["reason"] == "failed" and copies_at(elsewhere(tmp_path)) == {}
    monkeypatch.undo()
    assert trained(world, config_in(tmp_path)) == "finished"
    assert [*copies_at(elsewhere(tmp_path))] == ["step-00000006"]


def test_a_place_that_another_run_has_is_refused_before_a_model_is_loaded(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "BEAT_SECONDS", 0.05)
    with (
        run_lock.Lease(elsewhere(tmp_path), "/runs/another"),
        pytest.raises(UserError, match="is in use by a running process .*/runs/another"),
    ):
        trained(world, config_in(tmp_path))
    assert not (tmp_path / "run").exists()


# --- for an export


def test_a_copy_is_fetched_by_its_own_url_by_step_or_as_the_newest(copied: Path, tmp_path: Path) -> None:
    url = elsewhere(copied)
    remote.upload(local(copied, 4), f"{url}/step-00000004", MANIFEST)
    assert fetch(url, None, tmp_path / "a").name == "step-00000006"
    assert fetch(url, 4, tmp_path / "b").name == fetch(f"{url}/step-00000004", None, tmp_path / "c").name == "step-00000004"
    for place, step, words in (
        (url, 5, "contains no valid step-00000005; existing: step-00000006, step-00000004"),
        (f"{url}/step-00000004", 6, "is not of step 6"),
        (f"{url}s", None, "contains no valid checkpoint; existing: none"),
    ):
        with pytest.raises(UserError, match=words):
            fetch(place, step, tmp_path / "d")


def test_an_unfinished_upload_does_not_count_for_retention(copied: Path) -> None:
    url = elsewhere(copied)
    remote.upload(local(copied, 4), f"{url}/step-00000004", MANIFEST)
    state = json.dumps({**checkpoint.read_state(local(copied, 6)), "step": 5})
    remote.write(f"{url}/step-00000005/state.json", state.encode())
    remote_copies.prune(url, 2, "step-00000006")
    assert [checkpoint.step_of(Path(name)) for name in copies_at(url)] == [6, 4]
