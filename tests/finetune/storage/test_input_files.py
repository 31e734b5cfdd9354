import io
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files

READERS: list[Callable[[Path], object]] = [
    input_files.require_regular,
    input_files.open_file,
    input_files.read_bytes,
    input_files.read_text,
    input_files.read_argument,
    lambda path: list(input_files.read_lines(path)),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "link"])
def test_special_files_are_refused_before_they_are_opened(
    read: Callable[[Path], object], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, bound = tmp_path / "file", socket.socket(socket.AF_UNIX)
    if kind in ("pipe", "link"):
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to(tmp_path / "pipe")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        monkeypatch.chdir(tmp_path)  # the name of a socket has at most 107 bytes
        bound.bind("file")
    opened: list[object] = []
    monkeypatch.setattr(os, "open", lambda *given: opened.append(given))
    with bound, pytest.raises(OSError, match="not a regular file") as caught:
        read(path)
    assert caught.value.strerror is not None and kind.replace("link", "pipe") in caught.value.strerror
    assert opened == []


def test_a_pipe_that_replaces_a_file_after_the_check_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    os.mkfifo(path)
    monkeypatch.setattr(input_files, "require_regular", lambda _: None)
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(OSError, match="a named pipe"):
        input_files.open_file(path)
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("a\r\nü\rb\n".encode())
    assert input_files.read_bytes(path) == "a\r\nü\rb\n".encode()
    assert input_files.read_text(path) == path.read_text(encoding="utf-8") == "a\nü\nb\n"
    assert list(input_files.read_lines(path)) == [b"a\r\n", "ü\rb\n".encode()]
    with input_files.open_file(path) as file:
        assert file.name == str(path) and file.read(1) == b"a"
    with pytest.raises(FileNotFoundError):
        input_files.read_bytes(tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        input_files.read_bytes(tmp_path)
    with pytest.raises(UnicodeDecodeError):
        input_files.read_text(path, encoding="ascii")


def test_large_files_are_refused_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 20 * 2**30)
    with pytest.raises(OSError, match="it has more than 67,108,864 bytes"):
        input_files.read_bytes(path)
    path.write_bytes(b"12345")
    assert input_files.read_bytes(path, 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        input_files.read_bytes(path, 4)
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result([0o100644, *[0] * 9]))  # it grows while it is read
    with pytest.raises(OSError, match="more than 4 bytes"):
        input_files.read_bytes(path, 4)


def test_a_pipe_of_the_shell_is_an_argument(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for content, most in ((b"one\r\ntwo", 100), (b"12345", 4)):
        monkeypatch.setattr(input_files, "LARGEST_TEXT", most)
        end, other = os.pipe()
        writer = threading.Thread(target=lambda end, content: (os.write(end, content), os.close(end)), args=(other, content))
        writer.start()
        path = Path(f"/dev/fd/{end}")
        if len(content) <= most:
            assert input_files.read_argument(path) == b"one\r\ntwo"
        else:
            with pytest.raises(OSError, match="more than 4 bytes"):
                input_files.read_argument(path)
        with pytest.raises(OSError, match="a named pipe"):
            input_files.read_bytes(path)
        writer.join()
        os.close(end)
    (tmp_path / "text").write_text("plain")
    monkeypatch.setattr(input_files, "LARGEST_TEXT", 100)
    assert input_files.read_argument(tmp_path / "text") == b"plain"


def test_a_line_without_an_end_is_refused_with_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(input_files, "LONGEST_LINE", 10)
    path = tmp_path / "rows.jsonl"
    assert list(input_files.split_lines(io.BytesIO(b"123456789\n\nlast"), path)) == [b"123456789\n", b"\n", b"last"]
    path.write_bytes(b"short\n12345678901")
    lines = input_files.read_lines(path)
    assert next(lines) == b"short\n"
    with pytest.raises(UserError, match=r"rows\.jsonl:2: the line has more than 10 bytes; remove or shorten it"):
        next(lines)
