"""The model card (README.md) of an export: its voices, their data, the base model, and the conditions of use."""

from __future__ import annotations

from typing import Any

from data_prep.manifest import LANGUAGES
from finetune.exporting.model_metadata import THIS_MODEL, render_header
from finetune.storage import demo_models

USE = {
    "custom_voice": """```python
from qwen_tts import Qwen3TTSModel

model = Qwen3TTSModel.from_pretrained("{model}")
waves, rate = model.generate_custom_voice(text="Hello, this is my voice.", speaker="{speaker}", language="{language}")
```""",
    "base": """```python
from qwen_tts import Qwen3TTSModel

model = Qwen3TTSModel.from_pretrained("{model}")
waves, rate = model.generate_voice_clone(
    text="Hello, this is my voice.", language="{language}", ref_audio="clip.wav", x_vector_only_mode=True, non_streaming_mode=True
)
```

The model speaks in the voice of the clip. As in training, it uses only the sound of the clip. It was **not** trained for in-context
cloning, where the transcript of the clip is given as `ref_text`, and may have lost this ability of the released base model.

The export contains the speaker encoder, so it can be trained further: pass it as `--model.source`.""",
}


LANGUAGE_CODES = {name: code for code, name in LANGUAGES.items()}
"""ISO 639-1, as the hub lists languages, of those that Qwen3-TTS speaks."""


def write_model_card(state: dict[str, Any], kind: str, inherited: dict[str, Any]) -> str:
    """The card as Markdown with the hub's YAML header, for `kind` `custom_voice` or `base`. `inherited`: of the base's header (see
    `read_base_metadata`)."""
    speakers, data = state["speakers"], state["data"]
    hours = sum(speaker["seconds"] for speaker in speakers) / 3600
    base = state["base"]["name"] + (f"@{state['base']['revision']}" if state["base"]["revision"] else "")
    usage = USE[kind].format(model=THIS_MODEL, speaker=speakers[0]["name"], language=speakers[0]["language"] or "auto")
    table = "\n".join(f"| {one['name']} | {one['language'] or 'auto'} | {one['clips']} | {one['seconds'] / 60:.1f} |" for one in speakers)
    return f"""{render_header(make_header(state, inherited))}
# A cloned voice

**Consent.** This model imitates the voices of the people named below. Use and share it only with the consent of each of them.

**Synthetic speech.** These people never said what the model says. Tell listeners that the speech is synthetic, and never use it to
deceive.

| speaker | language | clips | minutes |
|---|---|---|---|
{table}

Data: `{data["name"]}`, {data["clips"]} clips, {hours:.2f} hours, SHA-256 `{data["sha256"]}`.
Base: {base}. The base's licence applies to this model too.{format_warning(state["base"]["name"])}

{usage}
"""


def make_header(state: dict[str, Any], inherited: dict[str, Any]) -> dict[str, Any]:
    """Metadata for the hub. It has the base only if that is on the hub, because the hub refuses other names."""
    base = state["base"]["name"]
    spoken = sorted({LANGUAGE_CODES[one["language"]] for one in state["speakers"] if one["language"] in LANGUAGE_CODES})
    return {
        **({"base_model": base, "base_model_relation": "finetune"} if "/" in base else {}),
        "library_name": "qwen-tts",
        "pipeline_tag": "text-to-speech",
        **inherited,
        **({"language": spoken} if spoken else {}),
        "tags": ["qwen3-tts", "voice-clone", "synthetic-speech"],
    }


def format_warning(base: str) -> str:
    """The warning for a model that was trained from a demo model; empty for other bases."""
    return "".join(f"\n\n**{warning}.**" for warning in demo_models.warning_entry(base).values())
