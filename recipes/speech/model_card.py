"""The model card (README.md) of exported voices: speakers, data, base model, and the conditions of use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from overtone.data_prep.manifest import AUTO, LANGUAGES
from overtone.finetune.exporting.model_card_metadata import render_header
from overtone.finetune.storage import demo_models

from .voices_json_schema import SpeakerT, TrainedSpeaker, TrainedVoices

LANGUAGE_CODES = {name: code for code, name in LANGUAGES.items()}
"""English name in lower case → ISO 639-1, as the hub lists languages."""


def name_language(speaker: TrainedSpeaker) -> str:
    """The language of a speaker in a card."""
    return speaker.spoken_language or AUTO


def render_voice_card(
    state: TrainedVoices[SpeakerT],
    inherited: Mapping[str, Any],
    library: str,
    tags: list[str],
    usage: str,
    column: tuple[str, Callable[[SpeakerT], object]] = ("language", name_language),
) -> str:
    """The card as Markdown with the hub's YAML header.

    `state`: of the checkpoint. `inherited`: of the base's header (see `read_base_metadata`).
    `library`: the hub's name of the package that loads the model. `usage`: the text after base and data. `column`: what the table of the
    speakers says besides clips and minutes.
    """
    speakers, data, base = state.speakers, state.data, state.base
    hours = sum(speaker.seconds for speaker in speakers) / 3600
    title, describe = column
    table = "\n".join(f"| {one.name} | {describe(one)} | {one.clips} | {one.seconds / 60:.1f} |" for one in speakers)
    revision = f"@{base.revision}" if base.revision else ""
    return f"""{render_header(make_header(state, inherited, library, tags))}
# A cloned voice

**Consent.** This model imitates the voices of the people named below. Use and share it only with the consent of each of them.

**Synthetic speech.** These people never said what the model says. Tell listeners that the speech is synthetic, and never use it to
deceive.

| speaker | {title} | clips | minutes |
|---|---|---|---|
{table}

Data: `{data.name}`, {data.clips} clips, {hours:.2f} hours, SHA-256 `{data.sha256}`.
Base: {base.name}{revision}. The base's licence applies to this model too.{format_warning(base.name)}

{usage}
"""


def make_header(state: TrainedVoices[SpeakerT], inherited: Mapping[str, Any], library: str, tags: list[str]) -> dict[str, Any]:
    """Metadata for the hub. It has the base only if that is on the hub, because the hub refuses other names."""
    base = state.base.name
    spoken = {speaker.spoken_language or AUTO for speaker in state.speakers} & LANGUAGE_CODES.keys()
    return {
        **({"base_model": base, "base_model_relation": "finetune"} if "/" in base else {}),
        "library_name": library,
        "pipeline_tag": "text-to-speech",
        **inherited,
        **({"language": sorted(LANGUAGE_CODES[language] for language in spoken)} if spoken else {}),
        "tags": tags,
    }


def format_warning(base: str) -> str:
    """The warning for a model that was trained from a demo model; empty for other bases."""
    return "".join(f"\n\n**{warning}.**" for warning in demo_models.warning_entry(base).values())
