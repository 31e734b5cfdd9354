"""The files of an export: weights under their released names, and everything else that WhisperForConditionalGeneration and its processor
read; for openai-whisper and faster-whisper, the conversion of this folder."""

from __future__ import annotations

from pathlib import Path

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import ExportPlan
from overtone.finetune.storage import files
from overtone.finetune.storage.model_security import CONFIG, cleaned
from overtone.recipes.language.causal_lm_export_files import GENERATION, list_copied_files

from ..model.generation_config import describe_generation
from ..model.modeling import HEAD, make_processor, read_config
from ..options import Options
from ..state import WhisperState
from .format_conversion import CONVERTED, make_conversion

TRANSFORMERS = "transformers"
FORMATS = (TRANSFORMERS, *CONVERTED)
"""The formats of an export, the default first."""
CLASS = "WhisperForConditionalGeneration"


def plan_export(base: Path, state: WhisperState, form: str = TRANSFORMERS) -> ExportPlan:
    """`form`: one of `FORMATS`. Raises `UserError` for a base that is no Whisper, and for one that lacks what `form` needs."""
    processor = make_processor(read_config(base), Options())
    written = {CONFIG: files.json_bytes({**cleaned(base / CONFIG)[0], "architectures": [CLASS]})}
    if processor.multilingual:
        # A base may have no file, or one of an earlier transformers, without the tokens of languages and tasks.
        generation = cleaned(base / GENERATION)[0] if (base / GENERATION).is_file() else {}
        written[GENERATION] = files.json_bytes({**describe_generation(processor), **generation, **state.as_json()})
    return ExportPlan(
        keep=lambda name: name != f"{HEAD}.weight",  # of the base, if it has a copy of the embedding, which would be untrained
        files=written,
        copy=tuple(name for name in list_copied_files(base) if name not in written),
        adapter_config={"auto_mapping": {"base_model_class": CLASS, "parent_library": "transformers.models.whisper.modeling_whisper"}},
        metadata={"library_name": "transformers", "pipeline_tag": "automatic-speech-recognition"},
        conversion=None if form == TRANSFORMERS else make_conversion(form, base),
    )


def read_defaults(folder: Path) -> Options:
    """The language and the task of a folder, which transformers' `generate` uses too. Raises `UserError` for a task that is none."""
    found = cleaned(folder / GENERATION)[0] if (folder / GENERATION).is_file() else {}
    language, task = (found.get(key) for key in ("language", "task"))
    if task not in (None, "transcribe", "translate"):
        raise UserError(f"{folder / GENERATION}: task is {task!r:.60}, expected transcribe or translate; correct it")
    # Some folders have the name of the token, as <|de|>.
    return Options(language=None if language is None else str(language).strip("<|>"), task=task or "transcribe")
