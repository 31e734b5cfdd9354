"""Fixtures for the tests of data_prep: the embedded sample's speech, files of many formats, and tiny models of the real classes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio.waveform import MASTER_RATE, Audio, load_track, probe_recording
from overtone.data_prep.cli import voice
from overtone.finetune.storage import demo_models

SAMPLE = demo_models.data_folder() / "sample"
RAILWAY = SAMPLE / "rms" / "railway.ogg"


@pytest.fixture(scope="session", autouse=True)
def _no_automatic_check() -> Iterator[None]:
    """The words of transcripts are not checked unless a test requests it: the check takes longer than the rest of a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(voice, "_choose_check", lambda options: (voice.ChosenChecks(options.align, options.check_with), []))
        yield


@pytest.fixture(scope="session")
def sample() -> Path:
    return SAMPLE


@pytest.fixture(scope="session")
def railway() -> Audio:
    """35 s of one speaker at 24 kHz."""
    return load_track(RAILWAY, probe_recording(RAILWAY), MASTER_RATE)[0]


@pytest.fixture(scope="session")
def said() -> list[dict[str, object]]:
    """What is said in `railway`, and when."""
    return json.loads(RAILWAY.with_name("railway.transcript.json").read_text())


@pytest.fixture(scope="session")
def one_sentence(railway: Audio) -> Audio:
    """The first sentence, with half a second of room before and after."""
    return railway.cut(int(0.1 * MASTER_RATE), int(4.4 * MASTER_RATE))


HARBOUR = SAMPLE / "slt" / "harbour.flac"
MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="session")
def mixed_recordings(tmp_path_factory: pytest.TempPathFactory, one_sentence: Audio) -> Path:
    """A good recording with one wrong text, a noisy one with a name and a text that are markup, and a broken one."""
    folder = tmp_path_factory.mktemp("mixed") / "recordings"
    folder.mkdir()
    said = json.loads(HARBOUR.with_name("harbour.transcript.json").read_text())[:7]
    samples, rate = soundfile.read(HARBOUR, stop=int((said[-1]["end"] + 0.4) * soundfile.info(HARBOUR).samplerate))
    soundfile.write(folder / "harbour.flac", samples, rate)
    said[2]["text"] *= 4
    (folder / "harbour.transcript.json").write_text(json.dumps(said))
    noise = 0.03 * np.random.default_rng(0).standard_normal(len(one_sentence.samples))
    soundfile.write(folder / f"{MARKUP}.wav", one_sentence.samples + noise, MASTER_RATE)
    (folder / f"{MARKUP}.txt").write_text("<img src=x onerror=alert(2)>")
    (folder / "broken.mp3").write_bytes(b"\x01\x02" * 999)
    (folder / "broken.txt").write_text("Nobody will hear this.")
    return folder


@pytest.fixture(scope="session")
def mixed_dataset(mixed_recordings: Path) -> Path:
    """What `overtone voice` makes of them. For reading: copy it to change it."""
    from overtone.data_prep.cli import voice

    out = mixed_recordings.parent / "dataset"
    argv = [str(mixed_recordings), "--out", str(out), "--transcripts", "--speaker", "slt", "--language", "en", "--workers", "0"]
    assert voice.main(argv) == 0
    return out


@pytest.fixture(scope="session")
def vad():
    from overtone.data_prep.segmentation.vad import load_vad

    return load_vad()


def peak_frequency(samples: np.ndarray, rate: int, near: float) -> float:
    """Hz of the line near `near` (5 %), to a small part of a Hz. Fails if nothing stands out there."""
    size = 1 << 19
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), size))
    frequencies = np.fft.rfftfreq(size, 1 / rate)
    band = np.flatnonzero(np.abs(frequencies - near) < 0.05 * near)
    assert spectrum[band].max() > 5 * np.median(spectrum[band])
    return float(frequencies[band[spectrum[band].argmax()]])


@pytest.fixture
def write_sound() -> Callable[..., Path]:
    """(path, samples [n] or [n, channels], rate) → the file, in the format that its name says."""
    return _write_sound


def _write_sound(path: Path, samples: np.ndarray, rate: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".m4a":
        return _write_m4a(path, samples, rate)
    subtypes = {".ogg": "VORBIS", ".opus": "OPUS", ".wav": "FLOAT" if not (np.abs(samples) < 10).all() else "PCM_16"}
    soundfile.write(path, samples, rate, subtype=subtypes.get(path.suffix), format="OGG" if path.suffix == ".opus" else None)
    return path


def _write_m4a(path: Path, samples: np.ndarray, rate: int) -> Path:
    import av

    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None].astype(np.float32), format="fltp", layout="mono")
        frame.sample_rate = rate
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    return path


@pytest.fixture(scope="session")
def whisper_that_says(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """(text) → checkpoint of one layer that says exactly this about any sound: each position's embedding points at the next token."""

    def build(text: str, room: int = 64) -> Path:
        import torch
        from whisper.tokenizer import get_tokenizer

        model = _small_whisper(room)
        tokenizer = get_tokenizer(True, num_languages=99, language="en", task="transcribe")
        words = tokenizer.encode(" " + text)
        says = [tokenizer.to_language_token("en"), tokenizer.transcribe, tokenizer.no_timestamps, *words, *[tokenizer.eot] * room][:room]
        with torch.no_grad():
            for block in model.decoder.blocks:
                for name, value in block.named_parameters():
                    if name.startswith(("attn.out", "cross_attn.out", "mlp.2")):
                        value.zero_()
            model.decoder.positional_embedding.copy_(10 * model.decoder.token_embedding.weight[says])
        return _saved(model, tmp_path_factory.mktemp("whisper") / "says.pt")

    return build


@pytest.fixture(scope="session")
def random_whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of one layer with random weights: it babbles until a limit stops it."""
    return _saved(_small_whisper(64), tmp_path_factory.mktemp("whisper") / "random.pt")


def _small_whisper(text_positions: int):
    import torch
    from whisper.model import ModelDimensions, Whisper

    torch.manual_seed(0)
    model = Whisper(ModelDimensions(80, 1500, 64, 1, 1, 51865, text_positions, 64, 1, 1))
    torch.nn.init.normal_(model.decoder.token_embedding.weight)
    torch.nn.init.normal_(model.decoder.positional_embedding)
    return model


def _saved(model, path: Path) -> Path:
    import torch

    torch.save({"dims": vars(model.dims), "model_state_dict": model.state_dict()}, path)
    return path


@pytest.fixture(scope="session")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3-TTS model with its speech tokenizer."""
    from overtone.recipes.voice_clone.model.tiny_checkpoint import build

    return build(tmp_path_factory.mktemp("models") / "nano")


@pytest.fixture(scope="session")
def tiny_csm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny CSM model with Mimi inside, at the released rates and with fewer and smaller codebooks."""
    import torch
    from transformers import CsmConfig, CsmForConditionalGeneration

    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    mimi = {
        **{"model_type": "mimi", "num_filters": 4, "codebook_size": 64, "codebook_dim": 8, "vector_quantization_hidden_dimension": 8},
        **{"num_quantizers": 4, "upsample_groups": 16, "sliding_window": 20, **small},
    }
    depth = {"backbone_hidden_size": 16, "num_codebooks": 4, "vocab_size": 68, "head_dim": 8, **small}
    text = {"text_vocab_size": 300, "pad_token_id": 290, "bos_token_id": 291, "audio_token_id": 292, "audio_eos_token_id": 293}
    config = CsmConfig(codec_config=mimi, depth_decoder_config=depth, num_codebooks=4, vocab_size=68, head_dim=8, **text, **small)
    model = CsmForConditionalGeneration(config)
    for name, buffer in model.codec_model.named_buffers():
        if name.endswith("embed_sum"):  # zeros in a new model: every frame would get code 0
            buffer.normal_()
    folder = tmp_path_factory.mktemp("models") / "csm"
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_snac(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny SNAC model at the released rates, in the released form: 7 codes a frame, config.json and pytorch_model.bin."""
    import torch
    from snac import SNAC

    torch.manual_seed(0)
    config = {
        **{"sampling_rate": 24_000, "encoder_dim": 4, "encoder_rates": [2, 4, 8, 8], "decoder_dim": 32, "decoder_rates": [8, 8, 4, 2]},
        **{"attn_window_size": None, "codebook_size": 64, "codebook_dim": 8, "vq_strides": [4, 2, 1], "noise": True, "depthwise": True},
    }
    folder = tmp_path_factory.mktemp("models") / "snac"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    weights = SNAC(**config).state_dict()
    for name in weights:
        if name.startswith(("encoder", "quantizer")) and name.endswith("bias"):
            weights[name].zero_()  # or the codes would hardly depend on the audio
    torch.save(weights, folder / "pytorch_model.bin")
    return folder
