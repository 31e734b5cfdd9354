"""The config: every key can be set, every mistake is named with its place, and a dumped config can be read again."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import Field

from overtone.finetune.addresses import RemoteAddress
from overtone.finetune.config import (
    Config,
    Lora,
    MixedFile,
    Names,
    Section,
    describe_overlay,
    dump,
    help_text,
    list_sources,
    on_disk,
    resolve,
)
from overtone.finetune.config_key_descriptions import fields
from overtone.finetune.config_sources import UNWRITABLE, parse_arguments, read_config_file
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import find_recipe, load_options
from tests.finetune.hostile import YAML_PIECES, broken, value_replaced

ROOT = Path(__file__).parents[2]
CASES = 60


class Options(Section):
    depth: int = Field(default=2, ge=1)
    """How deep the test goes."""
    names: Names = ()
    """Of whom."""


SETTINGS: dict[str, tuple[str, Any]] = {
    "run.dir": ("runs/mine", Path("runs/mine")),
    "run.seed": ("7", 7),
    "run.deadline_minutes": ("90", 90.0),
    "model.source": ("Qwen/Qwen3-TTS-12Hz-0.6B-Base", "Qwen/Qwen3-TTS-12Hz-0.6B-Base"),
    "model.revision": ("main", "main"),
    "model.quantization": ("nf4", "nf4"),
    "model.lora.rank": ("4", 4),
    "model.lora.alpha": ("8", 8.0),
    "model.lora.dropout": ("0.1", 0.1),
    "model.lora.targets": (".*proj", ".*proj"),
    "model.lora.rslora": ("true", True),
    "model.lora.dora": ("true", True),
    "data.train": ("a.jsonl", Path("a.jsonl")),
    "data.mix": ("[{path: a.jsonl, weight: 2}]", (MixedFile(path=Path("a.jsonl"), weight=2.0),)),
    "data.val": ("b.jsonl", Path("b.jsonl")),
    "data.window": ("64", 64),
    "checkpoint.best_by": ("accuracy max", "accuracy max"),
    "train.patience": ("3", 3),
    "data.packing": ("true", True),
    "data.sequence_length": ("512", 512),
    "data.too_long": ("drop", "drop"),
    "train.epochs": ("2", 2),
    "train.steps": ("9", 9),
    "train.optimizer": ("muon", "muon"),
    "train.momentum": ("0.9", 0.9),
    "train.lr": ("3e-4", 3e-4),
    "train.schedule": ("constant", "constant"),
    "train.warmup": ("0.5", 0.5),
    "train.final_lr": ("0", 0.0),
    "train.weight_decay": ("0.1", 0.1),
    "train.beta1": ("0.8", 0.8),
    "train.beta2": ("0.99", 0.99),
    "train.clip": ("0.5", 0.5),
    "train.base_distance": ("0.5", 0.5),
    "train.skip_nonfinite": ("3", 3),
    "train.spike": ("10", 10.0),
    "train.global_batch_tokens": ("100", 100),
    "train.largest_batch_tokens": ("200", 200),
    "train.micro_tokens": ("50", 50),
    "train.precision": ("fp32", "fp32"),
    "train.activation_checkpointing": ("full", "full"),
    "train.compile": ("true", True),
    "parallel.strategy": ("fsdp", "fsdp"),
    "parallel.replicate": ("2", 2),
    "parallel.tensor": ("2", 2),
    "parallel.offload": ("true", True),
    "checkpoint.every": ("10", 10),
    "checkpoint.keep": ("5", 5),
    "checkpoint.asynchronous": ("false", False),
    "checkpoint.grace_seconds": ("60", 60.0),
    "checkpoint.on_failure": ("continue", "continue"),
    "checkpoint.copy_to": ("s3://bucket/runs/me/", RemoteAddress("s3://bucket/runs/me")),
    "eval.every": ("11", 11),
    "eval.at_start": ("true", True),
    "sample.every": ("50", 50),
    "sample.prompts": ("['Who are you?', 'Good day.']", ("Who are you?", "Good day.")),
    "sample.asr": ("small", "small"),
    "sample.speaker_model": ("resemblyzer", "resemblyzer"),
    "log.every": ("12", 12),
    "log.trackers": ("[wandb, trackio]", ("wandb", "trackio")),
}
KEYS = [key for key, *_ in fields(Config) if key not in ("recipe", "options")]


def resolved(*overrides: tuple[str, str], files: tuple[Path, ...] = ()) -> Config:
    return resolve("tests", Options, files, overrides)


def problems(*overrides: tuple[str, str], files: tuple[Path, ...] = ()) -> str:
    with pytest.raises(UserError) as caught:
        resolved(*overrides, files=files)
    return str(caught.value)


def value_of(config: Config, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def written(tmp_path: Path, text: str, name: str = "extra.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_every_key_has_a_value_to_try() -> None:
    assert set(SETTINGS) == set(KEYS)
    assert 30 <= len(KEYS) <= 70


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_explained_and_can_be_set(key: str) -> None:
    text, expected = SETTINGS[key]
    (documentation,) = [words for name, _, words in fields(Config) if name == key]
    assert documentation.endswith((".", ":")) and len(documentation.split()) >= 2, documentation
    assert value_of(resolved(), key.replace("model.lora.", "model.")) != expected if "lora" not in key else resolved().model.lora is None
    config = resolved((key, text))
    assert value_of(config, key) == expected and type(value_of(config, key)) is type(expected)
    arguments = parse_arguments([f"--{key}={text}"])
    assert arguments.overrides == [(key, text)]


OVERLAY = "train:\n  lr: 1e-5\ncheckpoint: {every: 300}\nlora:\n  train:\n    lr: 1e-4\n  checkpoint: {every: 30}\n"


def test_the_lora_section_of_a_file_applies_if_model_lora_is_set(tmp_path: Path) -> None:
    recipe = written(tmp_path, OVERLAY)
    full, lora = resolved(files=(recipe,)), resolved(("model.lora.rank", "4"), files=(recipe,))
    assert (full.train.lr, full.checkpoint.every, full.model.lora) == (1e-5, 300, None)
    assert (lora.train.lr, lora.checkpoint.every) == (1e-4, 30)
    assert "lora" not in type(lora).model_fields and yaml.safe_load(dump(lora)).keys() == yaml.safe_load(dump(full)).keys()
    again = resolved(files=(recipe, written(tmp_path, dump(lora), "saved.yaml")))
    assert again.model_dump() == lora.model_dump()


def test_a_config_file_and_a_flag_override_the_lora_section_of_the_recipe(tmp_path: Path) -> None:
    recipe, mine = written(tmp_path, OVERLAY), written(tmp_path, "train: {lr: 7e-5}\nmodel: {lora: true}\n", "mine.yaml")
    config = resolved(files=(recipe, mine))
    assert (config.train.lr, config.checkpoint.every) == (7e-5, 30)
    assert resolved(("train.lr", "3e-5"), ("model.lora", "true"), files=(recipe,)).train.lr == 3e-5
    assert resolved(files=(recipe, mine, written(tmp_path, OVERLAY, "copy.yaml"))).train.lr == 1e-4, "a section follows its own file"


def test_lora_with_its_defaults_is_switched_on_and_off() -> None:
    on, rank = ("model.lora", "true"), ("model.lora.rank", "8")
    assert resolved(on).model.lora == Lora()
    assert resolved(on, rank).model.lora == resolved(rank, on).model.lora == Lora(rank=8)
    assert resolved(rank, ("model.lora", "false")).model.lora is None
    assert "model.lora = 5" in problems(("model.lora", "5"))


def test_the_values_of_a_lora_section_are_described(tmp_path: Path) -> None:
    recipe = written(tmp_path, OVERLAY)

    def described(*overrides: tuple[str, str]) -> list[str]:
        return describe_overlay(list_sources([read_config_file(recipe)], overrides))

    assert described() == []
    assert described(("model.lora", "true"), ("checkpoint.every", "7")) == [f"train.lr: 0.0001 (because model.lora is set: {recipe}:6)"]
    assert len(described(("model.lora", "true"))) == 2


def test_a_mistake_in_a_lora_section_is_reported_with_and_without_lora(tmp_path: Path) -> None:
    recipe = written(tmp_path, "train: {lr: 1e-5}\nlora:\n  train:\n    lrr: 1\n")
    for overrides in ((), (("model.lora", "true"),)):
        assert f"{recipe}:4: unknown key train.lrr; did you mean train.lr?" in problems(*overrides, files=(recipe,))
    rank = written(tmp_path, "lora: {rank: 8}\n", "rank.yaml")
    assert f"{rank}:1: unknown key rank; did you mean model.lora.rank?" in problems(files=(rank,))
    assert "lora = True: expected keys under it" in problems(files=(written(tmp_path, "lora: true\n", "true.yaml"),))
    assert "--lora.train.lr: unknown key lora" in problems(("lora.train.lr", "1"))


@pytest.mark.parametrize(("name", "rates"), [("llm_sft", (3e-5, 4e-4)), ("voice_clone", (1e-5, 1e-4))])
def test_lora_learns_faster_in_each_recipe(name: str, rates: tuple[float, float]) -> None:
    folder = find_recipe(name)
    full, lora = (resolve(name, load_options(folder), [folder / "config.yaml"], more) for more in ([], [("model.lora", "true")]))
    assert (full.train.lr, lora.train.lr) == rates
    assert lora.checkpoint.every == lora.eval.every, "the best evaluation has a checkpoint"


def test_data_may_be_remote_and_copies_must_be() -> None:
    config = resolved(("data.train", "s3://bucket/train.jsonl"), ("data.val", "here/val.jsonl"))
    assert config.data.train == "s3://bucket/train.jsonl" and config.data.val == Path("here/val.jsonl")
    assert on_disk(Path("here/val.jsonl")) == config.data.val and on_disk(None) is None
    with pytest.raises(UserError, match="s3://bucket/train.jsonl is a URL, .* download the file"):
        on_disk(config.data.train)
    message = problems(("checkpoint.copy_to", "/mnt/share"), ("data.train", "5"))
    assert "for a mounted folder file:///mnt/share" in message and "expected a path, or a URL" in message
    assert resolved(files=()).checkpoint.copy_to is None and "path | URL | null" in help_text(None, {})


def test_several_validation_files_are_a_list_and_survive_a_dump(tmp_path: Path) -> None:
    several = resolved(("data.val", "[a.jsonl, s3://bucket/b.jsonl]"))
    assert several.data.validation_files() == (Path("a.jsonl"), "s3://bucket/b.jsonl")
    assert resolved(("data.val", "a.jsonl")).data.validation_files() == (Path("a.jsonl"),) and resolved().data.validation_files() == ()
    (tmp_path / "again.yaml").write_text(dump(several))
    assert resolved(files=(tmp_path / "again.yaml",)).data == several.data
    assert "data.val" in problems(("data.val", "[]")) and "data.val" in problems(("data.val", "[3]"))


def test_fp16_is_refused_with_the_reason() -> None:
    message = problems(("train.precision", "fp16"))
    assert "--train.precision: train.precision = 'fp16'" in message and "loss scaling" in message and "use bf16" in message
    assert "loss scaling" not in problems(("train.precision", "fp8"))


def test_no_key_asks_for_a_secret() -> None:
    secret = re.compile(r"password|passw|secret|credential|api_?key|\btoken\b|_token\b|auth", re.IGNORECASE)
    assert [key for key, _, text in fields(Config) if secret.search(key) or secret.search(text)] == []


def test_the_command_line_overrides_files_and_files_override_defaults(tmp_path: Path) -> None:
    recipe = written(tmp_path, "train: {lr: 1, beta1: 0.1, beta2: 0.1, clip: 1}", "config.yaml")
    first = written(tmp_path, "train: {beta1: 0.2, beta2: 0.2, clip: 2}", "first.yaml")
    second = written(tmp_path, "train: {beta2: 0.3, clip: 3}", "second.yaml")
    train = resolved(("train.clip", "4"), ("train.clip", "5"), files=(recipe, first, second)).train
    assert (train.epochs, train.lr, train.beta1, train.beta2, train.clip) == (3, 1, 0.2, 0.3, 5)
    assert resolved(files=(recipe, second, first)).train.beta2 == 0.2, "files count in their order"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run:\n  seed: 1\n  dir: a\n  seed: 2\n", ":4: run.seed is also set at {path}:2"),
        ("run: {}\ntrain: {}\nrun: {}\n", ":3: run is also set at {path}:1"),
        ("log:\n  trackers:\n  - {a: 1,\n     a: 2}\n", ":4: log.trackers.0.a is also set at {path}:3"),
        ("- a\n", ":1: expected `section:` with keys under it, found list"),
        ("words\n", ":1: expected `section:` with keys under it, found str"),
        ("run: {seed: 1\n", "not readable as YAML"),
        ("run: [1, 2]\n", ":1: run = [1, 2]"),
        ("run: {dir: !!python/name:os.system }\n", ":1: run.dir is not a valid config value"),
        ("run: {dir: !!python/object/apply:os.system [touch canary]}\n", ":1: run.dir is not a valid config value"),
        ("run: {seed: !!int abc}\n", ":1: run.seed is not a valid config value"),
        ("run: {seed: !!timestamp 2020}\n", ":1: run.seed is not a valid config value: the tag tag:yaml.org,2002:timestamp is not"),
        ("model: {source: !!bool 3}\n", ":1: model.source is not a valid config value"),
        ('run:\n  dir: "a\\0b"\n', ":2: run.dir is not a valid config value: it contains '\\x00', a character that no path"),
        ('model: {source: "\\ud800"}\n', ":1: model.source is not a valid config value: it contains '\\ud800'"),
        ("run:\n  seed: " + "9" * 5000, ":2: run.seed is not a valid config value: Exceeds the limit"),
        ("run: {seed: 9223372036854775808}\n", ":1: run.seed is not a valid config value: a whole number of more than 64 bits"),
        ("run:\n  dir: " + "[" * 3000, ":2: not readable as YAML: nested more than 100 deep"),
        ("- " * 3000, ":1: not readable as YAML: nested more than 100 deep"),
        ("run: {[a, b]: c}\n", ":1: run has a list or a mapping as a key"),
        ("run: &a {dir: *a}\n", "aliases (*name) are not supported"),
        ("run: &a {dir: x}\nmodel: *a\n", "aliases (*name) are not supported"),
        ("\0", "not readable as YAML"),
        ("train: {lr: .inf}\n", "train.lr = inf: Input should be a finite number"),
        ("train: {lr: true}\n", "train.lr = True: Input should be a valid number"),
        ("train: {epochs: 1.5}\n", "train.epochs = 1.5"),
        ("train: {epochs: '2'}\n", "train.epochs = '2'"),
        ("log: {trackers: [tensorboard, nothing]}\n", ":1: log.trackers.1 = 'nothing'"),
    ],
)
def test_a_bad_file_is_named_and_nothing_in_it_runs(tmp_path: Path, text: str, expected: str) -> None:
    path = written(tmp_path, text)
    message = problems(files=(path,))
    assert str(path) in message and expected.format(path=path) in message
    assert not Path("canary").exists() and not (tmp_path / "canary").exists()


def test_any_file_is_refused_or_survives_a_dump(tmp_path: Path) -> None:
    sound = b"run: {dir: x, seed: 3}\ntrain:\n  lr: 1e-3\n  epochs: 2\nmodel: {source: abc, lora: {rank: 4}}\ndata:\n  train: a.jsonl\n"
    path, again = tmp_path / "broken.yaml", tmp_path / "again.yaml"
    ends: Counter[str] = Counter()
    for number in range(CASES):
        chance = random.Random(number)
        lines = chance.random() < 0.5
        path.write_bytes(value_replaced(chance, sound.split(b"\n")[:-1], YAML_PIECES) if lines else broken(chance, sound, YAML_PIECES))
        try:
            config = resolved(files=(path,))
        except UserError as error:
            ends["refused"] += 1
            assert str(path) in str(error), f"case {number}: {error}"
        else:
            ends["kept"] += 1
            dumped = dump(config)
            again.write_bytes(dumped.encode())
            assert dump(resolved(files=(again,))) == dumped, f"case {number}"
            config.run.dir.exists()
    assert min(ends["refused"], ends["kept"]) > CASES / 20, ends


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("run.dir", "[" * 3000, "not readable as YAML: nested more than 100 deep"),
        ("a" + ".a" * 3000, "1", "nested more than 100 deep; keys are `section.key`"),
        ("run.seed", "!!timestamp x", "run.seed is not a valid config value"),
        ("model.source", '"\\UFFFFFFFF"', "not readable as YAML"),
    ],
)
def test_odd_values_on_the_command_line_are_refused(key: str, value: str, words: str) -> None:
    assert words in problems((key, value))


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert dump(resolved(files=(written(tmp_path, "# only a comment\n"),))) == dump(resolved())


def test_lists_and_sections_on_the_command_line() -> None:
    assert resolved(("log.trackers", "wandb"), ("options.names", "a b")).log.trackers == ("wandb",)
    assert "log.trackers.0 = 'wanbd'" in problems(("log.trackers", "wanbd"))
    config = resolved(("log.trackers", "[]"), ("model.lora", "{rank: 3, alpha: 6}"), ("options.names", "[a, 'b c']"))
    assert config.log.trackers == ()
    assert config.model.lora is not None and (config.model.lora.rank, config.model.lora.alpha) == (3, 6)
    assert config.options.names == ("a", "b c")  # type: ignore[attr-defined]  # the options are this test's own
    assert resolved(("model.lora", "{rank: 3}"), ("model.lora", "null")).model.lora is None
    assert "--train:1: unknown key train.lrr" in problems(("train", "{lrr: 1}"))
    assert "not readable as YAML" in problems(("train", "{lr: 1"))


def test_a_dumped_config_resolves_to_itself(tmp_path: Path) -> None:
    config = resolved(*((key, text) for key, (text, _) in SETTINGS.items()), ("options.depth", "3"), ("options.names", "[yes, '1']"))
    again = resolved(files=(written(tmp_path, dump(config)),))
    assert again.model_dump() == config.model_dump() and dump(again) == dump(config)
    assert dump(resolved(files=(written(tmp_path, dump(resolved())),))) == dump(resolved())
    assert yaml.safe_load(dump(config))["recipe"] == "tests"


DEFAULTS = resolved()
TEXTS = st.one_of(st.text(max_size=12), st.from_regex(r"[-+]?[0-9_.]{0,4}[eExo]?[-+]?[0-9_]{0,4}", fullmatch=True))


@settings(max_examples=30)
@example(text="a\x85b\u2028")
@given(text=TEXTS.filter(lambda text: not UNWRITABLE.search(text)))
def test_any_text_that_a_file_can_hold_survives_the_dump(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "dumped.yaml"
    config = DEFAULTS.model_copy(update={"model": DEFAULTS.model.model_copy(update={"revision": text})})
    path.write_bytes(dump(config).encode("utf-8", "surrogatepass"))
    assert resolved(files=(path,)).model.revision == text


def test_a_dump_of_another_recipe_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "recipe: another\n")
    assert problems(files=(path,)) == f"{path}:1 sets recipe: another, the command line --recipe tests; remove one of them"


def test_the_help_lists_every_key_with_its_default() -> None:
    lines = help_text(Options, {}).splitlines()
    for key in [*KEYS, "options.depth", "options.names"]:
        assert sum(line.split()[:1] == [f"--{key}"] for line in lines) == 1, key
    assert any("--train.lr " in line and "(float, default 1e-05)" in line for line in lines)
    assert any("cosine | constant" in line for line in lines) and any(line.startswith("  --model.lora true ") for line in lines)
    assert "--options" not in help_text(None, {})


def test_a_config_can_not_be_changed_afterwards() -> None:
    with pytest.raises(ValueError, match="frozen"):
        resolved().train.lr = 1.0  # type: ignore[misc]  # that it is refused is the point


def test_config_and_files_come_without_torch() -> None:
    script = (
        "import sys, overtone.finetune.config, overtone.finetune.storage.files, overtone.finetune.recipe, "
        "overtone.finetune.train; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
