"""Training in the cells of a real Jupyter kernel: progress, errors and interrupts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.finetune import tiny
from tests.launch.launching import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.ci]
PREPARE = f"""
import overtone
from overtone.finetune.training import run
from tests.overtone.test_training import make_settings
from pathlib import Path
run.draw_curve = lambda *_: None  # takes longer than the training
def train(folder, **more):
    return overtone.train({str(tiny.FOLDER)!r}, make_settings(Path(folder), **more))
"""


@dataclass(frozen=True)
class CellOutput:
    """What a notebook shows below a cell."""

    text: str
    """Of both standard streams."""
    error: str
    """Name of the exception and its message; empty without one."""
    value: str
    """Of the last expression."""


@dataclass(frozen=True)
class Notebook:
    """A kernel, and its client."""

    manager: KernelManager
    client: BlockingKernelClient

    def run_cell(self, code: str, watch: Callable[[str], None] = lambda _: None) -> CellOutput:
        """Run a cell to its end. `watch` gets all that the cell has printed so far, whenever it prints."""
        sent, text, error, value = self.client.execute(code), "", "", ""
        while True:
            message = self.client.get_iopub_msg(timeout=120)
            content = message["content"]
            if message["parent_header"].get("msg_id") != sent:
                continue
            match message["msg_type"]:
                case "stream":
                    text += content["text"]
                    watch(text)
                case "error":
                    error = f"{content['ename']}: {content['evalue']}"
                case "execute_result":
                    value = content["data"]["text/plain"]
                case "status" if content["execution_state"] == "idle":
                    return CellOutput(text, error, value)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    folder = tmp_path_factory.mktemp("my notebooks")
    home = {name: str(folder / name) for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")}
    manager = KernelManager()
    manager.start_kernel(cwd=str(folder), env={**os.environ, **home, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        opened = Notebook(manager, client)
        assert opened.run_cell(PREPARE).error == ""
        yield opened
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_cell_trains_twice_and_shows_progress_without_control_characters(notebook: Notebook) -> None:
    first = notebook.run_cell("first = train('one')")
    again = notebook.run_cell("again = train('two'); (first.losses == again.losses, again.state)")
    assert first.error == again.error == "" and again.value == "(True, 'finished')"
    for cell in (first, again):
        assert "\nstep 4/4  loss " in cell.text and "validation loss" in cell.text
        assert not [letter for letter in cell.text if not letter.isprintable() and letter != "\n"]


def test_an_error_is_its_sentence_and_the_kernel_lives(notebook: Notebook) -> None:
    cell = notebook.run_cell("train('three', **{'train.lrr': 1})")
    assert cell.error.startswith("UserError: the configuration has problems:")
    assert "settings['train.lrr']: unknown key train.lrr; did you mean train.lr?" in cell.error
    assert notebook.run_cell("train('three').state").value == "'finished'"


def test_an_interrupt_saves_and_the_kernel_lives(notebook: Notebook) -> None:
    waiting = True

    def interrupt(text: str) -> None:
        nonlocal waiting
        if waiting and "\nstep 10: " in text:  # with the estimate of the time that is left
            waiting = False
            notebook.manager.interrupt_kernel()

    long = "{'train': {'steps': 10**6, 'lr': 0.01}, 'log.every': 1, 'eval.every': 10**6, 'checkpoint.every': 10**6}"
    cell = notebook.run_cell(f"train('four', **{long})", interrupt)
    assert not waiting and cell.error.startswith("KeyboardInterrupt"), cell
    found = notebook.run_cell("stopped = overtone.open_run('four/run'); (stopped.state, [*stopped.checkpoints] == [stopped.step])")
    assert found.value == "('stopped', True)", found
    resumed = notebook.run_cell(f"train('four', **{{**{long}, 'train': {{'steps': stopped.step + 1, 'lr': 0.01}}}}).step - stopped.step")
    assert resumed.value == "1", resumed
