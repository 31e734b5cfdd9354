"""overtone select RUN …

Chooses the best checkpoint and the best strength of a run, and writes the choice into RUN/selection, from where
`overtone export RUN --best --to FOLDER` takes it. For a voice, fixed texts are spoken by every kept checkpoint at a few strengths
and measured. For other recipes, the checkpoint with the best evaluation (`checkpoint.best_by`) is chosen.
`overtone select RUN --help` lists the options of the run's recipe.
"""

from __future__ import annotations

from pathlib import Path

from overtone.finetune.argument_parsing import check_run_exists
from overtone.finetune.cli.generate import print_help_of_recipes, print_recipe_help
from overtone.finetune.command_lines import exported_folder, overtone_command
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.monitoring.run_records import CHECKPOINTS
from overtone.finetune.recipe import choose_recipe, find_recipe, load_inference, recipe_arguments
from overtone.finetune.terminal import announce_torch, print_line


@catch_user_errors
def main(argv: list[str]) -> int:
    """Select a checkpoint of the run on the command line; returns the exit code."""
    given, rest = take_recipe(argv)
    if not rest or rest[0].startswith("-"):  # its place is fixed, because the options that follow are the recipe's
        if {"-h", "--help"} & set(rest):
            print_line(__doc__)
            print_recipe_help("select", given) if given is not None else print_help_of_recipes("select")
            return 0
        raise UserError("which run? give its folder first: `overtone select RUN …`")
    run_dir, rest = Path(rest[0]), rest[1:]
    name = find_recipe_of_run(run_dir, given)
    select = load_inference(find_recipe(name)).select
    code = select_by_evaluation(run_dir, name, rest) if select is None else select(run_dir, rest)
    if code == 0 and not {"-h", "--help"} & set(rest):
        words = [run_dir, "--best", "--to", exported_folder(run_dir), *recipe_arguments(name)]
        print_line(f"next: {overtone_command('export', *words)}")
    return code


def find_recipe_of_run(run_dir: Path, given: str | None) -> str:
    """Return the recipe of a run, or the `given` one. Raises `UserError` if there is no run, or no valid checkpoint in it."""
    check_run_exists(run_dir)
    if not (run_dir / CHECKPOINTS).is_dir():
        raise UserError(f"{run_dir} is not the folder of a run: it contains no {CHECKPOINTS}/; an export has nothing to choose from")
    announce_torch(f"the recipe of {run_dir}")
    from overtone.finetune.checkpointing import checkpoint

    newest = checkpoint.find(run_dir)
    return choose_recipe(newest / "state.json", checkpoint.read_state(newest)["recipe"], given)


def take_recipe(argv: list[str]) -> tuple[str | None, list[str]]:
    """Return the value of --recipe, and all other arguments. Raises `UserError` if it has none."""
    for at, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if flag == "--recipe":
            if not equals and at + 1 == len(argv):
                raise UserError("--recipe: which one? give the folder of the recipe")
            return (value, argv[:at] + argv[at + 1 :]) if equals else (argv[at + 1], argv[:at] + argv[at + 2 :])
    return None, argv


def select_by_evaluation(run_dir: Path, recipe: str, rest: list[str]) -> int:
    """Select the checkpoint with the best evaluation, and print the values. Raises `UserError` for further arguments."""
    if {"-h", "--help"} & set(rest):
        print_line(f"the recipe {recipe} has no options for `select`: the best evaluation (`checkpoint.best_by`) decides")
        return 0
    if rest:
        raise UserError(f"{rest[0]}: {explain_unused_option(recipe)}")
    from overtone.finetune.exporting import evaluation_selection

    print_line(evaluation_selection.select_by_evaluation(run_dir).render_report())
    return 0


def explain_unused_option(recipe: str) -> str:
    """Return why an option of a selection by generated output has no use."""
    return f"the recipe {recipe} generates nothing for `select`; its checkpoints are compared by their evaluations"
