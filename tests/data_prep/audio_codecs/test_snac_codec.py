"""SNAC: a tiny model of the package's class at the released rates, with random weights."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from overtone.data_prep.audio_codecs.interface import CodecError, read_code_format
from overtone.data_prep.audio_codecs.selection import open_codec
from overtone.data_prep.audio_codecs.snac_codec import CODEC_FOLDER, LoadedSnacCodec, SnacCodec, arrange_codes, split_levels
from overtone.finetune.errors import UserError

LENGTHS = (1, 2047, 2048, 2049, 30_000, 48_000, 71_111)


def noise(samples: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.3, 0.3, samples).astype(np.float32)


def open_snac(folder: Path) -> SnacCodec:
    codec = open_codec(str(folder))
    assert isinstance(codec, SnacCodec)
    return codec


def read_config(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


@pytest.fixture(scope="module")
def loaded(tiny_snac: Path) -> LoadedSnacCodec:
    return open_snac(tiny_snac).load("cpu")


@pytest.fixture(scope="module")
def stock(tiny_snac: Path):
    from snac import SNAC

    model = SNAC(**read_config(tiny_snac))
    model.load_state_dict(torch.load(tiny_snac / "pytorch_model.bin", weights_only=True))
    return model.eval()


def test_the_numbers_come_from_the_config(tiny_snac: Path) -> None:
    codec = open_snac(tiny_snac)
    assert (codec.sample_rate, codec.samples_per_frame, codec.frame_rate) == (24_000, 2048, 24_000 / 2048)
    assert (codec.codebooks, codec.codebook_size, codec.recipe) == (7, 64, "codec_lm")
    assert codec.folder == codec.model == tiny_snac and read_code_format(codec) == codec.config.code_format


def test_codes_do_not_depend_on_the_batch(loaded: LoadedSnacCodec) -> None:
    clips = [noise(length, seed) for seed, length in enumerate(LENGTHS)]
    together = loaded.encode(clips)
    for clip, codes in zip(clips, together, strict=True):
        (alone,) = loaded.encode([clip])
        assert codes.shape == (-(-len(clip) // 2048), 7) and codes.dtype == np.uint16
        assert np.array_equal(codes, alone)
    assert np.unique(together[-1]).size > 16


def test_codes_are_those_of_the_package_from_coarse_to_fine(loaded: LoadedSnacCodec, stock) -> None:
    clip = noise(71_111, 3)
    (codes,) = loaded.encode([clip])
    with torch.inference_mode():
        coarse, middle, fine = (level[0].numpy() for level in stock.encode(torch.from_numpy(clip)[None, None]))
    assert len(codes) == 35 and len({*map(tuple, codes)}) > 10
    for frame, found in enumerate(codes):
        assert found.tolist() == [coarse[frame], *middle[2 * frame : 2 * frame + 2], *fine[4 * frame : 4 * frame + 4]]


def test_levels_are_arranged_and_split_again() -> None:
    levels = [torch.tensor([[1, 2]]), torch.tensor([[10, 11, 20, 21]]), torch.arange(100, 108)[None]]
    codes = arrange_codes(levels, (1, 2, 4))
    assert codes.tolist() == [[[1, 10, 11, 100, 101, 102, 103], [2, 20, 21, 104, 105, 106, 107]]]
    assert [level.tolist() for level in split_levels(codes, (1, 2, 4))] == [level.tolist() for level in levels]


def test_other_strides_give_other_frames(tiny_snac: Path, tmp_path: Path) -> None:
    from snac import SNAC

    config = {**read_config(tiny_snac), "vq_strides": [8, 4, 2, 1]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save(SNAC(**config).state_dict(), tmp_path / "pytorch_model.bin")
    codec = open_snac(tmp_path)
    assert (codec.samples_per_frame, codec.codebooks) == (4096, 15)
    loaded = codec.load("cpu")
    (codes,) = loaded.encode([noise(5000, 0)])
    assert codes.shape == (2, 15) and loaded.decode(codes).shape == (8192,)


def test_decoding_is_deterministic_and_does_not_depend_on_the_batch(loaded: LoadedSnacCodec) -> None:
    one, two = (torch.from_numpy(codes.astype(np.int64)) for codes in loaded.encode([noise(40_960, seed) for seed in (0, 1)]))
    audio = loaded.decode(one.numpy().astype(np.uint16))
    assert audio.shape == (40_960,) and audio.dtype == np.float32 and np.abs(audio).max() <= 1
    assert np.array_equal(audio, loaded.decode(one.numpy().astype(np.uint16)))
    both = loaded.decode_frames(torch.stack([one, two])).numpy()
    assert both.shape == (2, 40_960)
    np.testing.assert_allclose(both[0], audio, atol=1e-6)
    np.testing.assert_allclose(both[1], loaded.decode(two.numpy().astype(np.uint16)), atol=1e-6)


def test_decoding_equals_the_package_but_for_the_drawn_noise(loaded: LoadedSnacCodec, stock, monkeypatch: pytest.MonkeyPatch) -> None:
    from overtone.data_prep.audio_codecs.snac_noise import make_noise

    (codes,) = loaded.encode([noise(20_480, 0)])
    levels = split_levels(torch.from_numpy(codes.astype(np.int64))[None], (1, 2, 4))
    layers = iter(range(4))

    def draw(shape: tuple[int, int, int], **_: object) -> torch.Tensor:
        return torch.from_numpy(make_noise(next(layers), 0, 10, shape[2] // 10)).reshape(shape)

    with torch.inference_mode():
        drawn = stock.decode(levels)[0, 0].numpy()
        monkeypatch.setattr(torch, "randn", draw)
        expected = stock.decode(levels)[0, 0].numpy()
    assert np.array_equal(loaded.decode(codes), expected) and not np.allclose(drawn, expected)


def test_a_window_of_a_stream_is_the_middle_of_the_whole(loaded: LoadedSnacCodec) -> None:
    """With three frames beside it, one frame is decoded as in the whole clip; without `first_frame` its noise would be another."""
    (codes,) = loaded.encode([noise(16 * 2048, 0)])
    whole = torch.from_numpy(codes.astype(np.int64))[None]
    expected = loaded.decode_frames(whole)[0, 8 * 2048 : 9 * 2048]
    window = loaded.decode_frames(whole[:, 5:12], first_frame=5)[0, 3 * 2048 : 4 * 2048]
    torch.testing.assert_close(window, expected, atol=1e-5, rtol=0)
    assert not torch.allclose(loaded.decode_frames(whole[:, 5:12])[0, 3 * 2048 : 4 * 2048], expected, atol=1e-3)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (np.zeros((3, 6), np.uint16), r"codes of shape \(3, 6\), expected \(3, 7\)"),
        (np.full((3, 7), 64, np.uint16), "codes from 64 to 64 do not fit a codebook of 64"),
    ],
)
def test_codes_of_the_wrong_shape_or_range_are_not_decoded(loaded: LoadedSnacCodec, codes: np.ndarray, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        loaded.decode(codes)


def test_codes_are_computed_without_tf32(tiny_snac: Path) -> None:
    loaded, allowed = open_snac(tiny_snac).load("cpu"), []
    loaded.model.encoder.register_forward_pre_hook(lambda *_: allowed.append(torch.backends.cudnn.allow_tf32))
    loaded.encode([noise(3000, 0)])
    assert allowed == [False] and torch.backends.cudnn.allow_tf32


def test_the_digest_depends_on_config_and_values_but_not_on_the_kind_of_file(tiny_snac: Path, tmp_path: Path) -> None:
    weights = torch.load(tiny_snac / "pytorch_model.bin", weights_only=True)
    for name, changes in (("exported", {}), ("other", {"quantizer.quantizers.0.codebook.weight": torch.zeros(64, 8)})):
        (tmp_path / name / CODEC_FOLDER).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text('{"model_type": "llama"}')
        shutil.copy(tiny_snac / "config.json", tmp_path / name / CODEC_FOLDER)
        save_file({**weights, **changes}, tmp_path / name / CODEC_FOLDER / "model.safetensors")
    noiseless = shutil.copytree(tiny_snac, tmp_path / "noiseless")
    (noiseless / "config.json").write_text(json.dumps({**read_config(tiny_snac), "noise": False}))
    exported = open_snac(tmp_path / "exported")
    assert (exported.folder, exported.model) == (tmp_path / "exported" / CODEC_FOLDER, tmp_path / "exported")
    first = open_snac(tiny_snac).digest()
    assert exported.digest() == first
    assert len({first, open_snac(tmp_path / "other").digest(), open_snac(noiseless).digest()}) == 3


def test_a_worker_needs_the_weights_and_memory_for_the_audio(tiny_snac: Path) -> None:
    codec = open_snac(tiny_snac)
    assert codec.estimate_worker_bytes(0) == (tiny_snac / "pytorch_model.bin").stat().st_size
    assert codec.estimate_worker_bytes(60) - codec.estimate_worker_bytes(0) == 60 * 24_000 * 4 * 4 * 4


class RunsCommand:
    def __reduce__(self) -> object:
        return os.mkdir, (self.folder,)

    def __init__(self, folder: str) -> None:
        self.folder = folder


def test_weights_that_would_run_code_are_refused(tiny_snac: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_snac / "config.json", tmp_path)
    torch.save({"encoder.weight": RunsCommand(str(tmp_path / "run"))}, tmp_path / "pytorch_model.bin")
    codec = open_snac(tmp_path)
    for use in (codec.digest, lambda: codec.load("cpu")):
        with pytest.raises(UserError, match="pytorch_model.bin does not contain plain weights .*never run"):
            use()
    assert not (tmp_path / "run").exists()


def test_missing_and_damaged_weights_are_reported(tiny_snac: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_snac / "config.json", tmp_path)
    codec, path = open_snac(tmp_path), tmp_path / "pytorch_model.bin"
    with pytest.raises(UserError, match=r"contains neither model.safetensors nor pytorch_model.bin; the download is incomplete"):
        codec.digest()
    torch.save({"encoder": [torch.zeros(1)]}, path)
    with pytest.raises(UserError, match="pytorch_model.bin: 'encoder' is not a tensor"):
        codec.digest()
    torch.save({"encoder": torch.zeros(1)}, path)
    with pytest.raises(UserError, match="the weights and config.json do not fit"):
        codec.load("cpu")
    (tmp_path / "model.safetensors").write_bytes(b"half a download")
    with pytest.raises(UserError, match="model.safetensors cannot be read"):
        codec.load("cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codebook_size": "64"}, "codebook_size: '64' is not a value that SNAC can have"),
        ({"encoder_rates": [2, 0]}, r"encoder_rates: \[2, 0\] is not a value"),
        ({"noise": 1}, "noise: 1 is not a value"),
        ({"decoder_rates": [8, 8, 4]}, "have different products"),
        ({"vq_strides": [4, 3]}, "each must divide the first"),
        ({"vq_strides": [4, 1, 2]}, "each must divide the first, and none may be larger"),
        ({"attn_window_size": 32}, "attn_window_size 32: SNAC with attention"),
        ({"latent_dim": 5}, "latent_dim 5 does not fit the encoder"),
        ({"surprise": 1}, "unknown keys: surprise"),
    ],
)
def test_a_config_that_snac_cannot_have_is_refused(tiny_snac: Path, tmp_path: Path, changes: dict, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**read_config(tiny_snac), **changes}))
    with pytest.raises(UserError, match=f"--model {tmp_path}: {tmp_path}/config.json: .*{message}"):
        open_codec(str(tmp_path))


def test_a_missing_package_is_named_with_the_command_that_installs_it(tiny_snac: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "snac", None)
    with pytest.raises(UserError, match=r"'snac' is missing; install the snac extra: pip install 'overtone\[snac\]'"):
        open_snac(tiny_snac).load("cpu")


@pytest.mark.parametrize("exported", [False, True])
def test_of_a_model_on_the_hub_only_the_codec_is_downloaded(
    exported: bool, tiny_snac: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    snapshot, calls = tmp_path / "snapshots" / ("0" * 40), []
    snapshot.mkdir(parents=True)
    shutil.copytree(tiny_snac, snapshot / CODEC_FOLDER if exported else snapshot, dirs_exist_ok=True)
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda name, revision, allow_patterns: calls.append((revision, allow_patterns)) or str(snapshot),
    )
    codec = open_snac(Path("hubertsiuzdak/snac_24khz"))
    assert codec.model == snapshot and codec.digest()
    wanted = ["config.json", "model.safetensors", "pytorch_model.bin"]
    assert calls[1:] == [("0" * 40, [f"{CODEC_FOLDER}/{name}" for name in wanted[:2]] if exported else wanted)]
