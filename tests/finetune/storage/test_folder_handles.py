"""What is written, locked, appended, closed to others or deleted below a folder of the user never reaches through a link in that folder."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, folder_handles

ROOT = Path(__file__).parents[3]
Write = Callable[[Path], object]


def hold(path: Path) -> None:
    with files.hold_lock(path):
        pass


def replace_folder(path: Path) -> None:
    with files.new_folder(path) as inside:
        files.write_in_place(inside / "part", b"new")


def move(rename: Callable[[Path, Path], object], path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "source").write_text("new")
        rename(Path(folder) / "source", path)


FOLLOWERS: dict[str, Write] = {
    "lock_folder": lambda path: files.lock_folder(path.parent),
    "hold_lock": hold,
    "append_line": lambda path: files.append_line(path, "new"),
    "append_block": lambda path: files.append_block(path, len("precious"), b"new"),
    "write_in_place": lambda path: files.write_in_place(path, b"new"),
    "write_blocks": lambda path: files.write_blocks(path, [b"new"]),
    "copy_into": lambda path: files.copy_into(Path(__file__), path),
}
"""Operations that open the file of that name itself. `lock_folder` writes to a file of its own name."""
REPLACERS: dict[str, Write] = {
    "write_bytes": lambda path: files.write_bytes(path, b"new"),
    "write_volatile": lambda path: files.write_volatile(path, b"new"),
    "write_stream": lambda path: files.write_stream(path, [b"new"]),
    "write_jsonl": lambda path: files.write_jsonl(path, [{}]),
}
"""Operations that put a new file in the place of the old one, or of a link."""
KEEPERS: dict[str, Write] = {
    "write_if_absent": lambda path: files.write_if_absent(path, b"new"),
    "move_if_absent": lambda path: move(files.move_if_absent, path),
    "move_over": lambda path: move(files.move_over, path),
    "link_into": lambda path: files.link_into(Path(__file__), path),
    "link_symbolically": lambda path: files.link_symbolically(Path(__file__), path),
    "new_folder": replace_folder,
    "discard": files.discard,
}
"""Operations that leave a link alone, refuse it, or delete the link itself."""
INSIDE: dict[str, Write] = {
    **FOLLOWERS,
    **REPLACERS,
    **KEEPERS,
    "make_folder": lambda path: files.make_folder(path.parent),
    "make_private": lambda path: files.make_private(path.parent),
    "fresh_folder": lambda path: files.fresh_folder(path.parent, "part"),
    "sync_folder": lambda path: files.sync_folder(path.parent),
    "remove_unfinished": lambda path: files.remove_unfinished(path.parent),
}
"""Operations that must not enter a folder through a link."""


def snapshot(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    """Every path below a folder, with its mode, and its content or target."""
    found: dict[str, tuple[int, bytes | str]] = {".": (folder.stat().st_mode, "")}
    for path in sorted(folder.rglob("*")):
        content = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        found[str(path.relative_to(folder))] = path.lstat().st_mode, content
    return found


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder outside of the run, with what each operation could damage."""
    folder = tmp_path / "precious"
    (folder / "inner").mkdir(parents=True)
    (folder / "file").write_text("precious")
    (folder / f".half{files.TEMPORARY}1").write_text("of another program")
    (folder / "file").chmod(0o640)
    folder.chmod(0o755)
    return folder


@pytest.mark.parametrize("name", FOLLOWERS)
@pytest.mark.parametrize("target", ["file", "absent", "inner"])
def test_a_file_is_not_written_through_a_link(tmp_path: Path, precious: Path, name: str, target: str) -> None:
    run, before = tmp_path / "run", snapshot(precious)
    run.mkdir()
    link = run / (files.OWNER if name == "lock_folder" else "log")
    link.symlink_to(Path("..") / "precious" / target)
    with pytest.raises(UserError) as caught:
        FOLLOWERS[name](link)
    assert str(caught.value).startswith(f"{link} is a link to ../precious/{target}, and nothing is written")
    assert snapshot(precious) == before


@pytest.mark.parametrize("name", REPLACERS)
@pytest.mark.parametrize("target", ["file", "absent"])
def test_a_link_is_replaced_by_the_new_file(tmp_path: Path, precious: Path, name: str, target: str) -> None:
    path, before = tmp_path / "run" / "record", snapshot(precious)
    path.parent.mkdir()
    path.symlink_to(precious / target)
    REPLACERS[name](path)
    assert not path.is_symlink() and path.is_file() and list_names(path.parent) == ["record"]
    assert snapshot(precious) == before


@pytest.mark.parametrize("name", KEEPERS)
@pytest.mark.parametrize("target", ["file", "absent", "inner"])
def test_what_a_link_leads_to_is_not_changed(tmp_path: Path, precious: Path, name: str, target: str) -> None:
    path, before = tmp_path / "run" / "record", snapshot(precious)
    path.parent.mkdir()
    path.symlink_to(precious / target)
    with contextlib.suppress(UserError, FileExistsError):
        KEEPERS[name](path)
    assert snapshot(precious) == before
    assert path.is_symlink() == (name != "discard"), "only the link itself is deleted"


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("depth", [(), ("inner",), ("new", "newer")])
def test_a_folder_is_not_entered_through_a_link(tmp_path: Path, precious: Path, name: str, depth: tuple[str, ...]) -> None:
    run, before = tmp_path / "run", snapshot(precious)
    run.mkdir()
    (run / "cache").symlink_to(precious)
    nothing_to_do = name == "remove_unfinished" and depth
    refused = pytest.raises(UserError, match=r"run/cache is a link to .*precious, and nothing is")
    with contextlib.nullcontext() if nothing_to_do else refused:
        INSIDE[name](run.joinpath("cache", *depth, "file"))
    assert snapshot(precious) == before and list_names(run) == ["cache"]


def test_every_operation_of_the_module_is_tried() -> None:
    internal = {"watch", "explain_write_errors", "explain_full_disk"}
    readers = {"list_unfinished", "digest", "resolve_under", "require_space", "free_bytes", "has_inodes", "json_bytes", "check_log"}
    by_others = {"commit_folder": "new_folder", "write_text": "write_bytes", "write_json": "write_bytes"}
    public = {name for name, value in vars(files).items() if getattr(value, "__module__", "") == files.__name__ and name[0].islower()}
    assert public == {*INSIDE, *internal, *readers, *by_others, "temporary_folder"}


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize("name", FOLLOWERS)
@pytest.mark.parametrize("make", [make_fifo, make_socket, Path.mkdir])
def test_a_file_that_is_no_regular_file_is_refused_without_waiting(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    path = tmp_path / (files.OWNER if name == "lock_folder" else "log")
    make(path)
    mode = path.lstat().st_mode
    kind = "a folder" if stat.S_ISDIR(mode) else r"no regular file \(a FIFO, a socket or a device\)"
    with pytest.raises(UserError, match=rf"{path.name} is {kind}, where a file must be written; remove it"):
        FOLLOWERS[name](path)
    assert path.lstat().st_mode == mode


def write_everywhere(run: Path) -> None:
    files.append_line(run / "log", "new")
    os.close(files.lock_folder(run))
    files.write_text(files.make_private(run / "cache") / "index", "new")
    files.discard(run / "old")


@pytest.mark.parametrize("form", ["run", "--run.dir=run", "../cwd/run", "{cwd}/run"])
def test_a_link_that_the_user_named_is_followed_and_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    monkeypatch.setenv(folder_handles.VARIABLE, "")
    disk, cwd = tmp_path / "disk", tmp_path / "cwd"
    disk.mkdir()
    (disk / "old").write_text("")
    cwd.mkdir()
    (cwd / "run").symlink_to(disk)
    monkeypatch.chdir(cwd)
    word = form.format(cwd=cwd)
    run = Path(word.removeprefix("--run.dir="))
    with pytest.raises(UserError, match="run is a link to "):
        write_everywhere(run)
    folder_handles.name_paths(["train", word, "text with words", "", "x" * 5000])
    assert capsys.readouterr().err == ""
    write_everywhere(run)
    assert list_names(disk) == [".owner", "cache", "log"]
    assert capsys.readouterr().err == f"{run.absolute()} is a link to {disk}; it is followed, because you named it\n"
    (disk / "checkpoints").symlink_to(tmp_path)
    with pytest.raises(UserError, match="run/checkpoints is a link to "):
        files.make_folder(run / "checkpoints" / "step-1")


def test_a_child_process_knows_the_named_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(folder_handles.VARIABLE, "")
    link = tmp_path / "über\udc80\nrun"
    (tmp_path / "disk").mkdir()
    link.symlink_to("disk")
    script = (
        "import sys; from pathlib import Path; from overtone.finetune.storage import files; "
        "files.append_line(Path(sys.argv[1], 'log'), 'new')"
    )
    child = [sys.executable, "-c", script, link]
    assert subprocess.run(child, cwd=ROOT, capture_output=True, check=False).returncode == 1
    folder_handles.name_paths([str(link)])
    assert folder_handles.list_named_paths() == [str(link)]
    subprocess.run(child, cwd=ROOT, check=True)
    assert (tmp_path / "disk" / "log").read_text() == "new\n"


def test_folders_above_the_named_one_may_be_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(folder_handles.VARIABLE, "")
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to("disk")
    out = tmp_path / "home" / "data" / "me"
    folder_handles.name_paths([f"--checkpoint.copy_to=file://{tmp_path}/home/copies"])
    assert folder_handles.list_named_paths() == [f"{tmp_path}/home/copies"]
    folder_handles.name_paths(["--out", str(out)])
    files.write_text(out.with_name("me.recordings") / "part", "new")
    files.write_text(out / "train.jsonl", "new")
    assert (tmp_path / "disk" / "data" / "me" / "train.jsonl").is_file()


@pytest.mark.parametrize("variable", ["TMPDIR", "XDG_CACHE_HOME"])
def test_folders_of_the_system_may_be_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(UserError, match="is a link to disk"):
        files.write_text(tmp_path / "link" / "file", "new")
    monkeypatch.setenv(variable, str(tmp_path / "link"))
    files.write_text(tmp_path / "link" / "file", "new")
    assert (tmp_path / "disk" / "file").is_file()


def test_a_relative_path_is_shown_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "me").symlink_to("../disk")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^runs/me is a link to \.\./disk, and"):
        files.append_line(Path("runs/me/log"), "new")
    files.write_text(Path("runs/../beside/file"), "new")  # `..` is no link
    assert (tmp_path / "beside" / "file").is_file()


def test_a_link_that_appears_in_between_is_not_followed(tmp_path: Path, precious: Path) -> None:
    """An operation has opened its folder when the path before it becomes a link."""
    run, before = tmp_path / "run", snapshot(precious)
    run.mkdir()

    def swap(operation: str, _: Path) -> None:
        if operation == "rename" and not run.is_symlink():
            run.rename(tmp_path / "moved")
            run.symlink_to(precious)

    with files.watch(swap), pytest.raises(UserError, match="run is a link to "):
        files.write_text(run / "file", "new")
    assert snapshot(precious) == before and (tmp_path / "moved" / "file").read_text() == "new"
