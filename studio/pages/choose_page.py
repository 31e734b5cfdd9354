"""The page that chooses among the checkpoints of a run, and exports one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel
from starlette.responses import Response
from starlette.routing import Route as Endpoint

from overtone.finetune.cli.list_runs import describe_best
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_summary import RunSummary, summarize_run
from overtone.finetune.pages.request_validation import Route
from overtone.finetune.recipe import built_in_recipes, find_recipe
from overtone.finetune.recipe.discovery import load_inference
from overtone.studio.folder_content import find_inside, list_validation
from overtone.studio.jobs.job_records import JobCommand, StudioJob
from overtone.studio.loss_chart import read_curves
from overtone.studio.models_at_hand import list_whispers
from overtone.studio.page_interface import (
    Link,
    Page,
    Studio,
    accept_command,
    find_free_name,
    flatten_options,
    is_short,
    link_to,
    read_options,
    require_name,
)
from overtone.studio.pages.dataset_report import SELECTION
from overtone.studio.pages.run_page import STEP, find_trained_run, list_checkpoints

EXPORTS = Path("exports")
FORMATS: dict[str, tuple[str, ...]] = {
    "voice_clone": ("custom_voice", "base"),
    "voice_dpo": ("custom_voice", "base"),
    "voice_grpo": ("custom_voice", "base"),
    "whisper": ("transformers", "openai-whisper", "ctranslate2"),
    "llm_sft": ("transformers", "gguf", "ollama", "gguf-adapter"),
    "llm_dpo": ("transformers", "gguf", "ollama", "gguf-adapter"),
    "llm_grpo": ("transformers", "gguf", "ollama", "gguf-adapter"),
}
"""Recipe → formats of its exports, the default first; all others have one. Its contract has them too, but needs torch."""


class SelectForm(BaseModel, extra="forbid"):
    """The settings of `overtone select`."""

    run: str
    data: str = ""
    """File of rows with recordings, for a voice."""
    asr: str = ""
    """Whisper model, for a voice."""


class ExportForm(BaseModel, extra="forbid"):
    """The settings of `overtone export`."""

    run: str
    name: str
    checkpoint: str = "newest"
    """`newest`, `best` (the choice of select), or a step."""
    format: str = ""
    strength: str = ""
    quantize: Literal["", "f16", "bf16", "q8_0"] = ""
    adapter_only: bool = False


def make_page(studio: Studio) -> Page:
    """Return the page."""

    def render(name: str, given: Mapping[str, str]) -> Response:
        """Show a run; its forms have the values of a command: `given`, its flags and their values."""
        run = find_inside(studio.place, name)
        summary, losses = summarize_run(run), read_curves(run).evaluations
        steps = [int(path.name.removeprefix(STEP)) for path in list_checkpoints(run)]
        return studio.render(
            "choose_page.html",
            "/choose",
            name=str(run.relative_to(studio.place)),
            run=summary,
            best=describe_best(summary),
            steps=[(step, losses.get(step)) for step in steps],
            speaks=can_speak(summary.recipe),
            data=list_validation(studio.place),
            formats=FORMATS.get(summary.recipe, ()),
            is_selected=(run / "selection" / "selection.json").is_file(),
            has_table=(run / "selection" / SELECTION).is_file(),
            whispers=list_whispers(),
            export=find_free_name(studio.place / EXPORTS, Path(given["--to"]).name if "--to" in given else run.name),
            given=given,
        )

    def offer(run: RunSummary) -> Sequence[Link]:
        return (
            [link_to("Choose and export", "/choose", run=str(run.folder.relative_to(studio.place)))] if list_checkpoints(run.folder) else []
        )

    def offer_after(job: StudioJob) -> Sequence[Link]:
        run = job.command.words[0] if job.command.verb == "select" and job.command.words else find_trained_run(job)
        return [link_to("Choose and export", "/choose", run=run)] if run else []

    def show_again(command: JobCommand, _: str) -> Response:
        return render(next(iter(command.words), ""), read_options(command.words))

    select = accept_command(
        studio,
        "/choose/select",
        SelectForm,
        lambda form: (
            "select",
            [
                str(find_inside(studio.place, form.run).relative_to(studio.place)),
                *flatten_options([("data", form.data), ("asr", form.asr)]),
            ],
        ),
        show_again,
    )
    export = accept_command(
        studio, "/choose/export", ExportForm, lambda form: ("export", list_export_words(studio.place, form)), show_again
    )
    return Page(
        routes=(Route("GET", "/choose", query={"run": is_short}), *select[0], *export[0]),
        endpoints=(Endpoint("/choose", lambda request: render(request.query_params.get("run", ""), {})), *select[1], *export[1]),
        run_links=offer,
        job_links=offer_after,
    )


def can_speak(recipe: str) -> bool:
    """Return whether a recipe makes a voice; False for one that is not built in, whose code is not imported."""
    return recipe in built_in_recipes() and load_inference(find_recipe(recipe)).speech is not None


def list_export_words(place: Path, form: ExportForm) -> list[str]:
    """Return the words of `overtone export`. Raises `UserError` for what is no run, name, checkpoint or strength."""
    find_inside(place, form.run)
    if form.checkpoint not in ("newest", "best") and not form.checkpoint.isdecimal():
        raise UserError(f"checkpoint {form.checkpoint[:40]!r} is no step; choose newest, best, or a step of the list")
    if form.checkpoint == "best" and form.strength:
        raise UserError("the chosen checkpoint has its own strength; leave the strength empty, or choose a step")
    words = [form.run, "--to", str(EXPORTS / require_name("name of the export", form.name))]
    words += {"newest": [], "best": ["--best"]}.get(form.checkpoint, ["--step", form.checkpoint])
    words += flatten_options([("format", form.format), ("strength", form.strength), ("quantize", form.quantize)])
    return [*words, *(["--adapter-only"] if form.adapter_only else [])]
