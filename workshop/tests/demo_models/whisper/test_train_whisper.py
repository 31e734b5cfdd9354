"""Training of the demo Whisper: the same bits with and without interruption, and a model that the stock package loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from whisper.model import ModelDimensions, Whisper, disable_sdpa

from overtone.finetune.errors import UserError
from workshop.demo_models.whisper import train_whisper
from workshop.demo_models.whisper.augmented_windows import WhisperDataset
from workshop.demo_models.whisper.train_whisper import DIMENSIONS, Phase, Student, main, train


@pytest.fixture(autouse=True)
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_whisper, "PHASES", (Phase(0.5, 2.0, 2), Phase(1.0, 3.0, 2)))


@pytest.mark.slow
def test_an_interrupted_training_ends_with_the_same_bits(noise_corpus: Path, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", noise_corpus, steps=4, seed=1)
    train(tmp_path / "parts", noise_corpus, steps=4, seed=1, until=1)
    train(tmp_path / "parts", noise_corpus, steps=4, seed=1, until=3)
    parts = train(tmp_path / "parts", noise_corpus, steps=4, seed=1)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, parts.state_dict()[name]), name
    start = train(tmp_path / "start", noise_corpus, steps=4, seed=1, until=0)
    assert not torch.equal(start.embedding, whole.embedding)


@pytest.fixture(scope="module")
def student(noise_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Student:
    return train(tmp_path_factory.mktemp("student"), noise_corpus, steps=2, seed=0, until=1)


@pytest.mark.slow
def test_the_stock_whisper_computes_the_trained_logits(student: Student) -> None:
    """On 30 s and in fp32: the logits of the used tokens and, for all others, the shared logit minus the logarithm of their number."""
    stock = Whisper(ModelDimensions(**DIMENSIONS))
    stock.load_state_dict(student.weights())
    mels, tokens = torch.randn(1, 80, 3000), torch.tensor([student.used[:7]])
    with torch.no_grad():
        expected = stock(mels, tokens)
        audio = student._encode(mels)
        found, _ = student._decode(tokens, audio)
    scale = expected.std()
    assert (found[..., :-1] - expected[..., student.used]).abs().max() < 0.05 * scale + 0.02, "blocks in bf16"
    unused = sorted(set(range(DIMENSIONS["n_vocab"])) - set(student.used))
    assert torch.equal(expected[..., unused[:1]].expand(-1, -1, 3), expected[..., unused[:3]])
    total = torch.logsumexp(expected, -1)
    torch.testing.assert_close(torch.logsumexp(found, -1), total, atol=0.05, rtol=0.01)


@pytest.mark.slow
def test_the_guided_attention_equals_that_of_the_stock_whisper(student: Student, noise_corpus: Path) -> None:
    """The guided head is the first head of each cross-attention, as the stock package computes it."""
    finished = Student(WhisperDataset(noise_corpus, train_whisper.load_tokenizer()), student.weights())
    stock, scores = Whisper(ModelDimensions(**DIMENSIONS)), list[torch.Tensor]()
    stock.load_state_dict(finished.weights())
    for block in stock.decoder.blocks:
        block.cross_attn.register_forward_hook(lambda module, given, made: scores.append(made[1]))
    mels, tokens = torch.randn(1, 80, 3000), torch.tensor([finished.used[:7]])
    with torch.no_grad(), disable_sdpa():
        stock(mels, tokens)
        _, looks = finished._decode(tokens, finished._encode(mels))
    assert len(looks) == len(scores) == DIMENSIONS["n_text_layer"]
    for look, score in zip(looks, scores, strict=True):
        torch.testing.assert_close(look, score[:, 0].log_softmax(-1), atol=0.05, rtol=0.01)
        assert (look - score[:, 1].log_softmax(-1)).abs().max() > 0.1, "the other head attends to other frames"


@pytest.mark.slow
def test_the_weights_do_not_include_the_phone_head(student: Student) -> None:
    assert not [name for name in student.weights() if "spell" in name]
    assert set(student.weights()) == set(Whisper(ModelDimensions(**DIMENSIONS)).state_dict())


def test_zero_steps_and_a_missing_corpus_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--steps 0: must be at least 1"):
        main(["--steps", "0"])
    with pytest.raises(UserError, match=r"corpus\.jsonl is missing; create it"):
        main([str(tmp_path), "--corpus", str(tmp_path)])


@pytest.mark.slow
def test_a_training_continues_from_a_finished_model(student: Student, noise_corpus: Path, tmp_path: Path) -> None:
    """All weights of a checkpoint are used; it has no phone head."""
    torch.save({"dims": DIMENSIONS, "model_state_dict": student.weights()}, tmp_path / "finished.pt")
    begun = train(tmp_path / "more", noise_corpus, steps=2, seed=5, until=0, start_from=str(tmp_path / "finished.pt"))
    assert {name for name in student.state_dict() if name not in begun.state_dict()} == {"spell.weight", "spell.bias"}
    for name, tensor in begun.state_dict().items():
        assert torch.equal(tensor, student.state_dict()[name]), name
    more = train(tmp_path / "more", noise_corpus, steps=2, seed=5, start_from=str(tmp_path / "finished.pt"))
    assert not torch.equal(more.embedding, begun.embedding)


def test_the_guidance_loss_is_zero_for_attention_at_the_next_token() -> None:
    """Two positions, one at 1 s and one without a place: the loss depends on the total probability of all near frames."""
    places, frames = torch.tensor([[1.0, torch.nan]]), torch.arange(200) * 0.02
    there = torch.full((1, 2, 200), -30.0)
    there[:, :, 50] = 0
    assert train_whisper._compute_guidance_loss([there.log_softmax(-1)], places) == pytest.approx(0, abs=1e-5)
    everywhere = torch.zeros(1, 2, 200).log_softmax(-1)
    near = ((frames - 1).abs() < train_whisper.NEAR_S).float().mean()
    assert train_whisper._compute_guidance_loss([everywhere, everywhere], places) == pytest.approx(-2 * float(near.log()), abs=1e-4)
    assert train_whisper._compute_guidance_loss([there.log_softmax(-1)], places + 1) > 10


@pytest.mark.slow
def test_the_guidance_loss_decreases_in_training(student: Student, noise_corpus: Path) -> None:
    speech = WhisperDataset(noise_corpus, train_whisper.load_tokenizer())
    finished = Student(speech, student.weights())
    batch = speech.batch(0, 1, 3.0, 2)
    optimizer = torch.optim.Adam(finished.parameters(), lr=3e-3)
    before = finished(batch)["places"]
    for _ in range(10):
        optimizer.zero_grad()
        finished(batch)["places"].backward()
        optimizer.step()
    assert finished(batch)["places"] < 0.5 * before


@pytest.mark.slow
def test_training_from_a_finished_model_uses_long_windows_only(
    student: Student, noise_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"dims": DIMENSIONS, "model_state_dict": student.weights()}, tmp_path / "finished.pt")
    seconds, batch = [], WhisperDataset.batch
    monkeypatch.setattr(WhisperDataset, "batch", lambda *given: seconds.append(given[3]) or batch(*given))
    train(tmp_path / "new", noise_corpus, steps=2, seed=0)
    train(tmp_path / "more", noise_corpus, steps=2, seed=0, start_from=str(tmp_path / "finished.pt"))
    assert seconds == [2.0, 3.0, 3.0, 3.0]


def test_a_whisper_with_other_dimensions_is_refused(noise_corpus: Path, tmp_path: Path) -> None:
    other = DIMENSIONS | {"n_audio_layer": 1}
    torch.save({"dims": other, "model_state_dict": Whisper(ModelDimensions(**other)).state_dict()}, tmp_path / "other.pt")
    with pytest.raises(UserError, match=r"--from .*other\.pt: its dimensions are .*'n_audio_layer': 1"):
        train(tmp_path / "more", noise_corpus, steps=2, seed=0, start_from=str(tmp_path / "other.pt"))


@pytest.mark.slow
def test_a_training_must_resume_from_the_same_start(student: Student, noise_corpus: Path, tmp_path: Path) -> None:
    torch.save({"dims": DIMENSIONS, "model_state_dict": student.weights()}, tmp_path / "finished.pt")
    finished = str(tmp_path / "finished.pt")
    train(tmp_path / "new", noise_corpus, steps=2, seed=0, until=1)
    with pytest.raises(UserError, match=r"--from .*: the training in .*new started from scratch; use another FOLDER, or remove --from"):
        train(tmp_path / "new", noise_corpus, steps=2, seed=0, start_from=finished)
    train(tmp_path / "more", noise_corpus, steps=2, seed=0, until=1, start_from=finished)
    with pytest.raises(UserError, match=r"the training in .*more continues a finished model; use the same --from again"):
        train(tmp_path / "more", noise_corpus, steps=2, seed=0)


def test_an_unknown_model_for_from_is_refused(noise_corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--from small: no such file; use whisper-demo-en, or the \.pt file of a demo Whisper"):
        train(tmp_path / "more", noise_corpus, steps=2, seed=0, start_from="small")
