"""The engine over a tiny piece of work: what is done, done again, shared, killed and refused."""

import threading
import time

import pytest
import torch

from nein.benchmarks.runner import selected
from nein.engine import attempts, stages
from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.executors.threads import Threads
from nein.engine.executors.worker import Worker
from nein.engine.folder import Folder
from nein.engine.processes import read_ahead
from nein.engine.stages import Model, Stage, Step
from nein.loading.weights import ALIGNMENT, aligned
from tests.engine import squares
from tests.engine.squares import BLOCKS, COUNT, SIZE, Squarer, results


def compute(folder, world=None, **changed):
    steps = [Step(folder, squares.squares(folder, **changed))]
    return Threads("cpu", world).compute(steps)[0]


def test_every_block_is_a_file_of_rows_in_order(folder):
    assert compute(folder) == BLOCKS
    rows = list(folder.rows("squares", range(BLOCKS)))
    assert [(row["id"], row["value"]) for row in rows] == [(n, n * n) for n in range(COUNT)]
    assert folder.manifest()["models"] == {"model": {"fingerprint": "squarer-1", "class": "Squarer"}}
    assert set(folder.costs()["square"]) == set(range(BLOCKS))


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_finished_stage_loads_nothing_and_waits_for_nobody(folder, monkeypatch, at_once):
    compute(folder)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waited"))
    stage = squares.squares(folder, model=Model("squarer", lambda: pytest.fail("loaded"), lambda made: {}))
    assert Threads("cpu", at_once=at_once).compute([Step(folder, stage)]) == [0]


def test_a_limit_may_grow_and_an_output_be_added(folder):
    assert compute(folder, blocks=Blocks.first(COUNT, SIZE, 5)) == 2
    assert compute(folder) == BLOCKS - 2
    before = results(folder.path)
    assert compute(folder, outputs=("squares", "halves")) == BLOCKS
    after = results(folder.path)
    assert {name: after[name] for name in before} == before
    assert len(after) == 2 * BLOCKS


def test_a_block_that_does_not_count_any_more_is_made_again(folder):
    compute(folder)
    whole = results(folder.path)
    folder.write("squares", 1, [{"id": 4, "value": None}])
    assert compute(folder, is_valid=lambda output, number, rows: None not in [r["value"] for r in rows]) == 1
    assert results(folder.path) == whole


@pytest.mark.parametrize("kept", [[], [4, 5, 6], [4, 4, 5, 6, 7], [8, 9, 10, 11]])
def test_a_block_with_other_records_than_its_own_is_made_again(folder, kept):
    compute(folder)
    whole = results(folder.path)
    folder.write("squares", 1, [{"id": n, "value": n * n} for n in kept])
    folder.update(selected={"squares": {"size": SIZE, "records": [[0, COUNT]]}})
    with pytest.raises(UserError, match="is damaged: records are missing or repeated"):
        list(selected(folder, "squares"))
    assert compute(folder, ids=Blocks.first(COUNT, SIZE).members) == 1
    assert results(folder.path) == whole
    assert [row["id"] for row in selected(folder, "squares")] == [*range(COUNT)]


def test_a_block_that_vanishes_after_the_listing_is_open_and_a_damaged_one_an_error(folder):
    compute(folder)
    step = Step(folder, squares.squares(folder, ids=Blocks.first(COUNT, SIZE).members))
    there = {"squares": folder.done("squares")}
    folder.forget("squares", 1)  # as another thread does whose block this one is made of
    assert stages.open_task(step, 0, 1, there) == stages.Task(step, 0, 1, ("squares",), {"squares": None})
    path = folder.block_path("squares", 2)
    path.write_text(path.read_text() + "{")
    with pytest.raises(UserError, match="000002"):
        stages.open_task(step, 0, 2, there)


def test_a_stage_that_reads_another_as_a_whole_waits_for_all_of_it(folder):
    def total(number):
        return sum(row["value"] for row in folder.rows("squares", range(BLOCKS)))

    def work(model, inputs, missing):
        return {"totals": [{"value": inputs}]}

    blocks = Blocks.first(3, 1)
    whole = Stage("total", ("totals",), blocks, total, work, depends_on_all=("squares",))
    steps = [Step(folder, whole), Step(folder, squares.squares(folder, pause=0.01))]
    assert Threads("cpu", at_once=3).compute(steps) == [3, BLOCKS]
    assert [row["value"] for row in folder.rows("totals", range(3))] == [sum(n * n for n in range(COUNT))] * 3


def test_what_a_block_was_made_of_is_made_again_when_that_gets_other_rows(folder):
    def again(vanished):
        open_again = lambda output, number, rows: rows[0]["id"] != vanished * SIZE  # noqa: E731
        made = compute(folder, is_valid=open_again, invalidates=("made of them",))
        return made, compute(
            folder, name="half", outputs=("made of them/halves",), work=halves, depends_on="squares"
        )

    def halves(model, numbers, missing):
        return {"made of them/halves": [{"id": n} for n in numbers]}

    assert again(-1) == (BLOCKS, BLOCKS)
    assert again(2) == (1, 1)  # the same rows, of which nobody knows when something was made
    folder.write("squares", 2, [{"id": 2 * SIZE, "value": None}])
    assert again(2) == (1, 1)
    folder.block_path("squares", 3).unlink()
    assert again(-1) == (1, 1)  # nobody knows what they were
    assert again(-1) == (0, 0)


def test_what_another_process_has_made_in_the_meantime_is_passed_over(folder, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    made = []

    def work(model, numbers, missing):
        made.append(numbers[0] // SIZE)
        for number in range(BLOCKS):  # the other one was quicker with everything
            if number != made[0] and not folder.block_path("squares", number).exists():
                folder.write("squares", number, [])
        return {"squares": []}

    stage = squares.squares(folder, work=work)
    Threads("mps").compute([Step(folder, stage)])  # as on a GPU: one block after the other
    assert len(made) <= 3  # the first, and what had been read ahead of it
    assert folder.done("squares") == set(range(BLOCKS))


def test_weights_that_were_replaced_are_noticed(folder):
    compute(folder, blocks=Blocks.first(COUNT, SIZE, 5))

    class Other(Squarer):
        fingerprint = "squarer-2"

    model = Model("squarer", Other, lambda made: {"model": (made.fingerprint, made.describe())})
    with pytest.raises(UserError, match="behind 'model' have changed"):
        compute(folder, model=model)


def test_a_mistake_in_one_block_ends_the_work_is_told_and_keeps_the_others(folder, monkeypatch):
    def full(*_):
        raise UserError("no room for notes")

    def work(model, numbers, missing):
        if numbers[0] == 8:
            monkeypatch.setattr(Folder, "note", full)
            raise UserError("no more")
        return {"squares": [{"id": n, "value": n * n} for n in numbers]}

    with pytest.raises(UserError, match="no more"):
        compute(folder, work=work)
    monkeypatch.undo()
    assert folder.done("squares") < set(range(BLOCKS))
    assert compute(folder) >= 1
    assert folder.done("squares") == set(range(BLOCKS))


def test_those_who_wait_for_answers_are_told_to_stop_when_one_block_fails(folder):
    told, started = threading.Event(), threading.Barrier(2)

    class Asking(Squarer):
        def stop(self):
            told.set()

    def work(model, numbers, missing):
        if started.wait(10):
            raise UserError("refused")
        assert told.wait(10)
        return {"squares": []}

    model = Model.one("asking", Asking, "remote")  # two blocks, however few cores there are
    with pytest.raises(UserError, match="refused"):
        compute(folder, work=work, model=model)


def test_reading_ahead_keeps_order_and_raises_in_its_place():
    assert list(read_ahead(lambda n: n * n, range(6))) == [(n, n * n) for n in range(6)]
    numbers = read_ahead(lambda n: 1 // (3 - n), range(6))
    assert [next(numbers)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        next(numbers)


def test_on_a_gpu_one_model_is_kept_at_a_time_and_what_nobody_needs_is_given_free(folder):
    made = []

    def step(name):
        model = Model(name, lambda: made.append(name) or object(), lambda loaded: {})
        return Step(folder, squares.squares(folder, model=model))

    for device, expected in (("mps", ["a", "b", "a"]), ("cpu", ["a", "b"])):
        made.clear()
        worker = Worker(device)
        for name in ("a", "a", "b", "a"):
            worker.model(step(name))
        assert made == expected
    worker.keep({"b", "c"})
    worker.model(step("a"))
    assert made == ["a", "b", "a"]


def test_of_two_processes_one_may_die_and_the_other_does_its_share(folder, whole):
    doomed = squares.start(folder.path, 1, 2, pause=30.0)
    while not attempts.attempts(folder.path):
        time.sleep(0.01)
    other = squares.start(folder.path, 0, 2)
    while len(folder.done("squares")) < BLOCKS - 2:  # all but what the doomed one is at
        time.sleep(0.01)
    doomed.kill()
    doomed.join()
    other.join(60)
    assert other.exitcode == 0
    assert results(folder.path) == whole


@pytest.mark.parametrize("limit", [None, 1, 4, 5, 10, 99])
def test_the_first_records_need_the_same_blocks_however_they_are_named(limit):
    blocks = Blocks.first(10, 4, limit)
    assert list(blocks.numbers) == Blocks(10, 4, list(blocks.wanted)).numbers
    assert len(blocks.wanted) == min(10, limit or 10)
    assert list(Blocks(10, 4, (1, 9)).all_members()) == [0, 1, 2, 3, 8, 9]  # whole blocks
    assert Blocks.first(10_000_000, 32).numbers == range(312_500)  # no list


def test_segments_hold_every_wanted_block_once_and_a_thousand_at_most():
    for blocks in (Blocks.first(10_000, 3), Blocks(10_000, 3, [2, 2999, 3000, 9999]), Blocks.first(0, 4)):
        segments = blocks.segments
        assert [number for numbers in segments.values() for number in numbers] == list(blocks.numbers)
        assert all(number // 1000 == segment for segment, part in segments.items() for number in part)


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
