"""Run configuration: typed sections, YAML files, dotted command-line overrides, and validation errors that name file and line.

Precedence: field default < the recipe's config.yaml < each `--config` file in order < `--section.key value`. The `lora:` section of a file
comes directly after that file, and applies only if `model.lora` is set.
All problems of all sources are reported together, before anything expensive starts. Imports no torch.
"""

from __future__ import annotations

import copy
import functools
import math
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Generic, Literal, cast

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    PlainValidator,
    SerializeAsAny,
    ValidationError,
    create_model,
    field_validator,
)
from typing_extensions import TypeVar

from overtone.finetune.addresses import RemoteAddress, hide_word, is_url, looks_like_url
from overtone.finetune.config_diff import flatten
from overtone.finetune.config_errors import explain
from overtone.finetune.config_key_descriptions import fields, section_of
from overtone.finetune.config_sources import (
    ConfigSource,
    Dumper,
    merge,
    parse_overrides,
    parse_settings,
    read_config_file,
    split_section,
)
from overtone.finetune.errors import UserError
from overtone.finetune.storage.folder_handles import name_paths

AUTO: Final = "auto"
OVERLAY = "lora"
"""Section of a config file whose keys apply only if `model.lora` is set: what LoRA needs otherwise, such as a higher learning rate."""
COMMAND_LINE_ONLY = "command_line_only"
"""Mark of an option, in its JSON schema, that only the command line sets, with the reason."""
MOST_HELP_COLUMNS = 140
LAST_STEP = 10**8 - 1
"""The name of a checkpoint's folder has eight digits."""


def _path_or_url(value: object) -> Path | RemoteAddress:
    if not isinstance(value, str | Path):
        raise ValueError("expected a path, or a URL such as s3://bucket/train.jsonl")
    return RemoteAddress(value) if is_url(value) else _local_path(Path(value))


def _local_path(value: Path) -> Path:
    if looks_like_url(value):
        raise ValueError("expected a path on this machine, not a URL, which has two slashes after the colon where it is allowed")
    return value


def _model_name(value: str) -> str:
    if looks_like_url(value):
        raise ValueError("expected a hub name such as Qwen/Qwen3-1.7B, or a folder; download the model, and give its folder")
    return value


def _one_or_several(value: object) -> Path | RemoteAddress | tuple[Path | RemoteAddress, ...]:
    if not isinstance(value, list | tuple):
        return _path_or_url(value)
    if not value:
        raise ValueError("expected a file, or a list of at least one file")
    return tuple(map(_path_or_url, value))


def _as_text(value: Path | RemoteAddress | tuple[Path | RemoteAddress, ...]) -> str | list[str]:
    return [str(path) for path in value] if isinstance(value, tuple) else str(value)


def _number_or_auto(value: object) -> object:
    if value != AUTO and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError("expected a whole number from 1 on, or auto")
    return value


def _url(value: object) -> RemoteAddress:
    if not is_url(value):
        raise ValueError("expected a URL such as s3://bucket/runs/me; for a mounted folder file:///mnt/share/me")
    return RemoteAddress(value) if isinstance(value, RemoteAddress) else RemoteAddress(value.rstrip("/"))


def _best_by(value: str) -> str:
    metric, _, direction = value.partition(" ")
    if not metric or direction not in ("", "min", "max"):
        raise ValueError("expected the name of a metric, and min or max, as in `loss min` or `accuracy max`")
    return f"{metric} {direction or 'min'}"


def list_of_one(value: object) -> object:
    """Return a value before validation, with a single text as a list of it."""
    return (value,) if isinstance(value, str) else value


NumberOrAuto = Annotated[
    int | Literal["auto"], PlainValidator(_number_or_auto, json_schema_input_type=Annotated[int, Field(ge=1)] | Literal["auto"])
]
"""`auto`: `finetune/data/run_sizes.py` computes the number when the data are read."""
FilePath = Annotated[Path, Field(strict=False), AfterValidator(_local_path)]
ModelName = Annotated[str, AfterValidator(_model_name)]
DataFile = Annotated[
    Path | RemoteAddress, PlainValidator(_path_or_url, json_schema_input_type=str), PlainSerializer(str, return_type=str, when_used="json")
]
DataFiles = Annotated[
    Path | RemoteAddress | tuple[Path | RemoteAddress, ...],
    PlainValidator(_one_or_several, json_schema_input_type=str | list[str]),
    PlainSerializer(_as_text, when_used="json"),  # pydantic itself warns that a tuple is no path
]
"""One `DataFile`, or several."""
Url = Annotated[RemoteAddress, PlainValidator(_url, json_schema_input_type=str), PlainSerializer(str, return_type=str, when_used="json")]
Names = Annotated[tuple[str, ...], Field(strict=False), BeforeValidator(list_of_one, json_schema_input_type=str | tuple[str, ...])]


class Section(BaseModel):
    """A frozen group of keys. Unknown keys are errors, and values are not converted to another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Run(Section):
    dir: FilePath = Path("runs/unnamed")
    """Folder of this run: checkpoints, logs, caches. If it contains checkpoints, the run resumes from the newest valid one."""
    seed: int = 0
    """Seed of all randomness: sample order, dropout, new weights."""
    deadline_minutes: float | None = Field(default=None, gt=0)
    """Wall-clock budget of this launch, in minutes of training. When it is used up, the run saves and stops after the current step."""


class Lora(Section):
    rank: int = Field(default=16, ge=1)
    """Rank r of the update B·A (Hu et al. 2021, arXiv:2106.09685)."""
    alpha: float = Field(default=32.0, gt=0)
    """The update is scaled by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the input of A."""
    targets: str | None = None
    """Regular expression that matches the names of the modules to adapt, and of experts that are one parameter; or all-linear. Default: the
    recipe's pattern."""
    rslora: bool = False
    """Scale the update by alpha / √rank instead, so that higher ranks learn as fast (rsLoRA, arXiv:2312.03732)."""
    dora: bool = False
    """Learn the magnitude of each weight row separately from its direction (DoRA, arXiv:2402.09353). Slower; uses no more memory."""

    @property
    def scale(self) -> float:
        """Factor of the update B·A."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


class Model(Section):
    source: ModelName | None = None
    """Hub name (Qwen/Qwen3-TTS-12Hz-0.6B-Base) or folder of the base model."""
    revision: str | None = None
    """Commit, tag or branch on the hub; the commit that it resolves to is recorded."""
    lora: Lora | None = None
    """Train LoRA adapters instead of the weights; `true`: with the defaults. If absent: full fine-tuning. If set, the `lora:` section of
    the recipe's config.yaml sets the learning rate, and whatever else LoRA needs; a --config file or a flag overrides it."""
    quantization: Literal["nf4"] | None = None
    """Store the weights under the adapters in 4 bits (QLoRA, arXiv:2305.14314): a quarter of bf16's bytes, about 10 % rounding error."""


class MixedFile(Section):
    """A file of `data.mix`."""

    path: DataFile
    """Training data as JSONL, or its URL, as in `data.train`."""
    weight: float = Field(default=1.0, gt=0)
    """Its share of the samples is this number divided by the sum of all weights."""


class Data(Section):
    train: DataFile | None = None
    """Training data as JSONL; paths in it are relative to the file. A URL (s3://bucket/train.jsonl, hf://datasets/me/voice/train.jsonl) is
    downloaded to the run's cache."""
    mix: Annotated[tuple[MixedFile, ...], Field(strict=False)] = ()
    """Several training files instead of `train`, as `[{path: a.jsonl, weight: 0.9}, {path: b.jsonl, weight: 0.1}]`: 90 % of the samples
    come from the first. An epoch has as many samples as the files have rows, so it may repeat one file and cut another."""
    val: DataFiles | None = None
    """Validation data as JSONL, or its URL; or several files, as in `[a.jsonl, b.jsonl]`. Then the loss of each is logged as
    `val/NAME/loss`, and the validation loss is that of all rows together."""
    window: int = Field(default=1024, ge=1)
    """Number of samples that are bucketed by length, or packed, together. The shuffle covers the whole epoch."""
    packing: bool = False
    """Pack samples end to end, up to `train.micro_tokens` positions, instead of padding them. They do not attend to each other."""
    sequence_length: int | None = Field(default=None, ge=2)
    """Longest sample, in positions. Default: `train.micro_tokens`."""
    too_long: Literal["error", "drop", "truncate"] = "error"
    """Handling of longer samples: fail before training, drop them, or truncate them. The number is logged before step 1."""

    def training_files(self) -> tuple[Path | RemoteAddress, ...]:
        """`train`, or the files of `mix`."""
        single = () if self.train is None else (self.train,)
        return single or tuple(file.path for file in self.mix)

    def validation_files(self) -> tuple[Path | RemoteAddress, ...]:
        """Return the file or files of `val`; none without validation data."""
        if self.val is None:
            return ()
        return self.val if isinstance(self.val, tuple) else (self.val,)

    def name_training_data(self) -> str:
        """Return the training files, for messages."""
        return ", ".join(map(str, self.training_files()))


class Train(Section):
    epochs: int = Field(default=3, ge=1)
    """Passes over the data."""
    steps: int | None = Field(default=None, ge=1)
    """Number of optimizer steps. If set, it replaces `epochs`."""
    patience: int | None = Field(default=None, ge=1)
    """Finish the run after this many evaluations in a row without a better `checkpoint.best_by` (default: validation loss). If `best_by` is
    a metric of samples, measured samples are counted instead of evaluations."""
    optimizer: Literal["adamw", "adamw_8bit", "muon"] = "adamw"
    """AdamW; AdamW with 8-bit moments (fp32 for embeddings, vectors and short rows); or Muon for the matrices of blocks, scaled to
    AdamW's learning rate and decay, with AdamW for the rest. A checkpoint can only be resumed with the optimizer that wrote it."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Nesterov momentum; only with `optimizer: muon`. `beta1` and `beta2` apply to the parameters that AdamW updates."""
    lr: float = Field(default=1e-5, gt=0)
    """Peak learning rate."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Learning rate after the warm-up: cosine decay to `final_lr`, or constant."""
    warmup: float = Field(default=0.03, ge=0, le=1)
    """Fraction of all steps over which the learning rate rises linearly from 0."""
    final_lr: float = Field(default=0.1, ge=0, le=1)
    """Learning rate at the end of the cosine decay, as a fraction of `lr`."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay of AdamW, on matrices only (not on norms, biases and embeddings)."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay rate of AdamW's first moment."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay rate of AdamW's second moment."""
    clip: float = Field(default=1.0, gt=0)
    """Maximum global L2 norm of the gradient; larger gradients are scaled down to it."""
    base_distance: float = Field(default=0.0, ge=0)
    """Weight of the distance to the base in the loss: KL(base ‖ model) of each prediction in nats (for a voice, of codebook 0), so
    that training keeps what the base knows. 0: none. Costs one more forward pass; without `model.lora`, also a frozen copy of the base."""
    skip_nonfinite: int = Field(default=0, ge=0)
    """Number of non-finite updates (NaN or Inf in the loss or gradient, or a spike) to skip before the run stops. Each one is logged."""
    spike: float | None = Field(default=None, gt=1)
    """Treat an update as non-finite if its loss or gradient norm exceeds this multiple of the median over the last 50 updates. With
    rewards in a loop (llm_grpo) only the gradient norm, since the loss is about 0."""
    global_batch_tokens: NumberOrAuto = "auto"
    """Positions per optimizer step, over all ranks. A step takes whole micro-batches until less than half of a full one is missing. It
    determines gradient accumulation, so a config means the same on 1 GPU and on 8.
    `auto`: the positions of all epochs divided by 100 updates, from 4 samples to `largest_batch_tokens`; a resumed run keeps its number."""
    largest_batch_tokens: int = Field(default=16384, ge=1)
    """Maximum positions per optimizer step that `global_batch_tokens: auto` chooses; larger data get more updates instead."""
    micro_tokens: int = Field(default=4096, ge=1)
    """Largest micro-batch in positions, including padding. It limits the memory of activations."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """Compute type. Master weights, gradients, reductions and optimizer state are fp32 in both, except the moments of `adamw_8bit`."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """Recompute activations of each block in the backward pass: all of them, or (selective) all but matrix products and attention."""
    compile: bool | Literal["auto"] = "auto"
    """Compile blocks with torch.compile. `auto`: on a GPU, if the run is long enough to repay about a minute of compilation."""

    @property
    def batch_tokens(self) -> int:
        """`global_batch_tokens`, or, while that is `auto`, the most that it can become."""
        return self.largest_batch_tokens if self.global_batch_tokens == AUTO else self.global_batch_tokens

    @field_validator("precision", mode="before")
    @classmethod
    def _why_not_fp16(cls, value: object) -> object:
        if value == "fp16":
            raise ValueError("fp16 needs loss scaling, which skips steps depending on rounding, so runs would differ; use bf16 or fp32")
        return value


class Parallel(Section):
    strategy: Literal["auto", "ddp", "zero1", "zero2", "fsdp", "hsdp"] = "auto"
    """Sharding of weights, gradients and AdamW state over N ranks. Bytes per parameter, persistent and then temporary (w: 2 in bf16, 4
    in fp32): `ddp` 16, and 2 for a bf16 copy · `zero1` 16/N, and w for gathered weights and 4 for full gradients · `zero2` 16/N, and w for
    gathered weights · `fsdp` (ZeRO-3) 16/N, and the root and two units (blocks, large embeddings) · `hsdp` 16/(N/replicate), and the same
    as `fsdp` · `auto`: `fsdp` or `ddp`, as set in the launch file."""
    replicate: int = Field(default=1, ge=1)
    """Number of copies of the sharded model under `hsdp`: N / replicate ranks share one. Usually the number of machines."""
    tensor: int = Field(default=1, ge=1)
    """Number of neighbouring ranks that share each matrix of a block (tensor parallelism); needs `fsdp`. Bytes per parameter: 16/N (norms:
    16·tensor/N), and temporarily the root and two units, a share of each block. Keep each of the N/tensor groups within one machine."""
    offload: bool = False
    """Keep weights, gradients and optimizer state in host memory, and update them there. GPU runs only; not yet tested on a GPU."""


class Checkpoint(Section):
    every: NumberOrAuto = "auto"
    """Optimizer steps between two checkpoints; the last step always writes one. `auto`: about 5 in a run (with LoRA, as often as an
    evaluation), always at a step that is evaluated, and at most 200 steps apart, unless evaluations are further apart."""
    keep: Annotated[int, Field(ge=2)] | Literal["spread"] = 3
    """Number of checkpoints to keep, in addition to the best one (among those evaluated at their step). `spread`: the two newest, and up to
    8 that are spread over the whole run, to choose from later."""
    best_by: Annotated[str, AfterValidator(_best_by)] | None = None
    """Metric of the evaluations by which a checkpoint is the best, with `min` or `max` (default min), as in `accuracy max`. Default: the
    lowest validation loss. `sample/NAME` is a metric of the answers to `sample.prompts`, as in `sample/wer` for a voice."""
    asynchronous: bool = True
    """Continue training while a checkpoint is written; only the copy to host memory blocks. It takes 12 bytes of host memory per trained
    parameter (fewer with another `optimizer`), over all ranks, until the run ends; without room for it, each save blocks until it is
    written."""
    grace_seconds: float = Field(default=25.0, gt=0)
    """Seconds after a signal in which the last save must finish; otherwise it is not started. accelerate kills the processes after 30."""
    on_failure: Literal["stop", "continue"] = "stop"
    """Action if a save fails on disk: stop the run, or log the failure and retry at the next save point."""
    copy_to: Url | None = None
    """URL (s3://bucket/runs/me) to copy each checkpoint to while training continues; not shared with other runs. A run without a local
    checkpoint resumes from the newest valid copy."""


class Eval(Section):
    every: NumberOrAuto = "auto"
    """Optimizer steps between two evaluations on `data.val`; the last step always runs one. `auto`: 10 in a run, at most 200 steps
    apart."""
    at_start: bool = False
    """True if a fresh run evaluates before its first step, so that the log and `loss.png` begin with the loss of the base."""


class Sample(Section):
    every: int | None = Field(default=None, ge=1)
    """Optimizer steps between two generations during training; each one writes a checkpoint first, and the last step always runs one."""
    prompts: Names = ()
    """Prompts to generate from; for a voice, `text` or `speaker|text`. A separate process generates, on the GPU of rank 0 if it has room,
    otherwise on one CPU core. Results go to the log, the trackers and (audio, spectrograms) to `samples/` in the run's folder."""
    asr: ModelName | None = None
    """Whisper model (small, a .pt file, a hub name) that transcribes the clips of a voice, for the metrics `sample/wer`, `sample/cer` and
    `sample/cost`."""
    speaker_model: ModelName | None = None
    """Speaker encoder for the metric `sample/similarity` of a voice, as `--speaker-model` of eval-voice. Default, if something is measured:
    resemblyzer, if it is installed, or else that of the base."""


class Log(Section):
    every: int = Field(default=1, ge=1)
    """Optimizer steps between two log lines."""
    trackers: Annotated[
        tuple[Literal["tensorboard", "wandb", "trackio"], ...],
        Field(strict=False),
        BeforeValidator(list_of_one, json_schema_input_type=str | tuple[str, ...]),
    ] = ("tensorboard",)
    """Experiment trackers (through accelerate) that also receive the metrics, one or a list; log.jsonl is always written."""


OptionsT = TypeVar("OptionsT", bound=BaseModel, default=BaseModel, covariant=True)
"""A recipe's `Options`: its functions take `Config[Options]`, all others take `Config`."""


class Config(Section, Generic[OptionsT]):
    """The resolved configuration of a run."""

    recipe: str
    """Name of a folder under recipes/, or path of a folder that contains recipe.py."""
    run: Run = Run()
    """Folder, seed and time budget."""
    model: Model = Model()
    """Base model and adapters."""
    data: Data = Data()
    """Datasets."""
    train: Train = Train()
    """Optimization."""
    parallel: Parallel = Parallel()
    """Distribution over devices."""
    checkpoint: Checkpoint = Checkpoint()
    """Checkpoints."""
    eval: Eval = Eval()
    """Evaluation."""
    sample: Sample = Sample()
    """Generation during training."""
    log: Log = Log()
    """Logging."""
    options: SerializeAsAny[OptionsT]
    """Options of the recipe."""


def resolve(recipe: str, options: type[OptionsT], files: Iterable[Path], overrides: Iterable[tuple[str, str]]) -> Config[OptionsT]:
    """Merge all config sources and validate them. Raises `UserError` with every problem, its place and the nearest valid key."""
    return resolve_sources(recipe, options, list_sources(map(read_config_file, files), overrides))


def resolve_sources(recipe: str, options: type[OptionsT], sources: list[ConfigSource]) -> Config[OptionsT]:
    """As `resolve`, of sources that are read already, the lowest precedence first."""
    model = make_config_class(options)
    refuse_code_of_files(options, sources)
    config = _validate(model, recipe, choose_sources(sources))
    name_paths([str(config.run.dir), config.checkpoint.copy_to or ""])
    if config.model.lora is None and any(source.overlay for source in sources):
        _validate(model, recipe, sources)  # a mistake in a `lora:` section is reported before somebody needs the section
    return cast("Config[OptionsT]", config)


def refuse_code_of_files(options: type[BaseModel], sources: list[ConfigSource]) -> None:
    """Raises `UserError` for a value in a file of an option with `COMMAND_LINE_ONLY`: a file may come from anywhere. A value that the
    command line replaces, as in the config of an earlier run, is not used and not refused."""
    for key, reason in list_command_line_keys(options, "options."):
        given = [source for source in sources if _find_value(source, key) is not None]
        if given and all(source.from_file for source in given):
            place = given[0].origins.get(key) or next(iter(given[0].origins.values()))
            value = hide_word(str(_find_value(given[0], key)))
            raise UserError(f"{place}: {key} {reason}, so a file cannot set it; give --{key} {value} on the command line")


def list_command_line_keys(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the dotted keys with `COMMAND_LINE_ONLY` in a section, and the reasons. `prefix`: ends with a dot."""
    for name, info in section.model_fields.items():
        inner = section_of(info.annotation)
        if inner is not None:
            yield from list_command_line_keys(inner, f"{prefix}{name}.")
        elif isinstance(info.json_schema_extra, dict) and (reason := info.json_schema_extra.get(COMMAND_LINE_ONLY)):
            yield f"{prefix}{name}", str(reason)


def _find_value(source: ConfigSource, key: str) -> object:
    value: object = source.values
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def list_sources(
    files: Iterable[ConfigSource], overrides: Iterable[tuple[str, str]], settings: Mapping[str, object] = MappingProxyType({})
) -> list[ConfigSource]:
    """Return all config sources, the lowest precedence first. The `lora:` section of a file follows the file as an overlay. Raises
    `UserError`.

    `settings`: of a program, as for `parse_settings`."""
    sources: list[ConfigSource] = []
    for file in files:
        sources += split_section(file, OVERLAY)
    sources += [parse_overrides([override]) for override in overrides]
    sources += parse_settings(settings)
    for source in sources:
        expand_lora_switch(source)
    return sources


def expand_lora_switch(source: ConfigSource) -> None:
    """Replace `model.lora: true` by an empty section, which leaves the settings to the other sources, and `false` by null; in place."""
    model = source.values.get("model")
    if isinstance(model, dict) and isinstance(model.get("lora"), bool):
        model["lora"] = {} if model["lora"] else None


def choose_sources(sources: list[ConfigSource]) -> list[ConfigSource]:
    """Return the sources without the `lora:` sections of files, unless the other sources set `model.lora`."""
    plain = [source for source in sources if not source.overlay]
    model = _merge_all(plain).values.get("model")
    return sources if isinstance(model, dict) and model.get("lora") is not None else plain


def describe_overlay(sources: list[ConfigSource]) -> list[str]:
    """Return one line for each value that comes from a `lora:` section: the key, the value, and the file and line."""
    chosen = choose_sources(sources)
    owners = {key: source for source in chosen for key in flatten(source.values)}
    return [
        f"{key}: {value} (because model.lora is set: {source.origins[key]})"
        for source in chosen
        if source.overlay
        for key, value in flatten(source.values).items()
        if owners[key] is source
    ]


def _merge_all(sources: Iterable[ConfigSource]) -> ConfigSource:
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source in sources:
        merge(values, copy.deepcopy(source.values))  # `merge` changes nested sections in place
        origins |= source.origins
    return ConfigSource(values, origins)


def _validate(model: type[Config], recipe: str, sources: list[ConfigSource]) -> Config:
    merged = _merge_all(sources)
    values, origins = merged.values, merged.origins
    if values.setdefault("recipe", recipe) != recipe:
        raise UserError(f"{origins['recipe']} sets recipe: {values['recipe']}, the command line --recipe {recipe}; remove one of them")
    try:
        return model(**values)
    except ValidationError as error:
        problems = [explain(problem, model, origins) for problem in error.errors()]
        raise UserError("the configuration has problems:\n  " + "\n  ".join(problems)) from None


def require_number(value: int | str) -> int:
    """`eval.every` or `checkpoint.every` of a run that trains."""
    assert isinstance(value, int), "finetune/data/run_sizes.py replaces auto"
    return value


def on_disk(path: Path | RemoteAddress | None) -> Path | None:
    """Return the path of a local data file. Raises `UserError` for a URL, which only training downloads."""
    if isinstance(path, RemoteAddress):
        raise UserError(f"{path} is a URL, and only training downloads it; download the file yourself and give its path")
    return path


def dump(config: Config) -> str:
    """Return the resolved config as YAML that is itself a valid `--config`."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=Dumper, sort_keys=False, allow_unicode=True)


def make_config_class(options: type[OptionsT]) -> type[Config[OptionsT]]:
    """`Config` with the options of a recipe."""
    return cast("type[Config[OptionsT]]", _build_config_class(options))


@functools.lru_cache(maxsize=32)
def _build_config_class(options: type[BaseModel]) -> type[Config[Any]]:
    """Kept, since a class takes up to 90 ms: pydantic looks through all imported modules for the source of its docstrings."""
    return create_model("Config", __base__=Config, options=(options, Field(default_factory=options)))


def help_text(options: type[BaseModel] | None, own: Mapping[str, JsonValue]) -> str:
    """Return one line for each config key, by section, including those of the recipe's `options` if given. `own`: the recipe's config.yaml,
    as dotted keys with values, which replace the defaults."""
    model = Config if options is None else make_config_class(options)
    lines = [
        "  --recipe NAME              name of a folder under recipes/, or a path",
        "  --config FILE              YAML that overrides the recipe's config.yaml; repeatable. Keys in its section `lora:`",
        "                             apply if model.lora is set",
    ]
    sections: set[str] = set()
    for key, kind, text in fields(model):
        section = key.partition(".")[0]
        if key in ("recipe", "options"):
            continue
        if section not in sections:
            sections.add(section)
            lines += ["", f"{section}: {model.model_fields[section].description or 'settings of this recipe'}"]
        if key == "model.lora.rank":
            lines += _format_key("model.lora true", Model.model_fields["lora"].description or "")
        default = f"{kind.partition(', default ')[0]}, default of this recipe {own[key]}" if key in own else kind
        lines += _format_key(key, f"{text} ({default})")
    return "\n".join(lines)


def _format_key(key: str, text: str) -> list[str]:
    """A key with its explanation in a column of its own, as wide as the terminal allows."""
    columns = shutil.get_terminal_size((MOST_HELP_COLUMNS, 24)).columns
    wrapper = textwrap.TextWrapper(
        width=max(MOST_HELP_COLUMNS // 2, min(columns, MOST_HELP_COLUMNS)),
        initial_indent=f"  --{key:<24} ",
        subsequent_indent=" " * 29,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapper.wrap(text)
