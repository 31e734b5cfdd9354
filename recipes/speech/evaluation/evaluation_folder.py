"""The folder of an evaluation: its default place, the names of the result files, and what may be in it before."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from overtone.finetune.errors import UserError
from overtone.finetune.storage.hub_download import commit_of
from overtone.recipes.speech.evaluation import systems

SEED_TTS_EVAL = "seed-tts-eval"
JSON, MARKDOWN, PAGE, CLIPS = "evaluation.json", "evaluation.md", "evaluation.html", "clips"
OWN = re.compile(r"(evaluation|seed-tts-eval)\.(json|md|html)|clips|scores|export-\d+|\..*")
"""Names of everything that an evaluation writes into its folder, temporary files included."""


def choose_out(model: Path, out: Path | None) -> Path:
    """`--out`, or by default the first folder beside the model that holds no complete evaluation, so that none is ever replaced."""
    if out is not None:
        return out
    first = default_out(model)
    names = (first if number == 1 else first.with_name(f"{first.name}-{number}") for number in itertools.count(1))
    return next(folder for folder in names if find_result(folder) is None and not find_others(folder))


def default_out(model: Path) -> Path:
    """Inside a run; beside an exported model, which is published as it is; in the working folder for a model of the hub's cache."""
    if commit_of(model) is not None:
        return Path("evaluation")
    if systems.is_run(model):
        run = model.parent.parent if model.parent.name == "checkpoints" else model
        return run / "evaluation"
    return model.absolute().with_name(f"{model.absolute().name}-evaluation")


def check_out(out: Path, with_clips: bool = False) -> None:
    """Raises `UserError` for a folder with files that no evaluation wrote, or with a complete evaluation; one that was killed is continued
    from its beginning. `with_clips`: the clips of a complete evaluation are needed."""
    if others := find_others(out):
        raise UserError(f"--out {out}: contains files that are not of an evaluation ({others[0]}); choose another folder")
    result = find_result(out)
    if result is not None and not with_clips:
        raise UserError(f"--out {out}: contains an evaluation ({result.name}); choose another folder, or remove this one")


def find_others(out: Path) -> list[str]:
    """Names in a folder of files that no evaluation writes."""
    return [path.name for path in (out.iterdir() if out.is_dir() else [out] if out.exists() else []) if not OWN.fullmatch(path.name)]


def find_result(out: Path) -> Path | None:
    """The result of a complete evaluation in a folder; None without one."""
    return next((path for path in (out / JSON, out / f"{SEED_TTS_EVAL}.json") if path.exists()), None)
