"""overtone doctor

Describe this machine and this installation: versions, GPUs, memory, disk, the packages that each verb needs, environment variables. The
text has no secrets, no name of a user or machine, and no path below your home folder, so you can paste it into an issue. The exit code is
1 if something is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import catch_user_errors, format_count
from overtone.finetune.hardware.host_memory import GIB, free_host_memory, host_memory
from overtone.finetune.storage import input_files
from overtone.finetune.storage.folder_handles import cache_home
from overtone.finetune.terminal import announce_torch, print_line
from overtone.version import __version__

ROOT = Path(__file__).resolve().parents[2]
VERBS_OF_EXTRAS = {
    "speech": "voice, codes, report, eval-voice, generate (speech)",
    "qwen-tts": "--recipe voice_clone",
    "snac": "--recipe codec_lm",
    "text": "text, --recipe llm_sft",
    "review": "review",
    "serve": "serve",
    "qlora": "--model.quantization",
    "liger": "--recipe llm_sft (faster loss)",
    "faster-whisper": "voice (faster transcription), export --format ctranslate2",
    "align": "voice --align pocketsphinx",
    "gguf": "export --format gguf, ollama",
    "ray": "ray-train, ray-tune",
    "ray-serve": "ray-serve",
    "rewards": "--recipe llm_grpo (rewards by a JSON schema)",
    "s3": "s3:// addresses",
}
"""Extra of pyproject.toml → what needs its packages."""
SETTINGS = (
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
    "TOKENIZERS_PARALLELISM", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "TRANSFORMERS_OFFLINE", "XDG_CACHE_HOME",
    "TMPDIR", "TORCH_LOGS", "TORCHDYNAMO_DISABLE", "TRITON_CACHE_DIR", "CUDA_LAUNCH_BLOCKING", "PYTHONPATH", "PYTHONHASHSEED", "LD_PRELOAD",
    "LD_LIBRARY_PATH", "CUDA_HOME", "PIP_CONSTRAINT", "SLURM_JOB_ID", "RAY_ADDRESS",
)  # fmt: skip
PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "ACCELERATE_", "OVERTONE_", "FSDP_")
SECRETS = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL|PROXY|ADDRESS|ENDPOINT|WEBHOOK|COMM_ID|PIP_", re.IGNORECASE)
"""Variables whose value is not printed: it may be a secret, or an address that names people or contains a password."""
PROVIDERS = ("HF_TOKEN", "WANDB_API_KEY", "AWS_ACCESS_KEY_ID", "HTTPS_PROXY", "https_proxy")
"""Secrets whose presence matters."""
SHOWN = 12
"""Packages with another version than the tested one that are listed; the rest is counted."""


@catch_user_errors
def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "overtone doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parse_arguments(parser, argv)
    announce_torch("describing this machine")
    installed: dict[str, str] = {}
    problems = list[str]()
    for each in metadata.distributions():
        name, version = ((each.metadata.get_all(key) or [""])[0] for key in ("Name", "Version"))  # ["Name"] warns where it is missing
        if name and version:
            installed.setdefault(canonicalize_name(name), version)
        else:
            problems.append("a package has no name or version; pip was interrupted: install again")
    # The folder may be inside a repository of somebody else's, if the package is installed there.
    commit = run_tool("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD") if (ROOT / ".git").exists() else ""
    changed = commit and run_tool("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    query = "name,memory.total,memory.free,compute_cap,driver_version"
    gpus = [line for line in run_tool("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader").split("\n") if line]
    lines = [
        f"overtone {__version__}, {commit or 'not in a git repository'}{' with changed files' if changed else ''}",
        f"Python {platform.python_version()}, {platform.system()} {platform.release()} {platform.machine()}",
        *describe_torch(gpus, problems),
        f"cores: {len(os.sched_getaffinity(0))} of {os.cpu_count()} usable",
        f"memory: {host_memory() / GIB:.1f} GiB, {free_host_memory() / GIB:.1f} GiB free",
        *describe_disks(problems),
        "",
        *describe_pins(installed),
        *describe_extras(installed, problems),
        "",
        "environment variables:",
        *describe_environment(os.environ),
    ]
    print_line("\n".join(hide_names(line) for line in lines))
    print_line("\n".join(["", *(f"problem: {hide_names(each)}" for each in problems or ["none found"])]))
    return 1 if problems else 0


def run_tool(*command: str) -> str:
    """Return the output of a program without blanks at its ends; an empty text if it is missing, fails, or takes more than 20 seconds."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True, errors="replace").stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def describe_torch(gpus: list[str], problems: list[str]) -> Iterator[str]:
    """Yield the build of torch, and the GPUs that the driver reports and that torch can use. `gpus`: a line of nvidia-smi for each."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library of the GPU's driver or of CUDA is missing
        problems.append(f"torch cannot be imported ({error}); README's install commands bring it")
        return
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "a build without CUDA"
    usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
    yield f"torch {torch.__version__} ({build}), NCCL {'yes' if torch.distributed.is_nccl_available() else 'no'}"
    yield f"GPUs: {format_count(len(gpus), 'GPU')} by the driver, {usable} by torch"
    yield from (f"  {line}" for line in gpus)
    if gpus and not torch.version.cuda:
        problems.append("this torch has no CUDA, so no GPU is used; install the build with CUDA: pip install --force-reinstall torch")
    elif gpus and not usable:
        problems.append("torch cannot use the GPU: the driver may be older than torch's CUDA needs, or CUDA_VISIBLE_DEVICES hides it")
    if torch.version.cuda and not gpus and usable == 0:
        yield "  nvidia-smi reports no GPU; training and generation run on the CPU"


def describe_disks(problems: list[str]) -> Iterator[str]:
    """Yield the free space of the current folder, the cache and the temporary folder."""
    for name, place in (("this folder", Path.cwd()), ("cache", cache_home()), ("temporary files", Path(tempfile.gettempdir()))):
        existing = next((each for each in (place, *place.parents) if each.exists()), Path("/"))
        free = shutil.disk_usage(existing).free
        yield f"disk, {name}: {free / GIB:.1f} GiB free"
        if free < GIB:
            problems.append(f"the disk of {name} has less than 1 GiB free; checkpoints and models take several")


def find_pins(installed: Mapping[str, str]) -> Path:
    """Return the constraints file for the installed transformers, which an installed package does not have."""
    newer = int(installed.get("transformers", "0").partition(".")[0] or 0) >= 5
    return ROOT / ("constraints-chat.txt" if newer else "constraints.txt")


def describe_pins(installed: Mapping[str, str]) -> Iterator[str]:
    """Yield how far the installed packages are those that the tests ran with."""
    file = find_pins(installed)
    if not file.is_file():
        yield "versions: an installed package has no list of the tested ones"
        return
    pins = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", input_files.read_text(file), re.MULTILINE))
    known = {canonicalize_name(name): version for name, version in pins.items()}
    present = known.keys() & installed.keys()
    # The pins do not name the build, such as +cpu.
    changed = [name for name in sorted(present) if installed[name].partition("+")[0] != known[name]]
    other = [f"{name} {installed[name]} (tested: {known[name]})" for name in changed]
    yield f"versions: {len(present) - len(other)} of {format_count(len(present), 'package')} as in {file.name}"
    yield from (f"  {each}" for each in other[:SHOWN])
    if len(other) > SHOWN:
        yield f"  … and {len(other) - SHOWN} more"


def describe_extras(installed: Mapping[str, str], problems: list[str]) -> Iterator[str]:
    """Yield which packages are missing for what; wrong versions, and missing packages of the core, are problems."""
    try:
        requirements = [Requirement(each) for each in metadata.requires("overtone") or []]
    except metadata.PackageNotFoundError:
        problems.append("overtone itself is not installed in this environment; README's install commands bring it")
        return
    pins = find_pins(installed)
    install = f"pip install -c {pins.name} -e '.[EXTRA]'" if pins.is_file() else "pip install 'overtone[EXTRA]'"
    core = [each for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
    problems += [f"{fault}; {install.replace('[EXTRA]', '')} repairs it" for fault in find_faults(core, installed)]
    yield "packages:"
    for extra, users in VERBS_OF_EXTRAS.items():
        own = [each for each in requirements if each not in core and each.marker is not None and each.marker.evaluate({"extra": extra})]
        faults = find_faults(own, installed)
        yield f"  {users}: {'; '.join([*faults, install.replace('EXTRA', extra)]) if faults else 'complete'}"


def find_faults(requirements: list[Requirement], installed: Mapping[str, str]) -> list[str]:
    """Return each requirement that is missing or has a version outside of its limits."""
    faults = []
    for each in requirements:
        version = installed.get(canonicalize_name(each.name))
        if version is None:
            faults.append(f"{each.name} is missing")
        elif not each.specifier.contains(version, prereleases=True):
            faults.append(f"{each.name} {version} is installed, {each.specifier} is needed")
    return faults


def describe_environment(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the variables that change how a run behaves. Others are left out: their values may be private. Of a secret and of an address,
    only that it is set, and of a path below the home folder, only that it is there."""
    homes = {str(Path.home()), os.path.realpath(Path.home())} - {"/"}  # a path may be written without the links that lead to it
    for name in sorted(environ):
        if name in SETTINGS or name.startswith(PREFIXES):
            value = environ[name]
            parts = ["~/…" if any(f"{part}/".startswith(f"{home}/") for home in homes) else part for part in value.split(os.pathsep)]
            yield f"  {name}: is set" if SECRETS.search(name) or "://" in value else f"  {name}={os.pathsep.join(parts)}"
    yield from (f"  {name}: {'is set' if name in environ else 'is not set'}" for name in PROVIDERS)


def hide_names(line: str) -> str:
    """Return a line without the names of the user and of the machine, and without the home folder."""
    names = {Path.home().name, platform.node(), platform.node().partition(".")[0]}
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        names.add(getpass.getuser())
    for private in (str(Path.home()), *sorted(names - {"", "root", "localhost"}, key=len, reverse=True)):
        if private != "/":
            line = re.sub(rf"(?<![\w-]){re.escape(private)}(?![\w-])", "…", line)
    return line
