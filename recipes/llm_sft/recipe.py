"""llm_sft: supervised fine-tuning of any causal language model of transformers, on chats or on prompts with their completions.

What is supervised comes from the tokenizer's own chat template (`chat`); the loss never makes full logits (`loss_head`); samples can be
packed without seeing each other (`samples`), which is checked on the model itself before the first step (`proof`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from finetune.config import Config, FilePath, Section
from finetune.errors import UserError
from finetune.recipe import Answer, Batch, ExportPlan, Loaded, Recipe, Sample, Sketch, Term

from .tokenizer import check_words, load_tokenizer, read_template

if TYPE_CHECKING:
    from torch import Tensor, nn


class Options(Section):
    supervise: Literal["assistant", "last", "everything"] = "assistant"
    """What is learned of a chat: every turn of the assistant, only the last one, or every token."""
    chat_template: FilePath | None = None
    """Jinja file to use, and to export, instead of the tokenizer's own chat template."""
    attention: Literal["auto", "varlen", "sdpa", "eager", "flex_attention", "flash_attention_2"] = "auto"
    """`varlen` computes the samples of a packed row apart, by torch's kernel on a GPU in bf16 and elsewhere one by one; the others are
    transformers'. `auto`: varlen by the kernel, else flash_attention_2 where the package is, else varlen one by one, else sdpa or eager."""
    loss_head: Literal["chunked", "liger"] = "chunked"
    """What computes the loss from the last states: plain torch operations, or Liger's fused kernel (a GPU and overtone[liger])."""


@dataclass(frozen=True)
class Processor:
    """What `read` and `show` need."""

    tokenizer: Any
    supervise: str


def load(config: Config) -> Loaded:
    """The model on meta, its tokenizer, and its decoder layers as blocks."""
    options: Any = config.options
    shape = load_shape(config)
    processor = load_processor(config, shape)
    remarks = (about_supervision(processor.tokenizer, options.supervise), *shape.remarks)
    return replace(shape, processor=processor, state=state_of(options), remarks=remarks)


def load_processor(config: Config, shape: Loaded) -> Processor:
    """Raises `UserError` for a tokenizer that knows more words than the model."""
    options: Any = config.options
    tokenizer = load_tokenizer(shape.base, options.chat_template)
    words: Any = shape.model.words
    check_words(tokenizer, words, shape.base)
    return Processor(tokenizer, options.supervise)


def load_shape(config: Config) -> Loaded:
    """What config.json alone says: the model on meta, without a tokenizer."""
    from finetune.models import resolve_source

    from .attention import choose, why_blocks_vary
    from .causal_model import block_classes, choose_loss_head, on_meta, read_config
    from .tensor_plans import PLANS

    options: Any = config.options
    loss_head = choose_loss_head(options.loss_head)
    base = resolve_source(config.model.source, config.model.revision)
    attention = choose(config, read_config(base))
    model = on_meta(base, attention.name, loss_head)
    varies = why_blocks_vary(attention.name, config, model.config)
    blocks, remarks = block_classes(model), (attention.remark,)
    return Loaded(model=model, processor=None, blocks=blocks, base=base, tensor_plans=PLANS, varies=varies, remarks=remarks)


def sketch(config: Config) -> Sketch:
    """For `finetune plan`: samples of one word, over and over."""
    from . import samples as batching

    lay = batching.pack if config.data.packing else batching.collate
    shape = load_shape(config)
    return Sketch(
        loaded=shape,
        batch=lambda count, positions: lay([batching.monotonous(positions)] * count),
        processor=lambda: load_processor(config, shape),
    )


def about_supervision(tokenizer: Any, supervise: str) -> str:
    """How what is learned will be found, for the log. A template that cannot say is no error yet: the rows may not need it."""
    from .chat import check_template

    if supervise == "everything":
        return "options.supervise: everything, so questions are learned like answers"
    try:
        return check_template(tokenizer)
    except UserError as error:
        return f"chats cannot be trained on, only texts of prompt and completion: {error}"


def state_of(options: Any) -> dict[str, Any]:
    """What an export needs, and what must not change within a run."""
    template = None if options.chat_template is None else read_template(options.chat_template)
    return {"supervise": options.supervise, "chat_template": template}


def read(row: dict[str, Any], processor: Any) -> Sample:
    """`ids` [S], and `supervised` [S]: which of them are learned."""
    import torch

    from .chat import tokenise

    ids, supervised = tokenise(row, processor.tokenizer, processor.supervise)
    return {"ids": torch.tensor(ids), "supervised": torch.tensor(supervised)}


def length(sample: Sample) -> int:
    """S, in tokens."""
    return len(sample["ids"])


def collate(samples: list[Sample]) -> Batch:
    from . import samples as batching

    return batching.collate(samples)


def pack(samples: list[Sample]) -> Batch:
    from . import samples as batching

    return batching.pack(samples)


def pad(batch: Batch, positions: int) -> Batch:
    from . import samples as batching

    return batching.pad(batch, positions)


def truncate(sample: Sample, positions: int) -> Sample:
    from . import samples as batching

    return batching.truncate(sample, positions)


def loss(model: nn.Module, batch: Batch) -> dict[str, Term]:
    """Negative log-likelihood of the supervised tokens, and how many of them were the model's first guess."""
    nll, hits = model(batch.tensors, batch.lengths)
    return {"nll": Term(nll, 1.0), "accuracy": Term(hits, 0.0)}


def report(means: dict[str, float]) -> dict[str, float]:
    """With the perplexity, e to the mean negative log-likelihood."""
    return {**means, "perplexity": math.exp(min(means["nll"], 700.0))}


def verify(model: nn.Module, loaded: Loaded, config: Config) -> None:
    """See `proof.check`."""
    from . import proof

    proof.check(model, loaded, config)


def export(base: Path, state: dict[str, Any], _: dict[str, Tensor], __: str) -> ExportPlan:
    """How trained tensors become a folder that AutoModelForCausalLM and AutoTokenizer load. There are no buffers, and one format."""
    from . import exporting

    return exporting.plan(base, state)


def generate(folder: Path, argv: list[str]) -> int:
    """Answer with an export."""
    from . import answering

    return answering.generate(folder, argv)


def chat(folder: Path, argv: list[str]) -> int:
    """Converse with an export."""
    from . import talking

    return talking.chat(folder, argv)


def sample(folder: Path, prompts: list[str]) -> list[Answer]:
    """Greedy answers of an export."""
    from . import answering

    return [Answer(text) for text in answering.sample(folder, prompts)]


def show(sample: Sample, processor: Any) -> str:
    from . import showing

    return showing.show(sample, processor)


RECIPE = Recipe(
    Options=Options,
    load=load,
    read=read,
    length=length,
    collate=collate,
    loss=loss,
    export=export,
    formats=("transformers",),
    generate=generate,
    chat=chat,
    sample=sample,
    pack=pack,
    pad=pad,
    truncate=truncate,
    verify=verify,
    report=report,
    base_folders=("additional_chat_templates",),
    sketch=sketch,
    show=show,
)
