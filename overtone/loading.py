"""Exported models in memory, from Python: a voice that speaks, and a model that chats."""

from __future__ import annotations

import base64
import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from overtone.finetune.errors import UserError
from overtone.training import TrainingRun, locate_run

if TYPE_CHECKING:
    import numpy as np

    from overtone.finetune.recipe import Inference
    from overtone.recipes.language.text_generator import TextGenerator
    from overtone.recipes.speech.interface import SpeechResult, SpeechSampling, Voice
    from overtone.recipes.speech.text_speech import PreparedText


@dataclass(frozen=True, eq=False)
class Speech:
    """Generated speech. A notebook shows it as a player."""

    wave: np.ndarray
    """[samples] float32, mono, from -1 to 1."""
    rate: int
    """Samples per second."""
    ended: bool
    """False: it was cut off at `max_seconds`, since the model did not end it."""
    model: str
    """Name of the model, for the mark in files."""

    @property
    def seconds(self) -> float:
        """Its duration."""
        return len(self.wave) / self.rate

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a WAV file, marked as synthetic speech of this model; a file at that place is replaced.

        Args:
            path: ends with `.wav`.

        Returns:
            The path.

        Raises:
            UserError: for another ending, and for a place that cannot be written.
        """
        from overtone.finetune.storage import files
        from overtone.finetune.storage.folder_handles import name_paths

        target = Path(path)
        if target.suffix != ".wav":
            raise UserError(f"{target}: speech is saved as .wav; choose a name such as {target.with_suffix('.wav').name or 'speech.wav'}")
        name_paths([str(target)])
        with files.explain_write_errors(target.parent):
            files.make_folder(target.parent)
            files.write_bytes(target, self._encode())
        return target

    def _encode(self) -> bytes:
        from overtone.finetune.storage.synthetic_audio_mark import SyntheticMark
        from overtone.recipes.speech.marked_audio_encoding import encode_marked_wav

        return encode_marked_wav(self.wave, self.rate, SyntheticMark(self.model))

    def _repr_html_(self) -> str:
        return f'<audio controls src="data:audio/wav;base64,{base64.b64encode(self._encode()).decode()}"></audio>'

    def __repr__(self) -> str:
        return f"Speech({self.seconds:.2f} s at {self.rate} Hz{'' if self.ended else ', cut off'})"


class VoiceModel:
    """A voice in memory. For one thread at a time; use it in a `with` statement, or call `close`, to free its memory."""

    def __init__(self, voice: Voice, name: str) -> None:
        """For `overtone.load_voice`."""
        self._voice, self.name = voice, name

    @property
    def speakers(self) -> tuple[str, ...]:
        """Names of the speakers, in lower case; empty if the model only clones."""
        return self._voice.speakers

    @property
    def languages(self) -> tuple[str, ...]:
        """Values of `language`; empty if the model takes none."""
        return self._voice.languages

    @property
    def can_clone(self) -> bool:
        """True if it speaks with the voice of a `reference`."""
        return self._voice.can_clone

    @property
    def rate(self) -> int:
        """Samples per second of its speech."""
        return self._voice.rate

    def speak(
        self,
        text: str,
        *,
        speaker: str | None = None,
        language: str | None = None,
        reference: str | os.PathLike[str] | None = None,
        reference_text: str | None = None,
        temperature: float | None = None,
        greedy: bool = False,
        seed: int = 0,
        max_seconds: float = 60.0,
    ) -> Speech:
        """Speak a text of any length; long ones are spoken in passages. The same seed gives the same speech. The command
        `overtone generate` has further sampling settings, and speaks files of texts in batches.

        Args:
            text: what to say. Emoji and markup are not spoken.
            speaker: one of `speakers`; needed if there are several.
            language: one of `languages`, or its ISO code; by default the language that the speaker was trained in.
            reference: a clip of a voice to clone instead of a speaker, if the model `can_clone`.
            reference_text: the transcript of the clip.
            temperature: of the sampling; by default the model's own.
            greedy: always take the most likely code instead of sampling.
            seed: of the sampling.
            max_seconds: cut a passage off here if the model has not ended it.

        Returns:
            The speech.

        Raises:
            UserError: for a text, a speaker or a language that this model cannot speak, and for a number out of range.
        """
        from overtone.recipes.speech.text_speech import speak_passages

        prepared, sampling = self._prepare(text, speaker, language, reference, reference_text, temperature, greedy, seed, max_seconds)
        return self._wrap(speak_passages(self._voice, prepared.passages, sampling))

    def stream(
        self,
        text: str,
        *,
        speaker: str | None = None,
        language: str | None = None,
        reference: str | os.PathLike[str] | None = None,
        reference_text: str | None = None,
        temperature: float | None = None,
        greedy: bool = False,
        seed: int = 0,
        max_seconds: float = 60.0,
    ) -> Generator[np.ndarray, None, Speech]:
        """Speak a text, and yield its audio while it is generated. The chunks together are the wave of `speak`.

        Args:
            text: as for `speak`, like all others.
            speaker: see `speak`.
            language: see `speak`.
            reference: see `speak`.
            reference_text: see `speak`.
            temperature: see `speak`.
            greedy: see `speak`.
            seed: see `speak`.
            max_seconds: see `speak`.

        Returns:
            An iterator over chunks [samples] float32 at `rate`; as a generator, it returns the whole speech.

        Raises:
            UserError: as `speak`, when it is called.
        """
        from overtone.recipes.speech.text_speech import stream_passages

        prepared, sampling = self._prepare(text, speaker, language, reference, reference_text, temperature, greedy, seed, max_seconds)

        def chunks() -> Generator[np.ndarray, None, Speech]:
            return self._wrap((yield from stream_passages(self._voice, prepared.passages, sampling)))

        return chunks()

    def close(self) -> None:
        """Free the memory of the model. It cannot speak afterwards."""
        self._voice.close()

    def __enter__(self) -> VoiceModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"VoiceModel({self.name!r}, speakers: {', '.join(self.speakers) or 'none, it clones clips'})"

    def _wrap(self, spoken: SpeechResult) -> Speech:
        return Speech(spoken.wave, spoken.rate, spoken.ended, self.name)

    def _prepare(
        self,
        text: str,
        speaker: str | None,
        language: str | None,
        reference: str | os.PathLike[str] | None,
        reference_text: str | None,
        temperature: float | None,
        greedy: bool,
        seed: int,
        max_seconds: float,
    ) -> tuple[PreparedText, SpeechSampling]:
        from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
        from overtone.recipes.speech.sampling_settings import check_numbers
        from overtone.recipes.speech.text_speech import prepare_text

        given = {} if temperature is None else {"temperature": temperature}
        check_numbers({"seed": seed, "max_seconds": max_seconds, **given})
        request = SpeechRequest(text, speaker, language, None if reference is None else Path(reference), reference_text)
        sampling = SpeechSampling(greedy=greedy, temperature=temperature, seed=seed, max_seconds=max_seconds)
        return prepare_text(self._voice, request, max_seconds, "the text"), sampling


def load_voice(
    model: TrainingRun | str | os.PathLike[str], *, recipe: str | os.PathLike[str] | None = None, strength: float | None = None
) -> VoiceModel:
    """Load a voice, on the GPU if there is one.

    Args:
        model: an exported folder; or a run or a checkpoint, which is exported into its cache first; or the name of a model on the hub
            (`owner/name`) or of a demo model.
        recipe: its recipe, if the model was not exported by this package, or if the recipe is not part of it.
        strength: of a run or a checkpoint, as for `overtone.export`.

    Returns:
        The voice.

    Raises:
        UserError: if there is no such model, or if it does not speak.
    """
    from overtone.recipes.speech.interface import SpeechRecipe

    folder, name, inference = find_model(model, recipe, strength)
    speech = None if inference.speech is None else inference.speech()
    if not isinstance(speech, SpeechRecipe):
        raise UserError(f"{folder}: its recipe {name} makes no voice; overtone.load_chat loads models that chat")
    found = speech.inspect(folder)
    return VoiceModel(found.open(), found.folder.name)


@dataclass(frozen=True)
class ChatReply:
    """The answer of a chat model."""

    text: str
    ended: bool
    """False: it was cut off at `max_new_tokens`, or at the model's last position."""

    def __str__(self) -> str:
        return self.text


class ChatModel:
    """A language model in memory. For one thread at a time; use it in a `with` statement, or call `close`, to free its memory."""

    def __init__(self, generator: TextGenerator, name: str) -> None:
        """For `overtone.load_chat`."""
        self._generator, self.name = generator, name

    def chat(
        self,
        messages: str | Sequence[Mapping[str, object]],
        *,
        system: str | None = None,
        max_new_tokens: int = 512,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> ChatReply:
        """Answer a question or a conversation. A model without a chat template continues a text.

        Args:
            messages: a text; or a conversation such as `[{"role": "user", "content": "Who are you?"}]`, in which earlier answers have the
                role `assistant`.
            system: a system message at the beginning.
            max_new_tokens: most tokens of the answer.
            temperature: sample with this temperature; by default, and with 0, the most likely token is taken.
            top_p: sample from the most likely tokens with this total probability.
            seed: of the sampling.

        Returns:
            The answer.

        Raises:
            UserError: for messages that the model cannot answer, and for a number out of range.
        """
        stream = self.stream(messages, system=system, max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, seed=seed)
        try:
            while True:
                next(stream)
        except StopIteration as end:
            reply: ChatReply = end.value
            return reply

    def stream(
        self,
        messages: str | Sequence[Mapping[str, object]],
        *,
        system: str | None = None,
        max_new_tokens: int = 512,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> Generator[str, None, ChatReply]:
        """Answer, and yield the text while it is generated. The pieces together are the text of `chat`.

        Args:
            messages: as for `chat`, like all others.
            system: see `chat`.
            max_new_tokens: see `chat`.
            temperature: see `chat`.
            top_p: see `chat`.
            seed: see `chat`.

        Returns:
            An iterator over pieces of text; as a generator, it returns the whole answer. Leaving the loop stops the model.

        Raises:
            UserError: as `chat`, when it is called.
        """
        from overtone.recipes.language.text_generator import AnswerSettings

        answer = self._generator.stream_answer(messages, system, AnswerSettings(max_new_tokens, temperature, top_p, seed))

        def pieces() -> Generator[str, None, ChatReply]:
            found = list[str]()
            try:
                while True:
                    found.append(next(answer))
                    yield found[-1]
            except StopIteration as end:
                return ChatReply("".join(found), end.value)
            finally:
                answer.close()

        return pieces()

    def close(self) -> None:
        """Free the memory of the model. It cannot answer afterwards."""
        self._generator.close()

    def __enter__(self) -> ChatModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ChatModel({self.name!r})"


def load_chat(
    model: TrainingRun | str | os.PathLike[str], *, recipe: str | os.PathLike[str] | None = None, strength: float | None = None
) -> ChatModel:
    """Load a language model, on the GPU if there is one.

    Args:
        model: as for `overtone.load_voice`.
        recipe: as for `overtone.load_voice`; `llm_sft` for a model of another package.
        strength: as for `overtone.load_voice`.

    Returns:
        The model.

    Raises:
        UserError: if there is no such model, or if it does not chat.
    """
    from overtone.recipes.language.text_generator import TextGenerator

    folder, name, inference = find_model(model, recipe, strength)
    generator = None if inference.load_text_generator is None else inference.load_text_generator(folder)
    if not isinstance(generator, TextGenerator):
        raise UserError(f"{folder}: its recipe {name} cannot chat; overtone.load_voice loads models that speak")
    return ChatModel(generator, folder.name)


def find_model(
    model: TrainingRun | str | os.PathLike[str], recipe: str | os.PathLike[str] | None, strength: float | None
) -> tuple[Path, str, Inference]:
    """The exported folder of a model, its recipe, and what that can do. Raises `UserError` if there is no such model."""
    from overtone.finetune.cli import generate
    from overtone.finetune.recipe import find_recipe, load_inference
    from overtone.finetune.storage.folder_handles import name_paths

    place = str(locate_run(model)) if isinstance(model, TrainingRun) else os.fspath(model)
    name_paths([place])
    found, name = generate.find_model(place, None if recipe is None else os.fspath(recipe), [])
    inference = load_inference(find_recipe(name))
    return generate.ensure_exported(found, name, strength), name, inference
