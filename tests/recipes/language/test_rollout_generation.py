"""Answers of a copy of the model: their log-probabilities, and that they depend on neither the company nor the slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from overtone.finetune.errors import UserError
from overtone.recipes.language import rollout_generation
from overtone.recipes.language.rollout_generation import (
    GeneratedTokens,
    RolloutGenerator,
    RolloutRequest,
    make_empty_copy,
)
from overtone.recipes.speech.decoding.ragged_kv_cache import WINDOW, count_generation_bytes
from tests.recipes.llm_sft import tiny_runs

STOPS, LONGEST = [*range(20, 60)], 20


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.write_base(tmp_path_factory.mktemp("rollouts") / "base")


def load_plainly(base: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(base).eval()


def open_generator(base: Path, slots: int, model: Any = None) -> RolloutGenerator:
    found = RolloutGenerator(base, {}, torch.float32, torch.device("cpu"), STOPS, slots)
    found.update_weights((model or load_plainly(base)).named_parameters())
    return found


def make_requests() -> list[RolloutRequest]:
    prompts = ([7, 8, 9], [3, 4, 6, 7, 8, 9, 10, 11], [12])
    return [RolloutRequest(prompts[number // 4], 100 + number, greedy=number == 5) for number in range(12)]


def test_scores_are_the_log_probabilities_of_the_model_and_answers_end_at_the_stop_token(base: Path) -> None:
    model, found = load_plainly(base), open_generator(base, 4).generate(make_requests(), LONGEST)
    assert {answer.ended for answer in found} == {True, False}
    for request, answer in zip(make_requests(), found, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*request.prompt, *answer.ids]])).logits[0, len(request.prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(answer.ids)[:, None])[:, 0]
        assert answer.scores == pytest.approx(expected.tolist(), abs=1e-5) and len(answer.scores) == len(answer.ids)
        assert not {*STOPS} & {*answer.ids[:-1]} and answer.ended == (answer.ids[-1] in STOPS)
        assert answer.ended or len(answer.ids) == LONGEST
        if request.greedy:
            assert answer.ids == logits.argmax(-1).tolist()


def test_an_answer_depends_on_neither_the_others_nor_their_order(base: Path) -> None:
    """Bit by bit, with the same number of slots: so an answer is the same on any number of ranks."""
    requests = make_requests()
    together = open_generator(base, 4).generate(requests, LONGEST)
    backwards = open_generator(base, 4).generate(requests[::-1], LONGEST)[::-1]
    alone = [open_generator(base, 4).generate([request], LONGEST)[0] for request in requests[:5]]
    assert together == backwards and together[:5] == alone
    assert len({tuple(answer.ids) for answer in together[:4]}) > 1, "answers to one prompt with other seeds differ"


def test_new_weights_are_taken_over_and_nothing_of_the_old_ones_is_kept(base: Path) -> None:
    generator, changed = open_generator(base, 4), load_plainly(base)
    before = generator.generate(make_requests()[:1], LONGEST)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.mul_(1.5)
    generator.update_weights(changed.named_parameters())
    after = generator.generate(make_requests()[:1], LONGEST)  # the same prompt, whose keys were read before
    assert after == open_generator(base, 4, changed).generate(make_requests()[:1], LONGEST) != before


def test_a_prompt_is_read_once_for_its_group(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator, read = open_generator(base, 4), list[int]()
    right = rollout_generation.StockRowCache._read
    monkeypatch.setattr(rollout_generation.StockRowCache, "_read", lambda self, ids: (read.append(ids.shape[1]), right(self, ids))[1])
    generator.generate(make_requests(), 2)
    assert read == [3, 8, 1]


def test_no_request_gives_no_answer(base: Path) -> None:
    assert open_generator(base, 1).generate([], LONGEST) == []


def test_an_answer_can_end_with_its_first_token(base: Path) -> None:
    model = load_plainly(base)
    generator = RolloutGenerator(base, {}, torch.float32, torch.device("cpu"), [*range(model.config.vocab_size)], 4)
    generator.update_weights(model.named_parameters())
    (found,) = generator.generate(make_requests()[:1], LONGEST)
    assert found == GeneratedTokens(found.ids, found.scores, ended=True) and len(found.ids) == len(found.scores) == 1


def test_missing_weights_and_models_that_share_no_batch_are_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = RolloutGenerator(base, {}, torch.float32, torch.device("cpu"), STOPS, 4)
    with pytest.raises(UserError, match=r"training has no weights model\.layers\.0\.input_layernorm\.weight"):
        generator.update_weights(each for each in load_plainly(base).named_parameters() if "input_layernorm" not in each[0])
    monkeypatch.setattr(rollout_generation, "find_obstacle", lambda _: "its experts are many")
    with pytest.raises(UserError, match="no answers can be generated while it is trained: its experts are many; choose another model"):
        open_generator(base, 4)


@pytest.mark.parametrize("tied", [True, False])
def test_the_copy_has_the_weights_and_buffers_of_the_model(tmp_path: Path, tied: bool) -> None:
    base = tiny_runs.write_base(tmp_path / "base", tied=tied)
    model, copy = load_plainly(base), make_empty_copy(base, {}, torch.float32, torch.device("cpu"))
    assert {name for name, _ in copy.named_parameters()} == {name for name, _ in model.named_parameters()}
    assert (copy.lm_head.weight is copy.model.embed_tokens.weight) == tied
    assert torch.equal(copy.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq) and not copy.training


def test_the_memory_of_the_copy_and_of_its_keys_is_counted(base: Path) -> None:
    model, generator = load_plainly(base), open_generator(base, 5)
    generator.generate(make_requests(), LONGEST)
    assert generator._batch is not None
    held = sum(each.nbytes for pair in generator._batch.cache._window.store for each in pair)
    parameters = sum(each.numel() for each in model.parameters())
    assert count_generation_bytes(parameters, model.config, 4, 5, WINDOW) == held + 4 * parameters
