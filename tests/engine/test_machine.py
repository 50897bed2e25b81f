"""Which device `--device auto` is, and that the command says so."""

import pytest
import torch

from nein.engine import machine
from nein.engine.machine import Processes
from nein.loading.errors import UserError


@pytest.fixture
def gpus(monkeypatch):
    def make(cuda=None, hip=None, mps=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(cuda or hip))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"{'AMD' if hip else 'NVIDIA'} X")
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.version, "hip", hip)

    return make


@pytest.mark.parametrize(
    ("has", "device", "name", "arithmetic"),
    [
        ({"cuda": "13.0"}, "cuda", "NVIDIA X", "CUDA 13.0"),
        ({"hip": "6.2"}, "cuda", "AMD X", "ROCm 6.2"),
        ({"mps": True}, "mps", "Apple GPU", "MPS"),
        ({}, "cpu", "", torch.backends.cpu.get_cpu_capability()),
    ],
)
def test_auto_takes_what_is_there_and_the_main_process_names_it(gpus, has, device, name, arithmetic, capsys):
    gpus(**has)
    assert Processes().device("auto") == device
    found = machine.describe_environment(device)
    assert capsys.readouterr().err == f"--device auto: {device}, {found['device_name']}, {arithmetic}\n"
    assert found["arithmetic"] == arithmetic
    assert found["device_name"] == name or not name
    several = {"cuda": "cuda:1"}
    assert Processes(rank=1, size=2, local_rank=1).device("auto") == several.get(device, device)
    assert Processes().device("cpu") == "cpu"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("wanted", "whose"), [("cuda:0", "NVIDIA or AMD"), ("mps", "Apple")])
def test_a_device_that_is_not_there_is_one_sentence(gpus, wanted, whose):
    gpus()
    with pytest.raises(UserError, match=f"'{wanted}', but this PyTorch sees no .*{whose}.*--device cpu"):
        Processes().device(wanted)
