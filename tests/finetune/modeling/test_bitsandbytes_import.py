"""bitsandbytes is imported without its banner, and its absence is an error with the next action."""

from __future__ import annotations

import logging
import sys

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.modeling.bitsandbytes_import import import_bitsandbytes


def test_the_banner_is_silent_and_errors_are_not(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("bitsandbytes")
    import_bitsandbytes("model.quantization: nf4")
    logger = logging.getLogger("bitsandbytes.cextension")
    logger.warning("No prebuilt binary for CUDA 13.0, loading CUDA 12.9 instead.")
    logger.error("library load error")
    assert [record.message for record in caplog.records] == ["library load error"]


def test_a_missing_package_names_the_setting_and_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r"train.optimizer: adamw_8bit needs bitsandbytes: pip install 'overtone\[qlora\]'"):
        import_bitsandbytes("train.optimizer: adamw_8bit")
