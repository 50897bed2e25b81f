"""Which device `--device auto` is, and that the command says so."""

from __future__ import annotations

import pytest
import torch

from nein.engine import environment
from nein.engine.errors import UserError
from nein.engine.processes import Processes


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Makes this machine one with the accelerators of another."""

    def make(cuda: str | None = None, hip: str | None = None, mps: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(cuda or hip))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"{'AMD' if hip else 'NVIDIA'} X")
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.version, "hip", hip)

    return make


@pytest.mark.parametrize(
    ("has", "device", "line"),
    [
        ({"cuda": "13.0"}, "cuda", "--device auto: cuda, NVIDIA X, CUDA 13.0\n"),
        ({"hip": "6.2"}, "cuda", "--device auto: cuda, AMD X, ROCm 6.2\n"),
        ({"mps": True}, "mps", "--device auto: mps, Apple GPU, MPS\n"),
    ],
)
def test_auto_takes_the_accelerator_that_is_there_and_names_it(machine, has, device, line, capsys):
    machine(**has)
    assert Processes().device("auto") == device
    assert capsys.readouterr().err == line
    found = environment.describe(device)
    assert line == f"--device auto: {device}, {found['device_name']}, {found['arithmetic']}\n"


def test_auto_is_the_cpu_elsewhere_and_names_its_instructions(machine, capsys):
    machine()
    assert Processes().device("auto") == "cpu"
    said = capsys.readouterr().err
    assert said.startswith("--device auto: cpu, ")
    assert said.endswith(f"{torch.backends.cpu.get_cpu_capability()}\n")


def test_one_of_several_processes_says_it_and_none_where_the_device_is_named(machine, capsys):
    machine(cuda="13.0")
    assert Processes(rank=1, size=2, local_rank=1).device("auto") == "cuda:1"
    assert Processes().device("cpu") == "cpu"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("wanted", "whose"), [("cuda:0", "NVIDIA or AMD"), ("mps", "Apple")])
def test_a_device_that_is_not_there_is_one_sentence(machine, wanted, whose):
    machine()
    with pytest.raises(UserError, match=f"'{wanted}', but this PyTorch sees no .*{whose}.*--device cpu"):
        Processes().device(wanted)
