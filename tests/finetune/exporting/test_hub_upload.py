"""The exported folder is uploaded, and an error of the hub is reported with the next action."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import RepoUrl

from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import hub_upload
from tests.finetune import fake_hub, fork_server, tiny
from tests.finetune.fake_hub import COMMIT, TOKEN, Hub

PUSH = """
import sys
from pathlib import Path
from overtone.finetune.exporting import hub_upload as publish
from overtone.finetune.errors import catch_user_errors
folder, name = sys.argv[1:]
sys.exit(catch_user_errors(lambda argv: publish.check_repository(name) or print(publish.push(Path(folder), name, False)) or 0)([]))
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with fake_hub.opened() as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "export" / "inner").mkdir(parents=True)
    for name in ("README.md", "model.safetensors", "inner/part.json"):
        (tmp_path / "export" / name).write_bytes(name.encode())
    return tmp_path / "export"


def run(hub: Hub, home: Path, *command: object, token: str | None = TOKEN, address: str | None = None) -> subprocess.CompletedProcess[str]:
    """With the client imported anew, since it reads the hub's address when it is imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    given = {"HF_ENDPOINT": address or hub.address, "HF_HOME": str(home / "hf"), **({} if token is None else {"HF_TOKEN": token})}
    return fork_server.run_command(*command, env=kept | given, fresh=("huggingface_hub",))


def test_the_verb_exports_and_then_uploads_all_of_it(hub: Hub, tmp_path: Path) -> None:
    tiny.trained(join((), tmp_path), tiny.config_in(tmp_path, ("train.steps", "1")))
    leave()
    out, pushed = tmp_path / "out", ("--push-to-hub", "me/tiny", "--private")
    done = run(hub, tmp_path, "-m", "finetune", "export", tmp_path / "run", "--to", out, "--recipe", tiny.FOLDER, *pushed)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{out} is ready\nuploaded to {hub.address}/me/tiny\nnext: overtone generate --model {out} ")
    assert hub.repositories["me/tiny"] == {path.name: path.read_bytes() for path in out.iterdir()} and hub.private["me/tiny"]
    done = run(hub, tmp_path, "-m", "finetune", "generate", "--model", "me/tiny", "--recipe", tiny.FOLDER)
    assert (done.returncode, done.stdout) == (0, f"{COMMIT} says nothing\n"), done.stderr


def test_an_adapter_is_not_published_with_a_folder_of_this_machine(hub: Hub, tmp_path: Path) -> None:
    tiny.trained(join((), tmp_path), tiny.config_in(tmp_path, ("train.steps", "1")))
    leave()
    export = ("-m", "finetune", "export", tmp_path / "run", "--to", tmp_path / "out", "--recipe", tiny.FOLDER)
    done = run(hub, tmp_path, *export, "--adapter-only", "--push-to-hub", "me/adapter")
    assert (
        done.returncode == 2 and "which would be published; give the base's name on the hub, as in --base-name OWNER/MODEL" in done.stderr
    )
    assert not (tmp_path / "out").exists() and "me/adapter" not in hub.repositories
    done = run(hub, tmp_path, *export, "--base-name", "owner/base")
    assert done.returncode == 2 and "--base-name is for --adapter-only" in done.stderr


def test_an_export_is_uploaded_as_it_is(hub: Hub, folder: Path) -> None:
    (folder / "overtone.json").write_text(json.dumps({"recipe": "llm_sft", "base": {"source": "models/tiny", "revision": None}}))
    export = ("-m", "finetune", "export", folder)
    done = run(hub, folder.parent, *export, "--push-to-hub", "me/whole", "--private")
    assert (done.returncode, done.stdout) == (0, f"uploaded to {hub.address}/me/whole\n"), done.stderr
    assert set(hub.repositories["me/whole"]) == {"README.md", "model.safetensors", "inner/part.json", "overtone.json"}
    assert hub.private["me/whole"] and TOKEN not in done.stdout + done.stderr
    for words, message in (
        ((), f"{folder}: an export already; give --push-to-hub OWNER/MODEL to upload it"),
        (("--push-to-hub", "me/x", "--to", folder / "new"), f"--to: {folder} is an export already, which is uploaded as it is"),
        (("--push-to-hub", "me/x", "--format", "gguf"), "--format: "),
        (("--push-to-hub", "me/x", "--adapter-only"), "--adapter-only: "),
        (("--push-to-hub", "me/my model"), "not a repository name"),
    ):
        done = run(hub, folder.parent, *export, *words)
        assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "me/x" not in hub.repositories


@pytest.mark.parametrize("place", ["notes.txt", "inner/notes.txt", "inner/more"])
def test_what_a_link_in_an_export_points_to_is_not_published(hub: Hub, folder: Path, tmp_path: Path, place: str) -> None:
    """An export from somebody else may have links to files of this machine."""
    (folder / "overtone.json").write_text(json.dumps({"recipe": "llm_sft", "base": {"source": "models/tiny", "revision": None}}))
    secret = tmp_path / "home"
    secret.mkdir()
    (secret / "key").write_text("private")
    (folder / place).symlink_to(secret if place.endswith("more") else secret / "key")
    done = run(hub, folder.parent, "-m", "finetune", "export", folder, "--push-to-hub", "me/linked")
    assert done.returncode == 2 and f"{folder / place} is a link, and an upload would publish" in done.stderr, done.stderr
    assert "me/linked" not in hub.repositories


@pytest.mark.parametrize(("named", "is_published"), [("models/tiny", False), ("/home/me/tiny", False), ("owner/base", True)])
def test_an_exported_adapter_names_a_base_that_others_can_load(hub: Hub, folder: Path, named: str, is_published: bool) -> None:
    (folder / "overtone.json").write_text(json.dumps({"recipe": "llm_sft", "base": {"source": "models/tiny", "revision": None}}))
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": named}))
    repository = f"me/of-{Path(named).parent.name}"
    done = run(hub, folder.parent, "-m", "finetune", "export", folder, "--push-to-hub", repository)
    assert (done.returncode == 0) == is_published == (repository in hub.repositories), done.stderr
    assert is_published or "export the run again with --adapter-only --base-name OWNER/MODEL" in done.stderr


def test_subfolders_are_uploaded_and_a_second_upload_is_no_error(hub: Hub, folder: Path) -> None:
    for _ in range(2):
        assert run(hub, folder.parent, "-c", PUSH, folder, "me/mine").returncode == 0
    assert set(hub.repositories["me/mine"]) == {"README.md", "model.safetensors", "inner/part.json"} and not hub.private["me/mine"]


@pytest.mark.parametrize(
    ("name", "token", "away", "message"),
    [
        ("me/mine", "hf_wrong", False, "rejects your token (401); run `hf auth login`"),
        ("other/mine", TOKEN, False, "your token has no write access to other/mine (403)"),
        ("me/mine", TOKEN, True, "cannot be reached"),
    ],
)
def test_a_refusal_is_reported_and_the_folder_kept(hub: Hub, folder: Path, name: str, token: str, away: bool, message: str) -> None:
    done = run(hub, folder.parent, "-c", PUSH, folder, name, token=token, address="http://127.0.0.1:9" if away else None)
    assert done.returncode == 2 and done.stderr.startswith(f"error: --push-to-hub {name}: ") and message in done.stderr
    assert (
        f"The export in {folder} is complete; upload it with `overtone export {folder} --push-to-hub {name}`" in done.stderr
        and "Traceback" not in done.stderr
    )
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 3


def test_without_a_token_nothing_is_exported(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    done = run(hub, tmp_path, "-m", "finetune", "export", tmp_path / "run", "--to", tmp_path / "out", "--push-to-hub", "me/x", token=None)
    assert done.returncode == 2 and "you are not logged in; run `hf auth login`" in done.stderr


def test_impossible_uploads_are_refused_before_the_export(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from overtone.finetune.cli import export

    with pytest.raises(UserError, match="not a repository name"):
        hub_upload.check_repository("me/my model")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        hub_upload.check_repository("me/mine")
    assert export.main([str(tmp_path), "--to", "nowhere", "--private"]) == 2
    assert "--private needs --push-to-hub NAME" in capsys.readouterr().err


def test_another_status_is_reported_unchanged() -> None:
    class OddError(Exception):
        response = type("Response", (), {"status_code": 507})

    assert hub_upload.explain_failure(OddError("full"), "me/mine", "https://hub") == "https://hub returned status 507: full"


@pytest.mark.parametrize("private", [True, False])
def test_files_go_to_the_repository_that_the_hub_created(folder: Path, monkeypatch: pytest.MonkeyPatch, private: bool) -> None:
    """The hub adds the owner to a name without one."""
    calls: list[tuple[object, ...]] = []

    class Api:
        endpoint = "https://hub.invalid"

        def create_repo(self, name: str, **options: object) -> RepoUrl:
            calls.append((name, options["private"]))
            return RepoUrl("https://huggingface.co/me/tiny")

        def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str) -> None:
            calls.append((repo_id, folder_path))

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    hub_upload.push(folder, "tiny", private)
    assert calls == [("tiny", private), ("me/tiny", folder)]
