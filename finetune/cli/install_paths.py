"""overtone where [recipes|configs|NAME.yaml]: print the paths of the installed recipes and launch files, for use in a command line.

accelerate launch --config_file "$(overtone where fsdp2.yaml)" -m overtone.finetune.train --recipe voice_clone
"""

from __future__ import annotations

from pathlib import Path

from overtone.finetune.command_lines import configs_folder
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.terminal import print_line


@catch_user_errors
def main(argv: list[str]) -> int:
    if argv[:1] in (["-h"], ["--help"]):
        print_line(__doc__)
        return 0
    places = {"recipes": recipes_folder(), "configs": configs_folder()}
    for name in argv or [*places]:
        if name in places:
            print_line(places[name] if argv else f"{name}: {places[name]}")
        elif (configs_folder() / name).is_file():
            print_line(configs_folder() / name)
        else:
            known = ", ".join(sorted(path.name for path in configs_folder().glob("*.yaml")))
            raise UserError(f"unknown name {name!r}; valid names are recipes, configs, and the launch files {known}")
    return 0


def recipes_folder() -> Path:
    return Path(__file__).resolve().parents[2] / "recipes"
