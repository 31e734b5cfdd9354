"""From a file of chats dropped on an empty studio to an answer, by visible labels alone, with the studio killed on the way.

The base is a tiny model of a hub on this machine, to which the export is published. The same commands, copied from the pages and run in a
terminal, write the same files.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from overtone.studio.jobs import job_records
from tests import loopback
from tests.browser import CHROMIUM
from tests.data_prep.conftest import MARKUP
from tests.finetune import fake_hub
from tests.studio.visitor import Visitor, make_environment, open_visit, read_folder, run, wait_for_state
from tests.studio.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")]

SETTINGS = {
    "train.steps": "48", "train.lr": "4e-3", "train.micro_tokens": "512", "eval.every": "8", "checkpoint.every": "8",
}  # fmt: skip
MORE_SETTINGS = {"train.global_batch_tokens": "1024", "train.weight_decay": "0"}
BROWSERS = 8


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[fake_hub.Hub]:
    with fake_hub.opened() as hub:
        run(make_environment({}), tmp_path, "python", "-m", "overtone.recipes.llm_sft.model.tiny_checkpoint", "tiny")
        hub.add("maker/tiny", tmp_path / "tiny")
        yield hub


def test_chats_become_an_assistant(tmp_path: Path, hub: fake_hub.Hub) -> None:
    from playwright.sync_api import sync_playwright

    rows = [
        {"messages": [{"role": "user", "content": f"Question {one}"}, {"role": "assistant", "content": f"{MARKUP} {one}"}]}
        for one in range(40)
    ]
    rows += [rows[0], {"messages": [{"role": "user", "content": "no answer"}]}]
    given = tmp_path / f"{MARKUP.replace('/', '_')}.jsonl"
    given.write_text("".join(json.dumps({**row, "<b>more</b>": 1}) + "\n" for row in rows))
    more = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": fake_hub.TOKEN, "HF_HUB_DISABLE_XET": "1"}
    with sync_playwright() as tools, open_visit(tools, tmp_path, more, name="<b>my & models") as visitor:
        prepare_chats(visitor, given)
        train_model(visitor)
        choose_and_answer(visitor)
        publish(visitor, hub)
        follow_in_many_browsers(visitor)
        compare(visitor)
        serve(visitor)


def prepare_chats(visitor: Visitor, given: Path) -> None:
    view = visitor.view
    visitor.go_home()
    visitor.check_page()
    visitor.follow("New assistant")
    visitor.check_page()
    view.get_by_label("Name").fill("us")
    view.get_by_role("button", name="Make the folder").click()
    view.wait_for_url("**/chats/folder?*")
    visitor.drop(given)
    visitor.follow("Show the folder")
    view.get_by_label("Share for validation, 0 to 1").fill("0.1")
    visitor.check_page()
    visitor.do("Make the dataset")
    visitor.follow("Open the dataset")
    visitor.check_page()
    assert "the same as another" in view.locator("main").text_content() and view.locator("dd.learned").count() == 10
    visitor.follow("Next page")
    view.get_by_text("Page 2").wait_for()
    view.get_by_label("Search").fill("question 17")
    view.get_by_role("button", name="Search").click()
    view.get_by_text("Page 1").wait_for()
    assert view.locator("ol.turns > li").count() == 1 and view.locator("dd.learned").text_content() == f"{MARKUP} 17"
    visitor.follow("Rejected")
    view.get_by_text("rejects.jsonl:1", exact=True).wait_for()
    visitor.check_page()
    visitor.do("Make the report")
    visitor.follow("Show the report")
    assert view.get_by_role("heading", name="Lengths and turns").count() == 1 and view.locator("img").count() == 0


def train_model(visitor: Visitor) -> None:
    view, place = visitor.view, visitor.place
    visitor.go_home()
    view.get_by_role("region", name="Datasets").get_by_role("link", name="Train").click()
    view.get_by_label("Base model").fill("maker/tiny")
    view.get_by_label("Name of the run").fill("mine")
    for key, value in SETTINGS.items():
        view.get_by_label(key, exact=True).fill(value)
    view.get_by_text("All other settings").click()
    for key, value in MORE_SETTINGS.items():
        view.get_by_label(key, exact=True).fill(value)
    view.get_by_label("train.precision", exact=True).select_option("fp32")
    visitor.check_page()
    id = visitor.start("Start training")
    view.get_by_role("log").get_by_text("step 0: validation loss").wait_for()
    wait_for(lambda: list((place / "runs" / "mine" / "checkpoints").glob("step-*")))
    view.get_by_role("button", name="Save and stop").click()
    wait_for_state(view, "stopped")
    job = job_records.read_job(place, id)
    assert job is not None and job.end is not None and job.end.stopped
    visitor.check_page()
    view.get_by_role("button", name="Resume").click()
    view.wait_for_url(lambda url: not url.endswith(id))
    visitor.restart()  # the job runs on; the page finds the studio again by itself
    view.reload()
    wait_for_state(view, "done")
    visitor.check_page()
    visitor.follow("Curves and samples")
    assert view.get_by_role("img", name="Loss by step").count() == 1 and view.get_by_role("img", name="Learning rate by step").count() == 1
    visitor.check_page()


def choose_and_answer(visitor: Visitor) -> None:
    view = visitor.view
    visitor.go_home()
    view.get_by_role("region", name="Runs").get_by_role("link", name="Choose and export").click()
    visitor.check_page()
    visitor.start("Choose the best")
    visitor.restart()
    view.reload()
    wait_for_state(view, "done")
    visitor.follow("Choose and export")
    assert view.get_by_role("combobox", name="Checkpoint").input_value() == "best"
    view.get_by_label("Name of the export").fill("mine")
    visitor.do("Export")
    visitor.follow("Use the model")
    view.get_by_label("Question").fill("reverse: <b>abc")
    view.get_by_label("Most tokens of an answer").fill("8")
    visitor.check_page()
    visitor.start("Answer")
    visitor.restart()
    view.reload()
    wait_for_state(view, "done")


def publish(visitor: Visitor, hub: fake_hub.Hub) -> None:
    visitor.follow("Back to the model")
    visitor.view.get_by_label("Repository, as owner/name").fill("me/mine")
    visitor.do("Publish")
    folder = visitor.place / "exports" / "mine"
    assert hub.private["me/mine"] and hub.repositories["me/mine"] == {path.name: path.read_bytes() for path in folder.iterdir()}
    records = [path for path in (visitor.place / ".studio").rglob("*") if path.is_file()]
    assert records and not any(fake_hub.TOKEN.encode() in path.read_bytes() for path in records)


def follow_in_many_browsers(visitor: Visitor) -> None:
    trainings = [one for one in job_records.list_jobs(visitor.place) if one.command.verb == "train"]
    pages = [visitor.view.context.new_page() for _ in range(BROWSERS)]
    for page in pages:
        page.goto(f"http://127.0.0.1:{visitor.port}/job/{trainings[0].id}")
    for page in pages:
        page.get_by_role("log").get_by_text("validation loss").first.wait_for()
        page.close()


def compare(visitor: Visitor) -> None:
    """The terminal has nothing but the file that was dropped."""
    place, terminal = visitor.place, visitor.terminal
    assert [shlex.split(one)[1] for one in visitor.commands] == ["text", "report", "train", "select", "export", "generate", "export"]
    shutil.copytree(place / "chats", terminal / "chats")
    *_, answer, _ = visitor.run_shown()
    assert read_folder(place / "data") == read_folder(terminal / "data")
    found, expected = read_folder(place / "exports"), read_folder(terminal / "exports")
    for card in ("README.md", "overtone.json"):  # they name the checkpoint, whose record says that the run was resumed
        assert found.pop(f"mine/{card}") and expected.pop(f"mine/{card}")
    assert len(found) >= 5 and found == expected
    weights = sorted((terminal / "runs" / "mine" / "checkpoints").glob("step-00000048/*.safetensors"))  # of a run without a stop
    assert weights and all(path.read_bytes() == (place / path.relative_to(terminal)).read_bytes() for path in weights)
    (answered,) = (one for one in job_records.list_jobs(place) if one.command.verb == "generate")
    assert f"\n{answer}" in (answered.folder / job_records.LOG).read_text()  # a note on standard error may follow


def serve(visitor: Visitor) -> None:
    view = visitor.view
    visitor.go_home()
    view.get_by_role("region", name="Exports").get_by_role("link", name="Use").click()
    id = visitor.start("Start the server")
    address = view.get_by_role("link", name="Open its page")
    address.wait_for()
    assert loopback.ask(address.get_attribute("href") or "")[0] == 200
    view.get_by_role("button", name="Stop", exact=True).click()
    wait_for_state(view, "stopped")
    job = job_records.read_job(visitor.place, id)
    assert job is not None
    wait_for(lambda: not job_records.holds_lock(job.folder / job_records.LOCK))  # the runner ends a moment after it records the end
