"""The contract of a recipe: a frozen set of functions, found by its folder.

`recipes/<name>/recipe.py` defines one `RECIPE = Recipe(...)`. Training uses a model only through these functions, so a new recipe is a new
folder and needs no other edit.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple

from pydantic import BaseModel
from typing_extensions import TypeVar

from overtone.finetune.errors import UserError

if TYPE_CHECKING:
    from torch import Generator, Size, Tensor, nn

    from overtone.finetune.config import Config
    from overtone.finetune.storage.tensor_layouts import TensorLayout

OptionsT = TypeVar("OptionsT", bound=BaseModel, default=Any)
"""A recipe's `Options`. A plain `Recipe` is one with any options."""

PACKAGES = ("finetune", "data_prep", "recipes")
"""The packages below `overtone`."""
POSITIONS = "positions"
"""The word for what `Recipe.length` counts, unless the recipe has its own."""
Sample = dict[str, "Tensor"]
"""One row as tensors without a batch dimension."""


def _accept_every_name(_: str) -> bool:
    return True


def _keep_name(name: str) -> str:
    return name


def _list_nothing(_: dict[str, Any], __: Any) -> Iterable[str]:
    return ()


def _name_no_files(_: dict[str, Any]) -> tuple[str, ...]:
    return ()


def _prepare_nothing(_: Config) -> None:
    return None


def _verify_nothing(_: nn.Module, __: Loaded, ___: Config) -> None:
    return None


def _keep_means(means: dict[str, float]) -> dict[str, float]:
    return means


class Term(NamedTuple):
    """One part of the loss, or, with weight 0, a metric."""

    sum: Tensor
    """fp32 scalar: summed over the supervised targets of this micro-batch, never a mean."""
    weight: float


@dataclass(frozen=True)
class Batch:
    """One micro-batch as the recipe collated it."""

    tensors: dict[str, Tensor]
    """What the model's forward takes; the first dimension is the sample, or of row numbers, which count through all samples, themselves."""
    targets: dict[str, int]
    """For each term of the loss, the number of its targets here. Known before the forward, because the global count divides the loss."""
    lengths: tuple[int, ...] = ()
    """Of the samples that are packed into one row, or of each row. They stay on the host, where a loop over them does not wait for the
    device."""


BASE_DISTANCE = "base_distance"
"""The term of the loss that `train.base_distance` adds."""
BASE_STATES = "base_states"
"""Key of the base's states in `Batch.tensors`."""


@dataclass(frozen=True)
class BaseDistance:
    """How predictions are compared with those of the frozen base, for `train.base_distance`.

    With the base's states in `batch.tensors[BASE_STATES]`, `Recipe.loss` passes them to the `LossHead` (finetune/modeling/loss_head.py) as
    its third argument, and returns the third sum as the term `BASE_DISTANCE`; the training sets its weight.
    """

    states: Callable[[nn.Module, Batch], Tensor]
    """One forward of the model or of its base → the states [N, H] that the head gets for the same predictions. Called without gradients,
    in eval mode."""
    head: Callable[[nn.Module], str]
    """The path of that head in the model. It must be a `LossHead`, whose weights are those of the base or trained, without an adapter."""
    term: str
    """The term of the loss that has the same targets, one for each of the N predictions."""


@dataclass(frozen=True)
class Loaded:
    """A model without values, and what is needed to load, shard and train it."""

    model: nn.Module
    """Parameters on the meta device, buffers real. `forward(tensors)` must reach every trainable parameter (sharding hooks in there)."""
    processor: Any
    """The second argument of `read`: tokenizer, ids, speaker table."""
    blocks: tuple[type[nn.Module], ...]
    """The classes that are sharded, checkpointed and compiled one by one."""
    base: Path
    """Folder whose *.safetensors hold the parameters under the model's own names or as `layouts` say (a superset is fine), except the
    `added` ones."""
    trainable: Callable[[str], bool] = _accept_every_name
    """Which parameter names full fine-tuning trains, besides the `added` ones; the others stay frozen and out of the checkpoints."""
    added: Mapping[str, Callable[[Generator, Size], Tensor]] = field(default_factory=dict)
    """Parameters that the base lacks, or whose values in it are replaced (a head for other classes): name → function that returns the
    initial value [shape] from a CPU generator, which `run.seed` and the name determine. They are always trained, beside adapters too."""
    layouts: Mapping[str, TensorLayout] = field(default_factory=dict)
    """Parameter name → of which tensors of `base` it consists, where it is not one of them: transformers renames modules and computes all
    experts of a layer as one parameter, and a base without a head lacks a prefix. Checkpoints have the model's parameters;
    `ExportPlan.layouts` must be the same ones."""
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """Values of persistent buffers; they are saved with each checkpoint."""
    state: dict[str, Any] = field(default_factory=dict)
    """JSON that export needs (speaker names, for example); stored in each checkpoint's state.json, and compared on resume."""
    tensor_plans: Mapping[str, Mapping[str, Literal["outputs", "inputs", "heads"]]] = field(default_factory=dict)
    """For `parallel.tensor`: `module.ClassName` of a block → path of each module that its ranks share → how (`Cut` in
    finetune/distributed/tensor_parallel.py). A model with another block cannot be trained with `parallel.tensor`."""
    varies: str | None = None
    """Why blocks would be recompiled again and again, so that `train.compile: auto` does not compile them; None: they would not."""
    libraries: tuple[str, ...] = ()
    """Distributions whose version affects what `read` returns, such as an image decoder, besides those of `sample_cache_key.LIBRARIES`."""
    remarks: tuple[str, ...] = ()
    """Sentences for the log before the first step."""


class RowPlace(NamedTuple):
    """Where a row is in a series of rows."""

    series: str
    """Rows of the same series can be context of each other: the name of a recording, of a book, of a conversation."""
    begin: float
    """In any unit, such as seconds in a recording."""
    end: float
    """After `begin`. A row can be context of rows that begin at its end or later."""


class ContextLimits(NamedTuple):
    """How much context a sample has."""

    rows: int
    """Most earlier rows of a sample; 0 for none."""
    duration: float
    """Most that these last together, in the unit of `RowPlace`."""


@dataclass(frozen=True)
class ContextRows(Generic[OptionsT]):
    """Earlier rows of the same data file at the beginning of a row's sample, such as the turns of a conversation before it.

    finetune/data/context_rows.py states which rows these are. They depend only on the data file and the options.
    """

    locate: Callable[[dict[str, Any]], RowPlace]
    """The place of a row; raises `UserError` for a row without one. Called only if the limits allow context."""
    limits: Callable[[OptionsT], ContextLimits]
    """The limits that the options set."""
    join: Callable[[list[Sample], Any], Sample]
    """(samples that `read` returned for the context, oldest first, and, last, for the row; processor) → the row's sample. Not called for a
    row without context. Raises `UserError` for a sample that is too long for the model."""


@dataclass(frozen=True)
class Answer:
    """The answer to one prompt of `sample.prompts`."""

    text: str
    """The generated text; for a voice, a line about the speech."""
    sound: bytes = b""
    """A FLAC file, if the answer is audio."""
    picture: bytes = b""
    """A PNG of the audio."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Measurements by name; the trackers get their means over the prompts."""


@dataclass(frozen=True)
class PreparedMetrics:
    """What measuring the answers to `sample.prompts` needs. Everything in it can be written as JSON."""

    names: tuple[str, ...]
    """Of the metrics, the means of `Answer.numbers` included."""
    settings: dict[str, Any]
    """All that the metrics depend on besides prompts and weights: models with their digests, sampling, seed, reference clips. Recorded with
    every measurement; measurements with other settings are not compared."""
    local: dict[str, Any] = field(default_factory=dict)
    """Where on this machine the models and files are."""
    bytes: int = 0
    """Size of the weights that `measure` loads."""


class MeasuredAnswers(NamedTuple):
    """What `SampleMetrics.measure` found."""

    metrics: dict[str, float]
    """By name, over all answers."""
    details: list[dict[str, Any]]
    """For each answer, what is recorded beside the metrics, such as its transcript. JSON."""


@dataclass(frozen=True)
class SampleMetrics:
    """Metrics of all answers to `sample.prompts` together, for `checkpoint.best_by: sample/NAME`."""

    prepare: Callable[[Config], PreparedMetrics | None]
    """Called once per launch, on one process, after `Recipe.prepare` and before training: find and check what measuring needs. Raises
    `UserError` if something is missing. None: the config asks for no measurement."""
    measure: Callable[[Path, list[str], list[Answer], PreparedMetrics], MeasuredAnswers]
    """(exported folder, prompts, answers, what `prepare` returned) → metrics. Called in the process that has generated the answers."""


@dataclass(frozen=True)
class Sketch:
    """What `overtone plan` needs of a base: its config.json, and neither weights nor data."""

    loaded: Loaded
    """As `load` makes it, without a processor."""
    batch: Callable[[int, int], Batch]
    """(samples, positions of each) → a micro-batch, packed if the config says so, that is learned at every position it can be."""
    processor: Callable[[], Any]
    """What `read` needs, by the base's small files alone; raises `UserError` if one is missing or does not fit the model."""


@dataclass(frozen=True)
class ReleasedModel:
    """A published model that a recipe trains: a row of docs/models.md. Everything else in the row is computed from it."""

    name: str
    """On the hub, with its owner: Qwen/Qwen3-8B."""
    licence: str
    """As its model card on the hub names it: apache-2.0."""
    languages: str
    """As its makers list them, short enough for a table: English; 10 languages."""
    config: Mapping[str, Any]
    """Its config.json, at least the keys that determine the shapes."""
    streaming: bool = False
    """Whether its inference here returns the beginning of an answer before the end is generated."""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Other JSON files of its folder that `sketch` reads, by path."""
    overrides: tuple[tuple[str, str], ...] = ()
    """Keys and values of the config that this model needs beside the recipe's config.yaml."""


@dataclass(frozen=True)
class ExportPlan:
    """How a recipe turns trained tensors into the folder that a stock package loads."""

    translate_name: Callable[[str], str] = _keep_name
    """Name of a tensor of the base, and name of a parameter that it lacks (`Loaded.added`) → its name in the exported weights. `keep` and
    `edit` get the new names."""
    layouts: Mapping[str, TensorLayout] = field(default_factory=dict)
    """`Loaded.layouts`: by them the exported weights have the tensors of the base again."""
    keep: Callable[[str], bool] = _accept_every_name
    """Which of the tensors the exported weights hold."""
    edit: dict[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    """Last change to a tensor, in fp32, by name; the shape stays."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Content of files to write, by path relative to the folder (config.json, README.md)."""
    copy: tuple[str, ...] = ()
    """Paths relative to the base folder, files or folders, copied as they are."""
    readme: Callable[[dict[str, Any], str], str] | None = None
    """(the checkpoint's state.json, its config.yaml) → README.md: what the model is and what it was made from. Absent, with no README.md
    in `files` or `copy`: a card is written with recipe, base, data, training, validation loss and config."""
    adapter_config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of peft's adapter_config.json that say which class loads the base of an adapter: `task_type`, or `auto_mapping` with
    `base_model_class` and `parent_library` for a class for which peft has no task. Absent: `AutoPeftModel` cannot load the adapter."""
    adapter_files: tuple[str, ...] = ()
    """Those of `files` and `copy` that an export of the adapter alone contains, too: tokenizer and chat template."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Keys in the header of that card, in the hub's form: library_name, pipeline_tag, tags."""


@dataclass(frozen=True)
class Inference:
    """What a recipe can do with an exported model."""

    generate: Callable[[Path, list[str]], int]
    """(exported folder, remaining arguments) → exit code, for `overtone generate`."""
    chat: Callable[[Path, list[str]], int] | None = None
    """(exported folder, remaining arguments) → exit code, after a conversation in the terminal. Absent: the model cannot converse."""
    serve: Callable[[Mapping[str, Path], list[str]], int] | None = None
    """(exported folders by what was typed for them, remaining arguments) → exit code, after the server has stopped. Absent: the recipe has
    no server."""
    sample: Callable[[Path, list[str]], list[Answer]] | None = None
    """(exported folder, prompts) → an answer to each prompt, without randomness, for `sample.every`. Called in a process of its own, on
    the GPU if one is visible to it, else on the CPU. Absent: the config's `sample` section is refused."""
    evaluate: Callable[[Path, list[str]], int] | None = None
    """(run, checkpoint or exported folder; remaining arguments) → exit code, for `overtone eval-voice`. Absent: it makes no voice."""
    select: Callable[[Path, list[str]], int] | None = None
    """(run, remaining arguments) → exit code, for `overtone select`: generates with the run's checkpoints, measures the output, and writes
    its choice by `overtone.finetune.exporting.selection_record.write_selection`. Absent: the checkpoints' evaluations decide."""
    example: tuple[str, ...] = ()
    """Arguments of `overtone generate` for the command that a run prints after its last step: a text to start with."""
    speech: Callable[[], object] | None = None
    """Returns the recipe's `SpeechRecipe` (recipes/speech/interface.py), by which programs speak, evaluate and select. Absent: it makes no
    voice."""
    load_text_generator: Callable[[Path], object] | None = None
    """(exported folder) → a `TextGenerator` (recipes/language/text_generator.py), by which programs chat. Absent: the model cannot
    converse."""
    metrics: SampleMetrics | None = None
    """Metrics of what `sample` returns, besides the means of `Answer.numbers`. Absent: there are only these."""


@dataclass(frozen=True)
class Recipe(Generic[OptionsT]):
    """The contract. Shapes and units are in each recipe's own docstrings."""

    Options: type[OptionsT]
    """The config's `options` section. Of a recipe with an `options.py`, the class of that name in it."""
    load: Callable[[Config[OptionsT]], Loaded]
    """Build the model on meta. Called on every rank, after `prepare`."""
    read: Callable[[dict[str, Any], Any, Path], Sample]
    """(row, processor, the data file's folder) → tensors of one sample; raises `UserError` that says what is wrong (the caller adds file
    and line). Called once a row, before training, in any process. Its result is cached, so it may depend on nothing else, randomness
    included, except the files that `files` names."""
    length: Callable[[Sample], int]
    """Positions that a sample occupies: what `micro_tokens` and `global_batch_tokens` count."""
    collate: Callable[[list[Sample]], Batch]
    """Samples as one micro-batch."""
    loss: Callable[[nn.Module, Batch], dict[str, Term]]
    """One forward of the model; returns the loss terms by name, the keys of `Batch.targets`."""
    export: Callable[[Path, dict[str, Any], dict[str, Tensor], str], ExportPlan]
    """(base folder, state, buffers, format) → plan."""
    formats: tuple[str, ...]
    """Export formats, the default first."""
    inference: Inference
    """Uses of an exported model."""
    lora_targets: str = "all-linear"
    """Regular expression over names of modules that LoRA adapts, unless model.lora.targets is set."""
    files: Callable[[dict[str, Any]], Iterable[str]] = _name_no_files
    """The files that `read` opens for a row, as paths relative to the data file's folder. Each must exist, and the rows are read again if
    one has another size or time of change than before. It gets the row before `read` has checked it, and may raise `UserError` too."""
    list_unused: Callable[[dict[str, Any], Any], Iterable[str]] = _list_nothing
    """(row, processor) → what `read` does not use of a row that it has accepted, as phrases such as `key id of messages`. The log counts
    the rows with each phrase."""
    context: ContextRows[OptionsT] | None = None
    """Earlier rows as part of a row's sample. Absent: a sample depends on its row alone."""
    prepare: Callable[[Config[OptionsT]], None] = _prepare_nothing
    """Called once per launch, on one process, before `load`: caches under `run.dir` what is derived from data and base."""
    base_distance: BaseDistance | None = None
    """How to compare the model with its base. Absent: `train.base_distance` is refused."""
    pack: Callable[[list[Sample]], Batch] | None = None
    """`collate` for `data.packing`: samples end to end in one row, none attending to another. Absent: the recipe cannot pack."""
    pad: Callable[[Batch, int], Batch] | None = None
    """(what `pack` made, positions) → the same in a row of so many positions, for compiled blocks, which are compiled anew for each shape;
    no target, and no sum over targets, changes. Absent: blocks are compiled for sizes that vary."""
    augment: Callable[[Sample, Any, Generator], Sample] | None = None
    """(sample, processor, CPU generator) → a random variant of the sample, of the same length, such as another crop of an image. Called on
    the loader's thread each time a sample is trained, and not in an evaluation. The generator is seeded by `run.seed`, the epoch and the
    row, so a variant depends neither on the micro-batch nor on the ranks nor on a resume. It must leave the given tensors unchanged."""
    truncate: Callable[[Sample, int], Sample] | None = None
    """(sample, positions) → its beginning, for `data.too_long: truncate`. Absent: a cut sample would teach something wrong."""
    verify: Callable[[nn.Module, Loaded, Config[OptionsT]], None] = _verify_nothing
    """Before the first step, with the sharded and filled model in eval mode: raise `UserError` if it does not do what `loss` and `pack`
    rely on. Collective: called on every rank."""
    report: Callable[[dict[str, float]], dict[str, float]] = _keep_means
    """The means of a step or an evaluation, with derived metrics for the log (a perplexity from a mean log-likelihood)."""
    unit: str = POSITIONS
    """What `length` counts, in the plural, for the console: tokens, frames, images."""
    show: Callable[[Sample, Any], str] | None = None
    """(sample, processor) → text for a terminal in which what is supervised stands out, for `overtone plan --show-batch`."""
    base_folders: tuple[str, ...] = ()
    """Folders in a base that `load`, `read` or `export` reads besides the files at its top; both are part of the base's digest."""
    sketch: Callable[[Config[OptionsT]], Sketch] | None = None
    """The base in shape only, for `overtone plan`. Absent: `prepare` and `load` are called, and the first rows of the data are read."""


def find_recipe(name: str) -> Path:
    """Folder of a recipe: a name under `recipes/`, or the path of a folder that holds `recipe.py`. Imports nothing."""
    places = [Path(name)] if "/" in name or name.startswith(".") else [root / name for root in _recipe_roots()]
    for folder in places:
        if (folder / "recipe.py").is_file():
            return folder.resolve()
    known = ", ".join(built_in_recipes())
    raise UserError(
        f"--recipe {name}: no recipe.py in {' or '.join(map(str, places))}; known recipes: {known}, or give the path of a folder"
    )


def choose_recipe(place: Path, name: object, given: str | None) -> str:
    """The recipe of a run or an export: `given` on the command line, or else the `name` that stands in the file `place`.

    A file comes from anywhere, and to import a folder is to run it; so from a file only the name of a built-in recipe counts. Raises
    `UserError` for any other.
    """
    if given is not None:
        return given
    if isinstance(name, str) and name in built_in_recipes():
        return name
    raise UserError(
        f"{place} names the recipe {name!r}, which is not one of {', '.join(built_in_recipes())}; a recipe from outside of the package is "
        "code, and a file may not choose which code runs: if you trust it, give its folder yourself with --recipe PATH"
    )


def recipe_arguments(name: str) -> list[str]:
    """`--recipe` for the suggested command of a verb that reads a run: only for a recipe from outside of the package, which no file of a
    run may choose (see `choose_recipe`)."""
    return [] if name in built_in_recipes() else ["--recipe", name]


def built_in_recipes() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted({path.parent.name for root in _recipe_roots() for path in root.glob("*/recipe.py")})


def load_recipe(folder: Path) -> Recipe:
    """Import `<folder>/recipe.py` and return its `RECIPE`. Raises `UserError` if it defines none."""
    recipe = getattr(_import(folder, "recipe"), "RECIPE", None)
    if not isinstance(recipe, Recipe):
        raise UserError(f"{folder / 'recipe.py'} must define RECIPE = Recipe(...); see docs/add_a_recipe.md")
    if _read_options_file(folder) not in (None, recipe.Options):
        raise UserError(f"{folder / 'recipe.py'}: Recipe(Options=…) must be given the Options of {folder / 'options.py'}")
    return recipe


def load_options(folder: Path) -> type[BaseModel]:
    """The recipe's `Options`: of `options.py` if that has the class, so that config and `--help` need neither `recipe.py` nor torch."""
    return _read_options_file(folder) or load_recipe(folder).Options


def load_argument_help(folder: Path) -> dict[str, Callable[[], object]]:
    """`HELP` of the recipe's `verb_help.py`: verb → a function that prints the options which the recipe adds to it. Empty without that
    file, which lets `overtone generate --help` work without torch, as `recipe.py` may import it."""
    return dict(getattr(_import_verb_help(folder), "HELP", {}))


def load_released_models(folder: Path) -> tuple[ReleasedModel, ...]:
    """`RELEASED` of the recipe's `released_models.py`; empty without that file. Raises `UserError` for anything but `ReleasedModel`s."""
    if not (folder / "released_models.py").is_file():
        return ()
    found = getattr(_import(folder, "released_models"), "RELEASED", None)
    if not isinstance(found, tuple) or not all(isinstance(model, ReleasedModel) for model in found):
        raise UserError(f"{folder / 'released_models.py'} must define RELEASED = (ReleasedModel(...), ...); see docs/add_a_recipe.md")
    return found


def load_data_advice(folder: Path) -> str:
    """`DATA` of the recipe's `verb_help.py`: how training data is made, for the error of a run that has none. Imports no torch."""
    return str(getattr(_import_verb_help(folder), "DATA", "It has one JSON object in each line; the recipe's `read` defines the keys."))


def load_data_form(folder: Path) -> tuple[str | None, tuple[frozenset[str], ...]]:
    """`DATA_VERB` and `ROW_KEYS` of the recipe's `verb_help.py`: the verb of data_prep that converts raw data, and sets of keys, of one of
    which a training row has all. None, and no sets, without them. Imports no torch."""
    module = _import_verb_help(folder)
    return getattr(module, "DATA_VERB", None), tuple(map(frozenset, getattr(module, "ROW_KEYS", ())))


def _import_verb_help(folder: Path) -> Any:
    """The recipe's `verb_help.py`; None without that file."""
    return _import(folder, "verb_help") if (folder / "verb_help.py").is_file() else None


def _read_options_file(folder: Path) -> type[BaseModel] | None:
    found = getattr(_import(folder, "options"), "Options", None) if (folder / "options.py").is_file() else None
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _import(folder: Path, name: str) -> Any:
    """A module of a recipe."""
    if folder.parent.name == "recipes" and folder.parent in _recipe_roots():
        return importlib.import_module(f"overtone.recipes.{folder.name}.{name}")
    return _import_outside(folder, name)


def _recipe_roots() -> list[Path]:
    return [Path(__file__).resolve().parent.parent / "recipes"]


def _import_outside(folder: Path, module: str) -> Any:
    """A folder outside the tree becomes a package of its own, so that its files can import each other relatively."""
    # By path, not by name: two folders may have the same name, and a dot in a name would read as a package inside another.
    package = f"outside_recipe_{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"
    for name, file in ((package, folder / "__init__.py"), (f"{package}.{module}", folder / f"{module}.py")):
        if name not in sys.modules:
            _import_file(name, file, [str(folder)] if name == package else None)
    return sys.modules[f"{package}.{module}"]


def _import_file(name: str, file: Path, inside: list[str] | None) -> None:
    """Import `file` as `name`; a package (with `inside`) may do without its file."""
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=inside)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} cannot be imported")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    if inside is not None and not file.is_file():
        return
    try:
        spec.loader.exec_module(module)
        _refuse_second_copies(file)
    except BaseException as error:
        del sys.modules[name]  # half of a module must not pass for the whole at the next import
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in PACKAGES:
            raise UserError(f"{file} imports {error.name}; import overtone.{error.name}") from error
        raise


def _refuse_second_copies(file: Path) -> None:
    """Raises `UserError` if a recipe imported this package by the names of its folders, which a clone has on the import path: that would
    be a second copy of each module, whose classes are none of ours."""
    root = Path(__file__).resolve().parent.parent
    for name, module in sorted(sys.modules.items()):
        package, _, inside = name.partition(".")
        own = package in PACKAGES and Path(getattr(module, "__file__", None) or "/").is_relative_to(root)
        if own and inside not in ("", "__main__"):
            raise UserError(f"{file} imports {name}; import overtone.{name}")
