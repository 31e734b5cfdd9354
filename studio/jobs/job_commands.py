"""Commands that a job may run: the verbs and flags that the pages write, with values that stay in the folder of the studio."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from overtone.data_prep.transcription.faster_whisper_engine import PREFIX
from overtone.finetune import command_lines, launcher
from overtone.finetune.addresses import hide_word
from overtone.finetune.argument_parsing import check_choice
from overtone.finetune.config import Config, list_command_line_keys
from overtone.finetune.config_diff import flatten
from overtone.finetune.config_sources import Arguments, parse_overrides, read_config_file
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import built_in_recipes
from overtone.finetune.recipe.discovery import find_recipe, load_options
from overtone.finetune.storage import input_files
from overtone.finetune.terminal import printable
from overtone.studio.uploads.speaker_consent import require_consent

QUEUED = ("voice", "codes", "train", "select", "eval-voice", "generate")
"""Verbs that need the GPU or all cores: one at a time."""
SERVERS = ("serve",)
"""Verbs that run until they are stopped."""
Kind = Literal["path", "text", "switch"]
"""Kind of the value of a flag. A path may also be the name of a model; nobody reads a text as a path; a switch has no value."""
FLAGS: dict[str, dict[str, Kind]] = {
    "voice": {
        **dict.fromkeys(("--out", "--whisper"), "path"),
        **dict.fromkeys(("--speaker", "--speaker-from", "--language", "--preset", "--device"), "text"),
        **dict.fromkeys(("--transcripts", "--dry-run"), "switch"),
    },
    "codes": {"--model": "path"},
    "text": {
        "--out": "path",
        **dict.fromkeys(("--rows", "--shape", "--columns", "--as", "--val-share"), "text"),
        **dict.fromkeys(("--raw", "--join-turns"), "switch"),
    },
    "report": {"--tokenizer": "path"},
    "train": {},
    "plan": {"--show-batch": "switch"},
    "select": {"--data": "path", "--asr": "path"},
    "eval-voice": dict.fromkeys(("--model", "--data", "--asr", "--out"), "path"),
    "export": {
        **dict.fromkeys(("--to", "--push-to-hub"), "path"),
        **dict.fromkeys(("--step", "--format", "--strength", "--quantize"), "text"),
        **dict.fromkeys(("--best", "--adapter-only", "--private"), "switch"),
    },
    "generate": {
        **dict.fromkeys(("--model", "--text-file", "--prompt-file", "--out"), "path"),
        **dict.fromkeys(("--text", "--prompt", "--system", "--speaker", "--max-new-tokens"), "text"),
    },
    "serve": {**dict.fromkeys(("--model", "--base", "--blind"), "path"), "--port": "text"},
}
"""Verb → its flags that the pages write. All others are refused, also those that argparse would complete. `train` and `plan` also take the
keys of the config."""
CONFIGURED = ("train", "plan")
LAUNCHING = ("--launch", "--num_processes")
"""Flags of both for several processes of this machine."""
SECTIONS = frozenset(Config.model_fields) - {"recipe"}
PUBLISHING = ("checkpoint.copy_to",)
"""Keys that send files to another machine."""
LOCAL_TRACKERS = ("tensorboard",)
TEXT_KEYS = ("model.lora.targets", "options.speaker")
"""Keys whose text nobody reads as a path; and `sample.prompts`, except for `FILE_PROMPTS`."""
FILE_PROMPTS = ("whisper", "image_classification")
"""Recipes whose prompts are files."""
LONGEST_WORD = 20_000
MOST_WORDS = 500
MOST_PROCESSES = 1024
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*::?//", re.IGNORECASE)


def check_command(place: Path, verb: str, words: Sequence[str]) -> None:
    """Raise `UserError` for a command that the studio does not start: another verb or flag, a recipe that is code of its own, a path
    outside of `place`, also through a link, or recordings without the consent of their speaker. A job's record may come from a downloaded
    folder, so it is checked before each start."""
    if verb not in FLAGS:
        raise UserError(f"the studio does not start `overtone {verb}`; its verbs are {', '.join(FLAGS)}")
    if len(words) > MOST_WORDS:
        raise UserError(f"a command of {len(words)} words; the studio starts commands of up to {MOST_WORDS}")
    for word in words:
        if len(word) > LONGEST_WORD or "\0" in word:
            raise UserError(f"a word of the command has {len(word)} characters or a null character; shorten {word[:40]!r}")
    options = [*split_words(verb, words)]
    if verb in CONFIGURED:
        _check_config(place, verb, options)
        return
    for flag, value in options:
        if not flag or FLAGS[verb][flag] == "path":
            _check_path(place, value)
    for flag, value in options:
        if not flag and verb == "voice":
            require_consent(place, value)


def split_words(verb: str, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (flag, value) of the words of a command, with an empty flag for a word without one, and an empty value for a switch. Raises
    `UserError` for a flag that the studio does not write, and for one without its value."""
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if not word.startswith("-"):
            yield "", word
            continue
        is_setting = flag[2:].partition(".")[0] in SECTIONS and "." in flag
        is_key = verb in CONFIGURED and (is_setting or flag in ("--recipe", *LAUNCHING))
        if not is_key and flag not in FLAGS[verb]:
            raise UserError(f"the studio does not start `overtone {verb}` with {flag[:80]}; start this command in a terminal")
        if FLAGS[verb].get(flag) == "switch":
            if equals:
                raise UserError(f"{flag} has no value; remove {word[:80]!r}")
            yield flag, ""
            continue
        given = value if equals else next(rest, None)
        if given is None or (not equals and re.match(r"-(?![0-9.])", given)):
            raise UserError(f"{flag} needs a value; write one that begins with a dash as {flag}=VALUE")
        yield flag, given


def _check_config(place: Path, verb: str, options: Sequence[tuple[str, str]]) -> None:
    """Check the words of a training by their values, as its config reads them from YAML."""
    recipes = [value for flag, value in options if flag == "--recipe"]
    for recipe in recipes:
        check_choice("--recipe", recipe, built_in_recipes())
    known = [load_options(find_recipe(recipe)) for recipe in recipes or built_in_recipes()]
    code = {key for each in known for key, _ in list_command_line_keys(each, "options.")}
    launching = list[tuple[str, str]]()
    texts = (*TEXT_KEYS, *(() if not recipes or {*recipes} & {*FILE_PROMPTS} else ("sample.prompts",)))
    for flag, text in options:
        if not flag:
            raise UserError(f"unexpected word {text[:80]!r} of `overtone {verb}`; values follow a flag, as in --train.lr 1e-5")
        if flag == "--recipe" or flag in FLAGS[verb]:
            continue
        if flag in LAUNCHING:
            launching.append((flag[2:], text))
            continue
        for key, value in flatten(parse_overrides([(flag[2:], text)]).values).items():
            if value is not None and key in (*code, *PUBLISHING):
                raise UserError(f"the studio does not start commands with --{key}; start this command in a terminal")
            given = [*_list_texts(value)]
            if key == "log.trackers" and (others := [one for one in given if one not in LOCAL_TRACKERS]):
                raise UserError(f"--log.trackers {others[0][:80]} sends the metrics to another program; start this command in a terminal")
            for one in given if key not in texts else ():
                _check_path(place, one)
    _check_launch(place, launching)


@functools.cache
def list_launch_files() -> dict[str, str]:
    """Return the names of the package's launch files for one machine, each with its description, the second line of the file."""
    found = dict[str, str]()
    for path in sorted(command_lines.configs_folder().glob("*.yaml")):
        if read_config_file(path).values["num_machines"] == 1:
            found[path.stem] = input_files.read_text(path).partition("\n# ")[2].partition("\n")[0]
    return found


def _check_launch(place: Path, options: Sequence[tuple[str, str]]) -> None:
    """Check what starts several processes: a launch file of the package alone, since one of a downloaded folder may name any program."""
    packaged = list[tuple[str, str]]()
    for key, value in options:
        if key == launcher.FLAG:
            check_choice("--launch", value, list_launch_files())
            if (place / value).is_file():
                raise UserError(f"--launch {value} would read the file {value} in the studio's folder; rename that file")
        # by its path: this process is in another folder than the job, which may have a file of that name
        packaged.append((key, str(command_lines.configs_folder() / f"{value}.yaml") if key == launcher.FLAG else value))
    launcher.take_launch(Arguments(overrides=packaged))
    count = dict(options).get("num_processes", "1")
    if int(count.lstrip("0")[:5]) > MOST_PROCESSES:  # five digits are enough to compare; `int` refuses thousands
        raise UserError(f"--num_processes {count[:20]}: the studio starts up to {MOST_PROCESSES:,}; give fewer")


def _list_texts(value: object) -> Iterator[str]:
    """Yield the texts in a value of a config, also those inside of lists and mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _list_texts(inner)


def _check_path(place: Path, given: str) -> None:
    if hide_word(given) != given:
        raise UserError("an address with a password would be saved in the job's folder; start this command in a terminal")
    word = given.removeprefix(PREFIX)
    path = Path(word)
    outside = path.is_absolute() or ".." in path.parts or word.startswith("~") or ADDRESS.search(word)
    if outside or not (place / path).resolve().is_relative_to(place.resolve()):
        raise UserError(f"{given[:200]} leads out of the studio's folder; copy the data into it, or start this command in a terminal")


def show_command(verb: str, words: Sequence[str]) -> str:
    """Return the command line for a shell in the studio's folder. A word with control characters, or with those that reverse the order of
    a text, is written with escape sequences, which bash reads."""
    shown = []
    for word in map(hide_word, words):
        escaped = word.replace("\\", "\\\\").replace("'", "\\'")
        visible = "".join(one if printable(one) == one else f"\\U{ord(one):08x}" for one in escaped)
        shown.append(shlex.quote(word) if printable(word) == word else f"$'{visible}'")
    return " ".join(["overtone", verb, *shown])
