"""What a run is told: typed sections, strict YAML, dotted overrides, and errors that name the place.

Precedence, fixed: field default < the recipe's config.yaml < each `--config` file in order < `--section.key value`.
Every problem of every layer is reported at once, with file and line, before anything expensive starts. Imports no torch.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError, create_model, field_validator
from pydantic_core import ErrorDetails

from finetune.errors import UserError

FilePath = Annotated[Path, Field(strict=False)]
Names = Annotated[tuple[str, ...], Field(strict=False)]


class Section(BaseModel):
    """A frozen group of keys. Unknown keys and values of another type are errors, never guesses."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Run(Section):
    dir: FilePath = Path("runs/unnamed")
    """Folder of this run: checkpoints, logs, caches. A run that finds checkpoints in it goes on from the newest good one."""
    seed: int = 0
    """Key of all randomness: sample order, dropout, fresh weights."""
    deadline_minutes: float | None = Field(default=None, gt=0)
    """Wall-clock budget of this launch, in minutes of training; once it is spent, the run saves and stops at the next step."""


class Lora(Section):
    rank: int = Field(default=16, ge=1)
    """Rank r of the update B·A (Hu et al. 2021, arXiv:2106.09685)."""
    alpha: float = Field(default=32.0, gt=0)
    """The update is scaled by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the input of A."""
    targets: str | None = None
    """Regular expression over module names to adapt; by default the recipe's own."""


class Model(Section):
    source: str | None = None
    """Hub name (Qwen/Qwen3-TTS-12Hz-0.6B-Base) or folder of the base model."""
    revision: str | None = None
    """Commit, tag or branch on the hub; the commit that it resolves to is recorded."""
    lora: Lora | None = None
    """Train a low-rank update instead of the weights. Absent: full fine-tuning."""


class Data(Section):
    train: FilePath | None = None
    """JSONL to train on; paths in it are relative to the file."""
    val: FilePath | None = None
    """JSONL to evaluate on."""
    window: int = Field(default=1024, ge=1)
    """Samples that are bucketed by length together; the shuffle is over the whole epoch."""


class Train(Section):
    epochs: int = Field(default=3, ge=1)
    """Passes over the data."""
    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps; if given, it decides instead of `epochs`."""
    lr: float = Field(default=1e-5, gt=0)
    """Peak learning rate."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Learning rate after the warm-up: down to `final_lr` along a cosine, or constant."""
    warmup: float = Field(default=0.03, ge=0, le=1)
    """Share of all steps over which the learning rate rises linearly from 0."""
    final_lr: float = Field(default=0.1, ge=0, le=1)
    """Where the cosine ends, as a share of `lr`."""
    weight_decay: float = Field(default=0.01, ge=0)
    """AdamW's decoupled decay, on matrices only (not on norms, biases and embeddings)."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay of the first moment."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """AdamW's decay of the second moment."""
    clip: float = Field(default=1.0, gt=0)
    """Largest global L2 norm of the gradient."""
    skip_nonfinite: int = Field(default=0, ge=0)
    """Updates with a NaN or infinite loss or gradient that a run may skip, each told and counted; at the next one it stops."""
    global_batch_tokens: int = Field(default=16384, ge=1)
    """Positions per optimizer step, over all ranks. Accumulation follows from it, so a config means the same on 1 GPU and on 8."""
    micro_tokens: int = Field(default=4096, ge=1)
    """Largest micro-batch in positions, padding included: bounds the memory of activations."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """Compute type. Masters, gradients, reductions and optimizer state are fp32 in both."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """Recompute activations of each block in the backward pass: all of them, or (selective) all but matrix products and attention."""
    compile: bool = False
    """Compile each block with torch.compile; pays on a GPU, after about a minute."""

    @field_validator("precision", mode="before")
    @classmethod
    def _why_not_fp16(cls, value: Any) -> Any:
        if value == "fp16":
            raise ValueError("its range needs a loss scale that skips steps, so runs would differ by rounding alone; use bf16, or fp32")
        return value


class Parallel(Section):
    strategy: Literal["auto", "ddp", "zero1", "zero2", "fsdp", "hsdp"] = "auto"
    """How weights, gradients and AdamW state lie over N ranks, in bytes a parameter that last, and that pass besides (w: 2 in bf16, 4 in
    fp32): `ddp` 16, a gathered copy w · `zero1` 16/N, gathered weights w and whole gradients 4 · `zero2` 16/N, gathered weights w · `fsdp`
    (ZeRO-3) 16/N, the root and two blocks · `hsdp` 16/(N/replicate), the root and two blocks · `auto`: `fsdp` or `ddp`, as the launch
    file's preset says."""
    replicate: int = Field(default=1, ge=1)
    """Copies of the sharded model under `hsdp`: N / replicate ranks share one. Usually the number of machines."""
    offload: bool = False
    """Keep weights and optimizer state in host memory between uses. On GPUs only."""


class Checkpoint(Section):
    every: int = Field(default=200, ge=1)
    """Optimizer steps between two checkpoints; the last step always makes one."""
    keep: int = Field(default=3, ge=2)
    """How many to keep. The best by validation loss, of those evaluated at their very step, is kept besides."""
    asynchronous: bool = True
    """Train on while a checkpoint is written; only the copy to host memory blocks."""
    grace_seconds: float = Field(default=25.0, gt=0)
    """Seconds after a signal within which a last save must end, or it is not begun: accelerate kills what is left after 30."""
    on_failure: Literal["stop", "continue"] = "stop"
    """What a save means that the disk refused: the end of the run, or an event in the log and another try at the next save point."""


class Eval(Section):
    every: int = Field(default=200, ge=1)
    """Optimizer steps between two evaluations on `data.val`; the last step always makes one."""


class Log(Section):
    every: int = Field(default=1, ge=1)
    """Optimizer steps between two lines of the log."""
    trackers: Annotated[tuple[Literal["tensorboard", "wandb", "trackio"], ...], Field(strict=False)] = ("tensorboard",)
    """Trackers of accelerate that also get the numbers; log.jsonl is always written."""


class Config(Section):
    """The resolved configuration of a run."""

    recipe: str
    """Name under recipes/, or path of a folder that holds recipe.py."""
    run: Run = Run()
    """The run's folder and seed."""
    model: Model = Model()
    """What is fine-tuned."""
    data: Data = Data()
    """On what."""
    train: Train = Train()
    """How."""
    parallel: Parallel = Parallel()
    """Over how many devices and in which way."""
    checkpoint: Checkpoint = Checkpoint()
    """What is kept."""
    eval: Eval = Eval()
    """What is measured."""
    log: Log = Log()
    """What is told."""
    options: SerializeAsAny[BaseModel]
    """The recipe's own section."""


@dataclass(frozen=True)
class Layer:
    """One source of values: a file or the command line."""

    values: dict[str, Any]
    origins: dict[str, str]
    """Dotted key → where it stands, as `file:line` or the flag."""


@dataclass
class Arguments:
    """The command line, split: the recipe, config files in order, overrides in order."""

    recipe: str | None = None
    files: list[Path] = field(default_factory=list)
    overrides: list[tuple[str, str]] = field(default_factory=list)
    help: bool = False


def parse_arguments(argv: list[str]) -> Arguments:
    """Split `--recipe NAME --config FILE --section.key value` (or `--section.key=value`)."""
    parsed, tokens = Arguments(), iter(argv)
    for token in tokens:
        if token in ("-h", "--help"):
            parsed.help = True
            continue
        if not token.startswith("--"):
            raise UserError(f"unexpected argument {token!r}; values follow a flag, as in --train.lr 1e-5")
        key, equals, value = token[2:].partition("=")
        if not equals:
            value = _next_value(key, tokens)
        _file_argument(parsed, key, value)
    return parsed


def _next_value(key: str, tokens: Iterator[str]) -> str:
    value = next(tokens, None)
    if value is None or re.match(r"--[a-z]", value):
        raise UserError(f"--{key} needs a value, as in --{key} VALUE")
    return value


def _file_argument(parsed: Arguments, key: str, value: str) -> None:
    if key == "recipe":
        parsed.recipe = value
    elif key == "config":
        parsed.files.append(Path(value))
    else:
        parsed.overrides.append((key, value))


def resolve(recipe: str, options: type[BaseModel], files: Iterable[Path], overrides: Iterable[tuple[str, str]]) -> Config:
    """Merge all layers and check them; raises `UserError` listing every problem with its place and the nearest valid key."""
    model = create_model("Config", __base__=Config, options=(options, Field(default_factory=options)))
    layers = [*(read_layer(path) for path in files), command_line(overrides)]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        _merge(values, layer.values)
        origins |= layer.origins
    if values.setdefault("recipe", recipe) != recipe:
        raise UserError(f"{origins['recipe']} says recipe: {values['recipe']}, the command line says --recipe {recipe}; drop one of them")
    try:
        return model(**values)
    except ValidationError as error:
        problems = [_explain(problem, model, origins) for problem in error.errors()]
        raise UserError("the configuration has problems:\n  " + "\n  ".join(problems)) from None


def dump(config: Config) -> str:
    """The resolved config as YAML that is itself a valid `--config`."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(dotted key, type and default, documentation) of every key, for help and tests."""
    for name, info in model.model_fields.items():
        section = _section_of(info.annotation)
        if section is not None:
            yield from fields(section, f"{prefix}{name}.")
        else:
            default = "required" if info.is_required() else f"default {info.get_default(call_default_factory=True)}"
            yield f"{prefix}{name}", f"{_type_name(info.annotation)}, {default}", info.description or ""


def help_text(options: type[BaseModel] | None) -> str:
    """One line for each key. With a recipe's options, those too."""
    model = Config if options is None else create_model("Config", __base__=Config, options=(options, Field(default_factory=options)))
    lines = [
        "  --recipe NAME              a folder under recipes/, or a path",
        "  --config FILE              YAML on top of the recipe's; repeatable",
    ]
    for key, kind, text in fields(model):
        if key not in ("recipe", "options"):
            lines.append(f"  --{key:<24} {text} ({kind})")
    return "\n".join(lines)


class _Yaml12(yaml.SafeLoader):
    """Safe YAML with the 1.2 core rules: `1e-5` is a number, `yes` and `off` are text, a key stands once."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Without aliases: ten lines of them can mean a billion values, or a value that holds itself."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not supported", self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        return int(node.value)  # PyYAML's own reads 010 as eight, and stumbles over 089


class _Dumper(yaml.SafeDumper):
    """Quotes what the loader would take for a number, such as a commit called 5e12345."""


_Yaml12.add_constructor("tag:yaml.org,2002:int", _Yaml12.construct_yaml_int)
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9][0-9_]*", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+0123456789."),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
):
    for _class in (_Yaml12, _Dumper):
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first) + ([""] if _tag == "null" else [])
        )


def read_layer(path: Path) -> Layer:
    """One YAML file with the line of each key. Raises `UserError` for bad syntax, duplicate keys and a top level that is no mapping."""
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=_Yaml12)
    except FileNotFoundError:
        raise UserError(f"--config {path}: no such file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not readable as YAML: {error}") from None
    origins: dict[str, str] = {}
    values = {} if node is None else _construct(node, "", str(path), origins)
    if not isinstance(values, dict):
        raise UserError(f"{path}:1: expected `section:` with keys under it, found {type(values).__name__}")
    return Layer(values, origins)


def _construct(node: yaml.Node, prefix: str, file: str, origins: dict[str, str]) -> Any:
    if not isinstance(node, yaml.MappingNode):
        try:
            return _Yaml12("").construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError) as error:
            place = f"{file}:{node.start_mark.line + 1}"
            raise UserError(f"{place}: {prefix.rstrip('.')} is no value that a config can hold: {error}") from None
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        place = f"{file}:{key_node.start_mark.line + 1}"
        if key in result:
            raise UserError(f"{place}: {prefix}{key} stands here and at {origins[prefix + key]}; remove one of them")
        origins[prefix + key] = place
        result[key] = _construct(value_node, f"{prefix}{key}.", file, origins)
    return result


def command_line(overrides: Iterable[tuple[str, str]]) -> Layer:
    """Dotted overrides as a layer; values are YAML (`--log.trackers "[wandb]"`)."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, text in overrides:
        try:
            node = yaml.compose(text, Loader=_Yaml12)
        except yaml.YAMLError as error:
            raise UserError(f"--{key} {text}: not readable as YAML: {error}") from None
        value = None if node is None else _construct(node, f"{key}.", f"--{key}", origins)
        for part in reversed(key.split(".")):
            value = {part: value}
        _merge(values, value)
        origins[key] = f"--{key}"
    return Layer(values, origins)


def _merge(into: dict[str, Any], values: Any) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _explain(problem: ErrorDetails, model: type[BaseModel], origins: dict[str, str]) -> str:
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    inner = (origins[known] for known in origins if known.startswith(f"{key}."))
    place = next((origins[known] for known in _prefixes(location) if known in origins), next(inner, "the defaults"))
    if problem["type"] == "extra_forbidden":
        near = _nearest(model, location)
        hint = f"; did you mean {near}?" if near else f"; sections are {', '.join(model.model_fields)}"
        return f"{place}: unknown key {key}{hint}"
    return f"{place}: {key} = {problem['input']!r}: {problem['msg']}"


def _nearest(model: type[BaseModel], location: list[str]) -> str | None:
    """A close key of the same section; or else a close one anywhere; or else a remotely similar one of the same section."""
    siblings = {name: ".".join([*location[:-1], name]) for name in _known_keys(model, location[:-1])}
    anywhere = {key.rpartition(".")[2]: key for key, *_ in reversed(list(fields(model)))}
    for keys, cutoff in ((siblings, 0.8), (anywhere, 0.8), (siblings, 0.5)):
        if near := difflib.get_close_matches(location[-1], keys, n=1, cutoff=cutoff):
            return keys[near[0]]
    return None


def _prefixes(location: list[str]) -> Iterator[str]:
    for end in range(len(location), 0, -1):
        yield ".".join(location[:end])


def _known_keys(model: type[BaseModel], path: list[str]) -> list[str]:
    for name in path:
        info = model.model_fields.get(name)
        section = _section_of(info.annotation) if info else None
        if section is None:
            return []
        model = section
    return list(model.model_fields)


def _section_of(annotation: Any) -> type[BaseModel] | None:
    candidates = [annotation, *get_args(annotation)]
    found = [kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not BaseModel]
    return found[0] if found else None


def _type_name(annotation: Any) -> str:
    choices = get_args(annotation)
    if choices and all(isinstance(choice, str) for choice in choices):
        return " | ".join(choices)
    if choices:
        return " | ".join("null" if kind is type(None) else _type_name(kind) for kind in choices if kind is not Ellipsis)
    return getattr(annotation, "__name__", str(annotation)).lower()
