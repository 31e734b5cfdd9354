"""`overtone doctor` describes machine and installation in a text without secrets, and names what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from overtone.finetune.cli import doctor

ROOT = Path(__file__).parents[3]


def test_the_text_names_versions_machine_and_packages(capsys: pytest.CaptureFixture[str]) -> None:
    code = doctor.main([])
    text = capsys.readouterr().out
    assert code == (0 if "problem: none found" in text else 1)
    for part in ("overtone 0.", "Python 3.", "torch 2.", "GPU", "cores: ", "memory: ", "disk, this folder: ", "packages as in constraints"):
        assert part in text
    assert text.count("\n  ") >= len(doctor.VERBS_OF_EXTRAS)


def test_every_extra_is_explained() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {*doctor.VERBS_OF_EXTRAS} == {*extras} - {"test", "voice"}  # voice: two of the others together


def test_nothing_private_is_printed(tmp_path: Path) -> None:
    home = tmp_path / "anna_lee"
    (home / "secret_client").mkdir(parents=True)
    (home / "a,secret_client").mkdir()
    given = {
        "HOME": str(home), "HF_HOME": str(home / "My secret_client" / "hf"), "TMPDIR": str(home / "a,secret_client"),
        "PIP_CONSTRAINT": "https://bob:pass@host", "NCCL_COMM_ID": "10.1.2.3:44", "LOGNAME": "anna.lee", "HF_HUB_CACHE": "s3://bob/x",
        "XDG_CACHE_HOME": "/scratch/anna.lee/cache", "HF_TOKEN": "hf_abcdef", "OVERTONE_TOKEN": "let-me-in",
        "https_proxy": "http://anna:pass@proxy.client.example", "NCCL_DEBUG": "INFO", "AWS_SECRET_ACCESS_KEY": "wJalr",
        "PYTHONPATH": f"{home}/one:{home}/two", "UNRELATED": "unrelated-value",
    }  # fmt: skip
    command = [sys.executable, "-m", "overtone", "doctor"]
    given["PYTHONPATH"] += f":{ROOT}"
    done = subprocess.run(command, cwd=home / "secret_client", env=os.environ | given, capture_output=True, text=True, timeout=200)
    assert done.returncode in (0, 1), done.stderr
    for private in (
        "bob",
        "10.1.2.3",
        "anna",
        "secret_client",
        "hf_abcdef",
        "let-me-in",
        "proxy.client",
        "wJalr",
        "unrelated-value",
        f"{home}",
    ):
        assert private not in done.stdout
    for shown in (
        "HF_HOME=~/…\n",
        "XDG_CACHE_HOME=/scratch/…/cache",
        "PIP_CONSTRAINT: is set",
        "HF_TOKEN: is set",
        "OVERTONE_TOKEN: is set",
        "https_proxy: is set",
        "NCCL_DEBUG=INFO",
        "PYTHONPATH=~/…:~/…",
    ):
        assert shown in done.stdout


def test_a_missing_or_wrong_package_of_the_core_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    required = ["safetensors>=0.5", "numpy>=2.0", "rich>=13", 'ray>=2.60; extra == "ray"', 'boto3; extra == "s3"']
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: required)
    problems: list[str] = []
    lines = [*doctor.describe_extras({"numpy": "1.26.4", "rich": "13.9", "boto3": "1.40"}, problems)]
    assert [each.partition(";")[0] for each in problems] == ["safetensors is missing", "numpy 1.26.4 is installed, >=2.0 is needed"]
    (ray,) = [line for line in lines if "ray-train" in line]
    assert ray == "  ray-train, ray-tune: ray is missing; pip install -c constraints.txt -e '.[ray]'"
    assert "  s3:// addresses: complete" in lines


def test_versions_that_no_test_ran_with_are_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "constraints-chat.txt").write_text("torch==2.13.0\nTransformers==5.1.0\npeft==0.18.0\nabsent==1\n")
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    lines = [*doctor.describe_pins({"torch": "2.13.0+cpu", "transformers": "5.2.0", "peft": "0.18.0"})]
    assert lines == ["versions: 2 of 3 packages as in constraints-chat.txt", "  transformers 5.2.0 (tested: 5.1.0)"]
    monkeypatch.setattr(doctor, "SHOWN", 0)
    assert [*doctor.describe_pins({"transformers": "5.2.0"})][1] == "  … and 1 more"
    assert "no list" in "".join(doctor.describe_pins({"transformers": "4.57.3"}))


def test_a_gpu_that_torch_cannot_use_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    problems: list[str] = []
    gpu = "NVIDIA H200, 143771 MiB, 143000 MiB, 9.0, 580.95.05"
    monkeypatch.setattr(torch.version, "cuda", None)
    assert f"  {gpu}" in [*doctor.describe_torch([gpu], problems)]
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "GPUs: 1 GPU by the driver, 0 by torch" in [*doctor.describe_torch([gpu], problems)]
    assert ["no CUDA" in problems[0], "driver may be older" in problems[1]] == [True, True]


def test_a_missing_program_and_a_failure_are_empty_texts() -> None:
    assert doctor.run_tool("no-such-program-here") == ""
    assert doctor.run_tool(sys.executable, "-c", "print(1); raise SystemExit(3)") == ""
    assert doctor.run_tool(sys.executable, "-c", "print(' 1 ')") == "1"


def test_a_wrong_argument_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--all"]) == 2
    assert "--all" in capsys.readouterr().err


def test_a_broken_installation_is_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "left_over-1.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert doctor.main([]) == 1
    assert "problem: a package has no name or version" in capsys.readouterr().out
    problems: list[str] = []

    def fail(_: str) -> list[str]:
        raise doctor.metadata.PackageNotFoundError

    monkeypatch.setattr(doctor.metadata, "requires", fail)
    assert [*doctor.describe_extras({}, problems)] == [] and "overtone itself is not installed" in problems[0]


@pytest.mark.parametrize(
    ("value", "shown"), [("/home/u", "~/…"), ("/home/u/My, x:/opt", "~/…:/opt"), ("/home/user2/x", "/home/user2/x"), ("1", "1")]
)
def test_what_is_below_home_is_hidden(value: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.Path, "home", lambda: Path("/home/u"))
    assert f"  HF_HOME={shown}" in doctor.describe_environment({"HF_HOME": value})


def test_the_name_of_the_machine_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.platform, "node", lambda: "box7.example.org")
    assert doctor.hide_names("Linux box7.example.org, box7, box77") == "Linux …, …, box77"
