"""The model card (README.md) of an export: how the stock package speaks with its voices."""

from __future__ import annotations

import json

from pydantic import JsonValue

from overtone.finetune.exporting.model_card_metadata import THIS_MODEL
from overtone.recipes.speech.model_card import name_language, render_voice_card

from ..state import VoiceCloneState

USE = {
    "custom_voice": """```python
from qwen_tts import Qwen3TTSModel

model = Qwen3TTSModel.from_pretrained("{model}")
waves, rate = model.generate_custom_voice(text="Hello, this is my voice.", speaker={speaker}, language="{language}")
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


def write_model_card(state: VoiceCloneState, kind: str, inherited: dict[str, JsonValue]) -> str:
    """The card as Markdown with the hub's YAML header, for `kind` `custom_voice` or `base`. `inherited`: of the base's header (see
    `read_base_metadata`)."""
    first = state.speakers[0]
    usage = USE[kind].format(model=THIS_MODEL, speaker=json.dumps(first.name, ensure_ascii=False), language=name_language(first))
    if state.further_training:
        usage = f"{state.further_training}\n\n{usage}"
    return render_voice_card(state, inherited, "qwen-tts", ["qwen3-tts", "voice-clone", "synthetic-speech"], usage)
