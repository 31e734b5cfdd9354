"""Mimi inside a tiny CSM model and in a folder of its own: real classes, random weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from overtone.data_prep.audio_codecs.interface import CodecError, read_code_format
from overtone.data_prep.audio_codecs.mimi_codec import PREFIX, LoadedMimiCodec, MimiCodec, read_codec_weights
from overtone.data_prep.audio_codecs.selection import open_codec
from overtone.finetune.errors import UserError

LENGTHS = (1, 1919, 1920, 1921, 30_000, 48_000, 71_111)


def noise(samples: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.3, 0.3, samples).astype(np.float32)


def open_mimi(folder: Path) -> MimiCodec:
    codec = open_codec(str(folder))
    assert isinstance(codec, MimiCodec)
    return codec


@pytest.fixture(scope="module")
def loaded(tiny_csm: Path) -> LoadedMimiCodec:
    return open_mimi(tiny_csm).load("cpu")


@pytest.fixture(scope="module")
def stock(tiny_csm: Path):
    from transformers import CsmForConditionalGeneration

    return CsmForConditionalGeneration.from_pretrained(tiny_csm).eval()


@pytest.fixture(scope="module")
def tiny_mimi(tiny_csm: Path, stock, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same codec in a folder of its own."""
    folder = tmp_path_factory.mktemp("models") / "mimi"
    stock.codec_model.save_pretrained(folder)
    return folder


def test_the_numbers_come_from_the_config(tiny_csm: Path, tiny_mimi: Path) -> None:
    codec = open_mimi(tiny_csm)
    assert (codec.sample_rate, codec.samples_per_frame, codec.frame_rate) == (24_000, 1920, 12.5)
    assert (codec.codebooks, codec.codebook_size, codec.recipe) == (4, 64, "csm")
    assert codec.folder == codec.model == tiny_csm and read_code_format(codec) == codec.code_format
    own = open_mimi(tiny_mimi)
    assert (own.codebooks, own.samples_per_frame, own.codebook_size) == (4, 1920, 64)


def test_the_released_config_gives_the_released_numbers(tiny_csm: Path, tmp_path: Path) -> None:
    """The relevant keys of sesame/csm-1b."""
    config = json.loads((tiny_csm / "config.json").read_text())
    inner = {"model_type": "mimi", "sampling_rate": 24_000, "frame_rate": 12.5, "upsampling_ratios": [8, 6, 5, 4], "num_quantizers": 32}
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_codebooks": 32, "codec_config": {**inner, "codebook_size": 2048}}))
    codec = open_mimi(tmp_path)
    assert (codec.sample_rate, codec.samples_per_frame, codec.codebooks, codec.codebook_size) == (24_000, 1920, 32, 2048)


def test_codes_do_not_depend_on_the_batch(loaded: LoadedMimiCodec) -> None:
    clips = [noise(length, seed) for seed, length in enumerate(LENGTHS)]
    together = loaded.encode(clips)
    for clip, codes in zip(clips, together, strict=True):
        (alone,) = loaded.encode([clip])
        assert codes.shape == (-(-len(clip) // 1920), 4) and codes.dtype == np.uint16
        assert np.array_equal(codes, alone)
    assert np.unique(together[-1]).size > 16


def test_codes_are_those_that_the_stock_model_computes_from_the_same_audio(loaded: LoadedMimiCodec, stock) -> None:
    """By way of the labels, into which the model turns audio: three clips in two rows, as its processor passes them."""
    lengths = (19_200, 5 * 1920, 30_720)
    clips = [noise(length, seed) for seed, length in enumerate(lengths)]
    rows = [np.concatenate(clips[:2]), clips[2]]
    values = torch.stack([torch.from_numpy(np.pad(row, (0, 30_720 - len(row)))) for row in rows])[:, None]
    cutoffs = torch.tensor([[19_200, 19_200 + 9600], [30_720, -1]])
    audio = stock.config.audio_token_id
    ids = torch.tensor([[audio] * 15 + [5], [audio] * 16])
    merged = stock._merge_input_ids_with_input_values(ids, values, cutoffs, torch.where(ids == audio, ids, -100))
    found = loaded.encode(clips)
    assert np.array_equal(merged["labels"][0, :15].numpy(), np.concatenate(found[:2]))
    assert np.array_equal(merged["labels"][1].numpy(), found[2])


def test_of_a_partial_frame_only_the_padding_differs_from_the_stock_model(loaded: LoadedMimiCodec, stock) -> None:
    clip = noise(71_111, 3)
    (codes,) = loaded.encode([clip])
    with torch.inference_mode():
        unpadded, padded = (
            stock.codec_model.encode(torch.from_numpy(given)[None, None], num_quantizers=4).audio_codes[0].T.numpy()
            for given in (clip, np.pad(clip, (0, 38 * 1920 - len(clip))))
        )
    assert np.array_equal(codes, padded)
    assert np.array_equal(codes[:-1], unpadded[:-1]) and len(codes) == len(unpadded) == 38


def test_decoding_equals_the_stock_model(loaded: LoadedMimiCodec, stock) -> None:
    (codes,) = loaded.encode([noise(48_000, 0)])
    audio = loaded.decode(codes)
    with torch.inference_mode():
        expected = stock.codec_model.decode(torch.from_numpy(codes.astype(np.int64)).T[None]).audio_values[0, 0].numpy()
    assert np.array_equal(audio, expected) and audio.shape == (48_000,) and audio.dtype == np.float32


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (np.zeros((3, 5), np.uint16), r"codes of shape \(3, 5\), expected \(3, 4\)"),
        (np.full((3, 4), 64, np.uint16), "codes from 64 to 64 do not fit a codebook of 64"),
    ],
)
def test_codes_of_the_wrong_shape_or_range_are_not_decoded(loaded: LoadedMimiCodec, codes: np.ndarray, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        loaded.decode(codes)


def test_codes_are_computed_in_fp32_without_tf32(tiny_csm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = shutil.copytree(tiny_csm, tmp_path / "bf16")
    save_file({name: tensor.bfloat16() for name, tensor in load_file(copy / "model.safetensors").items()}, copy / "model.safetensors")
    loaded, allowed = open_mimi(copy).load("cpu"), []
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    loaded.model.encoder.register_forward_pre_hook(lambda *_: allowed.append(torch.backends.cudnn.allow_tf32))
    loaded.encode([noise(3000, 0)])
    assert allowed == [False] and torch.backends.cudnn.allow_tf32


def test_the_codec_alone_is_read(tiny_csm: Path, loaded: LoadedMimiCodec) -> None:
    found = read_codec_weights(tiny_csm, PREFIX)
    whole = load_file(tiny_csm / "model.safetensors")
    assert {PREFIX + name for name in found} == {name for name in whole if name.startswith(PREFIX)} and len(found) > 50
    assert sum(tensor.numel() for tensor in found.values()) == sum(tensor.numel() for tensor in loaded.model.state_dict().values())


def test_the_digest_depends_on_the_codec_alone(tiny_csm: Path, tiny_mimi: Path, tmp_path: Path) -> None:
    weights = load_file(tiny_csm / "model.safetensors")
    config = json.loads((tiny_csm / "config.json").read_text())

    def digest(name: str, changed: dict[str, torch.Tensor], **settings: object) -> str:
        folder = tmp_path / name
        folder.mkdir()
        save_file({**weights, **changed}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({**config, **settings}))
        return open_mimi(folder).digest()

    first = open_mimi(tiny_csm).digest()
    assert open_mimi(tiny_mimi).digest() == first
    assert digest("trained", {"lm_head.weight": weights["lm_head.weight"] + 1}, transformers_version="5.0.0") == first
    noted = {**config["codec_config"], "transformers_version": "5.0.0", "frame_rate": 12.5}
    assert digest("written by another version", {}, codec_config=noted) == first
    embeddings = f"{PREFIX}quantizer.semantic_residual_vector_quantizer.layers.0.codebook.embed_sum"
    other = {
        digest("weights", {embeddings: weights[embeddings] + 1}),
        digest("config", {}, codec_config={**config["codec_config"], "sliding_window": 3}),
        digest("fewer", {}, num_codebooks=3, depth_decoder_config={**config["depth_decoder_config"], "num_codebooks": 3}),
    }
    assert len(other | {first}) == 4


def test_a_worker_needs_memory_for_the_codec_but_not_for_the_language_model(tiny_csm: Path, loaded: LoadedMimiCodec) -> None:
    codec = open_mimi(tiny_csm)
    assert codec.estimate_worker_bytes(0) == 4 * sum(tensor.numel() for tensor in loaded.model.state_dict().values())
    assert codec.estimate_worker_bytes(60) - codec.estimate_worker_bytes(0) == 60 * 24_000 * 4 * 4 * 4


def split_like_the_release(folder: Path, to: Path) -> Path:
    """As sesame/csm-1b: another set of weights in model.safetensors, and shards with an index of another name."""
    to.mkdir()
    shutil.copy(folder / "config.json", to)
    weights = load_file(folder / "model.safetensors")
    shards: dict[str, dict[str, torch.Tensor]] = {
        "transformers-00001-of-00002.safetensors": {},
        "transformers-00002-of-00002.safetensors": {},
    }
    for name, tensor in weights.items():
        shards[f"transformers-0000{1 + name.startswith(PREFIX)}-of-00002.safetensors"][name] = tensor
    for file, tensors in shards.items():
        save_file(tensors, to / file)
    index = {"metadata": {}, "weight_map": {name: file for file, tensors in shards.items() for name in tensors}}
    (to / "transformers.safetensors.index.json").write_text(json.dumps(index))
    save_file({"backbone.layers.0.attn.k_proj.weight": torch.zeros(2)}, to / "model.safetensors")
    return to


def test_shards_are_found_by_their_index(tiny_csm: Path, tmp_path: Path) -> None:
    folder = split_like_the_release(tiny_csm, tmp_path / "release")
    assert open_mimi(folder).digest() == open_mimi(tiny_csm).digest()
    (folder / "transformers-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match="transformers-00002-of-00002.safetensors: no such weights"):
        open_mimi(folder).digest()


def test_of_a_model_on_the_hub_only_the_files_with_the_codec_are_downloaded(
    tiny_csm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    snapshot, calls = tmp_path / "snapshots" / ("0" * 40), []
    snapshot.parent.mkdir()
    split_like_the_release(tiny_csm, snapshot)
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda name, revision, allow_patterns: calls.append((revision, allow_patterns)) or str(snapshot),
    )
    assert open_mimi(Path("sesame/csm-1b")).model == snapshot
    assert calls[1:] == [("0" * 40, ["*.json"]), ("0" * 40, ["*.json", "transformers-00002-of-00002.safetensors"])]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_codebooks": 7}, "num_codebooks 7; expected 1 to 4, the codebooks of its codec"),
        ({"num_codebooks": "4"}, "num_codebooks '4'; expected 1 to 4"),
        ({"codec_config": None}, "no codec_config of model_type mimi"),
        ({"codec_config": {"model_type": "encodec"}}, "contains a config of model_type 'encodec'"),
        ({"codec_config": {"model_type": "mimi", "frame_rate": 11.0}}, "is not a multiple of the product of upsampling_ratios"),
        ({"codec_config": {"model_type": "mimi", "num_quantizers": 1}}, "not a config of Mimi"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(tiny_csm: Path, tmp_path: Path, changes: dict, message: str) -> None:
    config = json.loads((tiny_csm / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(UserError, match=f"--model {tmp_path}: .*{message}"):
        open_codec(str(tmp_path))


def test_missing_and_damaged_weights_are_reported(tiny_csm: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_csm / "config.json", tmp_path)
    codec, path = open_mimi(tmp_path), tmp_path / "model.safetensors"
    with pytest.raises(UserError, match=r"no such weights \(\*.safetensors\); the download is incomplete"):
        codec.digest()
    save_file({"lm_head.weight": torch.zeros(1)}, path)
    with pytest.raises(UserError, match=r"its weights contain no codec \(codec_model"):
        codec.load("cpu")
    weights = load_file(tiny_csm / "model.safetensors")
    save_file({name: tensor for name, tensor in weights.items() if "downsample" not in name}, path)
    with pytest.raises(UserError, match=r"the codec's weights and config.json do not fit \(missing: \S*downsample.conv.weight\)"):
        codec.load("cpu")
    save_file({**weights, f"{PREFIX}extra.weight": torch.zeros(1)}, path)
    with pytest.raises(UserError, match=r"do not fit \(unexpected: extra.weight\)"):
        codec.load("cpu")
    save_file({**weights, f"{PREFIX}downsample.conv.weight": torch.zeros(3)}, path)
    with pytest.raises(UserError, match="the codec's weights and config.json do not fit"):
        codec.load("cpu")
    path.write_bytes(b"half a download")
    for use in (codec.digest, lambda: codec.load("cpu"), lambda: codec.estimate_worker_bytes(1.0)):
        with pytest.raises(UserError, match="model.safetensors cannot be read"):
            use()


def test_code_in_the_folder_is_never_run(
    tiny_csm: Path, loaded: LoadedMimiCodec, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(tiny_csm, tmp_path / "model")
    (folder / "modeling.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'run')!r})\n")
    code = {"auto_map": {"AutoConfig": "modeling.C", "AutoModel": "modeling.C"}, "trust_remote_code": True}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **code, "codec_config": {**config["codec_config"], **code}}))
    clip = noise(3000, 0)
    assert np.array_equal(open_mimi(folder).load("cpu").encode([clip])[0], loaded.encode([clip])[0])
    assert not (tmp_path / "run").exists() and "auto_map: {" in capfd.readouterr().err
