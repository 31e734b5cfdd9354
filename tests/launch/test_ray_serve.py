"""Replicas on a Ray cluster answer as `serve` does, more of them under load; one that is killed loses its own streams only."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("grpc_reflection", reason="pip install 'overtone[ray-serve]'")

from overtone.finetune.exporting import export
from tests import loopback
from tests.launch import ray_nodes
from tests.launch.launching import ROOT
from tests.recipes.codec_lm import tiny_models as tiny_voice_runs
from tests.recipes.llm_sft import tiny_runs as tiny_chat_runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
TOKEN = "0123456789abcdef"
TOKENS, STREAMS = 500, 6
PATIENCE = 600


@dataclass(frozen=True)
class Served:
    """A command `ray-serve` that runs."""

    process: subprocess.Popen[str]
    url: str
    output: Path

    def stop(self) -> None:
        """Stop it with SIGTERM, and wait until it has ended as it should."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0 and "serve: stopped" in self.output.read_text()
        wait_for(lambda: not replicas())


@contextmanager
def serve(address: str, folder: Path, *arguments: object) -> Iterator[Served]:
    """Serve at a free port while this is open, with the token."""
    port, folder = loopback.free_port(), folder / "served"
    folder.mkdir()
    (folder / "token").write_text(TOKEN)
    where = ("--ray-address", address, "--port", port, "--token-file", folder / "token", "--deadline-seconds", PATIENCE)
    command = [sys.executable, "-m", "overtone.finetune", "ray-serve", *map(str, (*arguments, *where))]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, text=True)
    served = Served(process, f"http://127.0.0.1:{port}", folder / "output")
    try:
        wait_for(lambda: "stop with Ctrl-C" in served.output.read_text() or process.poll() is not None)
        assert process.poll() is None, served.output.read_text()
        yield served
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a cluster with two CPUs."""
    with ray_nodes.cluster(2) as nodes:
        yield nodes.address


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model, which does not stop by itself."""
    folder = tmp_path_factory.mktemp("chat")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_chat_runs, "POSITIONS", 2 * TOKENS)
        return export.export(tiny_chat_runs.trained(folder, ("train.steps", "1"), ("train.lr", "1e-9")), folder / "an export")


def wait_for(happened: object) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.2)


def ask(url: str, tokens: int, token: str = TOKEN) -> urllib.request.Request:
    """A streamed greedy answer."""
    body = {"model": "an export", "messages": [{"role": "user", "content": "Who?"}], "temperature": 0, "max_tokens": tokens, "stream": True}
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    return urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)


class Stream(threading.Thread):
    """Reads an answer until it ends or breaks."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.text, self.began = url, "", threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with urllib.request.urlopen(ask(self.url, TOKENS), timeout=PATIENCE) as answer:
                for line in answer:
                    self.text += line.decode()
                    self.began.set()
        except OSError:
            self.began.set()
        except Exception:  # a body that ended too early
            self.began.set()

    @property
    def whole(self) -> bool:
        return self.text.rstrip().endswith("data: [DONE]")


def replicas() -> list[int]:
    return sorted(process.pid for process in ray_nodes.workers("ServeReplica"))


def count_requests(url: str) -> dict[str, int]:
    """Requests by how they ended, as the replica counts them that answers."""
    request = urllib.request.Request(f"{url}/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    text = urllib.request.urlopen(request, timeout=PATIENCE).read().decode()
    found = re.findall(r'_requests_total\{[^}]*outcome="(\w+)"[^}]*\} ([0-9.]+)', text)
    return {outcome: int(float(value)) for outcome, value in found if float(value)}


def start_streams(url: str, number: int) -> list[Stream]:
    """Streams that have begun."""
    streams = [Stream(url) for _ in range(number)]
    for stream in streams:
        assert stream.began.wait(PATIENCE)
    return streams


def test_a_killed_replica_loses_its_own_streams_only(address: str, chat: Path, tmp_path: Path) -> None:
    with serve(address, tmp_path, "--model", chat, "--replicas", 2) as served:
        check_access(served.url)
        kill_one_of_two(served.url)
        served.stop()


def check_access(url: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(ask(url, 4, "another token 123"), timeout=PATIENCE)
    assert refused.value.code == 401 and "the token is missing or wrong" in refused.value.read().decode()


def kill_one_of_two(url: str) -> None:
    before = replicas()
    assert len(before) == 2
    streams = start_streams(url, STREAMS)
    os.kill(before[0], signal.SIGKILL)
    after = [urllib.request.urlopen(ask(url, 3), timeout=PATIENCE).read().decode() for _ in range(4)]
    assert all(text.rstrip().endswith("data: [DONE]") for text in after), "a new request reached the dead replica"
    for stream in streams:
        stream.join(PATIENCE)
    whole, broken = [each for each in streams if each.whole], [each for each in streams if not each.whole]
    assert whole and broken and all(each.text.startswith("data: ") for each in broken)
    answers = {content_of(each.text) for each in whole}
    assert len(answers) == 1, {each.text[-600:] for each in whole}
    (answer,) = answers
    assert answer and all(answer.startswith(content_of(each.text)) and len(content_of(each.text)) < len(answer) for each in broken)
    counted = count_requests(url)
    if before[1] in replicas() and sum(counted.values()) > len(after):
        assert counted == {"completed": len(whole) + len(after)}, "the other replica has lost a stream"
    wait_for(lambda: len(replicas()) == 2)
    assert before[0] not in replicas()


def test_more_replicas_start_under_load_and_sigterm_completes_the_requests(address: str, chat: Path, tmp_path: Path) -> None:
    with serve(address, tmp_path, "--model", chat, "--replicas", "1:2", "--batch", 1, "--drain-seconds", PATIENCE) as served:
        assert len(replicas()) == 1
        streams = start_streams(served.url, 1)
        while len(replicas()) == 1:
            streams = [stream for stream in streams if stream.is_alive()]
            streams += [Stream(served.url) for _ in range(3 - len(streams))]
            time.sleep(0.2)
        open_streams = start_streams(served.url, 2)
        served.stop()
        for stream in open_streams:
            stream.join(PATIENCE)
        assert all(stream.whole for stream in open_streams), "the command ended before its streams"


def test_replicas_of_a_voice_give_the_same_sound(address: str, tmp_path: Path) -> None:
    pytest.importorskip("snac")
    voice = export.export(tiny_voice_runs.trained(tmp_path, tiny_voice_runs.FULL), tmp_path / "a voice")
    with serve(address, tmp_path, "--model", voice, "--replicas", 2) as served:
        assert len(replicas()) == 2
        sounds = {served_speech(served.url) for _ in range(6)}
        assert len(sounds) == 1 and len(sounds.pop()) > 0
        served.stop()


def served_speech(url: str) -> bytes:
    """Samples of a text."""
    body = {"model": "a voice", "voice": "ann", "input": "Hello.", "response_format": "pcm"}
    headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(f"{url}/v1/audio/speech", json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request, timeout=PATIENCE).read()


def content_of(text: str) -> str:
    """The text of an answer, as far as it came."""
    parts = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {") and line.endswith("}")]
    return "".join(part["choices"][0]["delta"].get("content") or "" for part in parts if part.get("choices"))
