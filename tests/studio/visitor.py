"""A person at a browser who goes the whole way through a studio by visible labels, and the same way again by the shown commands."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe

from tests import browser, loopback
from tests.studio.serving import ROOT, start_studio

BIN = Path(sys.executable).parent
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]


def make_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a studio and of its commands in a terminal."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return {**kept, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}


def wait_for_state(view: Any, state: str) -> None:
    """Wait until the page of a job shows a state; it may take minutes on a busy machine."""
    end = time.monotonic() + 600
    while (found := view.locator("#state").inner_text().strip()) != state:
        assert time.monotonic() < end and found not in ("failed", "lost"), view.locator("#log").inner_text()
        view.wait_for_timeout(100)


class Visitor:
    """A person at a browser, a studio that may be killed meanwhile, and a terminal in another folder."""

    def __init__(self, view: Any, place: Path, terminal: Path, environment: Mapping[str, str]) -> None:
        self.view, self.place, self.terminal, self.environment = view, place, terminal, environment
        self.port = loopback.free_port()
        self.studio = start_studio(place, self.port, environment)
        self.commands = list[str]()

    def restart(self) -> None:
        """Kill the studio and start it again."""
        self.studio.send_signal(signal.SIGKILL)
        self.studio.wait()
        self.studio = start_studio(self.place, self.port, self.environment)

    def go_home(self) -> None:
        self.view.goto(f"http://127.0.0.1:{self.port}/")

    def follow(self, label: str) -> None:
        self.view.get_by_role("link", name=label).click()
        self.view.wait_for_load_state()

    def drop(self, *paths: Path) -> None:
        """Give files to the page of a folder, and show the folder with them."""
        self.view.wait_for_load_state()  # the scripts of the page receive the files
        self.view.get_by_label("Choose files").set_input_files([str(path) for path in paths])
        self.view.get_by_role("link", name="Show the folder").wait_for()

    def start(self, button: str) -> str:
        """Press a button that starts a job, keep the command that the form shows, and return the job's id."""
        form = self.view.locator("form", has=self.view.get_by_role("button", name=button, exact=True))
        shown = form.locator("pre code")
        browser.wait_until(self.view, "(form) => document.querySelector(form).textContent !== ''", f"#{shown.get_attribute('id')}")
        self.view.wait_for_timeout(600)  # the form shows its command a moment after the last key
        command = shown.inner_text()
        self.view.get_by_role("button", name=button, exact=True).click()
        self.view.wait_for_url("**/job/*")
        assert self.view.locator("#command").inner_text() == command
        self.commands.append(command)
        return str(self.view.url.rpartition("/")[2])

    def do(self, button: str) -> str:
        """Start a job, wait until it is done, and return its id."""
        id = self.start(button)
        wait_for_state(self.view, "done")
        return id

    def check_page(self) -> None:
        """Fails if the page does not fit, or axe finds something serious, in light or dark."""
        browser.check_look(self.view)
        for scheme in ("light", "dark"):
            self.view.emulate_media(color_scheme=scheme)
            found = Axe().run(self.view, options={"runOnly": RULES}).response["violations"]
            serious = [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
            assert serious == [], (self.view.url, scheme, serious)
        self.view.emulate_media(color_scheme="light")

    def run_shown(self) -> list[str]:
        """Run the commands that the pages showed, in the other folder; returns what they print."""
        return [run(self.environment, self.terminal, *shlex.split(command)) for command in self.commands]


def run(environment: Mapping[str, str], folder: Path, *words: str) -> str:
    """Run a command in a terminal; returns what it prints."""
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def open_visit(tools: Any, folder: Path, more: Mapping[str, str] = {}, name: str = "models") -> Iterator[Visitor]:
    """A visitor of a studio in an empty folder of this name. `more`: variables of the environment."""
    place, terminal = folder / "studio" / name, folder / "terminal" / name
    for one in (place, terminal):
        one.mkdir(parents=True)
    with browser.open_view(tools, viewport={"width": 1280, "height": 900}, expected="net::ERR", reduced_motion="reduce") as view:
        found = Visitor(view, place, terminal, make_environment(more))
        try:
            yield found
        finally:
            found.studio.kill()


def read_folder(folder: Path) -> dict[str, bytes]:
    """The content of all files that are not hidden, without the times of the runs."""
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if "/." not in name and path.name != "run.json"}
