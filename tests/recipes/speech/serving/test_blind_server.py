"""The page of a blind comparison: its requests, and a browser that answers by keyboard."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from overtone.finetune import __main__ as verbs
from overtone.finetune.errors import UserError
from overtone.finetune.pages import web_server
from overtone.finetune.storage import files
from overtone.finetune.storage.synthetic_audio_mark import SyntheticMark, read_synthetic_mark
from overtone.recipes.serving.access_control import AccessPolicy
from overtone.recipes.speech.interface import SpeechSampling
from overtone.recipes.speech.serving import blind_server
from overtone.recipes.speech.serving.blind_trials import BlindTrials, make_trials
from overtone.recipes.voice_clone import speech_registration
from tests import browser, loopback
from tests.asgi import ANYTHING, App
from tests.browser import CHROMIUM
from tests.recipes.speech.preferences.clip_files import write_clip
from tests.recipes.speech.preferences.test_pair_selection import make_clip

TEXTS = ["One train.", "Two trains.", "Three trains."]
PAIR = ("before", "after")
KEYS = dict.fromkeys(PAIR, "the same model")
HOSTILE = ((b"host", b"evil.example"), (b"content-type", b"application/json"))


@pytest.fixture
def trials(tmp_path: Path) -> BlindTrials:
    return BlindTrials(make_trials(TEXTS, KEYS, "seed 0"), tmp_path / "results.jsonl")


@pytest.fixture
def app(trials: BlindTrials) -> Iterator[App]:
    clips = {(system, text): f"{system} {text}".encode() for system in PAIR for text in TEXTS}
    app = App(blind_server.build_app(trials, clips, AccessPolicy(None, True)))
    yield app
    app.close()


def state(app: App) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(app.ask("GET", "/trial").body)
    return found


def submit(app: App, trial: str, choice: str) -> tuple[int, dict[str, Any]]:
    found = app.ask("POST", "/answer", json.dumps({"trial": trial, "choice": choice}).encode())
    return found.status, json.loads(found.body)


def test_a_listener_answers_all_trials(app: App, trials: BlindTrials) -> None:
    preferred = list[str]()
    for number in range(len(TEXTS)):
        shown = state(app)
        assert shown == state(app), "a reload shows the same trial"
        assert shown["done"] == number and not {"left", "right", "before", "after"} & {*map(str, shown.values()), *shown}
        clips = {side: app.ask("GET", f"/clip/{shown['trial']}/{side}").body.decode() for side in ("left", "right")}
        assert sorted(clips.values()) == sorted(f"{system} {shown['text']}" for system in PAIR)
        after = next(side for side, clip in clips.items() if clip.startswith("after"))
        assert submit(app, shown["trial"], after)[0] == 200
        assert submit(app, shown["trial"], after)[0] == 200, "a double click"
        other = {"left": "right", "right": "left"}[after]
        assert submit(app, shown["trial"], other)[0] == 409
        preferred.append(after)
    rows = [json.loads(line) for line in trials.results.read_text().splitlines()]
    assert [row["winner"] for row in rows] == ["after"] * 3 and [row["choice"] for row in rows] == preferred
    assert state(app)["outcome"].startswith("after was preferred 3 times, before 0 times")


def test_answers_that_cannot_be_saved_are_asked_again(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = state(app)

    def fail(*_: object) -> None:
        raise UserError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr("overtone.recipes.speech.serving.blind_trials.files.append_line", fail)
        found = app._runner.run(_ask_once(app, shown["trial"]))
    assert found.status == 503 and b"not saved (no space left)" in found.body and state(app) == shown
    assert submit(app, shown["trial"], "same")[0] == 200


async def _ask_once(app: App, trial: str) -> Any:
    from tests.asgi import HOME, JSON, asked

    body = json.dumps({"trial": trial, "choice": "same"}).encode()
    return await asked(app._app, "POST", "/answer", body, (HOME, JSON))


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/answer", b"{", 400),
        ("POST", "/answer", b'{"trial": "x"}', 400),
        ("POST", "/answer", b'{"trial": 1, "choice": "left"}', 400),
        ("POST", "/answer", b'{"trial": "x", "choice": "best"}', 400),
        ("POST", "/answer", b'{"trial": "000000000000", "choice": "left"}', 404),
        ("POST", "/answer", b"x" * 2000, 413),
        ("GET", "/clip/000000000000/left", b"", 404),
        ("GET", "/clip/../left", b"", 404),
        ("GET", "/results.jsonl", b"", 404),
        ("GET", "/assets/blind_page.html", b"", 404),
    ],
)
def test_bad_requests_are_answered_with_errors(app: App, trials: BlindTrials, method: str, path: str, body: bytes, status: int) -> None:
    found = app.ask(method, path, body)
    assert found.status == status and b"message" in found.body and not trials.results.exists()


def test_requests_of_other_sites_are_refused(app: App) -> None:
    assert app.ask("POST", "/answer", b"{}", headers=HOSTILE).status == 400


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ANYTHING)
def test_no_body_is_an_error_of_the_server(app: App, body: Any) -> None:
    assert app.ask("POST", "/answer", json.dumps(body).encode()).status in (400, 404)


def test_texts_are_spoken_by_a_model_without_its_name(nano_export: Path, tmp_path: Path) -> None:
    exported = speech_registration.SPEECH.inspect(nano_export)
    clips = blind_server.speak_texts("me", exported, TEXTS[:1], SpeechSampling(max_seconds=0.4))
    (tmp_path / "clip.flac").write_bytes(clips["me", TEXTS[0]])
    assert read_synthetic_mark(tmp_path / "clip.flac") == SyntheticMark(""), "the tags of a clip must not end the blindness"
    assert blind_server.speak_texts("me", exported, [], SpeechSampling()) == {}
    with pytest.raises(UserError, match="--blind: me cannot speak 'zed|Hello.'"):
        blind_server.check_texts("me", exported, ["zed|Hello."], SpeechSampling())
    with pytest.raises(UserError, match="cannot speak '😊': the line has nothing to speak"):
        blind_server.check_texts("me", exported, ["😊"], SpeechSampling())


def test_a_folder_without_clips_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--blind .*: has no trials.jsonl of `overtone pairs`; give its --out folder, or a file of texts"):
        blind_server.find_clips(tmp_path, tmp_path / "results.jsonl")
    hostile = [{"text": "A.", "speaker": "me", "clips": ["../secret.flac", "/etc/passwd"]}, {"clips": 1}, [1]]
    (tmp_path / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in hostile))
    (tmp_path / "clips.jsonl").touch()
    with pytest.raises(UserError, match="no text has two different clips to compare; run `overtone pairs` again"):
        blind_server.find_clips(tmp_path, tmp_path / "results.jsonl")
    (tmp_path / "clips.jsonl").write_text(make_clip("a").model_copy(update={"audio": "a" * 5000}).model_dump_json() + "\n")
    with pytest.raises(UserError, match="no text has two different clips to compare; run `overtone pairs` again"):
        blind_server.find_clips(tmp_path, tmp_path / "results.jsonl")


def test_clips_of_another_text_are_not_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody's folder says that clips speak what they do not."""
    clips = [write_clip(tmp_path, key) for key in "ab"]
    files.write_jsonl(tmp_path / "clips.jsonl", [clip.model_dump() for clip in clips])
    own = {"text": clips[0].text, "speaker": clips[0].speaker, "clips": [clip.audio for clip in clips]}
    files.write_jsonl(tmp_path / "trials.jsonl", [own, own])
    assert len(blind_server.find_clips(tmp_path, tmp_path / "results.jsonl")[0].trials) == 1
    assert "1 text left out, whose clips are missing, have changed, speak another text, or repeat" in capsys.readouterr().out
    for change in ({"text": "Another text."}, {"speaker": "nobody"}):
        files.write_jsonl(tmp_path / "trials.jsonl", [{**own, **change}])
        with pytest.raises(UserError, match="no text has two different clips"):
            blind_server.find_clips(tmp_path, tmp_path / "results.jsonl")


def test_two_models_are_needed(nano_export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts.txt").write_text("One.\n")
    command = [
        "serve",
        "--model",
        str(nano_export),
        "--recipe",
        "voice_clone",
        "--blind",
        str(tmp_path / "texts.txt"),
        "--port",
        str(loopback.free_port()),
    ]
    assert verbs.main(command) == 2
    assert "--blind compares two models, and 1 were given" in capsys.readouterr().err


@pytest.fixture(scope="module")
def nano_export(fresh: Any, export: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = export(fresh, "custom_voice", tmp_path_factory.mktemp("blind") / "me")
    return found


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: install Debian's chromium to test the page in a browser")
def test_a_browser_compares_by_keyboard(nano_export: Path, tmp_path: Path) -> None:
    import uvicorn
    from playwright.sync_api import sync_playwright

    exported, results, port = speech_registration.SPEECH.inspect(nano_export), tmp_path / "results.jsonl", loopback.free_port()
    spoken = blind_server.speak_texts("before", exported, TEXTS, SpeechSampling(max_seconds=0.4))
    clips = {(system, text): clip for (_, text), clip in spoken.items() for system in PAIR}
    trials = BlindTrials(make_trials(TEXTS, KEYS, "seed 0"), results)
    application = blind_server.build_app(trials, clips, AccessPolicy(None, True))
    server = uvicorn.Server(uvicorn.Config(application, web_server.LOOPBACK, port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        with sync_playwright() as tools, browser.open_view(tools) as view:
            view.goto(f"http://127.0.0.1:{port}/")
            view.get_by_text("1 of 3").wait_for()
            browser.check_look(view)
            view.keyboard.press("ArrowLeft")
            assert not results.exists(), "nothing is chosen before both were played"
            for number, key in enumerate(("ArrowLeft", "ArrowDown", "ArrowRight"), start=1):
                view.get_by_text(f"{number} of 3").wait_for()
                view.keyboard.press("1")
                view.keyboard.press("2")
                view.wait_for_selector("#left:not([disabled])")
                if number == 2:
                    view.reload()
                    view.get_by_text("2 of 3").wait_for()
                    view.keyboard.press("1")
                    view.keyboard.press("2")
                    view.wait_for_selector("#left:not([disabled])")
                view.keyboard.press(key)
                view.keyboard.press(key)
            view.get_by_text("95 % interval").wait_for()
    finally:
        server.should_exit = True
        thread.join()
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [row["choice"] for row in rows] == ["left", "same", "right"]
