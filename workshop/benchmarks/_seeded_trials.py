"""Trials whose seed decides everything: damaged files, fuzzed inputs, hostile models and requests, and kills, for each recipe.

A kind of trial makes what it needs once, in a folder, and returns a function from a seed to the outcome; it raises an exception if the
promise is broken. Nothing here is mocked: rows are read by the recipes, models are loaded by the real verbs in processes of their own.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.config import Config, dump, resolve
from overtone.finetune.data.row_measurement import LengthLimit, encode_row
from overtone.finetune.data.sample_serialization import decode
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import find_recipe, load_recipe
from overtone.finetune.storage import strict_json
from tests.data_prep import test_damaged_files, test_text_any_input
from tests.finetune import hostile
from tests.reliability import test_corruption, test_kill, victims

RECIPES = ("byte_model", "llm_sft", "image_classification", "voice_clone", "csm", "codec_lm")
SMALL = {
    "train.precision": "fp32",
    "train.global_batch_tokens": 400,
    "train.micro_tokens": 200,
    "log.trackers": "[]",
    "eval.at_start": "false",
}
IMAGES = {"train.global_batch_tokens": 6, "train.micro_tokens": 3}
SECONDS, ADDRESSES = 90.0, 12 * 2**30
"""Limits of a process that gets a hostile model."""
Trial = Callable[[int], str]


@dataclass(frozen=True)
class TrialKind:
    """One promise, tried on several subjects."""

    promise: str
    subjects: tuple[str, ...]
    prepare: Callable[[str, Path], Trial]
    """(subject, folder to fill) → the trial."""
    goal: int
    """Trials in total that the project wants to have seen."""


def recipe_argument(recipe: str) -> str:
    """Return what --recipe gets."""
    return str(victims.ROOT / "tests" / "byte_model") if recipe == "byte_model" else recipe


def make_inputs(recipe: str, folder: Path) -> dict[str, Any]:
    """A tiny base and rows in `folder`, unless they are there, and the config keys of a short run on them."""
    maker = {
        "byte_model": _make_bytes, "llm_sft": _make_chats, "image_classification": _make_images, "voice_clone": _make_voices,
        "csm": _make_csm, "codec_lm": _make_codec_lm,
    }[recipe]  # fmt: skip
    if not (folder / "train.jsonl").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        maker(folder)
    own = {"model.source": folder / "base", "data.train": folder / "train.jsonl", **SMALL}
    return {**own, **(IMAGES if recipe == "image_classification" else {})}


def _make_bytes(folder: Path) -> None:
    from tests.finetune import tiny

    tiny.config_in(folder)


def _make_chats(folder: Path) -> None:
    from overtone.recipes.llm_sft.model import tiny_checkpoint

    tiny_checkpoint.build(folder / "base")
    pairs = [("Good day.", "And to you."), ("Who are you?", "I am a machine."), ("What is 2 + 2?", "It is 4."), ("Bye.", "See you.")]
    rows = [{"messages": [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]} for said, answer in pairs]
    rows.append({"prompt": "one two", "completion": " three four"})
    _write_rows(folder, rows)


def _make_images(folder: Path) -> None:
    from overtone.recipes.image_classification.model import tiny_checkpoint
    from tests.recipes.image_classification.tiny_images import write_images

    tiny_checkpoint.build(folder / "base")
    write_images(folder)


def _make_voices(folder: Path) -> None:
    from overtone.recipes.voice_clone.model import tiny_checkpoint
    from tests.launch.launching import voice_rows

    tiny_checkpoint.build(folder / "base")
    voice_rows(folder, ["ann", "bob"])


def _make_csm(folder: Path) -> None:
    from overtone.recipes.csm.model import tiny_checkpoint
    from tests.recipes.csm.tiny_csm import make_rows

    tiny_checkpoint.build(folder / "base")
    _write_rows(folder, make_rows(["Ann", "Bob"]))


def _make_codec_lm(folder: Path) -> None:
    from overtone.recipes.codec_lm.model import tiny_checkpoint
    from tests.recipes.codec_lm.tiny_models import make_rows

    tiny_checkpoint.build(folder / "base")
    _write_rows(folder, make_rows())


def _write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def command_line(recipe: str, given: dict[str, Any]) -> list[str]:
    """Arguments of `overtone train`."""
    return ["--recipe", recipe_argument(recipe), *(str(part) for key, value in given.items() for part in (f"--{key}", value))]


def resolve_run(recipe: str, given: dict[str, Any]) -> tuple[Any, Config[Any]]:
    """The recipe and the config of a run."""
    place = find_recipe(recipe_argument(recipe))
    loaded = load_recipe(place)
    overrides = [(key, str(value)) for key, value in given.items()]
    return loaded, resolve(recipe_argument(recipe), loaded.Options, [place / "config.yaml"], overrides)


# --- checkpoints


def prepare_checkpoints(recipe: str, folder: Path) -> Trial:
    """Two checkpoints of a run; a trial damages a file of the newer one, and the older one must be found."""
    given = {**make_inputs(recipe, folder), "run.dir": folder / "run", "train.steps": 6, "checkpoint.every": 2, "checkpoint.keep": 2}
    if not (folder / "run").is_dir():
        victims.finish(folder / "witness", 1, command_line(recipe, given))
    newest = checkpoint.find(folder / "run")
    whole = {path.name: path.read_bytes() for path in newest.iterdir()}
    older = newest.with_name("step-00000004")
    assert newest.name == "step-00000006" and older.is_dir()

    def damage(seed: int) -> str:
        chance = random.Random(seed)
        kind, name = chance.choice(test_corruption.KINDS), chance.choice(sorted(whole))
        try:
            kind(newest / name, chance)
            if {path.name: path.read_bytes() for path in newest.iterdir()} == whole:
                return "undamaged"
            found, passed_over = checkpoint.find_newest_valid(folder / "run")
            assert found == older, (kind.__name__, name, found)
            assert len(passed_over) == 1 and passed_over[0].startswith(f"{newest}: "), passed_over
        finally:
            test_corruption.restore(newest, whole)
        return "fell back"

    return damage


# --- rows


def prepare_rows(recipe: str, folder: Path) -> Trial:
    """A row with something odd in it is refused with a `UserError`, or becomes a sample that can be collated."""
    built, config = resolve_run(recipe, {**make_inputs(recipe, folder), "run.dir": folder / "run"})
    built.prepare(config)
    loaded, limit = built.load(config), LengthLimit.of(config.data, config.train)
    lines = [line.encode() for line in (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()]

    def read(seed: int) -> str:
        chance = random.Random(seed)
        line = chance.choice(lines)
        if chance.random() < 0.5:
            line = hostile.broken(chance, line, hostile.JSON_PIECES)
        try:
            row = strict_json.loads_object(line)
            for _ in range(chance.randrange(3)):
                row = test_text_any_input.odd(chance, row)
            row = strict_json.loads_object(json.dumps(row).encode())  # as a file would hold it
            found = encode_row(limit, folder, built, loaded.processor, row)
            if found.left_out or found.sample is None:
                return "dropped"
            batch = built.collate([decode(found.sample)])
            assert all(torch.isfinite(value).all() for value in batch.tensors.values() if value.is_floating_point())
        except UserError as error:
            assert str(error).strip()
            return "refused"
        return "read"

    return read


# --- configs


def prepare_configs(recipe: str, folder: Path) -> Trial:
    """A config file with something odd in it is refused with its name, or is the same config after it was written and read again."""
    place = find_recipe(recipe_argument(recipe))
    options = load_recipe(place).Options
    own = dump(resolve(recipe_argument(recipe), options, [place / "config.yaml"], []))
    sound = "".join(line for line in own.splitlines(keepends=True) if not line.startswith("recipe:")).encode()
    path, again = folder / "broken.yaml", folder / "again.yaml"
    folder.mkdir(parents=True, exist_ok=True)

    def parse(seed: int) -> str:
        chance = random.Random(seed)
        lines = sound.split(b"\n")[:-1]
        replaced = chance.random() < 0.5
        path.write_bytes(
            hostile.value_replaced(chance, lines, hostile.YAML_PIECES) if replaced else hostile.broken(chance, sound, hostile.YAML_PIECES)
        )
        try:
            config = resolve(recipe_argument(recipe), options, [path], [])
        except UserError as error:
            assert str(path) in str(error), error
            return "refused"
        dumped = dump(config)
        again.write_text("".join(line for line in dumped.splitlines(keepends=True) if not line.startswith("recipe:")), encoding="utf-8")
        assert dump(resolve(recipe_argument(recipe), options, [again], [])) == dumped
        return "accepted"

    return parse


# --- sounds


def prepare_sounds(ending: str, folder: Path) -> Trial:
    """A damaged recording is decoded to finite samples, or refused with its reason; the decoder continues."""
    from overtone.data_prep.audio.sandboxed_decoder import AudioDecoder
    from overtone.data_prep.audio.waveform import MASTER_RATE
    from tests.data_prep.audio.test_stream_reader import encode

    folder.mkdir(parents=True, exist_ok=True)
    seconds = np.arange(MASTER_RATE) / MASTER_RATE
    sound = 0.3 * np.sin(2 * np.pi * 220 * seconds) * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * seconds))
    original = encode(folder / f"sound{ending}", sound.astype(np.float32)[:, None], MASTER_RATE)
    decoder = AudioDecoder(folder / "samples")
    decoder.__enter__()

    def decode_damaged(seed: int) -> str:
        path = folder / f"{seed}{ending}"
        path.write_bytes(test_damaged_files.damaged(original.read_bytes(), random.Random(seed)))
        try:
            fate = test_damaged_files.what_becomes_of(path, decoder)
        finally:
            path.unlink()
        assert fate in test_damaged_files.REASONS | {"decoded"} and fate != "decoder_stalled", fate
        return "decoded" if fate == "decoded" else "refused"

    return decode_damaged


# --- models

ABSURD: list[Any] = [
    *(-1, 0, 1, 3, 2**31 - 1, 10**9, 10**12, 10**30, 1e300, -1e300, float("nan"), True, None, "", "x", "a" * 5000, [], {}, [[]], [None]),
    *({"a": 1}, [1] * 10_000, "../../etc/passwd", "http://127.0.0.1:1/x", "\ud800", "\0"),
]


def prepare_models(recipe: str, folder: Path) -> Trial:
    """Training on a hostile model folder ends with success or a `UserError`, within limits of time and memory, without a traceback."""
    given = {**make_inputs(recipe, folder), "train.steps": 1, "checkpoint.every": 1}
    load_recipe(find_recipe(recipe_argument(recipe)))
    import peft  # noqa: F401 - once here instead of in each process

    from overtone.finetune.training import run  # noqa: F401 - likewise

    def load(seed: int) -> str:
        chance = random.Random(seed)
        model = shutil.copytree(folder / "base", folder / f"model-{seed}")
        try:
            for _ in range(chance.choice((1, 1, 2))):
                corrupt_model(model, chance)
            argv = command_line(recipe, {**given, "model.source": model, "run.dir": folder / f"run-{seed}"})
            code, said = run_process(argv, folder / "said.txt")
            assert code in (0, 2) and "Traceback" not in said, f"exit code {code}: {said[-1500:]}"
            return "trained" if code == 0 else "refused"
        finally:
            shutil.rmtree(model)
            shutil.rmtree(folder / f"run-{seed}", ignore_errors=True)

    return load


def corrupt_model(model: Path, chance: random.Random) -> None:
    """One hostile change of a file."""
    path = chance.choice(sorted(path for path in model.rglob("*") if path.is_file()))
    data = path.read_bytes()
    if path.suffix == ".safetensors":
        path.write_bytes(chance.choice((_lie_about_tensors, _break_bytes, _cut))(data, chance))
    elif path.suffix == ".json" and chance.random() < 0.7 and _is_json(data):
        path.write_text(json.dumps(_replace_value(json.loads(data), chance)))
    else:
        path.write_bytes(hostile.broken(chance, data, hostile.JSON_PIECES))


def _is_json(data: bytes) -> bool:
    """Return whether an earlier change has left it readable."""
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _replace_value(value: Any, chance: random.Random) -> Any:
    """The same with an absurd value in one place, or without that place."""
    if not isinstance(value, dict | list) or not value:
        return chance.choice(ABSURD)
    at = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
    copy = value.copy()
    if chance.random() < 0.1:
        del copy[at]
    else:
        copy[at] = _replace_value(value[at], chance)
    return copy


def _lie_about_tensors(data: bytes, chance: random.Random) -> bytes:
    length = struct.unpack("<Q", data[:8])[0]
    header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
    name = chance.choice([name for name in header if name != "__metadata__"])
    other = chance.choice([name for name in header if name != "__metadata__"])
    match chance.randrange(6):
        case 0:
            header[name]["data_offsets"] = header[other]["data_offsets"]
        case 1:
            header[name]["data_offsets"] = [chance.choice((-8, 0, 2**40)), chance.choice((-1, 8, 2**62))]
        case 2:
            header[name]["shape"] = chance.choice(([2**40, 2**40], [], [0], [-1], header[other]["shape"]))
        case 3:
            header[name]["dtype"] = chance.choice(("F64", "I64", "BOOL", "F999", "F8_E4M3", "U8"))
        case 4:
            del header[name]
        case _:
            return struct.pack("<Q", chance.choice((0, 1, length // 2, 2**20, 99 * 2**20, 2**62))) + data[8:]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + rest


def _break_bytes(data: bytes, chance: random.Random) -> bytes:
    length = struct.unpack("<Q", data[:8])[0]
    return hostile.broken(chance, data[: 8 + length], hostile.JSON_PIECES) + data[8 + length :]


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def run_process(argv: list[str], said: Path) -> tuple[int, str]:
    """Exit code and output of `overtone train` in a forked process with limits; a code of 124 if it had to be killed."""
    from overtone.finetune import train

    if not (child := os.fork()):
        code = 70
        try:
            victims.print_to(said)
            os.truncate(said, 0)
            victims.draw_no_curve()
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
            code = train.main(argv)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    code = _wait_for(child, time.monotonic() + SECONDS)
    return code, said.read_text(errors="replace")


def _wait_for(child: int, deadline: float) -> int:
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return 124


# --- requests


def prepare_requests(recipe: str, folder: Path) -> Trial:
    """Any request to a server gets an answer that is not the server's failure."""
    from overtone.recipes.serving.access_control import AccessPolicy
    from overtone.recipes.speech.serving.openai_api import Limits
    from overtone.recipes.speech.serving.request_queue import SpeechQueue
    from overtone.recipes.speech.serving.serve_command import build_app
    from overtone.recipes.speech.serving.uploaded_clips import Clips
    from tests.asgi import HOME, JSON, App

    voice = _open_voice(recipe, folder)
    speech, clips = SpeechQueue({"tuned": voice}, room=2), Clips(folder / "clips")
    app = App(build_app(speech, Limits(50, 0.2), AccessPolicy(None, local=True), clips), (HOME, JSON))
    good = {"model": "tuned", "voice": voice.speakers[0], "input": "Late.", "response_format": "pcm"}
    places = ["/v1/audio/speech"] * 6 + ["/speak", "/clip", "/assets/page.css", "/v1/models", "/v1/x", "/"]

    def ask(seed: int) -> str:
        chance = random.Random(seed)
        place, body = chance.choice(places), json.dumps(good).encode()
        value: Any = {**good, **{chance.choice(["seed", "speed", "language", "x", *good]): chance.choice(test_text_any_input.ODD)}}
        for _ in range(chance.randrange(3)):
            value = test_text_any_input.odd(chance, value)
        body = json.dumps(value).encode()
        if chance.random() < 0.3:
            body = hostile.broken(chance, body, hostile.JSON_PIECES)
        headers = [HOME, JSON]
        if chance.random() < 0.3:
            name = chance.choice(
                [b"content-type", b"content-length", b"origin", b"cookie", b"range", b"authorization", b"x-forwarded-host"]
            )
            headers = [
                *(one for one in headers if one[0] != name),
                (name, chance.choice([b"", b"[", b"-1", b"http://[", chance.randbytes(5)])),
            ]
        with contextlib.redirect_stderr(io.StringIO()):
            answer = app.ask(
                chance.choice(["POST", "POST", "POST", "GET", "PUT"]), place, body, headers, chance.randbytes(chance.randrange(9))
            )
        return "answered" if answer.status < 400 else "refused"

    return ask


def _open_voice(recipe: str, folder: Path) -> Any:
    given = {**make_inputs(recipe, folder), "run.dir": folder / "run", "train.steps": 1, "checkpoint.every": 1}
    if recipe == "csm":
        from overtone.recipes.csm.speech_registration import COMMAND

        return COMMAND.speech.inspect(folder / "base").open()
    if recipe == "codec_lm":
        from overtone.recipes.codec_lm.speech_registration import COMMAND as TOKENS

        return TOKENS.speech.inspect(folder / "base").open()
    from overtone.finetune.exporting import export
    from overtone.recipes.qwen3_tts.inference.synthesizer import open_synthesizer

    victims.finish(folder / "witness", 1, command_line(recipe, given))
    export.export(folder / "run", folder / "tuned", recipe=recipe)
    return open_synthesizer(folder / "tuned")


# --- kills

KILLS = 4
"""Maximum kills of one run; a trial is a run."""
KILLED_STEPS = 12


def prepare_kills(recipe: str, folder: Path) -> Trial:
    """A run of two ranks that is killed again and again ends with the losses, rows and weights of the run that never was."""
    given = {**make_inputs(recipe, folder), "train.steps": KILLED_STEPS, "checkpoint.every": 3, "checkpoint.keep": 2}

    def arguments(_: Path, run: Path) -> list[str]:
        return command_line(recipe, {**given, "parallel.strategy": "fsdp", "run.dir": run})

    whole = folder / "whole"
    victims.finish(whole / "witness", 2, arguments(whole, whole / "run"))

    def kill(seed: int) -> str:
        killed = folder / f"killed-{seed}"
        try:
            hits = test_kill.one_run_killed_on_and_on(killed, random.Random(seed), KILLS, arguments)
            test_kill.check_equal(killed, whole, KILLED_STEPS)
        finally:
            shutil.rmtree(killed, ignore_errors=True)
        return f"runs with {len(hits)} kills, {hits.count('save')} inside a save"

    return kill


ENDINGS = (".aac", ".aiff", ".flac", ".m4a", ".mp3", ".ogg", ".opus", ".wav", ".webm", ".wma")
KINDS = {
    "kills": TrialKind(
        "kill -9 of 2 ranks, again and again: same losses, rows and weights, bit by bit (seeded)", RECIPES, prepare_kills, 200
    ),
    "checkpoints": TrialKind(
        "seeded damage to a checkpoint: found before a weight is read, the older one used", RECIPES, prepare_checkpoints, 1_000
    ),
    "rows": TrialKind("a fuzzed row: refused with a sentence, or a sample that can be collated", RECIPES, prepare_rows, 20_000),
    "configs": TrialKind("a fuzzed config: refused with its file, or unchanged when written and read", RECIPES, prepare_configs, 2_000),
    "sounds": TrialKind("a damaged sound: decoded to finite samples, or refused with its reason", ENDINGS, prepare_sounds, 2_000),
    "models": TrialKind("a hostile model folder: trained on or refused, in bounded time and memory", RECIPES[1:], prepare_models, 300),
    "requests": TrialKind("a hostile request: answered or refused, never the server's failure", RECIPES[3:], prepare_requests, 2_000),
}  # fmt: skip


def count_weight(kind: str, outcome: str) -> int:
    """Return what a trial counts for: a run that is killed, for its kills; damage that changed nothing, for none."""
    return int(outcome.split()[2]) if kind == "kills" else int(outcome != "undamaged")


def iterate_outcomes(trial: Trial, seeds: Iterator[int]) -> Iterator[tuple[int, str, str | None]]:
    """(seed, outcome, what went wrong or None) of each trial."""
    for seed in seeds:
        try:
            yield seed, trial(seed), None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever it is, the promise is broken
            place = traceback.extract_tb(error.__traceback__)[-1]
            yield seed, "failed", f"{type(error).__name__}: {str(error)[-1500:]} ({Path(place.filename).name}:{place.lineno})"
