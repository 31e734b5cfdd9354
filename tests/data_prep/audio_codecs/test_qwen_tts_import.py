"""The import of qwen_tts, in fresh interpreters where it matters which modules are loaded already."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from overtone.data_prep.audio_codecs import qwen_tts_import
from overtone.finetune.errors import UserError

ROOT = Path(__file__).resolve().parents[3]


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)


BROKEN_TORCHAUDIO = """
import sys
from importlib.abc import MetaPathFinder
class Broken(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split('.')[0] == 'torchaudio':
            raise OSError('libc10_cuda.so: cannot open shared object file')
sys.meta_path.insert(0, Broken())
"""


@pytest.mark.ci
@pytest.mark.slow
def test_imports_silently_without_a_loadable_torchaudio() -> None:
    done = python(
        BROKEN_TORCHAUDIO + "from overtone.data_prep.audio_codecs.qwen_tts_import import ensure_torchaudio, import_qwen_tts\n"
        "package = import_qwen_tts()\n"
        "assert package.Qwen3TTSModel and package.Qwen3TTSTokenizer\n"
        "assert import_qwen_tts() is package\n"
        "assert not ensure_torchaudio()\n"
        "from overtone.data_prep.audio.librosa_import import COMPILED\n"
        "assert not {*COMPILED} & {*sys.modules}, 'two processes may compile these at the same moment'\n"
        "print('afterwards')\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "afterwards\n"
    assert done.stderr == ""


def test_a_torchaudio_that_loads_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "torchaudio" / "compliance"
    folder.mkdir(parents=True)
    for file in (tmp_path / "torchaudio" / "__init__.py", folder / "__init__.py"):
        file.write_text("__version__ = '9.9'\n")
    (folder / "kaldi.py").write_text("")
    done = python(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from overtone.data_prep.audio_codecs.qwen_tts_import import ensure_torchaudio\n"
        "assert ensure_torchaudio()\n"
        "import torchaudio; assert torchaudio.__version__ == '9.9'\n"
    )
    assert done.returncode == 0, done.stderr


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qwen_tts", None)
    monkeypatch.setattr(qwen_tts_import, "ensure_torchaudio", lambda: True)
    with pytest.raises(UserError, match=r"'qwen_tts' is missing; .* pip install 'overtone\[voice\]'"):
        qwen_tts_import.import_qwen_tts()


def test_the_output_of_a_failing_import_is_shown() -> None:
    done = python(
        "import os\n"
        "from overtone.data_prep.audio_codecs.qwen_tts_import import _capture_output\n"
        "try:\n"
        "    with _capture_output():\n"
        "        print('first words'); os.write(2, b'from a child\\n'); raise RuntimeError('broken')\n"
        "except RuntimeError: pass\n"
        "print('last')\n"
    )
    assert done.stdout == "last\n"
    assert "first words" in done.stderr and "from a child" in done.stderr
