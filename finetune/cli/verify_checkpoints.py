"""overtone check RUN

Verify all checkpoints of a run: reads every byte and reports which checkpoints are valid, which are damaged, and why. Exit code 0 if all
are valid, 2 if one is damaged or there is none.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from overtone.finetune.argument_parsing import check_run_exists, parse_arguments, refuse_dataset
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line


@catch_user_errors
def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "overtone check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    run_dir: Path = parse_arguments(parser, argv).run
    check_run_exists(run_dir)
    return check(run_dir)


def check(run_dir: Path) -> int:
    """Verify all checkpoints, print the result, and return the exit code. Raises `UserError` if there is no checkpoint.

    It only reads, so it may run while the run is training.
    """
    from overtone.finetune.checkpointing import checkpoint

    folder = checkpoint.folder_of(run_dir)
    problems = {path: checkpoint.find_problem(path) for path in checkpoint.list_checkpoints(folder)}
    if not problems:
        refuse_dataset(run_dir, "check-dataset")
        raise UserError(f"{run_dir} contains no checkpoint; give the folder of a run, which contains checkpoints/")
    for path, problem in problems.items():
        print_line(f"{path.name}  {describe(path) if problem is None else f'damaged: {problem}'}")
    for path in files.list_unfinished(folder):
        print_line(f"{path.name}  unfinished: a save in progress, or one that was killed; the run removes it at its next start")
    newest = next((path for path, problem in problems.items() if problem is None), None)
    print_line(f"the run can resume from {newest.name}" if newest else "the run cannot resume: no checkpoint is valid")
    return 0 if not any(problems.values()) else 2


def describe(path: Path) -> str:
    """Return one line about a valid checkpoint."""
    from overtone.finetune.checkpointing import checkpoint

    state = checkpoint.read_state(path)
    size = sum(file.stat().st_size for file in path.iterdir())
    loss = state["validation_loss"]
    measured = "" if loss is None else f", validation loss {loss:.4f}"
    return f"valid: {size:,} bytes, saved by {state['world']} × {state['strategy']}{measured}"
