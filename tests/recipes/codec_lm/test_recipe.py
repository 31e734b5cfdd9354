"""Tests of `overtone.recipes.codec_lm.recipe`: what is trained is what stock transformers generates, full and with LoRA, packed and
padded."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LogitsProcessorList

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.distributed import sharding
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import export
from overtone.finetune.monitoring.run_records import read_log
from overtone.finetune.recipe import Batch
from overtone.finetune.training import setup
from overtone.recipes.codec_lm.families import VYVOTTS
from overtone.recipes.codec_lm.model.sequence_layout import SpeechTextProcessor, tokenize_prompt
from overtone.recipes.codec_lm.recipe import RECIPE, make_processor
from overtone.recipes.language import collation
from overtone.recipes.language.modeling.causal_model import build_on_meta
from tests.recipes.codec_lm import tiny_models
from tests.recipes.forced_generation import ForcedTokens

ROWS = tiny_models.make_rows()


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_log(run / "log.jsonl") if event["event"] == kind]


def stock_frames(folder: Path, processor: SpeechTextProcessor, row: dict[str, Any]) -> list[list[int]]:
    """What transformers' own greedy generation speaks, until it stops by the folder's own settings."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompt = torch.tensor([tokenize_prompt(row["text"], row["speaker"].lower(), processor)])
    found = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, repetition_penalty=1.0, max_new_tokens=150)
    *tokens, end = found[0, prompt.shape[1] :].tolist()
    assert end == processor.ids.end_of_speech
    frames: list[list[int]] = processor.ids.decode_frames(torch.tensor(tokens)).tolist()
    return frames


def test_stock_transformers_regenerates_every_frame_that_was_trained(exported: Path, processor: SpeechTextProcessor) -> None:
    assert [stock_frames(exported, processor, row) for row in ROWS] == [row["audio_codes"] for row in ROWS]


def test_loss_accuracy_and_perplexity_are_logged(full_run: Path) -> None:
    last = events(full_run, "step")[-1]
    assert last["loss"] < 0.01 and last["accuracy"] == 1.0 and last["perplexity"] == pytest.approx(1.0, abs=0.01)
    assert events(full_run, "evaluation")[-1]["val/loss"] == pytest.approx(last["loss"], abs=0.01)


@pytest.mark.ci
@pytest.mark.slow
def test_lora_is_merged_into_a_model_that_regenerates_its_clips(tmp_path: Path, processor: SpeechTextProcessor) -> None:
    run = tiny_models.trained(tmp_path, *tiny_models.ADAPTED)
    folder = export.export(run, tmp_path / "export")
    assert [stock_frames(folder, processor, row) for row in ROWS] == [row["audio_codes"] for row in ROWS]


@pytest.mark.ci
@pytest.mark.slow
def test_qlora_trains_over_a_base_in_four_bits_and_is_exported_whole(tmp_path: Path, processor: SpeechTextProcessor) -> None:
    """On a base that has memorized other codes, since so few steps of adapters do not teach a random model to speak."""
    pytest.importorskip("bitsandbytes")
    first = export.export(tiny_models.trained(tmp_path, tiny_models.FULL), tmp_path / "first")
    again = (("model.source", str(first)), ("run.dir", str(tmp_path / "adapted")), ("model.quantization", "nf4"))
    rows = [{**row, "audio_codes": row["audio_codes"][::-1]} for row in ROWS]
    run = tiny_models.trained(tmp_path, *tiny_models.ADAPTED, *again, rows=rows)
    state = json.loads((checkpoint.find(run) / "state.json").read_text())
    assert state["quantization"] == "nf4"
    losses = [step["loss"] for step in events(run, "step")]
    assert losses[-1] < losses[0] / 20
    folder = export.export(run, tmp_path / "export")
    assert [stock_frames(folder, processor, row) for row in ROWS] == [row["audio_codes"] for row in rows]
    assert "4-bit base, LoRA of rank 16" in (folder / "README.md").read_text()


@pytest.mark.ci
@pytest.mark.slow
def test_a_model_of_vyvotts_is_trained_and_regenerates_its_clips(tmp_path: Path) -> None:
    """Its layout on Qwen3's layers, with a tokenizer that puts nothing before a text."""
    family = VYVOTTS.model_copy(update={"codebook_size": tiny_models.SIZE, "samples_per_frame": 64})
    base = tmp_path / "base"
    tokenizer = tiny_models.make_tokenizer(("<|endoftext|>", "<|im_end|>", *tiny_models.TINY_SPECIAL[2:]))
    tiny_models.write_tokenizer(base, tokenizer)
    tiny_models.write_weights(base, tiny_models.write_config(base, tokenizer.get_vocab_size(), model_type="qwen3"), family)
    run = tiny_models.trained(tmp_path, tiny_models.FULL)
    folder = export.export(run, tmp_path / "export")
    made = make_processor(tiny_models.configure(tmp_path, ("model.source", str(folder))).options, folder, tiny_models.POSITIONS)
    assert made.family == family and made.ids.after_text[0] == tokenizer.token_to_id("<|im_end|>")
    assert [stock_frames(folder, made, row) for row in ROWS] == [row["audio_codes"] for row in ROWS]


# ---- the loss is the likelihood of generation


@pytest.fixture(scope="module")
def barely_trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, list[Tensor]]]:
    """A run that is ready to train an export of a few steps further, and for each row the log-probabilities of generation."""
    folder = tmp_path_factory.mktemp("barely")
    made = export.export(tiny_models.trained(folder, ("train.steps", "4"), ("train.lr", "1e-3")), folder / "export")
    config = tiny_models.configure(folder, ("model.source", str(made)), ("run.dir", str(folder / "again")))
    training, _ = setup.build(config, RECIPE, join((), folder))
    model, noted = AutoModelForCausalLM.from_pretrained(made).eval(), []
    for row in ROWS:
        sample = RECIPE.read(row, training.loaded.processor, folder)
        ids, learned = sample["ids"], sample["supervised"]
        forced = ForcedTokens(ids[learned].tolist())
        prompt = ids[: int(learned.int().argmax())][None]
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            logits_processor=LogitsProcessorList([forced]),
            do_sample=False,
            repetition_penalty=1.0,
            max_new_tokens=200,
        )
        assert len(forced.noted) == len(forced.tokens), "generation stops at the end of speech, and not before"
        noted.append(torch.stack(forced.noted))
    yield training, noted
    leave()


@torch.no_grad()
def nll(training: Any, batch: Batch) -> float:
    model = training.model.eval()
    found = float(RECIPE.loss(model, batch)["nll"].sum)
    sharding.reshard(model)
    return found


def test_teacher_forced_likelihood_is_that_of_generation(barely_trained: Any) -> None:
    training, noted = barely_trained
    samples = [RECIPE.read(row, training.loaded.processor, Path()) for row in ROWS]
    for sample, expected in zip(samples, noted, strict=True):
        assert nll(training, collation.collate([sample])) / len(expected) == pytest.approx(-float(expected.mean()), abs=1e-5)


def test_packed_padded_and_single_samples_have_the_same_loss(barely_trained: Any) -> None:
    training, noted = barely_trained
    samples = [RECIPE.read(row, training.loaded.processor, Path()) for row in ROWS]
    expected, count = -float(torch.cat(noted).sum()), sum(map(len, noted))
    assert RECIPE.pack is not None and RECIPE.pad is not None
    batches = [RECIPE.collate(samples), RECIPE.pack(samples)]
    assert all(batch.targets == {"nll": count, "accuracy": count, "expert_balance": len(batch.lengths)} for batch in batches)
    assert [nll(training, batch) / count for batch in batches] == pytest.approx([expected / count] * 2, abs=1e-5)


def test_every_trainable_tensor_gets_a_gradient(barely_trained: Any) -> None:
    training, _ = barely_trained
    samples = [RECIPE.read(row, training.loaded.processor, Path()) for row in ROWS]
    sharding.prepare_backward(training.model.train(), training.strategy, last=True)
    RECIPE.loss(training.model, RECIPE.collate(samples))["nll"].sum.backward()
    found = {name: parameter.grad for name, parameter in training.model.named_parameters() if parameter.requires_grad}
    training.optimizer.zero_grad()
    assert len(found) == 2 * 9 + 2 and [name for name, grad in found.items() if grad is None or not float(grad.norm()) > 0] == []


# ---- starting, resuming, planning


def test_a_run_resumes_with_the_same_numbers(tmp_path: Path) -> None:
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    common = (("train.lr", "1e-3"), ("train.schedule", "constant"), ("train.global_batch_tokens", "200"))
    whole = tiny_models.trained(tmp_path / "whole", ("train.steps", "6"), *common)
    half = tiny_models.trained(tmp_path / "parts", ("train.steps", "3"), *common)
    parts = shutil.copytree(half, tmp_path / "parts" / "again")  # this process still holds the lock of the first
    tiny_models.trained(tmp_path / "parts", ("train.steps", "6"), ("run.dir", str(parts)), *common)
    assert checkpoint.find(parts).name == "step-00000006"
    assert [step["loss"] for step in events(parts, "step")] == [step["loss"] for step in events(whole, "step")]


def test_a_base_without_the_tokens_is_refused_before_training(tmp_path: Path) -> None:
    tiny_models.write_base(tmp_path / "base")
    (tmp_path / "base" / "voices.json").unlink()
    with pytest.raises(
        UserError, match=r"base: its tokenizer lacks tokens of every supported model .*use canopylabs/orpheus-3b-0.1-pretrained"
    ):
        RECIPE.prepare(tiny_models.configure(tmp_path))


def test_a_tokenizer_that_is_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    config = tiny_models.configure(tmp_path)
    RECIPE.prepare(config)
    tiny_models.write_tokenizer(tmp_path / "base", tiny_models.make_tokenizer((*tiny_models.TINY_SPECIAL, "<one more>")))
    with pytest.raises(UserError, match="381 tokens and the model 380 embeddings"):
        RECIPE.load(config)


def test_prompts_of_samples_are_checked_before_training(tmp_path: Path) -> None:
    config = tiny_models.configure(tmp_path, ("sample.every", "5"), ("sample.prompts", '["eve|Good day."]'))
    RECIPE.prepare(config)
    with pytest.raises(UserError, match="names a speaker who is not in the data; speakers: ann, bob"):
        setup.load_shape(config, RECIPE)


def test_everything_supervised_is_said_and_counted(tmp_path: Path) -> None:
    config = tiny_models.configure(tmp_path, ("options.supervise", "everything"))
    RECIPE.prepare(config)
    loaded = RECIPE.load(config)
    assert [each.partition(":")[0] for each in loaded.remarks] == ["supervised", "attention"], "nothing about transformers: any serves"
    assert loaded.remarks[0].startswith("supervised: every token") and loaded.state.supervise == "everything"
    sample = RECIPE.read(ROWS[0], loaded.processor, tmp_path)
    assert RECIPE.collate([sample]).targets["nll"] == RECIPE.length(sample) - 1


def test_a_plan_needs_neither_data_nor_codec(tmp_path: Path) -> None:
    config = tiny_models.configure(tmp_path)
    assert RECIPE.sketch is not None
    sketch = RECIPE.sketch(config)
    assert sketch.processor().ids.codebook_size == 16
    assert sketch.batch(2, 40).tensors["ids"].shape == (1, 80)
    assert not (config.run.dir / "cache").exists()


def test_lora_adapts_the_layers_only(tmp_path: Path) -> None:
    model = build_on_meta(tiny_models.write_base(tmp_path / "base"), "sdpa")
    adapted = [name for name, _ in model.named_modules() if re.fullmatch(RECIPE.lora_targets, name)]
    assert len(adapted) == 2 * 7 and "lm_head" not in adapted
