"""The form that starts a training: data, recipe, model and settings, each with the description of its config key."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Endpoint

from overtone.data_prep.manifest import SUMMARY, TRAIN, VAL
from overtone.finetune.config import make_config_class
from overtone.finetune.config_diff import flatten
from overtone.finetune.config_key_descriptions import fields
from overtone.finetune.config_sources import read_config_file
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import read_json
from overtone.finetune.pages.request_validation import Route
from overtone.finetune.recipe.discovery import find_recipe, load_options, load_released_models
from overtone.finetune.storage import demo_models
from overtone.studio.folder_content import DatasetKind, DatasetSummary, find_content, find_inside, read_kind
from overtone.studio.jobs.job_commands import list_launch_files
from overtone.studio.jobs.job_records import JobCommand
from overtone.studio.page_interface import (
    Link,
    Page,
    Studio,
    accept_command,
    find_free_name,
    find_own_job,
    flatten_options,
    is_job,
    is_short,
    link_to,
    read_options,
    redirect_to,
    require_name,
)

RECIPES: dict[DatasetKind, tuple[str, ...]] = {
    "voice": ("voice_clone", "codec_lm", "csm", "whisper"),
    "voice pairs": ("voice_dpo",),
    "chats": ("llm_sft", "llm_dpo", "llm_reward"),
    "images": ("image_classification",),
}
"""Kind of a dataset → the recipes that train on it."""
DEMO_BASES = {"voice_clone": "qwen3-tts-demo-base", "whisper": "whisper-demo-en"}
"""Recipe → its demo model, which trains on a CPU."""
CHOSEN_BY_FORM = ("recipe", "run.dir", "data.train", "data.val", "model.lora", "model.quantization")
"""Keys that the form sets in another way."""
MAIN = ("train.epochs", "train.steps", "train.lr", "train.micro_tokens", "eval.every", "checkpoint.every")
"""Keys that the form shows first."""
TYPES = frozenset({"int", "float", "str", "path", "bool", "null", "URL", "auto", "relpath"})
RUNS = Path("runs")


class TrainForm(BaseModel):
    """The settings of a training. Further fields are keys of the config."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, str]
    recipe: str
    dataset: str
    """Folder of the dataset, relative to the studio's."""
    name: str
    """Name of the run."""
    model: str
    adapters: str = "full"
    """`full`, `lora` or `qlora`."""
    launch: str = ""
    """Launch file of the package; empty: one process."""
    num_processes: str = ""
    """Number of processes, in place of that of the launch file."""


@dataclass(frozen=True)
class Setting:
    """One key of the config, as the form shows it."""

    key: str
    kind: str
    default: str
    text: str
    """Its description."""
    choices: tuple[str, ...]
    """All valid values, if they can be listed."""


def make_page(studio: Studio) -> Page:
    """Return the page."""

    def show(request: Request) -> Response:
        return studio.render("train_page.html", "/train", **prepare_form(studio, request.query_params))

    def offer(dataset: DatasetSummary) -> Sequence[Link]:
        return [link_to("Train", "/train", dataset=str(dataset.folder.relative_to(studio.place)))]

    def show_again(_: JobCommand, id: str) -> Response:
        return redirect_to("/train", **{"from": id})

    training = accept_command(studio, "/train", TrainForm, lambda form: ("train", list_words(studio.place, form)), show_again)
    planning = accept_command(studio, "/train/plan", TrainForm, lambda form: ("plan", list_words(studio.place, form)), show_again)
    query = {"dataset": is_short, "recipe": is_short, "from": is_job}
    return Page(  # in place of the first of `training`: the form itself takes the settings of a job
        routes=(Route("GET", "/train", query=query), *training[0][1:], *planning[0]),
        endpoints=(Endpoint("/train", show, methods=["GET"]), *training[1][1:], *planning[1]),
        label="Train",
        dataset_links=offer,
    )


def prepare_form(studio: Studio, query: Mapping[str, str]) -> dict[str, object]:
    """Return the values of the form's template. `query`: `dataset` and `recipe`, or `from`, a job whose settings to use again."""
    datasets = [str(one.relative_to(studio.place)) for one in find_content(studio.place).datasets]
    job = find_own_job(studio.place, query["from"]) if "from" in query else None
    given = {key.removeprefix("--"): value for key, value in read_options(job.command.words if job is not None else ()).items()}
    chosen = query.get("dataset") or (str(Path(given.get("data.train", "")).parent) if job is not None else next(iter(datasets), ""))
    if chosen not in datasets:
        problem = f"{chosen} is no dataset in this folder any more; choose another one, or prepare it again." if chosen else ""
        return {"datasets": datasets, "dataset": "", "problem": problem, "recipes": [], "from": query.get("from", "")}
    recipes = list_recipes(studio.place / chosen)
    wanted = query.get("recipe") or given.get("recipe", "")
    recipe = wanted if wanted in recipes else recipes[0]
    if recipe == "llm_dpo" and read_json(studio.place / chosen / SUMMARY).get("rows") == "labels":
        given = {"options.objective": "kto", **given}
    settings = describe_settings(recipe)
    name = Path(given["run.dir"]).name if "run.dir" in given else find_free_name(studio.place / RUNS, Path(chosen).name)
    return {
        "datasets": datasets,
        "dataset": chosen,
        "problem": "",
        "from": query.get("from", ""),
        "recipes": recipes,
        "recipe": recipe,
        "name": name,
        "models": [*list_models(recipe), *list_local_models(studio.place)],
        "default_model": next((one.default for one in settings if one.key == "model.source"), ""),
        "given": given,
        "launches": list_launch_files(),
        "adapters": "full" if given.get("model.lora") != "true" else "qlora" if "model.quantization" in given else "lora",
        "main": [one for key in MAIN for one in settings if one.key == key],
        "sections": group_settings(settings),
        "lora_text": next((one.text for one in settings if one.key == "model.lora.rank"), ""),
    }


def list_recipes(dataset: Path) -> Sequence[str]:
    """Return the recipes that train on a dataset, the one for its rows first."""
    kind, rows = read_kind(dataset), read_json(dataset / SUMMARY).get("rows")
    if kind == "chats" and rows in ("pairs", "labels"):
        return ("llm_dpo", "llm_reward") if rows == "pairs" else ("llm_dpo",)
    return ("llm_grpo",) if kind == "chats" and rows == "prompts" else RECIPES[kind]


def list_words(place: Path, form: TrainForm) -> list[str]:
    """Return the words of `overtone train` and `overtone plan`. Raises `UserError` for what is no dataset, name, recipe or key."""
    folder = find_inside(place, form.dataset)
    if form.recipe not in (recipes := list_recipes(folder)):
        raise UserError(f"recipe {form.recipe[:80]} does not train on {form.dataset}; choose {' or '.join(recipes)}")
    known = {one.key for one in describe_settings(form.recipe)}
    if unknown := [key for key in form.__pydantic_extra__ if key not in known]:
        raise UserError(f"{unknown[0][:80]} is no setting of {form.recipe}; reload the page")
    words = ["--recipe", form.recipe, "--model.source", form.model, "--data.train", str(Path(form.dataset) / TRAIN)]
    if (folder / VAL).is_file() and (folder / VAL).stat().st_size:
        words += ["--data.val", str(Path(form.dataset) / VAL)]
    words += ["--run.dir", str(RUNS / require_name("name of the run", form.name))]
    if form.adapters != "full":
        words += ["--model.lora", "true", *(["--model.quantization", "nf4"] if form.adapters == "qlora" else [])]
    words += flatten_options([("launch", form.launch), ("num_processes", form.num_processes)])
    return [*words, *(word for key, value in form.__pydantic_extra__.items() for word in (f"--{key}", value))]


@functools.cache
def describe_settings(recipe: str) -> tuple[Setting, ...]:
    """Return the keys of a recipe's config with their defaults in this recipe."""
    folder = find_recipe(recipe)
    own = flatten(read_config_file(folder / "config.yaml").values)
    return tuple(_list_settings(folder, {key: str(value) for key, value in own.items()}))


def _list_settings(folder: Path, own: Mapping[str, str]) -> Iterator[Setting]:
    for key, described, text in fields(make_config_class(load_options(folder))):
        kind, _, default = described.partition(", default ")
        parts = tuple(kind.split(" | "))
        listed = ("true", "false") if parts == ("bool",) else () if TYPES & {*parts} or len(parts) < 2 else parts
        default = own.get(key, default)
        if with_lora := own.get(f"lora.{key}"):
            default = f"{default}, with LoRA {with_lora}"
        if key not in CHOSEN_BY_FORM:
            yield Setting(key, kind, default, text, listed)


def group_settings(settings: Sequence[Setting]) -> dict[str, list[Setting]]:
    """Return section → its keys, without those that the form shows first."""
    sections: dict[str, list[Setting]] = {}
    for one in settings:
        if one.key not in (*MAIN, "model.source"):
            sections.setdefault(one.key.partition(".")[0], []).append(one)
    return sections


def list_models(recipe: str) -> list[str]:
    """Return the released models of a recipe, and its demo model if that is installed."""
    folder = find_recipe("llm_sft" if recipe.startswith("llm_") else recipe)  # all of these train any chat model
    demo = [DEMO_BASES[recipe]] if recipe in DEMO_BASES and demo_models.find_data() is not None else []
    return [*demo, *(one.name for one in load_released_models(folder))]


def list_local_models(place: Path) -> list[str]:
    """Return the model folders at most two folders deep, relative to `place`, without links and hidden ones."""
    found = []
    for folder, inside, names in os.walk(place):
        below = Path(folder).relative_to(place)
        inside[:] = sorted(name for name in inside if name[:1] != ".") if len(below.parts) < 2 else []
        if "config.json" in names and any(name.endswith(".safetensors") for name in names):
            found.append(str(below))
    return found
