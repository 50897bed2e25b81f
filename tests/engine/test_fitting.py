"""`--batch-size auto`: what goes through a model together follows from the memory that is free."""

import pandas as pd
import pytest
import torch

from nein.engine.blocks import Blocks
from nein.engine.executors import memory
from nein.engine.executors.memory import Fitting
from nein.engine.executors.worker import Worker
from nein.engine.folder import Folder
from nein.engine.stages import Model, Stage, Step, open_blocks
from nein.loading.weights import ALIGNMENT, aligned
from tests.helpers import commands

MIB = 2**20


class Hungry:
    """A model that takes `each` bytes per record and has `room`, and remembers the sizes of its passes."""

    def __init__(self, each, room, batch_size=16):
        self.batch_size, self._each, self._room = batch_size, each, room
        self.passes = []

    def squares(self, numbers):
        rows, numbers_left = [], list(numbers)
        while numbers_left:
            part, numbers_left = numbers_left[: self.batch_size], numbers_left[self.batch_size :]
            self.passes.append(len(part))
            if len(part) * self._each > self._room:
                raise torch.OutOfMemoryError
            rows += [{"id": number, "value": number**2} for number in part]
        return rows


@pytest.fixture
def device(monkeypatch):
    says = {"held": 100 * MIB, "peak": 110 * MIB, "free": 1000 * MIB}
    monkeypatch.setattr(memory, "held", lambda device: says["held"])
    monkeypatch.setattr(memory, "peak", lambda device: {"bytes": says["peak"], "what": memory.CUDA})
    monkeypatch.setattr(memory, "free", lambda device: says["free"])
    monkeypatch.setattr(memory.Processes, "workers", lambda self, device: 1)
    return says


@pytest.mark.parametrize(("free", "size"), [(1000, 16), (60, 4), (1, 1)])
def test_what_one_record_took_says_how_many_fit(device, free, size):
    device["free"] = free * MIB  # a record took 10 MiB, and four fifths may be taken
    model = Hungry(1, 100)
    fit = Fitting([model, "a part without a batch size"], "mps")
    fit.run(lambda: model.squares(range(3)))
    assert model.passes == [1, 1, 1]
    assert (fit.size, model.batch_size) == (size, size)


def test_a_pass_that_does_not_fit_is_halved_and_the_block_is_made_all_the_same(device, tmp_path):
    model = Hungry(1, 5)
    folder = Folder(tmp_path)
    folder.open({}, {}, overwrite=False)
    stage = Stage(
        "squares", ("squares",), Blocks.first(40, 16), lambda number: range(16 * number, 16 * number + 16),
        lambda loaded, numbers, missing: {"squares": loaded.squares(numbers)}, lambda *parts: {},
        Model("hungry", lambda: model, lambda loaded: {}, fits=lambda loaded: (loaded,)),
    )  # fmt: skip
    step = Step(folder, stage)
    worker = Worker([step], "mps")
    for task in open_blocks(step):
        worker.make(task, stage.read(task.number))
    worker.close()
    rows = list(folder.rows("squares", [0, 1, 2]))
    assert [row["value"] for row in rows] == [number**2 for number in range(48)]
    assert model.passes[:16] == [1] * 16
    assert model.passes[16:19] == [16, 8, 4]  # twice too many, then what fits, from then on
    assert max(model.passes[18:]) == 4
    assert folder.manifest()["batch"] == {"squares": {"size": 4, "most": 16}}


def test_a_record_that_does_not_fit_alone_ends_the_command_and_other_errors_are_no_matter_of_size(
    device,
):
    model = Hungry(10, 5)
    fit = Fitting([model], "mps")
    with pytest.raises(torch.OutOfMemoryError):
        fit.run(lambda: model.squares(range(2)))
    fit.size = 8
    with pytest.raises(ZeroDivisionError):
        fit.run(lambda: [1 // 0])
    assert fit.size == 8


def test_an_evaluation_finds_its_batch_size_and_its_figures_are_the_same(tmp_path, capsys):
    line = ["eval", "--editor", "identity", "--metrics", "l1,clip_i", "--control", "none", "--limit", "16",
            "--device", "cpu"]  # fmt: skip
    values = []
    for size in ("auto", "16"):
        out = tmp_path / size
        assert commands.outcome(capsys, *line, "--batch-size", size, "--out", out).code == 0
        values.append(pd.read_csv(out / "identity" / "negative" / "figures.csv")["value"].tolist())
    # Sums in float32 may end in other bits in another company, and in nothing else.
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    manifest = Folder(tmp_path / "auto" / "identity" / "negative").manifest()
    assert manifest["identity"]["batch_size"] == "auto"
    assert 1 <= manifest["batch"]["score"]["size"] <= 32
    refused = commands.outcome(capsys, *line, "--batch-size", "some", "--out", tmp_path / "x")
    assert refused.code == 2
    assert "auto" in refused.stderr


def test_weights_that_begin_anywhere_are_moved_and_keep_their_values():
    layer = torch.nn.Linear(3, 2)
    values = torch.arange(7.0)
    layer.weight.data = values[1:].view(2, 3)  # as in a mapped file: 4 bytes off
    assert layer.weight.data_ptr() % ALIGNMENT
    before = layer.bias.data_ptr()
    assert aligned(layer) is layer
    assert layer.weight.data_ptr() % ALIGNMENT == 0
    assert layer.weight.tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert layer.bias.data_ptr() == before  # what lies right stays
