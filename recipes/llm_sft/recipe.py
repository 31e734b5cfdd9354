"""llm_sft: supervised fine-tuning of any causal language model of transformers, on chats or on prompts with their completions.

What is supervised comes from the tokenizer's own chat template (`chat_labels`); the loss never makes full logits (`loss_head`); samples
can be packed without seeing each other (`collation`), which is checked on the model itself before the first step (`model_checks`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from finetune.config import Config
from finetune.errors import UserError
from finetune.recipe import Answer, Batch, ExportPlan, Inference, Loaded, Recipe, Sample, Sketch, Term
from recipes.language import collation, model_checks
from recipes.language.chat_labels import check_template, tokenise
from recipes.language.tokenizer import check_words, load_tokenizer, read_template

from . import batch_preview, chat_session, exported_files, generation
from .options import Options


@dataclass(frozen=True)
class Processor:
    """What `read` and `show` need."""

    tokenizer: Any
    supervise: str


def load(config: Config[Options]) -> Loaded:
    """The model on meta, its tokenizer, and its decoder layers as blocks."""
    options = config.options
    shape = load_shape(config)
    processor = load_processor(config, shape)
    remarks = (about_supervision(processor.tokenizer, options.supervise), *shape.remarks)
    return replace(shape, processor=processor, state=state_of(options), remarks=remarks)


def load_processor(config: Config[Options], shape: Loaded) -> Processor:
    """Raises `UserError` for a tokenizer that knows more words than the model."""
    options = config.options
    tokenizer = load_tokenizer(shape.base, options.chat_template)
    words: Any = shape.model.words
    check_words(tokenizer, words, shape.base)
    return Processor(tokenizer, options.supervise)


def load_shape(config: Config[Options]) -> Loaded:
    """What config.json alone says: the model on meta, without a tokenizer."""
    # Here, and not at the top: they import accelerate and transformers, which `generate --help` would wait for.
    from finetune.modeling.loading import resolve_source
    from recipes.language.attention import choose, why_blocks_vary
    from recipes.language.causal_model import block_classes, choose_loss_head, on_meta, read_config
    from recipes.language.tensor_parallel_plans import PLANS

    options = config.options
    loss_head = choose_loss_head(options.loss_head)
    base = resolve_source(config.model.source, config.model.revision)
    attention = choose(config, read_config(base))
    model = on_meta(base, attention.name, loss_head)
    varies = why_blocks_vary(attention.name, config, model.config)
    blocks, remarks = block_classes(model), (attention.remark,)
    return Loaded(model=model, processor=None, blocks=blocks, base=base, tensor_plans=PLANS, varies=varies, remarks=remarks)


def sketch(config: Config[Options]) -> Sketch:
    """For `finetune plan`: samples of one word, over and over."""
    lay = collation.pack if config.data.packing else collation.collate
    shape = load_shape(config)
    return Sketch(
        loaded=shape,
        batch=lambda count, positions: lay([collation.monotonous(positions)] * count),
        processor=lambda: load_processor(config, shape),
    )


def about_supervision(tokenizer: Any, supervise: str) -> str:
    """How what is learned will be found, for the log. A template that cannot say is no error yet: the rows may not need it."""
    if supervise == "everything":
        return "options.supervise: everything, so questions are learned like answers"
    try:
        return check_template(tokenizer)
    except UserError as error:
        return f"chats cannot be trained on, only texts of prompt and completion: {error}"


def state_of(options: Options) -> dict[str, Any]:
    """What an export needs, and what must not change within a run."""
    template = None if options.chat_template is None else read_template(options.chat_template)
    return {"supervise": options.supervise, "chat_template": template}


def read(row: dict[str, Any], processor: Any) -> Sample:
    """`ids` [S], and `supervised` [S]: which of them are learned."""
    ids, supervised = tokenise(row, processor.tokenizer, processor.supervise)
    return {"ids": torch.tensor(ids), "supervised": torch.tensor(supervised)}


def length(sample: Sample) -> int:
    """S, in tokens."""
    return len(sample["ids"])


def loss(model: nn.Module, batch: Batch) -> dict[str, Term]:
    """Negative log-likelihood of the supervised tokens, and how many of them were the model's first guess."""
    nll, hits = model(batch.tensors, batch.lengths)
    return {"nll": Term(nll, 1.0), "accuracy": Term(hits, 0.0)}


def report(means: dict[str, float]) -> dict[str, float]:
    """With the perplexity, e to the mean negative log-likelihood."""
    return {**means, "perplexity": math.exp(min(means["nll"], 700.0))}


def export(base: Path, state: dict[str, Any], _: dict[str, Tensor], __: str) -> ExportPlan:
    """How trained tensors become a folder that AutoModelForCausalLM and AutoTokenizer load. There are no buffers, and one format."""
    return exported_files.plan(base, state)


def sample(folder: Path, prompts: list[str]) -> list[Answer]:
    """Greedy answers of an export."""
    return [Answer(text) for text in generation.sample(folder, prompts)]


RECIPE = Recipe(
    Options=Options,
    load=load,
    read=read,
    length=length,
    collate=collation.collate,
    loss=loss,
    export=export,
    formats=("transformers",),
    inference=Inference(generate=generation.generate, chat=chat_session.chat, sample=sample),
    pack=collation.pack,
    pad=collation.pad,
    truncate=collation.truncate,
    verify=model_checks.check,
    report=report,
    base_folders=("additional_chat_templates",),
    sketch=sketch,
    show=batch_preview.show,
)
