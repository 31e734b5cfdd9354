"""Remote files: uploads are complete, changed files are read again, and partial ones never look complete."""

from __future__ import annotations

import io
import os
import socket
import sys
import traceback
import zipfile
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from overtone.finetune.addresses import RemoteAddress, is_url
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, remote
from tests.finetune import fake_hub, loopback_files
from tests.finetune.loopback_files import FileServer

CONTENT = {"a.bin": b"\x00" * 5000, "deep/er/b.txt": b"text", "manifest.json": b"{}"}


@pytest.fixture(params=["file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/elsewhere/run" if request.param == "file" else f"memory://{tmp_path.name}/run"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in CONTENT.items():
        files.write_bytes(tmp_path / "folder" / name, content)
    return tmp_path / "folder"


def test_urls_are_distinguished_from_paths() -> None:
    assert all(map(is_url, ["s3://bucket/a", "file:///mnt/a", "memory://a"]))
    assert not any(map(is_url, ["a/b", "/a/b", "C:\\a", "s3:/bucket", "s3://", Path("s3://bucket"), None, 5]))
    assert RemoteAddress("s3://bucket/runs/me/").name == "me"


def test_uploaded_files_are_listed_read_and_removed(place: str, folder: Path, tmp_path: Path) -> None:
    assert remote.list_files(place) == {}
    remote.upload(folder, place, "manifest.json")
    found = remote.list_files(place)
    assert {name: one.bytes for name, one in found.items()} == {name: len(content) for name, content in CONTENT.items()}
    assert all(remote.read(f"{place}/{name}") == content for name, content in CONTENT.items())
    assert found["a.bin"] == remote.find_file(f"{place}/a.bin")
    remote.download(f"{place}/a.bin", found["a.bin"], tmp_path / "here" / "a.bin")
    assert (tmp_path / "here" / "a.bin").read_bytes() == CONTENT["a.bin"]
    remote.remove(place, "manifest.json")
    assert remote.list_files(place) == {}
    remote.remove(place, "manifest.json")


def test_an_upload_replaces_the_previous_files(place: str, folder: Path) -> None:
    remote.write(f"{place}/of-an-older-one.bin", b"old")
    remote.write(f"{place}/manifest.json", b"old")
    remote.upload(folder, place, "manifest.json")
    assert sorted(remote.list_files(place)) == sorted(CONTENT)


def test_the_last_file_goes_last_and_is_the_first_to_be_removed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, seen = f"file://{tmp_path}/elsewhere", []
    put, remove_one = LocalFileSystem.put_file, LocalFileSystem.rm_file

    def noted(kind: str, function: Any) -> Any:
        def call(self: Any, *arguments: Any, **more: Any) -> Any:
            seen.append((kind, str(arguments[0]).rpartition("/")[2]))
            return function(self, *arguments, **more)

        return call

    monkeypatch.setattr(LocalFileSystem, "put_file", noted("sent", put))
    monkeypatch.setattr(LocalFileSystem, "rm_file", noted("removed", remove_one))
    remote.upload(folder, place, "a.bin")
    remote.remove(place, "b.txt")
    assert [name for kind, name in seen if kind == "sent"] == ["b.txt", "manifest.json", "a.bin"]
    remote.upload(folder, place, "a.bin")
    remote.remove(place, "a.bin")
    assert next(name for kind, name in seen if kind == "removed") == "a.bin"


def test_an_interrupted_upload_does_not_look_complete(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, put, left = f"file://{tmp_path}/elsewhere", LocalFileSystem.put_file, [1]

    def broken(self: Any, *arguments: Any, **more: Any) -> Any:
        if not left:
            raise ConnectionResetError("the line is cut")
        left.pop()
        return put(self, *arguments, **more)

    remote.upload(folder, place, "manifest.json")
    monkeypatch.setattr(LocalFileSystem, "put_file", broken)
    with pytest.raises(UserError, match=r"deep/er/b.txt: writing it failed \(ConnectionResetError: the line is cut\)"):
        remote.upload(folder, place, "manifest.json")
    assert sorted(remote.list_files(place)) == ["a.bin"]


def test_a_truncated_upload_is_noticed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalFileSystem, "put_file", lambda self, path, place, **_: self.pipe_file(place, Path(path).read_bytes()[:4000]))
    with pytest.raises(UserError, match="4,000 of 5,000 bytes arrived"):
        remote.send(folder / "a.bin", f"file://{tmp_path}/elsewhere/a.bin")


def test_an_object_is_created_once(place: str) -> None:
    assert remote.create(f"{place}/owner", b"first") and not remote.create(f"{place}/owner", b"second")
    assert remote.read(f"{place}/owner") == b"first" and remote.create(f"{place}/owner", b"first")


# --- the cache


def test_a_file_is_downloaded_once_and_again_after_a_change(place: str, tmp_path: Path) -> None:
    url, cache = f"{place}/train.jsonl", tmp_path / "cache"
    remote.write(url, b"one\n")
    first = remote.fetch(url, cache)
    assert first.read_bytes() == b"one\n" and first.parts[-2:] == ("run", "train.jsonl")
    before = first.stat()
    assert remote.fetch(url, cache) == first and first.stat() == before
    remote.write(url, b"two\n")
    second = remote.fetch(url, cache)
    assert second.read_bytes() == b"two\n" and first.read_bytes() == b"one\n"


def test_a_changed_file_of_the_same_size_and_times_is_downloaded_again(tmp_path: Path) -> None:
    path = tmp_path / "share" / "train.jsonl"
    files.write_bytes(path, b"one\n")
    times = path.stat()
    first = remote.fetch(f"file://{path}", tmp_path / "cache")
    path.write_bytes(b"two\n")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert remote.fetch(f"file://{path}", tmp_path / "cache").read_bytes() == b"two\n" and first.read_bytes() == b"one\n"


@pytest.mark.parametrize("operation", ["write", "sync", "rename"])
def test_a_download_that_ends_early_is_restarted(place: str, tmp_path: Path, operation: str) -> None:
    url, cache = f"{place}/train.jsonl", tmp_path / "cache"
    remote.write(url, b"one\n")

    def dies(kind: str, path: Path) -> None:
        if kind == operation and cache in path.parents:
            raise KeyboardInterrupt

    with files.watch(dies), pytest.raises(KeyboardInterrupt):
        remote.fetch(url, cache)
    assert [path for path in cache.iterdir() if not path.name.startswith(".")] == []
    assert remote.fetch(url, cache).read_bytes() == b"one\n" and files.list_unfinished(cache) == []


def test_a_file_replaced_during_its_download_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.bin"
    path.write_bytes(b"12345")
    found = remote.find_file(f"file://{path}")
    for changed in (b"1234", b"54321"):
        path.write_bytes(changed)
        os.utime(path, (1, 1))
        with pytest.raises(UserError, match="was replaced while it was read"):
            remote.download(f"file://{path}", found, tmp_path / "here" / "a.bin")


def test_files_that_a_downloaded_file_names_are_downloaded_once(place: str, tmp_path: Path) -> None:
    for name in ("train.jsonl", "clips/a.flac", "clips/b.flac"):
        remote.write(f"{place}/{name}", name.encode())
    fetched = remote.fetch(f"{place}/train.jsonl", tmp_path / "cache")
    a, b = (fetched.parent / "clips" / name for name in ("a.flac", "b.flac"))
    remote.fetch_missing(fetched, [a])
    assert a.read_bytes() == b"clips/a.flac" and not b.exists()
    remote.remove_file(f"{place}/clips/a.flac")
    remote.fetch_missing(fetched, [a, b])
    assert b.read_bytes() == b"clips/b.flac" and files.list_unfinished(fetched.parents[1]) == []
    with pytest.raises(UserError, match=rf"{place}/clips/c\.flac: accessing it failed, since there is no such object"):
        remote.fetch_missing(fetched, [fetched.parent / "clips" / "c.flac"])
    for own in (tmp_path / "own" / "train.jsonl", Path("train.jsonl"), Path("/train.jsonl")):
        remote.fetch_missing(own, [tmp_path / "own" / "missing.flac"])


# --- what a person can mend


def test_a_dataset_on_the_hub_is_read_by_its_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files_of = {"train.jsonl": b'{"audio": "clips/1.flac"}', "clips/1.flac": b"fLaC"}
    url = "hf://datasets/me/voice/train.jsonl"
    with fake_hub.opened() as hub:
        fake_hub.point_client_at(hub, tmp_path / "hf", monkeypatch)
        hub.repositories["datasets/me/voice"] = files_of
        assert remote.find_file(url) == remote.find_file(url), "the identity is that of the content"
        fetched = remote.fetch(url, tmp_path / "cache")
        remote.fetch_missing(fetched, [fetched.parent / "clips" / "1.flac"])
        assert set(remote.list_files("hf://datasets/me/voice")) == {*files_of}
    assert {name: (fetched.parent / name).read_bytes() for name in files_of} == files_of


def test_invalid_urls_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as where it is not installed
    (tmp_path / "folder").mkdir()
    for url, words in {
        "xyz://bucket/a": "xyz:// cannot be opened (Protocol not known: xyz)",
        "s3://bucket/a": "pip install 'overtone[s3]'",
        f"file://{tmp_path}/gone.jsonl": "there is no such object or bucket",
        f"file://{tmp_path}/folder": "is a folder; give a file in it",
    }.items():
        with pytest.raises(UserError) as caught:
            remote.find_file(url)
        assert str(caught.value).startswith(url) and words in str(caught.value)


def test_a_url_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(LocalFileSystem, "info", refused)
    with pytest.raises(UserError, match=r"is not allowed \(Access Denied\); check your credentials"):
        remote.find_file(f"file://{tmp_path}/a")


@pytest.mark.parametrize(
    "url",
    [
        *("http://169.254.169.254/latest/meta-data", "https://user:word@169.254.169.254:80/x", "http://2852039166/x", "http://[fe80::1]/x"),
        *("http://[::ffff:169.254.169.254]/x", "http://[fd00:ec2::254]/x", "zip://a.jsonl::http://169.254.169.254/b.zip"),
    ],
)
def test_the_credentials_service_of_a_cloud_machine_is_never_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda *_, **__: pytest.fail("a file system was opened"))
    for read in (remote.find_file, remote.list_files, remote.read):
        with pytest.raises(UserError, match=r"is a link-local address .*; it is never read, so give another URL"):
            read(url)


def test_other_web_addresses_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url, **_: opened.append(url) or pytest.skip("reached"))
    with pytest.raises(pytest.skip.Exception):
        remote.find_file("http://127.0.0.1:1/x")
    assert opened == ["http://127.0.0.1:1/x"]


# --- web servers

TIME = "Sat, 01 Aug 2026 10:00:00 GMT"
ROWS = b'{"text": "one"}\n' * 50_000


@pytest.mark.parametrize(
    "answers",
    [
        *({"etag": "strong"}, {"etag": "weak"}, {"last_modified": TIME}, {"etag": "weak", "last_modified": TIME}, {}),
        *({"length": False}, {"length": False, "last_modified": TIME}, {"compress": True}, {"compress": True, "etag": "strong"}),
        *({"head": False}, {"head": False, "length": False}),
    ],
    ids=str,
)
def test_any_web_server_can_be_read(answers: dict[str, Any], tmp_path: Path) -> None:
    with loopback_files.opened(FileServer({"me/train.jsonl": ROWS}, **answers)) as server:
        url = f"http://{server.place}/me/train.jsonl"
        first = remote.fetch(url, tmp_path / "cache")
        assert first.read_bytes() == ROWS and first.parts[-2:] == ("me", "train.jsonl")
        before = first.stat()
        assert remote.fetch(url, tmp_path / "cache") == first and first.stat() == before
        assert (remote.find_file(url).identity is not None) is bool(server.etag or server.last_modified)
        server.files["me/train.jsonl"] = ROWS[::-1]
        server.last_modified = server.last_modified.replace("10:00", "11:00")
        second = remote.fetch(url, tmp_path / "cache")
        assert second.read_bytes() == ROWS[::-1] and first.read_bytes() == ROWS
        assert files.list_unfinished(tmp_path / "cache") == []


def test_a_response_that_ends_early_is_refused(tmp_path: Path) -> None:
    with loopback_files.opened(FileServer({"a": ROWS}, cut_after=1000)) as server, pytest.raises(UserError, match="reading it failed"):
        remote.fetch(f"http://{server.place}/a", tmp_path / "cache")
    assert list((tmp_path / "cache").glob("[!.]*")) == []


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_names_the_credentials_and_shows_none(status: int, tmp_path: Path) -> None:
    needed = {"login": "me:right"} if status == 401 else {"query": "sig=right"}
    with loopback_files.opened(FileServer({"a": b"1"}, **needed)) as server:
        url = f"http://me:wr0ng@{server.place}/a?sig=wr0ng"
        for read in (remote.find_file, remote.read, lambda each: remote.fetch(each, tmp_path)):
            with pytest.raises(UserError, match=rf"^http://\*\*\*@{server.place}/a\?\*\*\*: .*{status}.*credentials") as caught:
                read(url)
            assert "wr0ng" not in "".join(traceback.format_exception(caught.value))


def test_a_server_that_is_down_is_not_a_missing_file() -> None:
    with loopback_files.opened(FileServer({})) as server, pytest.raises(UserError, match="there is no such object"):
        remote.find_file(f"http://{server.place}/a")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and listens to nobody
        with pytest.raises(UserError, match=r"/a\?\*\*\*: accessing it failed \(Cannot connect .*\); check the network and the server"):
            remote.find_file(f"http://127.0.0.1:{unused.getsockname()[1]}/a?sig=s3cr3t")


def test_passwords_and_signatures_are_sent_and_not_saved(tmp_path: Path) -> None:
    content = {"train.jsonl": b"{}", "clips/1.flac": b"fLaC"}
    with loopback_files.opened(FileServer(content, etag="strong", login="me:s3cr3t", query="sig=s3cr3t")) as server:
        fetched = remote.fetch(f"http://me:s3cr3t@{server.place}/train.jsonl?sig=s3cr3t", tmp_path / "cache")
        remote.fetch_missing(fetched, [fetched.parent / "clips" / "1.flac"])
        assert (fetched.parent / "clips" / "1.flac").read_bytes() == b"fLaC"
    kept = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert not any(b"s3cr3t" in name.encode() + content for name, content in kept.items()) and len(kept) == 3
    with pytest.raises(UserError, match=r"\*\*\* is not saved; give the whole address again"):
        remote.find_file(next(text.decode() for name, text in kept.items() if name.endswith(remote.ORIGIN)))


def test_two_signatures_of_a_file_are_one_file(tmp_path: Path) -> None:
    with loopback_files.opened(FileServer({"a": ROWS}, etag="strong")) as server:
        one, other = (remote.fetch(f"http://{server.place}/a?sig={secret}", tmp_path / "cache") for secret in ("one", "two"))
        assert one == other and server.requests.count("GET /a?sig=two") == 0


def test_a_query_that_chooses_a_file_is_no_signature(tmp_path: Path) -> None:
    with loopback_files.opened(FileServer({"a": b"one"}, last_modified=TIME)) as server:
        one = remote.fetch(f"http://{server.place}/a?id=1", tmp_path / "cache")
        server.files["a"] = b"two"  # of the same size and time
        other = remote.fetch(f"http://{server.place}/a?id=2", tmp_path / "cache")
    assert (one.read_bytes(), other.read_bytes()) == (b"one", b"two")


def test_a_redirect_is_followed_unless_it_leads_to_the_local_link(tmp_path: Path) -> None:
    with loopback_files.opened(FileServer({"a": ROWS})) as server:
        server.redirects = {"/good": "/a", "/bad": "http://169.254.169.254/latest/meta-data?s3cr3t", "/twice": "/bad"}
        assert remote.fetch(f"http://{server.place}/good", tmp_path / "cache").read_bytes() == ROWS
        for name in ("bad", "twice"):
            for read in (remote.find_file, remote.read):
                with pytest.raises(UserError, match=r"^http://169.254.169.254/latest/meta-data\?\*\*\*: .* is a link-local address"):
                    read(f"http://{server.place}/{name}")


def test_files_inside_a_remote_archive_are_read(tmp_path: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("deep/train.jsonl", ROWS)
    with loopback_files.opened(FileServer({"b.zip": archive.getvalue()}, etag="strong", query="sig=s3cr3t", ranges=True)) as server:
        url = f"zip://deep/train.jsonl::http://{server.place}/b.zip?sig=s3cr3t"
        assert remote.fetch(url, tmp_path / "cache").read_bytes() == ROWS


def test_the_pages_of_a_web_server_are_listed_with_sizes() -> None:
    page = b'<a href="1.wav">1</a> <a href="2.wav">2</a>'
    with loopback_files.opened(FileServer({"talks": page, "talks/1.wav": b"1", "talks/2.wav": b"22"}, last_modified=TIME)) as server:
        found = remote.list_files(f"http://{server.place}/talks")
    assert {name: each.bytes for name, each in found.items()} == {"1.wav": 1, "2.wav": 2}
    assert len({each.identity for each in found.values()}) == 2
