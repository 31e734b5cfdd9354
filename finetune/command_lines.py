"""Command lines to print for users: quoted for the shell, and valid in a clone and for an installed copy. Imports no torch."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from overtone.finetune.addresses import hide_word

PACKAGE = Path(__file__).resolve().parent
PROGRAM = "overtone"
VERBS = ("train", "overtone.finetune.train")
"""Words that mark the command of a training, besides the path of train.py."""
SCRIPTS = ("overtone", "finetune", "accelerate", "torchrun", "train.py")
MODULES = ("overtone", "finetune", "overtone.finetune", "overtone.finetune.train", "accelerate.commands.launch", "torch.distributed.run")
INTERPRETER_FLAGS = ("-u", "-O", "-B", "-I", "-s", "-E")


def join_words(words: Iterable[object]) -> str:
    """Words as one command line for a shell, without the secrets of addresses: it is printed, and people share what is printed."""
    return shlex.join(hide_word(str(word)) for word in words)


def overtone_command(verb: str, *words: object) -> str:
    """Return a command line of a verb."""
    return join_words([*_find_program(), verb, *words])


def _find_program() -> list[str]:
    """The words that start `overtone` of this environment: its name if a shell finds that one, or its path; without it, the interpreter."""
    own, found = Path(sys.executable).with_name(PROGRAM), shutil.which(PROGRAM)
    if own.is_file() and (found is None or not own.samefile(found)):
        return [str(shorten_path(own))]
    return ["python", "-m", PROGRAM] if found is None else [PROGRAM]


def export_command(run_dir: Path, recipe_arguments: Sequence[str], step: int | None = None) -> str:
    """Return the command that exports a run: its newest checkpoint, or that of a step. `recipe_arguments`: as in
    `overtone.finetune.recipe`."""
    chosen = [] if step is None else ["--step", step]
    return overtone_command("export", run_dir, *chosen, "--to", exported_folder(run_dir), *recipe_arguments)


def exported_folder(run_dir: Path) -> Path:
    """Return the folder that printed commands export a run to."""
    return Path("exports") / run_dir.name


def launch_command(config_file: object, launcher: Sequence[object], arguments: Sequence[object]) -> str:
    """Return the command that trains on several processes. `launcher`: flags of accelerate. `arguments`: those of the training."""
    return join_words(["accelerate", "launch", "--config_file", config_file, *launcher, *training_script(), *arguments])


def training_script() -> list[str]:
    """Return what accelerate starts: train.py of a clone by its path, the module of an installed copy."""
    is_clone = (PACKAGE.parent / "overtone").is_dir()
    return [str(shorten_path(PACKAGE / "train.py"))] if is_clone else ["-m", "overtone.finetune.train"]


def launch_file(name: str) -> Path:
    """Return the path of a shipped launch file, relative to the current folder if it is below."""
    return shorten_path(configs_folder() / name)


def configs_folder() -> Path:
    """Return the folder of the launch files."""
    return PACKAGE.parent / "configs"


def shorten_path(path: Path) -> Path:
    """Return the path relative to the current folder if it is below, otherwise absolute."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def find_own_command() -> str | None:
    """Return the command that started this training, with its launcher; None if it was not started from a command line."""
    for words in (_words_of_parent(), sys.orig_argv):
        if _find_arguments(words) is not None:
            return join_words(_without_interpreter(words))
    return None


def find_own_arguments() -> list[str] | None:
    """Return the arguments of this training, without what started it; None if it was not started from a command line."""
    return _find_arguments(sys.orig_argv)


def _find_arguments(words: Sequence[str]) -> list[str] | None:
    """Return what follows the training's script, module or verb in a command line; None if it starts no training."""
    if not words or not Path(words[0]).name.startswith("python"):
        return None
    rest = list(itertools.dropwhile(lambda word: word in INTERPRETER_FLAGS, words[1:]))
    started = rest[1:2] if rest[:1] == ["-m"] else [Path(word).name for word in rest[:1]]
    if not started or started[0] not in (*SCRIPTS, *MODULES):
        return None
    return next((rest[place + 1 :] for place, word in enumerate(rest) if word in VERBS or Path(word).name == "train.py"), None)


def _words_of_parent() -> list[str]:
    """Command line of the parent process, which may be the launcher; empty if it cannot be read."""
    try:
        line = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in line.split(b"\0")[:-1]]


def _without_interpreter(words: Sequence[str]) -> Sequence[str]:
    """`/opt/venv/bin/python /opt/venv/bin/accelerate launch …` as it was typed: `accelerate launch …`."""
    script = Path(words[1])
    if script.name not in SCRIPTS or script.suffix:
        return words
    found = shutil.which(script.name)
    return [script.name if found is not None and Path(found) == script else str(script), *words[2:]]
