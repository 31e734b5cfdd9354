"""A file has the old content or the new one, whichever operation fails; temporary files are hidden and swept."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, folder_handles

ROOT = Path(__file__).parents[3]
Action = Callable[[], object]


def operations_of(action: Action) -> list[str]:
    seen: list[str] = []
    with files.watch(lambda operation, _: seen.append(operation)):
        action()
    return seen


def failing_at(number: int, error: Exception) -> Callable[[str, Path], None]:
    """Raises at the operation with this number, once."""
    count = iter(range(10**6))

    def watcher(_: str, __: Path) -> None:
        if next(count) == number:
            raise error

    return watcher


def each_failure(action: Action, prepare: Action) -> Iterator[tuple[str, int]]:
    """Runs `action` once for each of its disk operations, which then fails; yields its name and how many came after it."""
    prepare()
    operations = operations_of(action)
    for number, operation in enumerate(operations):
        prepare()
        with files.watch(failing_at(number, OSError(errno.EIO, "injected"))), pytest.raises(OSError, match="injected"):
            action()
        yield operation, len(operations) - 1 - number


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


def as_bytes(path: Path) -> object:
    return files.write_bytes(path, b"new")


def as_jsonl(path: Path) -> object:
    return files.write_jsonl(path, [{"new": 1}])


@pytest.mark.parametrize("write", [as_bytes, as_jsonl])
def test_a_file_is_old_or_new_after_a_failure_at_any_operation(tmp_path: Path, write: Callable[[Path], object]) -> None:
    path = tmp_path / "file"
    write(path)
    new = path.read_bytes()
    outcomes = []
    for operation, after in each_failure(lambda: write(path), lambda: path.write_bytes(b"old")):
        outcomes.append(operation)
        assert path.read_bytes() == (b"old" if after else new), "only the sync of the folder comes after the rename"
        assert hidden(tmp_path) == []
    assert outcomes == ["write", "sync", "rename", "sync"]


def test_a_new_file_is_absent_or_complete_and_its_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    failed = 0
    for _, after in each_failure(lambda: files.write_bytes(path, b"new"), lambda: files.discard(tmp_path / "a")):
        failed += 1
        assert path.exists() == (after == 0) and hidden(tmp_path) == []
    assert failed == len(["mkdir", "write", "sync", "rename", "sync"])


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    final = tmp_path / "final"

    def fill_and_commit() -> None:
        files.commit_folder(next(tmp_path.glob(".final*")), final)

    def prepare() -> None:
        files.remove_unfinished(tmp_path)
        files.discard(final)
        temporary = files.fresh_folder(tmp_path, "final")
        files.write_blocks(files.make_folder(temporary / "inner") / "a", [b"1", b"2"])

    outcomes = []
    for operation, after in each_failure(fill_and_commit, prepare):
        outcomes.append(operation)
        assert final.exists() == (after == 0)
        whole = final if after == 0 else next(tmp_path.glob(".final*"))
        assert (whole / "inner" / "a").read_bytes() == b"12", "a failed commit can be tried again"
    assert outcomes == ["sync", "sync", "rename", "sync"]


@pytest.mark.parametrize("taken", ["folder", "empty folder", "file"])
def test_a_commit_never_overwrites(tmp_path: Path, taken: str) -> None:
    final = tmp_path / "final"
    if taken == "file":
        final.write_text("mine")
    else:
        final.mkdir()
    if taken == "folder":
        (final / "mine").write_text("mine")
    before = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    temporary = files.fresh_folder(tmp_path, "final")
    with pytest.raises(UserError, match=r"final already exists and would be overwritten"):
        files.commit_folder(temporary, final)
    assert [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()] == before and temporary.is_dir()


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_an_interrupted_delete_leaves_the_folder_complete_or_hidden(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "gone"

    def prepare() -> None:
        files.remove_unfinished(tmp_path)
        if kind == "file":
            path.write_text("content")
        else:
            files.write_bytes(path / "a", b"content")
            files.write_bytes(path / "b" / "c", b"content")

    outcomes = []
    for operation, _ in each_failure(lambda: files.discard(path), prepare):
        outcomes.append(operation)
        visible = [inner for inner in tmp_path.rglob("*") if inner.is_file() and not any(part.startswith(".") for part in inner.parts)]
        assert len(visible) in ({"folder": 2, "file": 1}[kind], 0)
    assert outcomes == ["rename", "remove"]
    files.remove_unfinished(tmp_path)
    files.discard(path)
    assert list(tmp_path.iterdir()) == []


def test_sweep_removes_files_of_killed_processes_only(tmp_path: Path) -> None:
    files.write_bytes(files.fresh_folder(tmp_path, "step-1") / "half", b"")
    (tmp_path / f".file{files.TEMPORARY}1234").write_text("half")
    (tmp_path / f".old{files.TRASH}1234").mkdir()
    keep = [tmp_path / ".hidden", tmp_path / "step-1", tmp_path / f"name{files.TEMPORARY}"]
    for path in keep:
        path.write_text("mine")
    assert len(files.remove_unfinished(tmp_path)) == 3
    assert sorted(tmp_path.iterdir()) == sorted(keep)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("operation", ["write", "sync"])
@pytest.mark.parametrize(
    "write",
    [
        lambda path: files.write_bytes(path, b"12345"),
        lambda path: files.write_in_place(path, b"12345"),
        lambda path: files.write_blocks(path, [b"12345"]),
        lambda path: files.write_jsonl(path, [{}]),
        lambda path: files.append_line(path, "12345"),
    ],
)
def test_a_full_disk_is_explained(tmp_path: Path, write: Callable[[Path], object], operation: str, number: int) -> None:
    raised = []

    def full(name: str, path: Path) -> None:
        if name == operation:
            raised.append(path)
            raise OSError(number, os.strerror(number))

    with files.watch(full):
        try:
            write(tmp_path / "file")
        except UserError as error:
            assert str(tmp_path) in str(error) and "the disk is full" in str(error) and "are free; free some space" in str(error)
    assert raised or operation == "sync", "every writer announces its write"
    assert len(raised) <= 1


def test_a_full_disk_of_the_kernel_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_handles, "refuse_irregular", lambda *_: None)  # the device that is always full is no regular file
    with pytest.raises(UserError, match=r"the disk is full: /dev/full needs 7 bytes, [0-9,]+ are free"):
        files.append_line(Path("/dev/full"), "123456")
    with pytest.raises(UserError, match="the disk is full: /dev/full needs more room"):
        files.write_blocks(Path("/dev/full"), [b"x" * 2**20])


def test_another_disk_error_stays_what_it_is(tmp_path: Path) -> None:
    with files.watch(failing_at(0, OSError(errno.EIO, "broken"))), pytest.raises(OSError, match="broken"):
        files.write_bytes(tmp_path / "file", b"")


def test_watch_ends_with_its_block_and_nests(tmp_path: Path) -> None:
    outer: list[str] = []
    with files.watch(lambda operation, _: outer.append(operation)):
        assert operations_of(lambda: files.write_text(tmp_path / "a", "")) == ["write", "sync", "rename", "sync"]
        assert outer == []
        files.write_text(tmp_path / "b", "")
    files.write_text(tmp_path / "c", "")
    assert len(outer) == 4


def test_blocks_are_counted_and_hashed_on_the_way(tmp_path: Path) -> None:
    written = files.write_blocks(tmp_path / "file", [b"ab", memoryview(b"cd")])
    assert written == files.Written(4, hashlib.sha256(b"abcd").hexdigest())
    assert files.digest(tmp_path / "file") == written.digest


def test_copy_is_the_same_bytes(tmp_path: Path) -> None:
    data = os.urandom(5 * 2**20)
    (tmp_path / "source").write_bytes(data)
    files.copy_into(tmp_path / "source", tmp_path / "deep" / "target")
    assert (tmp_path / "deep" / "target").read_bytes() == data


@pytest.mark.parametrize("number", [None, *files.WITHOUT_LINKS])
def test_a_hard_link_outlives_the_first_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None) -> None:
    def none_here(*_: object, **__: object) -> None:
        raise OSError(number, "no links")

    if number is not None:
        monkeypatch.setattr(files.os, "link", none_here)
    (tmp_path / "first").write_bytes(b"abc")
    files.link_into(tmp_path / "first", tmp_path / "inner" / "second")
    assert (tmp_path / "first").samefile(tmp_path / "inner" / "second") == (number is None)
    (tmp_path / "first").unlink()
    assert (tmp_path / "inner" / "second").read_bytes() == b"abc"


def test_another_error_of_a_hard_link_is_raised(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.link_into(tmp_path / "none", tmp_path / "second")


def test_json_is_readable_by_anyone_or_refused(tmp_path: Path) -> None:
    files.write_json(tmp_path / "a", {"name": "Ægir", "list": [1, 2.5, None]})
    assert json.loads((tmp_path / "a").read_bytes()) == {"name": "Ægir", "list": [1, 2.5, None]}
    assert "Ægir" in (tmp_path / "a").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="Out of range"):
        files.write_json(tmp_path / "a", {"loss": float("nan")})
    assert json.loads((tmp_path / "a").read_bytes())["name"] == "Ægir"


def test_jsonl_counts_its_rows_and_a_bad_row_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert files.write_jsonl(path, ({"n": number} for number in range(3))) == 3
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"n": 0}, {"n": 1}, {"n": 2}]
    with pytest.raises(ValueError, match="Out of range"):
        files.write_jsonl(path, [{"n": 1}, {"n": float("inf")}])
    assert len(path.read_text().splitlines()) == 3 and hidden(tmp_path) == []


def test_lines_are_appended_and_a_torn_one_takes_no_other_along(tmp_path: Path) -> None:
    path = tmp_path / "log" / "events"
    files.append_line(path, "one")
    files.append_line(path, "zwei ✓")
    with path.open("ab") as file:
        file.write(b"torn")
    files.append_line(path, "three")
    files.append_line(path, "four")
    assert path.read_text(encoding="utf-8") == "one\nzwei ✓\ntorn\nthree\nfour\n"


def test_paths_stay_under_their_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "clips").mkdir(parents=True)
    outside.mkdir()
    (root / "in").symlink_to(root / "clips")
    (root / "out").symlink_to(outside)
    assert files.resolve_under(root, "clips/a.wav") == root / "clips" / "a.wav"
    assert files.resolve_under(root, "in/a.wav") == root / "clips" / "a.wav"
    assert files.resolve_under(root, "clips/../clips/a.wav") == root / "clips" / "a.wav"
    for path in ("../outside/a.wav", "clips/../../outside", "/etc/passwd", str(outside), "out/a.wav", "..", "../root2"):
        with pytest.raises(UserError, match=r"leads outside of .*root"):
            files.resolve_under(root, path)


def test_invalid_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for name in ("x\0y", "\ud800.wav", "a"):
        with pytest.raises(UserError, match="is not a valid path"):
            files.resolve_under(tmp_path, name)


def test_a_linked_root_is_still_the_root(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert files.resolve_under(tmp_path / "link", "a") == tmp_path / "real" / "a"


def test_a_disk_without_inodes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)

    class Full:
        f_files, f_favail = 1000, 0
        f_bavail = f_blocks = f_bfree = f_frsize = 2**20

    monkeypatch.setattr(files.os, "statvfs", lambda _: Full)
    with pytest.raises(UserError, match=r"^the export needs files at .*there, and no inodes are free: delete some files there"):
        files.require_space(tmp_path / "not" / "there", 1, "the export")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        files.watch(full),
        pytest.raises(UserError, match=r"^the disk holds as many files as it can: no inode is .* for .*/file; delete"),
    ):
        files.write_in_place(tmp_path / "file", b"")
    monkeypatch.setattr(files.os, "statvfs", lambda _: real)
    with files.watch(full), pytest.raises(UserError, match="^the disk is full: "):
        files.write_in_place(tmp_path / "file", b"")
    Full.f_files = 0  # as btrfs and many network file systems say
    monkeypatch.setattr(files.os, "statvfs", lambda _: Full)
    files.require_space(tmp_path, 1, "the export")


KILLED = """
import os, signal, sys
from overtone.finetune.storage import files
with files.temporary_folder("overtone-test") as folder:
    files.write_text(folder / "inner" / "file", "half")
    print(folder, flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_temporary_folders_of_killed_processes_are_removed_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED], cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None and child.stdout is not None
    left = Path(child.stdout.readline().strip())
    planted, kept = tmp_path / left.name.replace(left.name[-8:], "0" * 8), tmp_path / "precious"
    (kept / "inner").mkdir(parents=True)
    planted.symlink_to(kept)
    (tmp_path / left.name.replace(left.name[-8:], "1" * 8)).write_text("no folder")
    with files.temporary_folder("overtone-test") as mine:
        assert left.is_dir(), "its process is running"
        assert mine.stat().st_mode & 0o777 == 0o700 and mine.parent == tmp_path
    child.communicate("")
    assert (left / "inner" / "file").is_file()
    before = set(tmp_path.iterdir())
    with files.temporary_folder("overtone-test") as mine:
        assert set(tmp_path.iterdir()) == before - {left} | {mine}
    assert set(tmp_path.iterdir()) == before - {left} and (kept / "inner").is_dir()


def test_temporary_folders_of_another_user_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    other = files.fresh_folder(tmp_path, f"overtone-test-{os.getuid()}")
    real = files.stat_without_following

    def of_another(path: Path) -> object:
        found = real(path)
        return os.stat_result([*found[:4], os.getuid() + 1, *found[5:]]) if found is not None and path == other else found

    monkeypatch.setattr(files, "stat_without_following", of_another)
    with files.temporary_folder("overtone-test"):
        assert other.is_dir()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EWOULDBLOCK])
def test_a_temporary_folder_that_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Without locks on the disk it is used as it is; if another process has locked it first, to remove it, a new one is made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failures = iter([OSError(code, os.strerror(code))])

    def locked(descriptor: int, operation: int) -> None:
        for failure in failures:
            raise failure

    monkeypatch.setattr(files.fcntl, "flock", locked)
    with files.temporary_folder("overtone-test") as folder:
        assert folder.is_dir() and len(list(tmp_path.iterdir())) == (1 if code == errno.ENOLCK else 2)
    assert not folder.exists()


def test_free_space_is_measured_where_the_folder_will_be(tmp_path: Path) -> None:
    files.require_space(tmp_path / "not" / "yet" / "there", 1, "a test")
    with pytest.raises(
        UserError, match=r"the export needs 1,000,000,000,000,000,000 bytes at .*there, and [0-9,]+ are free; free some space"
    ):
        files.require_space(tmp_path / "not" / "there", 10**18, "the export")
    files.require_space(Path("relative/folder"), 1, "a test")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("file/run", "file/run cannot be written to (Not a directory at {folder}/file); choose another folder"),
        ("file", "file is a file, not a folder; choose another folder"),
        ("taken", "taken/.owner is a folder, where a file must be written; remove it, or choose another folder"),
        ("/proc/run", "/proc/run cannot be written to (No such file or directory); choose another folder"),
    ],
)
def test_a_folder_that_cannot_be_owned_is_named_with_the_reason(tmp_path: Path, place: str, words: str) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "taken" / files.OWNER).mkdir(parents=True)
    with pytest.raises(UserError) as caught:
        files.lock_folder(tmp_path / place)
    assert words.format(folder=tmp_path) in str(caught.value)


def test_of_two_exit_records_the_first_is_kept(tmp_path: Path) -> None:
    assert files.write_if_absent(tmp_path / "new" / "word", b"one") and not files.write_if_absent(tmp_path / "new" / "word", b"two")
    assert (tmp_path / "new" / "word").read_bytes() == b"one" and [path.name for path in (tmp_path / "new").iterdir()] == ["word"]


@pytest.mark.parametrize("code", files.WITHOUT_LINKS)
def test_the_first_exit_record_is_kept_on_a_disk_without_links(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refused)
    assert files.write_if_absent(tmp_path / "word", b"one") and not files.write_if_absent(tmp_path / "word", b"two")
    assert (tmp_path / "word").read_bytes() == b"one" and len(list(tmp_path.iterdir())) == 1


def test_volatile_files_are_replaced_atomically_without_sync(tmp_path: Path) -> None:
    for content in (b"one", b"two"):
        seen = operations_of(lambda content=content: files.write_volatile(tmp_path / "new" / "signs", content))
        assert "sync" not in seen and (tmp_path / "new" / "signs").read_bytes() == content
    with pytest.raises(OSError, match="a full disk"), files.watch(failing_at(1, OSError("a full disk"))):
        files.write_volatile(tmp_path / "new" / "signs", b"three")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["signs"] and (tmp_path / "new" / "signs").read_bytes() == b"two"


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_read_only_folder_is_named(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refused(path: str, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(code, os.strerror(code), path)
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(UserError, match=rf"run cannot be written to \({os.strerror(code)} at .*/run/\.owner\); choose another folder, or"):
        files.lock_folder(tmp_path / "run")


def test_a_folder_has_one_owner_until_that_process_ends(tmp_path: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from overtone.finetune.storage import files
files.lock_folder(Path({str(tmp_path / "run")!r}))
print("mine", flush=True)
time.sleep(60)
"""
    other = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "mine\n"
        with pytest.raises(UserError, match=rf"run is in use by a running process \(process {other.pid} on .* since .*\); wait for it"):
            files.lock_folder(tmp_path / "run")
    finally:
        other.kill()
        other.communicate()
    descriptor = files.lock_folder(tmp_path / "run")
    assert f"process {os.getpid()} on " in (tmp_path / "run" / files.OWNER).read_text()
    os.close(descriptor)
    os.close(files.lock_folder(tmp_path / "run"))


@pytest.mark.parametrize("number", files.WITHOUT_LOCKS)
def test_a_file_system_without_locks_is_reported_with_its_risk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    def none_here(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.fcntl, "flock", none_here)
    os.close(files.lock_folder(tmp_path / "run"))
    said = capsys.readouterr().err
    assert said.startswith(f"warning: the file system of {tmp_path / 'run'} has no locks ([Errno {number}] ")
    assert "a second run in this folder would not be refused" in said and "a folder on a local disk" in said
    assert f"process {os.getpid()} on " in (tmp_path / "run" / files.OWNER).read_text()


def test_another_failure_to_lock_is_no_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int, operation: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(files.fcntl, "flock", broken)
    with pytest.raises(OSError, match="broken"):
        files.lock_folder(tmp_path / "run")


def test_sweep_of_one_name_leaves_the_others(tmp_path: Path) -> None:
    mine = files.fresh_folder(tmp_path, "model")
    others = [files.fresh_folder(tmp_path, name) for name in ("model-2", "my.model", "other")]
    assert files.list_unfinished(tmp_path, "model") == [mine] and files.list_unfinished(tmp_path) == sorted([mine, *others])
    assert files.remove_unfinished(tmp_path, "model") == [mine]
    assert sorted(tmp_path.iterdir()) == sorted(others)


@pytest.mark.parametrize("mode", [0o750, 0o705])
def test_a_private_folder_is_closed_to_the_group_and_to_others(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    files.make_private(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_blocks_are_appended_in_order(tmp_path: Path) -> None:
    path = tmp_path / "part"
    with pytest.raises(UserError, match="is gone; begin again"):
        files.append_block(path, 3, b"x")
    assert files.append_block(path, 0, b"abc") == 3 and files.append_block(path, 3, b"de") == 5
    with pytest.raises(UserError, match="exists already"):
        files.append_block(path, 0, b"x")
    with pytest.raises(UserError, match="has 5 bytes, not 3"):
        files.append_block(path, 3, b"x")
    assert path.read_bytes() == b"abcde"


def test_a_file_moves_to_a_free_name_only(tmp_path: Path) -> None:
    source, target = tmp_path / "part", tmp_path / "sub" / "whole"
    source.write_bytes(b"a")
    assert files.move_if_absent(source, target) and not source.exists() and target.read_bytes() == b"a"
    source.write_bytes(b"b")
    assert not files.move_if_absent(source, target) and target.read_bytes() == b"a" and source.read_bytes() == b"b"
    files.move_over(source, target)
    assert target.read_bytes() == b"b" and not source.exists()


@pytest.mark.parametrize("move", [files.move_if_absent, files.move_over])
def test_a_file_moves_through_no_link(move: Callable[[Path, Path], object], tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"a")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(UserError, match="link"):
        move(tmp_path / "part", tmp_path / "link" / "whole")
    assert not list((tmp_path / "real").iterdir())


def test_a_link_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"a")
    (tmp_path / "whole").symlink_to(tmp_path / "other")
    with pytest.raises(UserError):
        files.move_over(tmp_path / "part", tmp_path / "whole")
    assert not files.move_if_absent(tmp_path / "part", tmp_path / "whole") and (tmp_path / "whole").is_symlink()
