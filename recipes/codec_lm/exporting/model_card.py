"""The model card (README.md) of an export: its training, its codec, its prompt, and how to speak with it."""

from __future__ import annotations

import shlex
from typing import Any

from overtone.finetune.config_sources import load_yaml
from overtone.finetune.exporting.model_card import base_name, describe_training
from overtone.finetune.exporting.model_card_metadata import THIS_MODEL
from overtone.finetune.recipe import CheckpointState
from overtone.recipes.speech.model_card import render_voice_card
from overtone.recipes.speech.voices_json_schema import BaseModelName

from ..state import CodecLmState

USE = """Trained: {trained}, {steps:,} steps at a learning rate of {lr:g}; supervised: {supervise}.
Codec: the folder `speech_codec` ({codec} or a copy), with a licence of its own.

```
overtone generate --model {model} --speaker {speaker} --text "Hello, this is my voice."
```

The language model loads in stock transformers (`AutoModelForCausalLM`): the prompt is `{before}`, the text as
`{prefix}…`, `{after}`; speech ends with
`{end}`."""


def write_model_card(state: CheckpointState, config: str, voices: CodecLmState, inherited: dict[str, Any]) -> str:
    """The card as Markdown with the hub's YAML header. `state` and `config`: of the checkpoint. `voices`: the recipe's part of
    that state. `inherited`: of the base's header (see `read_base_metadata`)."""
    family, speaker = voices.family, voices.speakers[0].name
    usage = USE.format(
        trained=describe_training(state),
        steps=state["step"],
        lr=load_yaml(config, "config.yaml")["train"]["lr"],
        supervise=voices.supervise,
        codec=family.codec,
        model=THIS_MODEL,
        speaker=shlex.quote(speaker),
        before="".join(family.before_text),
        prefix=family.voice_prefix.replace("{speaker}", speaker),
        after="".join(family.after_text),
        end=family.end_of_speech,
    )
    # The base of the checkpoint has the commit that was trained from.
    voices = voices.model_copy(update={"base": BaseModelName(name=base_name(state), revision=state["base"]["revision"])})
    return render_voice_card(voices, inherited, "transformers", ["speech-tokens", "synthetic-speech"], usage)
