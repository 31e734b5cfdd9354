"""The model card (README.md) of an export: the speakers' numbers, and how transformers speaks with them."""

from __future__ import annotations

from pydantic import JsonValue

from overtone.finetune.exporting.model_card_metadata import THIS_MODEL
from overtone.recipes.speech.model_card import render_voice_card

from ..state import CsmState

USE = """\
A speaker's number is the `role` of a turn. {context}

```python
from transformers import AutoProcessor, CsmForConditionalGeneration

processor = AutoProcessor.from_pretrained("{model}")
model = CsmForConditionalGeneration.from_pretrained("{model}")
turn = {{"role": "{number}", "content": [{{"type": "text", "text": "Hello, this is my voice."}}]}}
inputs = processor.apply_chat_template([turn], tokenize=True, return_dict=True)
audio = model.generate(**inputs, output_audio=True)
processor.save_audio(audio, "hello.wav")
```"""


SINGLE = "The model was trained on single turns: earlier turns as context still work as in the base, but were not trained."
TURNS = "The model was trained on conversations: turns with 0 to {turns} earlier clips of their recording, text and speech, as context."


def write_model_card(state: CsmState, inherited: dict[str, JsonValue]) -> str:
    """The card as Markdown with the hub's YAML header. `inherited`: of the base's header (see `read_base_metadata`)."""
    context = TURNS.format(turns=state.context.turns) if state.context else SINGLE
    usage = USE.format(model=THIS_MODEL, number=state.speakers[0].id, context=context)
    numbers = ("number in the prompt", lambda speaker: speaker.id)
    return render_voice_card(state, inherited, "transformers", ["csm", "voice-clone", "synthetic-speech"], usage, numbers)
