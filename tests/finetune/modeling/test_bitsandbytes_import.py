"""bitsandbytes is imported without its banner and without code from a hub; its absence is an error with the next action."""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.modeling.bitsandbytes_import import hide_package, import_bitsandbytes


def test_the_banner_is_silent_and_errors_are_not(caplog: pytest.LogCaptureFixture) -> None:
    if importlib.util.find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is not installed")
    import_bitsandbytes("model.quantization: nf4")
    logger = logging.getLogger("bitsandbytes.cextension")
    logger.warning("No prebuilt binary for CUDA 13.0, loading CUDA 12.9 instead.")
    logger.error("library load error")
    assert [record.message for record in caplog.records] == ["library load error"], "nor advice to install packages"


def test_a_missing_package_names_the_setting_and_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r"train.optimizer: adamw_8bit needs bitsandbytes: pip install 'overtone\[qlora\]'"):
        import_bitsandbytes("train.optimizer: adamw_8bit")


def test_it_finds_no_package_that_downloads_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What bitsandbytes does on CPUs with AVX512-BF16, by packages in its place."""
    (tmp_path / "kernels.py").write_text("def get_kernel(): raise AssertionError('a kernel of a hub repository would be executed')")
    (tmp_path / "bitsandbytes.py").write_text(
        "try:\n    import kernels\n    kernels.get_kernel()\nexcept ImportError:\n    found = False\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # for what is imported to be gone afterwards
    monkeypatch.delitem(sys.modules, "bitsandbytes")
    import_bitsandbytes("train.optimizer: adamw_8bit")
    assert sys.modules["bitsandbytes"].found is False
    assert importlib.util.find_spec("kernels") is not None, "it is hidden no longer"


def test_a_hidden_package_is_found_again_and_an_imported_one_is_never_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_package_of_this_test.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with hide_package("a_package_of_this_test"):
        assert importlib.util.find_spec("a_package_of_this_test") is None
        with hide_package("a_package_of_this_test"), pytest.raises(ImportError):
            importlib.import_module("a_package_of_this_test")
        assert importlib.util.find_spec("a_package_of_this_test") is None, "the inner one does not end the outer one"
    module = importlib.import_module("a_package_of_this_test")
    with hide_package("a_package_of_this_test"):
        assert importlib.import_module("a_package_of_this_test") is module
    monkeypatch.delitem(sys.modules, "a_package_of_this_test")
