"""`overtone where` prints the paths of recipes and launch files for use in a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.cli import install_paths

ROOT = Path(__file__).parents[3]


def test_names_print_one_path_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert install_paths.main(["fsdp2.yaml"]) == 0
    assert capsys.readouterr().out == f"{ROOT / 'configs' / 'fsdp2.yaml'}\n"
    assert install_paths.main(["recipes", "configs"]) == 0
    assert capsys.readouterr().out == f"{ROOT / 'recipes'}\n{ROOT / 'configs'}\n"


def test_without_a_name_both_folders_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert install_paths.main([]) == 0
    assert capsys.readouterr().out == f"recipes: {ROOT / 'recipes'}\nconfigs: {ROOT / 'configs'}\n"
    assert install_paths.main(["--help"]) == 0
    assert "overtone where" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["fsdp3.yaml", "fsdp2", "../pyproject.toml/x", ""])
def test_an_unknown_name_lists_the_known_ones(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert install_paths.main([name]) == 2
    message = capsys.readouterr().err
    assert (
        f"unknown name {name!r}; valid names are recipes, configs, and the launch files " in message
        and "fsdp2.yaml" in message
        and "cpu.yaml" in message
    )
