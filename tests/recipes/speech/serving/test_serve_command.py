"""Tests of `overtone.recipes.speech.serving.serve_command` as a real process, with OpenAI's client and a browser."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import soundfile

from overtone.finetune.errors import UserError
from overtone.recipes.speech.serving import serve_command
from overtone.recipes.voice_clone.speech_registration import SPEECH
from tests import browser, loopback, raw_http
from tests.browser import CHROMIUM
from tests.data_prep.crafted_flac import flac
from tests.page_client import CLIP, CLOSED, make_body, speak, upload, upload_file
from tests.recipes.voice_clone.served import ROOT, Served, carded, server

HELLO = "It is never late!"
SECRET = "0123456789abcdef-secret"


@pytest.fixture(scope="module")
def exports(fresh: Any, export: Any, two_voices: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two exports of an untrained model, which generates noise without an end, and one that ends what it has learned."""
    folder = tmp_path_factory.mktemp("exports")
    return {
        "tuned": carded(export(fresh, "custom_voice", folder / "tuned")),
        "fresh-base": carded(export(fresh, "base", folder / "fresh-base")),
        "learned": carded(shutil.copytree(two_voices.custom_voice, folder / "learned")),
    }


@pytest.fixture(scope="module")
def served(exports: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with server([*exports.values()], tmp_path_factory.mktemp("serving"), "--max-seconds", "1", "--max-chars", "200") as running:
        yield running


def test_the_client_of_openai_works(served: Served) -> None:
    client = served.client()
    assert [model.id for model in client.models.list()] == ["tuned", "fresh-base", "learned"]
    assert client.models.retrieve("tuned").voices == ["anna", "bert"]
    said = client.audio.speech.create(model="learned", voice="anna", input=HELLO)
    assert said.response.headers["content-type"] == "audio/mpeg"
    # Decoded: a stream has no header with its length, which `soundfile.info` then estimates from the bytes, including those of the tags.
    decoded, rate = soundfile.read(io.BytesIO(said.read()))
    assert len(decoded) / rate == pytest.approx(0.72, abs=0.1)
    same = {"model": "learned", "input": HELLO, "response_format": "wav"}
    wave = client.audio.speech.create(voice="anna", **same).read()
    assert soundfile.info(io.BytesIO(wave)).samplerate == 24000
    assert client.audio.speech.create(voice={"id": "Anna"}, **same).read() == wave, "the same seed, the same speech"
    with client.audio.speech.with_streaming_response.create(voice="anna", **same) as streamed:
        assert streamed.headers["transfer-encoding"] == "chunked" and b"".join(streamed.iter_bytes()) == wave


def test_speech_that_is_cut_off_is_an_error_of_the_client(served: Served) -> None:
    """And in a format whose response begins at the end, a header."""
    import openai

    client = served.client()
    with pytest.raises((openai.APIConnectionError, httpx.RemoteProtocolError)):
        client.audio.speech.create(model="tuned", voice="anna", input=HELLO, response_format="wav")
    cut = [
        client.audio.speech.create(model="tuned", voice="anna", input=HELLO, response_format="flac", extra_body={"seed": seed})
        for seed in (0, 1)
    ]
    assert [each.response.headers["x-speech-cut-at-seconds"] for each in cut] == ["1", "1"]
    assert cut[0].read() != cut[1].read(), "another seed, other speech"


def test_refusals_are_errors_of_the_client_of_openai(served: Served) -> None:
    import openai

    client = served.client()
    good = {"model": "tuned", "voice": "anna", "input": HELLO}
    for wrong, kind, message in (
        ({"model": "tts-1"}, openai.NotFoundError, "'tts-1' does not exist; models: tuned, fresh-base"),
        ({"voice": "alloy"}, openai.BadRequestError, "'alloy' does not exist; tuned has anna, bert"),
        ({"speed": 2}, openai.BadRequestError, "speed 2 is not supported"),
        ({"input": "a" * 201}, openai.BadRequestError, "201 characters, at most 200 are accepted"),
    ):
        with pytest.raises(kind) as caught:
            client.audio.speech.create(**good | wrong)
        assert message in caught.value.message and caught.value.param == next(iter(wrong)) and caught.value.code
    assert served.ask("/v1/audio/other", b"a" * (2**18 + 1), Content_Type="application/json")[0] == 413


def test_pages_of_other_sites_are_rejected(served: Served) -> None:
    evil = "http://attacker.example"
    call = json.dumps({"model": "tuned", "voice": "anna", "input": HELLO}).encode()
    assert served.ask("/", Host=f"attacker.example:{served.port}")[0] == 400, "a host name of the other site that resolves to this machine"
    for path, body in (("/v1/audio/speech", call), ("/clip", b"x"), ("/speak", b"{}"), ("/", None)):
        assert served.ask(path, body, Origin=evil, Content_Type="text/plain")[0] == 403
    assert served.ask("/v1/models", Origin=served.url)[0] == 200
    assert "default-src 'none'; script-src 'self'" in served.ask("/")[1]["content-security-policy"]
    listening = [one.laddr.ip for one in psutil.Process(served.process.pid).net_connections("inet") if one.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1"]


def test_the_page_compares_two_voices_and_writes_no_speech_to_the_disk(served: Served, fresh: Any) -> None:
    left, right = speak(served.url, HELLO, ("tuned", "anna"), ("fresh-base", "bert"))
    for title, card in (("tuned · anna", left), ("fresh-base · bert", right)):
        assert title in card and card.count("data:image/png;base64,") == 1
        assert soundfile.info(io.BytesIO(read_player(card))).duration == pytest.approx(1.04, abs=0.01)
    assert kept(served) == [], "speech is never written to the disk"
    file = fresh.config.data.train.parent / "low.flac"
    clip = upload_file(served.url, file)
    (only,) = speak(served.url, HELLO, ("fresh-base", CLIP), clip=clip)
    assert CLIP in only
    assert Path(clip).read_bytes() == file.read_bytes() and private(Path(clip), served.temporary)
    assert served.ask(clip)[0] == 404, "an upload is not served again"


def test_requests_can_only_name_uploaded_files(served: Served, exports: dict[str, Path]) -> None:
    for path in (str(exports["tuned"] / "config.json"), "/etc/passwd", "http://127.0.0.1:1/x.wav"):
        body = make_body(HELLO, ("fresh-base", CLIP), clip=path)
        status, _, answer = served.ask("/speak", body, Content_Type="application/json")
        assert status == 400 and "has been removed; upload it again" in json.loads(answer)["error"]["message"]
    assert all(path.name in ("clip.flac", "decoded.wav") for path in kept(served))


def test_a_clip_that_decodes_to_gigabytes_is_refused(served: Served) -> None:
    """15 minutes at 384 kHz in 8 channels, in 190 kB: two gigabytes of samples."""
    for declared, message in ((None, "900 s or more; at most 60 s are read"), (0, "samples or more at 384000 Hz in 8 channels; at most")):
        status, clip = upload(served.url, flac(15 * 60 * 384_000, 384_000, 8, declared))
        assert status == 200
        status, _, answer = served.ask("/speak", make_body(HELLO, ("fresh-base", CLIP), clip=clip), Content_Type="application/json")
        assert status == 400 and message in json.loads(answer)["error"]["message"]


def test_only_the_routes_that_the_page_uses_are_open(served: Served) -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="video"; filename="a"\r\n\r\nabc\r\n--x--\r\n'
    for path in ("/upload", "/", "/assets/page.css", "/speak/"):
        assert served.ask(path, form, Content_Type="multipart/form-data; boundary=x")[0] in (404, 413)
    for path in (*CLOSED, "/speak", "/clip", "/clips/"):
        assert served.ask(path)[0] == 404, path
    status, headers, script = served.ask("/assets/text_to_speech_page.js")
    assert status == 200 and headers["content-type"].startswith("text/javascript") and b"http:" not in script
    assert served.ask("/?page=x&deep_link=../../x")[0] == 200, "parameters that the page does not use are dropped"


def test_unusual_requests_are_answered_with_a_message(served: Served) -> None:
    """Each of these once caused a traceback in the log."""

    def say(**fields: Any) -> tuple[int, str]:
        body = json.dumps({"model": "tuned", "voice": "anna", "input": HELLO} | fields).encode()
        status, _, answer = served.ask("/v1/audio/speech", body, Content_Type="application/json")
        return status, json.loads(answer)["error"]["message"]

    assert say(seed=-1) == (400, "seed: Input should be greater than or equal to 0")
    assert say(input="\ud800")[0] == 400 and "half of a character" in say(input="\ud800")[1]
    assert served.ask("/", Host="[")[0] == 400 and served.ask("/", Origin="http://[")[0] == 403
    assert served.ask("/", Authorization="Basic \xe9")[0] == 200, "this server has no token"
    assert upload(served.url, b"x", "a\r\nX-Evil: 1")[0] in (200, 400)


def test_a_reference_clip_is_cloned_over_the_api(served: Served, fresh: Any) -> None:
    clip = base64.b64encode((fresh.config.data.train.parent / "low.flac").read_bytes()).decode()
    body = {"model": "fresh-base", "input": HELLO, "response_format": "flac", "ref_audio": clip}
    status, headers, content = served.ask("/v1/audio/speech", json.dumps(body).encode(), Content_Type="application/json")
    assert status == 200 and soundfile.info(io.BytesIO(content)).duration == pytest.approx(1.04, abs=0.01)
    assert headers["x-speech-passages"] == "1"


def test_health_and_metrics_are_those_of_the_requests(served: Served) -> None:
    served.client().audio.speech.create(model="learned", voice="bert", input=HELLO, response_format="pcm")
    served.ask("/v1/audio/speech", b"{}", Content_Type="application/json")
    status, headers, answer = served.ask("/health")
    assert (status, json.loads(answer)) == (200, {"status": "ok"})
    status, headers, answer = served.ask("/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {key: float(value) for key, _, value in (line.rpartition(" ") for line in answer.decode().splitlines()) if key[:1] != "#"}
    done = found['overtone_speech_requests_total{model="learned",outcome="completed"}']
    assert done >= 1 and found['overtone_speech_time_to_first_audio_seconds_count{model="learned"}'] >= done
    assert found['overtone_speech_audio_seconds_total{model="learned"}'] >= 0.6 * done and found["overtone_speech_queue_depth"] == 0
    assert found['overtone_http_requests_total{method="POST",path="/v1/audio/speech",status="400"}'] >= 1
    assert found["overtone_http_speech_responses_open"] == 0


def test_sigterm_ends_the_server_and_removes_its_files(served: Served, fresh: Any) -> None:
    """Must run after the other tests of this server."""
    assert served.process.stdout is not None
    speak(served.url, HELLO, ("fresh-base", CLIP), clip=upload_file(served.url, fresh.config.data.train.parent / "low.flac"))
    children = psutil.Process(served.process.pid).children(recursive=True)
    assert len(children) == 1, "the process that decodes clips"
    assert served.end(signal.SIGTERM) == 0
    rest = served.process.stdout.read()
    assert rest.endswith("serve: stopped\n")
    # From a client's connection that was still open.
    assert rest.count("Traceback") == rest.count("CancelledError: Task cancelled, timeout graceful shutdown exceeded"), rest
    assert list(served.temporary.iterdir()) == [] and not children[0].is_running()


LOADING = """
import sys, threading
from pathlib import Path
from overtone.recipes.speech.serving.serve_command import serve

class Endless:
    folder = Path(sys.argv[1])

    def open(self):
        threading.Event().wait()

serve(lambda _: Endless(), {"endless": Endless.folder}, ["--port", sys.argv[2]])
"""
"""A server with a model that never finishes loading."""


def test_a_server_that_is_ended_while_loading_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-c", LOADING, str(tmp_path / "model"), str(loopback.free_port())]
    surroundings = os.environ | {"TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    while not process.stdout.readline().startswith("serve: loading"):
        assert process.poll() is None
    assert len(list(temporary.glob(".overtone-serve-*"))) == 1
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode != 0 and list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--base", "nowhere"], "nowhere: no such folder"),
        (["--host", "0.0.0.0"], "set OVERTONE_TOKEN, or give --token-file FILE"),
        (["--token-file", "nowhere"], "--token-file nowhere cannot be read"),
        (["--port", "70000"], "--port 70000: expected a port from 1 to 65535"),
        (["--queue", "-1"], "--queue -1 is too small"),
        (["--max-chars", "0"], "--max-chars 0 is too small"),
        (["--drain-seconds", "nan"], "--drain-seconds nan is too small"),
    ],
)
def test_bad_options_are_refused_before_a_model_is_loaded(
    argv: list[str], message: str, exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OVERTONE_TOKEN", raising=False)
    monkeypatch.setattr(serve_command, "load_models", lambda *_: pytest.fail("a model was loaded"))
    with pytest.raises(UserError, match=re.escape(message)):
        serve_command.serve(SPEECH.inspect, {"tuned": exports["tuned"]}, argv)


def test_bad_folders_and_a_used_port_are_refused(exports: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_command, "load_models", lambda *_: pytest.fail("a model was loaded"))
    design = tmp_path / "design"
    design.mkdir()
    config = json.loads((exports["tuned"] / "config.json").read_text())
    (design / "config.json").write_text(json.dumps(config | {"tts_model_type": "voice_design"}))
    (tmp_path / "tuned").symlink_to(design)
    (tmp_path / "other" / "tuned").mkdir(parents=True)
    (tmp_path / "other" / "tuned" / "config.json").write_text(json.dumps(config))
    for folder, message in (
        (design, "tts_model_type 'voice_design' is not a model that can speak here"),
        (tmp_path / "other", "no model"),
        (tmp_path / "other" / "tuned", "would both have the name tuned; rename one"),
    ):
        with pytest.raises(UserError, match=message):
            serve_command.serve(SPEECH.inspect, {"tuned": exports["tuned"], "other": folder}, [])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"--port {port} cannot be opened"):
            serve_command.serve(SPEECH.inspect, {"tuned": exports["tuned"]}, ["--port", str(port)])


def test_help_imports_no_torch() -> None:
    code = "import sys; from overtone.recipes.speech.serving.serve_command import parse\n"
    code += "try: parse(['--help'])\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "--max-seconds" in done.stdout


@pytest.mark.slow
def test_sigterm_completes_the_request_in_progress(exports: dict[str, Path], tmp_path: Path) -> None:
    with server([exports["tuned"]], tmp_path / "tmp", "--max-seconds", "12", "--drain-seconds", "600") as served:
        say = {"model": "tuned", "voice": "anna", "input": HELLO, "response_format": "pcm"}
        with served.client().audio.speech.with_streaming_response.create(**say) as streamed:
            chunks = streamed.iter_bytes()
            received = len(next(chunks))
            served.process.send_signal(signal.SIGTERM)
            while served.ask("/health")[0] == 200:
                time.sleep(0.05)
            status, _, answer = served.ask("/v1/audio/speech", json.dumps(say).encode(), Content_Type="application/json")
            assert status == 503 and "shutting down" in json.loads(answer)["error"]["message"]
            received += sum(map(len, chunks))
        assert received / 48000 == pytest.approx(12, abs=0.2), "all of the speech arrived"
        assert served.process.wait(60) == 0 and served.process.stdout is not None
        assert served.process.stdout.read().endswith("serve: stopped\n")


@pytest.mark.slow
def test_a_server_with_a_token_admits_other_machines(exports: dict[str, Path], tmp_path: Path) -> None:
    """It also has no queue, so a second request is refused until the first has ended."""
    import openai

    say = {"model": "tuned", "voice": "anna", "input": HELLO}
    with server(
        [exports["tuned"]],
        tmp_path / "tmp",
        "--host",
        "0.0.0.0",
        "--batch",
        "1",
        "--queue",
        "0",
        "--max-seconds",
        "20",
        OVERTONE_TOKEN=SECRET,
    ) as served:
        assert served.ask("/health")[0] == 200, "probes send no token"
        for path in ("/", "/assets/page.css", "/v1/models", "/metrics"):
            status, headers, _ = served.ask(path)
            assert status == 401 and headers["www-authenticate"].startswith("Basic")
            assert served.ask(path, Authorization=basic("wrong"))[0] == 401
            assert served.ask(path, Authorization=basic(SECRET))[0] == 200
        raw_http.check_limits(served.port, "/v1/models", f"Authorization: Bearer {SECRET}")
        with pytest.raises(openai.AuthenticationError):
            served.client("wrong").models.list()
        client = served.client(SECRET)
        with client.audio.speech.with_streaming_response.create(**say) as first:
            with pytest.raises(openai.RateLimitError) as caught:
                client.audio.speech.create(**say)
            assert int(caught.value.response.headers["retry-after"]) > 0
            first.read()
        answers: list[int] = []
        patient = served.client(SECRET, retries=20)
        both = [threading.Thread(target=lambda: answers.append(len(patient.audio.speech.create(**say).read()))) for _ in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        assert len(answers) == 2 and min(answers) > 1000, "OpenAI's client retries after the time in the response"
        assert SECRET not in (served.process.stdout.read() if served.end(signal.SIGINT) == 0 and served.process.stdout else SECRET)


@pytest.mark.slow
def test_disconnected_clients_do_not_delay_others(exports: dict[str, Path], tmp_path: Path) -> None:
    """For clients of the API and for pages: the next request is spoken long before theirs would have ended."""
    with server([exports["tuned"]], tmp_path / "tmp", "--max-seconds", "60") as served:
        client = served.client()

        def spoken(seed: int) -> tuple[float, int]:
            """(seconds that it took, seed)."""
            start = time.monotonic()
            client.audio.speech.create(model="tuned", voice="anna", input=HELLO, response_format="pcm", extra_body={"seed": seed}).read()
            return time.monotonic() - start, seed

        def leave_api(seed: int) -> None:
            say = {"model": "tuned", "voice": "anna", "input": HELLO, "response_format": "pcm", "extra_body": {"seed": seed}}
            with client.audio.speech.with_streaming_response.create(**say) as gone:
                next(gone.iter_bytes(1))

        def leave_page(seed: int) -> None:
            body, kind = make_body(HELLO, ("tuned", "anna"), seed=seed), {"Content-Type": "application/json"}
            with urllib.request.urlopen(urllib.request.Request(f"{served.url}/speak", body, kind), timeout=60) as gone:
                while b"is speaking" not in gone.readline():
                    pass

        times = sorted(spoken(seed) for seed in range(6))
        (_, short), (whole, long) = times[0], times[-1]
        for leave in (leave_api, leave_page):
            leave(long)
            assert spoken(short)[0] < whole / 2, f"{leave.__name__}: speech was generated to its end without a client"


@pytest.mark.slow
def test_a_minute_of_parallel_clients(exports: dict[str, Path], tmp_path: Path) -> None:
    """No client is refused, all get the whole speech, and memory does not grow with the number of requests."""
    say = {"model": "tuned", "voice": "anna", "response_format": "wav"}
    with server([exports["tuned"]], tmp_path / "tmp", "--max-seconds", "1") as served:
        wanted = {seed: served.client().audio.speech.create(input=HELLO, extra_body={"seed": seed}, **say).read() for seed in range(4)}
        assert len(set(wanted.values())) == 4
        lengths, begin, failures, warm_clients = [0] * 8, time.monotonic(), [], threading.Semaphore(0)

        def talk(at: int) -> None:
            client = served.client()
            while time.monotonic() < begin + 60 or lengths[at] < 2:
                got = client.audio.speech.create(input=HELLO, extra_body={"seed": at % 4}, **say).read()
                if got != wanted[at % 4]:
                    failures.append(at)
                lengths[at] += 1
                if lengths[at] == 2:
                    warm_clients.release()

        threads = [threading.Thread(target=talk, args=(at,)) for at in range(8)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert warm_clients.acquire(timeout=600)
        warm = psutil.Process(served.process.pid).memory_info().rss
        for thread in threads:
            thread.join()
        grown = psutil.Process(served.process.pid).memory_info().rss / warm
        print(f"{sum(lengths)} requests by 8 clients, memory × {grown:.3f}")
        assert failures == [] and min(lengths) >= 2
        assert grown < 1.1
        assert list(served.temporary.rglob("*.wav")) == []


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: install Debian's chromium to test the page in a browser")
def test_a_browser_compares_and_clones_and_sends_no_other_requests(exports: dict[str, Path], fresh: Any, tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    clip, credentials = fresh.config.data.train.parent / "low.flac", {"username": "me", "password": SECRET}
    with (
        server([*exports.values()], tmp_path / "tmp", "--max-seconds", "1", OVERTONE_TOKEN=SECRET) as served,
        sync_playwright() as tools,
        browser.open_view(tools, "status of 400", http_credentials=credentials) as view,
    ):
        view.goto(served.url)
        view.get_by_label("Text", exact=True).fill(HELLO)
        view.get_by_role("button", name="Speak").click()
        view.wait_for_selector("#result-b audio")
        assert [view.locator(f"#result-{side} b").inner_text() for side in "ab"] == ["tuned · anna", "fresh-base · anna"]
        browser.check_look(view)
        browser.wait_until(
            view, "() => [...document.querySelectorAll('.result audio')].every(one => one.duration > 1 && one.duration < 1.1)"
        )
        browser.wait_until(view, "() => [...document.querySelectorAll('.result img')].every(one => one.naturalWidth > 50)")
        view.locator("#result-a audio").evaluate("one => { one.muted = true; return one.play() }")
        browser.wait_until(view, "() => getComputedStyle(document.querySelector('#result-a .player')).getPropertyValue('--at') > 0.3")
        view.get_by_label("Voice B").select_option(CLIP)
        view.get_by_role("button", name="Speak").click()
        view.get_by_text("record or upload a reference clip first (below").wait_for()
        view.get_by_text("Reference clip: a voice to clone").click()
        view.get_by_label("Clip of 5 to 15 s").set_input_files(clip)
        view.get_by_text("low.flac: ready").wait_for()
        browser.check_look(view)
        view.get_by_role("button", name="Speak").click()
        browser.wait_until(view, "() => document.querySelector('#result-b b')?.innerText === 'fresh-base · the reference clip'")
        view.evaluate(
            """() => {
              const media = navigator.mediaDevices, open = media.getUserMedia.bind(media), record = document.querySelector("#record");
              window.streams = [];
              media.getUserMedia = async (wanted) => { window.streams.push(await open(wanted)); return window.streams.at(-1); };
              record.click();
              record.click();
            }"""
        )
        view.get_by_role("button", name="Stop recording").wait_for()
        view.wait_for_timeout(1500)  # what Chromium's own microphone sends
        view.get_by_role("button", name="Stop recording").click()
        view.get_by_text("recording.webm: ready").wait_for()
        states = view.evaluate("() => window.streams.flatMap((one) => one.getTracks()).map((track) => track.readyState)")
        assert states == ["ended"], "a double click records once, and the microphone is off afterwards"
        late = list[Any]()
        view.route("**/clip", lambda route: late.append(route), times=1)
        view.get_by_label("Clip of 5 to 15 s").set_input_files({"name": "late.flac", "mimeType": "audio/flac", "buffer": clip.read_bytes()})
        while not late:
            view.wait_for_timeout(20)
        view.get_by_label("Clip of 5 to 15 s").set_input_files(clip)
        view.get_by_text("low.flac: ready").wait_for()
        with view.expect_response("**/clip"):
            late[0].fulfill(status=400, json={"detail": "of the first clip"})
        view.get_by_label("Model B").select_option("")
        assert view.get_by_text("low.flac: ready").is_visible() and view.get_by_text("of the first clip").count() == 0
        view.get_by_label("Model A").select_option("fresh-base")
        view.get_by_label("Voice A").select_option(CLIP)
        view.get_by_label("Text", exact=True).press("Shift+Enter")
        browser.wait_until(view, "() => document.querySelector('#result-a b')?.innerText === 'fresh-base · the reference clip'")
        assert view.locator("#result-b audio").count() == 0
        seed = view.get_by_label("Seed")
        view.get_by_text("Settings").click()
        seed.fill("-1")
        view.get_by_text("Settings").click()
        assert not seed.is_visible()
        view.get_by_role("button", name="Speak").click()
        assert seed.is_visible() and seed.evaluate("(one) => one === document.activeElement && one.validationMessage !== ''")
        assert view.get_by_role("button", name="Stop", exact=True).is_disabled()
    with (
        server([exports["tuned"]], tmp_path / "tmp", "--max-seconds", "60") as served,
        sync_playwright() as tools,
        browser.open_view(tools) as view,
    ):
        view.goto(served.url)
        view.get_by_role("button", name="Speak").click()
        view.get_by_text("is speaking").wait_for()
        view.get_by_role("button", name="Stop", exact=True).click()
        view.get_by_text("Stopped.").wait_for()
        assert view.get_by_role("button", name="Speak").is_enabled() and view.locator(".result audio").count() == 0


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"me:{password}".encode()).decode()


def read_player(card: str) -> bytes:
    (data,) = re.findall(r'src="data:audio/flac;base64,([^"]+)"', card)
    return base64.b64decode(data)


def private(path: Path, above: Path) -> bool:
    """Whether other users have no access to one of the folders above it."""
    return any(folder.stat().st_mode & 0o077 == 0 for folder in path.parents if folder.is_relative_to(above) and folder != above)


def kept(served: Served) -> list[Path]:
    """Audio and picture files in the server's folder."""
    return [path for path in served.temporary.rglob("*") if path.is_file() and path.suffix in (".wav", ".flac", ".mp3", ".png")]
