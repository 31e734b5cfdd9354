"""A Whisper of transformers computes the same in openai-whisper; a name on the hub is downloaded without code and pickles."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import WhisperConfig, WhisperForConditionalGeneration

from overtone.data_prep.transcription import whisper_conversion, whisper_engine
from overtone.finetune.errors import UserError
from tests.finetune import fake_hub

HEADS = [[0, 1], [1, 0]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Whisper with two layers and random weights, as transformers saves it."""
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = WhisperConfig(**sizes, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=1500, max_target_positions=32)
    folder = tmp_path_factory.mktemp("whisper") / "mine"
    WhisperForConditionalGeneration(config).save_pretrained(folder)
    generation = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**generation, "alignment_heads": HEADS}))
    return folder


def test_both_packages_compute_the_same(folder: Path) -> None:
    ours, theirs = whisper_engine.load_whisper(str(folder), "cpu"), WhisperForConditionalGeneration.from_pretrained(folder).eval()
    mel, tokens = torch.randn(1, 80, 3000), torch.tensor([[50258, 50259, 7, 50257]])
    with torch.inference_mode():
        expected = theirs(input_features=mel, decoder_input_ids=tokens).logits
        torch.testing.assert_close(ours(mel, tokens), expected, atol=1e-4, rtol=1e-4)
    assert ours.alignment_heads.to_dense().nonzero().tolist() == HEADS


def test_a_name_on_the_hub_is_downloaded_without_code(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_hub.opened() as hub:
        fake_hub.point_client_at(hub, tmp_path / "hf", monkeypatch)
        hub.add("me/whisper", folder)
        hub.repositories["me/whisper"] |= {"evil.py": b"raise SystemExit", "training_args.bin": b"pickle"}
        hub.repositories["me/pickled"] = {"config.json": (folder / "config.json").read_bytes(), "pytorch_model.bin": b"pickle"}
        assert whisper_engine.load_whisper("me/whisper", "cpu").dims.n_text_layer == 2
        assert whisper_engine.digest_weights("me/whisper") == whisper_engine.digest_weights(str(folder))
        with pytest.raises(UserError, match=r"--whisper .*contains no \*.safetensors weights"):
            whisper_engine.load_whisper("me/pickled", "cpu")
        with pytest.raises(UserError, match="--whisper me/none: no such folder, and the download from the hub failed: the hub has no such"):
            whisper_engine.load_whisper("me/none", "cpu")
    assert {path.suffix for path in (tmp_path / "hf").rglob("snapshots/*/*")} == {".json", ".safetensors"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "evil", "auto_map": {"AutoModel": "evil.C"}}, "model_type 'evil' is not a Whisper model"),
        ({"d_model": "16"}, "has no number d_model"),
        ({"vocab_size": 99}, "its vocabulary of 99 tokens is not one of Whisper's"),
        ({"encoder_layers": 3}, "not a Whisper checkpoint"),
    ],
)
def test_another_model_is_refused(folder: Path, tmp_path: Path, changes: dict[str, object], message: str) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UserError, match=f"--whisper .*{message}"):
        whisper_engine.load_whisper(str(other), "cpu")


def test_damaged_files_are_refused(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    (other / "generation_config.json").write_text(json.dumps({"alignment_heads": [[9, 9]]}))
    with pytest.raises(UserError, match="its alignment_heads do not fit the model"):
        whisper_engine.load_whisper(str(other), "cpu")
    (other / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match="model.safetensors cannot be read"):
        whisper_engine.load_whisper(str(other), "cpu")


def test_half_precision_is_converted(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    halved = {name: tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(halved, other / "model.safetensors", {"format": "pt"})
    found = whisper_conversion.read_checkpoint(str(other))["model_state_dict"]
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
