"""The training model computes what the stock class computes, and a run takes the steps of a plain loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import clip_grad_norm_
from transformers import WhisperConfig, WhisperForConditionalGeneration

from overtone.finetune.errors import UserError
from overtone.finetune.modeling.loading import open_base
from overtone.finetune.monitoring.run_records import LOG, read_log
from overtone.finetune.recipe import BASE_STATES, Sample
from overtone.recipes.language.collation import IGNORE
from overtone.recipes.whisper.model import modeling
from overtone.recipes.whisper.model.modeling import SINUSOIDS, SpeechRecognizer
from overtone.recipes.whisper.model.sequence_layout import collate, read
from overtone.recipes.whisper.options import Options
from overtone.recipes.whisper.recipe import loss
from tests.recipes.whisper.tiny_whisper import PROCESSOR, make_config, train_here, write_clips


def read_samples(folder: Path) -> list[Sample]:
    rows = write_clips(folder).read_text().splitlines()
    return [read(json.loads(row), PROCESSOR, folder) for row in rows]


def load(base: Path) -> tuple[SpeechRecognizer, Any]:
    """The training model and the stock class, both with the base's weights."""
    stock = WhisperForConditionalGeneration.from_pretrained(base, dtype=torch.float32).eval()
    model = modeling.build_on_meta(modeling.read_config(base), base)
    with open_base(base) as read_stored:
        values = {name: read_stored(name, None) for name, _ in model.named_parameters()}
    model.load_state_dict(values, strict=False, assign=True)
    model.proj_out.weight = model.model.decoder.embed_tokens.weight
    return model.eval(), stock


def stock_loss(stock: Any, batch: Any) -> torch.Tensor:
    """The mean over all targets, with labels that are as long as the decoder's input: the stock class does not shift them then."""
    tensors = batch.tensors
    found: torch.Tensor = stock(input_features=tensors["features"], decoder_input_ids=tensors["ids"], labels=tensors["targets"]).loss
    return found


def test_the_loss_is_that_of_the_stock_class_and_padding_changes_nothing(base: Path, tmp_path: Path) -> None:
    model, stock = load(base)
    samples = read_samples(tmp_path)
    batch = collate(samples)
    with torch.no_grad():
        terms = loss(model, batch)
        mean = terms["nll"].sum.item() / batch.targets["nll"]
        assert mean == pytest.approx(stock_loss(stock, batch).item(), rel=1e-6)
        alone = [loss(model, collate([sample])) for sample in samples]
        assert sum(one["nll"].sum.item() for one in alone) == pytest.approx(terms["nll"].sum.item(), rel=1e-6)
        logits = stock(input_features=batch.tensors["features"], decoder_input_ids=batch.tensors["ids"]).logits
    learned = batch.tensors["targets"] != IGNORE
    assert terms["accuracy"].sum.item() == (logits.argmax(-1) == batch.tensors["targets"])[learned].sum().item()
    assert {name for name, _ in model.named_parameters()} == {name for name, _ in stock.named_parameters()}


def test_a_run_takes_the_steps_of_a_plain_loop_with_transformers(base: Path, tmp_path: Path) -> None:
    run = train_here(tmp_path, base, ("train.steps", "3"), ("train.micro_tokens", "2"))
    losses = [event["loss"] for event in read_log(run / LOG) if event["event"] == "step"]
    config = make_config(tmp_path, base)
    stock = WhisperForConditionalGeneration.from_pretrained(base, dtype=torch.float32).train()
    named = {name: parameter for name, parameter in stock.named_parameters() if name != SINUSOIDS}
    trained = [*named.values()]
    decayed = [value for name, value in named.items() if value.dim() > 1 and "embed_" not in name]
    plain = [value for name, value in named.items() if value.dim() <= 1 or "embed_" in name]
    groups = [{"params": decayed, "weight_decay": config.train.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=config.train.lr, betas=(config.train.beta1, config.train.beta2))
    batch, expected = collate(read_samples(tmp_path)), []
    for _ in range(3):
        value = stock_loss(stock, batch)
        value.backward()
        clip_grad_norm_(trained, config.train.clip)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(value.item())
    assert losses == pytest.approx(expected, rel=1e-6)
    assert losses[0] > losses[1] > losses[2]


def test_a_frozen_encoder_stays_and_fixed_positions_are_never_trained(base: Path) -> None:
    names = [name for name, _ in load(base)[0].named_parameters()]
    assert not modeling.is_trained(SINUSOIDS, False) and SINUSOIDS in names
    assert sum(modeling.is_trained(name, False) for name in names) == len(names) - 1
    assert all(modeling.is_trained(name, True) == name.startswith("model.decoder.") for name in names)


def test_the_distance_to_the_base_itself_is_zero(base: Path, tmp_path: Path) -> None:
    model, _ = load(base)
    batch = collate(read_samples(tmp_path)[:1])
    with torch.no_grad():
        states = model(batch.tensors, result="states")
        sums = model({**batch.tensors, BASE_STATES: states})
    assert states.shape == (batch.targets["nll"], 32) and sums[2].item() == pytest.approx(0, abs=1e-4)


def test_what_transformers_draws_at_random_for_each_process_is_off(base: Path) -> None:
    config = modeling.read_config(base)
    config.apply_spec_augment, config.encoder_layerdrop, config.decoder_layerdrop = True, 0.5, 0.5
    model = modeling.build_on_meta(config, base)
    assert not model.model.config.apply_spec_augment
    assert model.model.encoder.layerdrop == model.model.decoder.layerdrop == 0.0


def test_the_number_of_languages_follows_from_the_vocabulary() -> None:
    found = [modeling.make_processor(WhisperConfig(vocab_size=size, num_mel_bins=80), Options()) for size in (51_864, 51_865, 51_866)]
    assert [(one.multilingual, one.languages) for one in found] == [(False, 0), (True, 99), (True, 100)]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "qwen3"}, "model_type 'qwen3' is not a Whisper model of transformers"),
        ({"vocab_size": 51_900}, "the vocabulary of 51,900 tokens is not one of Whisper's"),
        ({"max_source_positions": 750}, "max_source_positions 750"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings False, expected"),
    ],
)
def test_a_base_of_another_family_is_refused(changed: dict[str, Any], message: str, base: Path, tmp_path: Path) -> None:
    config = json.loads((base / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(UserError, match=message):
        modeling.read_config(tmp_path)
