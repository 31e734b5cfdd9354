"""Loads the model and the tokenizer of a recipe for chats: `Recipe.load` and `Recipe.sketch`, whatever the recipe's loss is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic

from overtone.finetune.config import Config
from overtone.finetune.recipe import Loaded, Sketch
from overtone.recipes.language.model_loading import load_for_training, sketch_model
from overtone.recipes.language.modeling.causal_model import CausalModel
from overtone.recipes.language.options import ChatOptions, ChatOptionsT
from overtone.recipes.language.state import ChatState
from overtone.recipes.language.tokenization.tokenizer import check_vocabulary, load_tokenizer, read_template
from overtone.recipes.transformers_release import describe_old_release

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class ChatProcessor(Generic[ChatOptionsT]):
    """The processor of a recipe for chats, which `Recipe.read` gets."""

    tokenizer: PreTrainedTokenizerBase
    """With the chat template of the options."""
    options: ChatOptionsT


def load_chat_model(config: Config[ChatOptionsT], state: ChatState) -> Loaded[ChatProcessor[ChatOptionsT]]:
    """Return the model on meta, its tokenizer in a `ChatProcessor`, and lines for the log.

    Raises `UserError` for a base that cannot be trained.
    """
    loaded = load_for_training(config)
    allowed = config.options.allow_dropped
    dropped = [f"not an error if the chat template drops it: {', '.join(allowed)} (options.allow_dropped)"] if allowed else []
    remarks = (*dropped, *loaded.remarks, *describe_old_release())
    return replace(loaded.with_processor(load_processor(config.options, loaded)), state=state, remarks=remarks)


def sketch_chat_model(config: Config[ChatOptionsT]) -> Sketch[ChatProcessor[ChatOptionsT]]:
    """Return the base in shape only, for `overtone plan`."""
    sketched = sketch_model(config, load_processor)
    loaded = replace(sketched.loaded, remarks=(*sketched.loaded.remarks, *describe_old_release()))
    return replace(sketched, loaded=loaded)


def load_processor(options: ChatOptionsT, loaded: Loaded) -> ChatProcessor[ChatOptionsT]:
    """Return the base's tokenizer with the options. Raises `UserError` if it has more tokens than the model has embeddings."""
    assert isinstance(loaded.model, CausalModel)
    tokenizer = load_tokenizer(loaded.base, options.chat_template)
    check_vocabulary(tokenizer, loaded.model.vocabulary, loaded.base)
    return ChatProcessor(tokenizer, options)


def read_given_template(options: ChatOptions) -> str | None:
    """Return the content of `options.chat_template`, for `ChatState`; None if it is not set. Raises `UserError` if it cannot be read."""
    return None if options.chat_template is None else read_template(options.chat_template)
