"""Run the notebooks of docs/notebooks from top to bottom, each in a folder of its own: `make test-notebooks`.

    .venv-tools/bin/python workshop/notebooks.py [--write] [NAME …]

The kernel is that of the environment that the notebook needs, on the CPU. An error in a cell ends with its traceback and exit code 1.
`--write` stores what the cells print in the notebook, without paths of this machine and without sounds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "notebooks"
ENVIRONMENTS = {"clone_a_voice": ".venv", "tune_a_chat_model": ".venv-chat", "learn_preferences": ".venv-chat"}
"""Notebook → environment of its kernel."""
SECONDS = 1800
"""Longest time of a cell."""
LINES = 60
"""Lines of an output that are stored."""
LARGEST = 40_000
"""Characters of an output that is stored; a player with its sound has more."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("names", nargs="*", choices=[[], *ENVIRONMENTS], metavar="NAME", help="all of them if none is named")
    parser.add_argument("--write", action="store_true", help="store the outputs in the notebooks")
    flags = parser.parse_args(argv)
    for name in flags.names or ENVIRONMENTS:
        run(name, flags.write)
    return 0


def run(name: str, write: bool) -> None:
    """Run one notebook. Raises `CellExecutionError` for an error in a cell."""
    import nbformat
    from nbclient import NotebookClient

    path = FOLDER / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        kernel, work = home / "jupyter" / "kernels" / "python3", home / "work"
        kernel.mkdir(parents=True)
        work.mkdir()
        python = ROOT / ENVIRONMENTS[name] / "bin" / "python"
        argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}), encoding="utf-8")
        os.environ.update({"JUPYTER_PATH": str(home / "jupyter"), "IPYTHONDIR": str(home / "ipython")})
        os.environ.update({"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
        place = {"metadata": {"path": str(work)}}
        NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=place, record_timing=False).execute()
        if write:
            path.write_text(clean(nbformat.writes(notebook), work) + "\n", encoding="utf-8")


def clean(text: str, home: Path) -> str:
    """The JSON of a notebook that ran in `home` without what depends on this machine: paths, versions, ids; and without sounds and
    progress bars. What a cell printed comes first."""
    notebook = json.loads(text)
    for number, cell in enumerate(notebook["cells"]):
        cell["id"] = f"cell-{number}"
        printed = "".join("".join(output["text"]) for output in cell.get("outputs", ()) if output.get("name") == "stdout")
        shown = [output for output in cell.get("outputs", ()) if output["output_type"] != "stream"]
        for output in shown:
            output["data"] = {kind: text for kind, text in output["data"].items() if len("".join(text)) <= LARGEST}
        if cell["cell_type"] == "code":
            lines = shorten(hide_paths(printed, home).splitlines(keepends=True))
            cell["outputs"] = [*([{"output_type": "stream", "name": "stdout", "text": lines}] if lines else []), *shown]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook["metadata"] = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return json.dumps(notebook, indent=1, ensure_ascii=False)


def shorten(lines: list[str]) -> list[str]:
    """The lines without the middle of a long progress."""
    return lines if len(lines) <= LINES else [*lines[: LINES // 2], "…\n", *lines[-LINES // 2 :]]


def hide_paths(text: str, home: Path) -> str:
    """The text with the paths in `home`, in an environment and in the repository made relative, and the user's folder as `~`."""
    text = text.replace(f"{home}/", "").replace(str(home), ".")
    return re.sub(rf"{re.escape(str(ROOT))}/\.venv[\w-]*/bin/", "", text).replace(f"{ROOT}/", "").replace(f"{Path.home()}/", "~/")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
