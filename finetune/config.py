"""What a run is told: typed sections, strict YAML, dotted overrides, and errors that name the place.

Precedence, fixed: field default < the recipe's config.yaml < each `--config` file in order < `--section.key value`.
Every problem of every layer is reported at once, with file and line, before anything expensive starts. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, cast

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    SerializeAsAny,
    ValidationError,
    create_model,
    field_validator,
)
from typing_extensions import TypeVar

from finetune.errors import UserError
from finetune.explain import explain, fields
from finetune.layers import Dumper, command_line, merge, read_layer
from finetune.remote import is_url


def _path_or_url(value: Any) -> Path | str:
    if not isinstance(value, str | Path):
        raise ValueError("expected a path, or a URL such as s3://bucket/train.jsonl")
    return value if is_url(value) else Path(value)


def _url(value: str) -> str:
    if not is_url(value):
        raise ValueError("expected a URL such as s3://bucket/runs/me; for a mounted folder file:///mnt/share/me")
    return value.rstrip("/")


FilePath = Annotated[Path, Field(strict=False)]
DataFile = Annotated[Path | str, PlainValidator(_path_or_url)]
"""A string is a URL."""
Url = Annotated[str, AfterValidator(_url)]
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
    """Regular expression over module names to adapt, or all-linear; by default the recipe's own."""
    rslora: bool = False
    """Scale the update by alpha / √rank instead, so that higher ranks learn as fast (rsLoRA, arXiv:2312.03732)."""
    dora: bool = False
    """Learn the length of each row of a weight apart from its direction (DoRA, arXiv:2402.09353); slower, no more memory."""


class Model(Section):
    source: str | None = None
    """Hub name (Qwen/Qwen3-TTS-12Hz-0.6B-Base) or folder of the base model."""
    revision: str | None = None
    """Commit, tag or branch on the hub; the commit that it resolves to is recorded."""
    lora: Lora | None = None
    """Train a low-rank update instead of the weights. Absent: full fine-tuning."""
    quantization: Literal["nf4"] | None = None
    """Keep the weights under the adapters in 4 bits (QLoRA, arXiv:2305.14314): a quarter of bf16's bytes, about a tenth rounding error."""


class Data(Section):
    train: DataFile | None = None
    """JSONL to train on; paths in it are relative to the file. A URL (s3://bucket/train.jsonl) is brought to the run's cache."""
    val: DataFile | None = None
    """JSONL to evaluate on, or its URL."""
    window: int = Field(default=1024, ge=1)
    """Samples that are bucketed by length, or packed, together; the shuffle is over the whole epoch."""
    packing: bool = False
    """Lay samples end to end, up to `train.micro_tokens` positions, instead of side by side with padding; none sees another."""
    sequence_length: int | None = Field(default=None, ge=2)
    """Longest sample in positions; by default `train.micro_tokens`."""
    too_long: Literal["error", "drop", "truncate"] = "error"
    """What becomes of longer ones: an error before training, left out, or cut to their beginning; counted and told before step 1."""


class Train(Section):
    epochs: int = Field(default=3, ge=1)
    """Passes over the data."""
    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps; if given, it decides instead of `epochs`."""
    optimizer: Literal["adamw", "adamw_8bit", "muon"] = "adamw"
    """AdamW; AdamW with its moments in 8 bits (but for embeddings, vectors and short rows); or Muon for the matrices of blocks, scaled to
    AdamW's learning rate and decay, and AdamW for the rest. A checkpoint resumes with the optimizer that wrote it."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Muon's Nesterov momentum; `beta1` and `beta2` are for what AdamW updates."""
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
    """Updates with a NaN or infinite loss or gradient (or a spike) that a run may skip, each told and counted; at the next one it stops."""
    spike: float | None = Field(default=None, gt=1)
    """A loss or gradient norm of more than this many times its median over the last 50 updates is treated as one that is not finite."""
    global_batch_tokens: int = Field(default=16384, ge=1)
    """Positions per optimizer step, over all ranks. Accumulation follows from it, so a config means the same on 1 GPU and on 8."""
    micro_tokens: int = Field(default=4096, ge=1)
    """Largest micro-batch in positions, padding included: bounds the memory of activations."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """Compute type. Masters, gradients, reductions and optimizer state are fp32 in both, but for the moments of `adamw_8bit`."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """Recompute activations of each block in the backward pass: all of them, or (selective) all but matrix products and attention."""
    compile: bool | Literal["auto"] = "auto"
    """Compile blocks with torch.compile. `auto`: on a GPU, if the run is long enough to repay the minute that it takes; never on a CPU."""

    @field_validator("precision", mode="before")
    @classmethod
    def _why_not_fp16(cls, value: Any) -> Any:
        if value == "fp16":
            raise ValueError("its range needs a loss scale that skips steps, so runs would differ by rounding alone; use bf16, or fp32")
        return value


class Parallel(Section):
    strategy: Literal["auto", "ddp", "zero1", "zero2", "fsdp", "hsdp"] = "auto"
    """How weights, gradients and AdamW state are divided over N ranks, in bytes a parameter that last, and that pass besides (w: 2 in bf16,
    4 in fp32): `ddp` 16, in bf16 a copy 2 · `zero1` 16/N, gathered weights w and whole gradients 4 · `zero2` 16/N, gathered weights w ·
    `fsdp` (ZeRO-3) 16/N, the root and two units (blocks, large embeddings) · `hsdp` 16/(N/replicate), the same · `auto`: `fsdp` or `ddp`,
    as the launch file's preset says."""
    replicate: int = Field(default=1, ge=1)
    """Copies of the sharded model under `hsdp`: N / replicate ranks share one. Usually the number of machines."""
    tensor: int = Field(default=1, ge=1)
    """Neighbouring ranks that share each matrix of a block (tensor parallelism), besides `fsdp`: 16/N bytes last (norms: 16·tensor/N), the
    root and two units pass, of blocks a share. A step's micro-batches go to N/tensor groups; keep one within a machine."""
    offload: bool = False
    """Keep weights, gradients and optimizer state in host memory, and update them there. On GPUs only, and not yet tried on one."""


class Checkpoint(Section):
    every: int = Field(default=200, ge=1)
    """Optimizer steps between two checkpoints; the last step always makes one."""
    keep: int = Field(default=3, ge=2)
    """How many to keep. The best by validation loss, of those evaluated at their very step, is kept besides."""
    asynchronous: bool = True
    """Train on while a checkpoint is written; only its copy to host memory blocks. That takes 12 bytes of host memory a trained parameter
    (fewer with another `optimizer`), over all ranks, for the rest of the run; without room for it, each save blocks until it is written."""
    grace_seconds: float = Field(default=25.0, gt=0)
    """Seconds after a signal within which a last save must end, or it is not begun: accelerate kills what is left after 30."""
    on_failure: Literal["stop", "continue"] = "stop"
    """What a save means that the disk refused: the end of the run, or an event in the log and another try at the next save point."""
    copy_to: Url | None = None
    """URL (s3://bucket/runs/me) where each checkpoint is copied to while training goes on, for this run alone. A run without a checkpoint
    of its own takes the newest good one from there."""


class Eval(Section):
    every: int = Field(default=200, ge=1)
    """Optimizer steps between two evaluations on `data.val`; the last step always makes one."""


class Sample(Section):
    every: int | None = Field(default=None, ge=1)
    """Optimizer steps between two rounds of sampled answers; a checkpoint is made at each, and the last step always makes a round."""
    prompts: Names = ()
    """What is answered each time, or said: a voice takes `text` or `speaker|text`. The answers come from a process beside the run, on the
    GPU of rank 0 if it has room, else on one core; they go to the log, the trackers and (sounds, spectrograms) to `samples/` of the run."""


class Log(Section):
    every: int = Field(default=1, ge=1)
    """Optimizer steps between two lines of the log."""
    trackers: Annotated[tuple[Literal["tensorboard", "wandb", "trackio"], ...], Field(strict=False)] = ("tensorboard",)
    """Trackers of accelerate that also get the numbers; log.jsonl is always written."""


OptionsT = TypeVar("OptionsT", bound=BaseModel, default=BaseModel, covariant=True)
"""A recipe's `Options`: its functions take `Config[Options]`, all others take `Config`."""


class Config(Section, Generic[OptionsT]):
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
    sample: Sample = Sample()
    """What is answered on the way."""
    log: Log = Log()
    """What is told."""
    options: SerializeAsAny[OptionsT]
    """The recipe's own section."""


def resolve(recipe: str, options: type[OptionsT], files: Iterable[Path], overrides: Iterable[tuple[str, str]]) -> Config[OptionsT]:
    """Merge all layers and check them; raises `UserError` listing every problem with its place and the nearest valid key."""
    model = create_model("Config", __base__=Config, options=(options, Field(default_factory=options)))
    layers = [*(read_layer(path) for path in files), command_line(overrides)]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        merge(values, layer.values)
        origins |= layer.origins
    if values.setdefault("recipe", recipe) != recipe:
        raise UserError(f"{origins['recipe']} says recipe: {values['recipe']}, the command line says --recipe {recipe}; drop one of them")
    try:
        return cast("Config[OptionsT]", model(**values))
    except ValidationError as error:
        problems = [explain(problem, model, origins) for problem in error.errors()]
        raise UserError("the configuration has problems:\n  " + "\n  ".join(problems)) from None


def on_disk(path: Path | str | None) -> Path | None:
    """A data file that is here. Raises `UserError` for one that is elsewhere, where nothing brings it over."""
    if isinstance(path, str):
        raise UserError(f"{path} is elsewhere, and only training brings it here; download it, and give the file")
    return path


def dump(config: Config) -> str:
    """The resolved config as YAML that is itself a valid `--config`."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=Dumper, sort_keys=False, allow_unicode=True)


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
