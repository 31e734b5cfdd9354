"""python -m finetune check RUN

Reads every byte of every checkpoint of a run and says which could be gone on from, which are damaged, and why. Exit code 0 if all are
whole, 2 if one is damaged or there is none.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # started as a file: the first entry of the path is finetune/, where `import finetune` finds nothing
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import argparse

from finetune import files
from finetune.errors import UserError, exit_code


def main(argv: list[str]) -> int:
    return exit_code(run, argv)


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("finetune check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    return check(parser.parse_args(argv).run)


def check(run_dir: Path) -> int:
    """Verify and print; returns the exit code. Changes nothing, so it may run beside the training. Raises `UserError` if there is none."""
    from finetune import checkpoint

    folder = checkpoint.folder_of(run_dir)
    problems = {path: checkpoint.problem_with(path) for path in checkpoint.steps_in(folder)}
    if not problems:
        raise UserError(f"{run_dir} holds no checkpoint; give a run's folder, the one that holds checkpoints/")
    for path, problem in problems.items():
        print(f"{path.name}  {describe(path) if problem is None else f'damaged: {problem}'}")
    for path in files.unfinished(folder):
        print(f"{path.name}  unfinished: a save that is going on, or was killed; the next start of the run removes it")
    newest = next((path for path, problem in problems.items() if problem is None), None)
    print(f"the run can go on from {newest.name}" if newest else "nothing here can be gone on from")
    return 0 if not any(problems.values()) else 2


def describe(path: Path) -> str:
    """A good checkpoint in a line."""
    from finetune import checkpoint

    state = checkpoint.read_state(path)
    size = sum(file.stat().st_size for file in path.iterdir())
    loss = state.get("validation_loss")
    measured = "" if loss is None else f", validation loss {loss:.4f}"
    return f"good: {size:,} bytes, saved by {state['world']} × {state['strategy']}{measured}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
