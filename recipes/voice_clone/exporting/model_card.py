"""The README.md of an export: whose voice, from which data and base, and what may be done with it."""

from __future__ import annotations

from typing import Any

from finetune.storage import demo_models

USE = {
    "custom_voice": """```python
from qwen_tts import Qwen3TTSModel

model = Qwen3TTSModel.from_pretrained("path/of/this/folder")
waves, rate = model.generate_custom_voice(text="Hello, this is my voice.", speaker="{speaker}", language="{language}")
```""",
    "base": """```python
from qwen_tts import Qwen3TTSModel

model = Qwen3TTSModel.from_pretrained("path/of/this/folder")
waves, rate = model.generate_voice_clone(
    text="Hello, this is my voice.", language="{language}", ref_audio="clip.wav", x_vector_only_mode=True, non_streaming_mode=True
)
```

It speaks in the voice of the clip, which it takes from the sound alone, as in its training. It was **not** trained for in-context
cloning, where the words of the clip are given as `ref_text`: what a released base model does with them, this one may have unlearned.

It keeps the speaker encoder: give it as `--model.source` to train on.""",
}


def model_card(state: dict[str, Any], kind: str) -> str:
    """Markdown with the hub's YAML header."""
    speakers, data = state["speakers"], state["data"]
    hours = sum(speaker["seconds"] for speaker in speakers) / 3600
    base = state["base"]["name"] + (f"@{state['base']['revision']}" if state["base"]["revision"] else "")
    usage = USE[kind].format(speaker=speakers[0]["name"], language=speakers[0]["language"] or "auto")
    table = "\n".join(f"| {one['name']} | {one['language'] or 'auto'} | {one['clips']} | {one['seconds'] / 60:.1f} |" for one in speakers)
    return f"""---
base_model: {base}
pipeline_tag: text-to-speech
tags: [qwen3-tts, voice-clone, synthetic-speech]
---

# A cloned voice

**Consent.** This model imitates the voices of the people named below. Use and pass it on only with the consent of each of them.

**Synthetic speech.** What it says was never said by them. Tell listeners that the speech is synthetic, and do not use it to deceive.

| speaker | language | clips | minutes |
|---|---|---|---|
{table}

Data: `{data["name"]}`, {data["clips"]} clips, {hours:.2f} hours, SHA-256 `{data["sha256"]}`.
Base: {base}. The base's licence applies to this model too.{warning(state["base"]["name"])}

{usage}
"""


def warning(base: str) -> str:
    """What is to be known of a model that was trained on a demo model."""
    return "".join(f"\n\n**{told}.**" for told in demo_models.warning_entry(base).values())
