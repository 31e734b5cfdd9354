"""A folder that not all machines share is reported before a weight is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.checkpointing.shared_run_folder import check_marker, check_shared
from overtone.finetune.distributed.process_group import World
from overtone.finetune.errors import UserError
from tests.finetune import tiny


def test_a_folder_that_this_machine_does_not_see(world: World, tmp_path: Path) -> None:
    check_shared(tmp_path, world)
    assert list(tmp_path.iterdir()) == [], "the mark is gone"
    with pytest.raises(
        UserError, match=rf"^run.dir: .* \(rank 3\) does not see the files that rank 0 writes to {tmp_path}; choose a --run.dir on a file"
    ):
        check_marker(tmp_path / ".seen-1", 3)


ELSEWHERE = """
import os, sys
from pathlib import Path
from overtone.finetune import train
from overtone.finetune.modeling import loading

folder = Path(FOLDER, os.environ["RANK"])
folder.mkdir()
loading.file_digests = lambda *_: sys.exit("weights were read")
sys.exit(0 if train.main([*ARGUMENTS, "--run.dir", "/proc/self/cwd/run"] if not os.chdir(folder) else []) == 2 else 1)
"""


@pytest.mark.slow
def test_a_run_on_machines_without_a_common_folder_ends_before_it_begins(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = tiny.config_in(tmp_path)
    own = ["--recipe", str(tiny.FOLDER), "--model.source", str(config.model.source), "--data.train", str(config.data.train)]
    tiny.ranks(ELSEWHERE.replace("FOLDER", repr(str(tmp_path))).replace("ARGUMENTS", repr(own)))
    said = capfd.readouterr().err
    assert said.count("(rank 1) does not see the files that rank 0 writes to /proc/self/cwd/run; choose a --run.dir") == 1, said
