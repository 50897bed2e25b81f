"""The engine over a tiny piece of work: what is done, done again, shared, killed and refused."""

import datetime
import gc
import os
import re
import signal
import threading
import time
import weakref

import pytest
import torch

from nein.benchmarks import progress
from nein.benchmarks.runner import select_rows
from nein.config.groups import Runs, RuntimeOptions
from nein.config.groups import start as start_executor
from nein.engine import machine, run
from nein.engine.exits import exit_with
from nein.engine.folder import Blocks, Folder
from nein.engine.machine import read_ahead
from nein.engine.run import Executor
from nein.engine.stages import Model, Step, open_tasks
from nein.loading.errors import UserError
from nein.loading.weights import ALIGNMENT, align
from tests.engine import squares
from tests.engine.squares import BLOCKS, COUNT, SIZE, Squarer, results, start, two_stages
from tests.helpers import forks
from tests.helpers.commands import with_code
from tests.helpers.runs import write_block


def compute(folder, **changed):
    return Executor("cpu").compute([Step(folder, squares.squares(folder, **changed))])[0]


def test_every_block_is_a_file_of_rows_in_order_and_a_worker_writes_one_note(folder):
    assert compute(folder) == BLOCKS
    rows = list(folder.rows("squares", range(BLOCKS)))
    assert [(row["id"], row["value"]) for row in rows] == [(n, n * n) for n in range(COUNT)]
    assert folder.manifest()["models"] == {"model": {"fingerprint": "squarer-1", "class": "Squarer"}}
    cost = folder.sum_costs()["square"]
    assert (cost["blocks"], cost["rows"]) == (BLOCKS, COUNT)
    assert cost["peak_memory"]["host"] > 2**20
    assert len(list((folder.path / "notes").iterdir())) == 1


@pytest.mark.parametrize("debug", [False, True])
def test_a_finished_stage_loads_nothing_and_notes_nothing(folder, debug):
    compute(folder)
    stage = squares.squares(folder, model=Model("squarer", lambda: pytest.fail("loaded"), lambda made: {}))
    assert Executor("cpu", debug=debug).compute([Step(folder, stage)]) == [0]
    assert len(list((folder.path / "notes").iterdir())) == 1


def test_debug_does_one_block_after_the_other_in_order_and_gives_the_same(folder, whole):
    made = []

    def watched(stage):
        plain = stage.work

        def work(model, inputs, missing):
            assert threading.current_thread() is threading.main_thread()
            made.append((missing[0], inputs[0] // SIZE))
            return plain(model, inputs, missing)

        stage.work = work
        return stage

    steps = [Step(folder, watched(step.stage)) for step in two_stages(folder)]
    assert Executor("cpu", debug=True).compute(steps) == [BLOCKS, BLOCKS]
    assert made == [(output, number) for output in ("squares", "halves") for number in range(BLOCKS)]
    assert results(folder.path) == whole


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
    write_block(folder, "squares", 1, [{"id": 4, "value": None}])
    assert compute(folder, is_valid=lambda output, number, rows: None not in [r["value"] for r in rows]) == 1
    assert results(folder.path) == whole


@pytest.mark.parametrize("kept", [[], [4, 5, 6], [4, 4, 5, 6, 7], [8, 9, 10, 11]])
def test_a_block_with_other_records_than_its_own_is_made_again(folder, kept):
    compute(folder)
    whole = results(folder.path)
    write_block(folder, "squares", 1, [{"id": n, "value": n * n} for n in kept])
    folder.update(selected={"squares": {"size": SIZE, "records": [[0, COUNT]]}})
    with pytest.raises(UserError, match="is damaged: records are missing or repeated"):
        list(select_rows(folder, "squares"))
    assert compute(folder, ids=list) == 1
    assert results(folder.path) == whole
    assert [row["id"] for row in select_rows(folder, "squares")] == [*range(COUNT)]


def test_a_damaged_block_is_an_error_with_its_name(folder):
    compute(folder)
    step = Step(folder, squares.squares(folder, ids=list))
    path = folder.block_path("squares", 2)
    path.write_text(path.read_text() + "{")
    with pytest.raises(UserError, match="000002"):
        list(open_tasks(step))


def test_what_a_block_was_made_of_is_made_again_when_that_gets_other_rows(folder):
    def again(vanished):
        open_again = lambda output, number, rows: rows[0]["id"] != vanished * SIZE  # noqa: E731
        made = compute(folder, is_valid=open_again, invalidates=("made of them",))
        return made, compute(folder, name="half", outputs=("made of them/halves",), work=halves)

    def halves(model, numbers, missing):
        return {"made of them/halves": [{"id": n} for n in numbers]}

    assert again(-1) == (BLOCKS, BLOCKS)
    assert again(2) == (1, 1)  # the same rows, of which nobody knows when something was made
    write_block(folder, "squares", 2, [{"id": 2 * SIZE, "value": None}])
    assert again(2) == (1, 1)
    folder.block_path("squares", 3).unlink()
    assert again(-1) == (1, 1)  # nobody knows what they were
    assert again(-1) == (0, 0)


def test_a_worker_of_a_killed_command_removes_nothing_that_the_next_one_made(folder):
    step = Step(folder, squares.squares(folder, invalidates=("halves",)))
    late = next(open_tasks(step))
    compute(folder)
    write_block(folder, "halves", late.number, [{"id": 0}])
    rows = folder.read("squares", late.number)
    late.put({"squares": rows})
    assert folder.list_blocks("halves") == {late.number}
    late.put({"squares": rows[:-1]})  # other rows: what was made of the block is out of date
    assert folder.list_blocks("halves") == set()


def test_weights_that_were_replaced_are_noticed_before_a_row_is_written(folder):
    compute(folder, blocks=Blocks.first(COUNT, SIZE, 5))

    class Other(Squarer):
        fingerprint = "squarer-2"

    model = Model("squarer", Other, lambda made: {"model": (made.fingerprint, made.describe())})
    with pytest.raises(UserError, check=with_code("changed-model")):
        compute(folder, model=model)
    assert folder.list_blocks("squares") == {0, 1}


def test_a_mistake_in_one_block_ends_the_work_is_told_and_keeps_the_others(folder, monkeypatch):
    def full(*_):
        raise UserError("no room for notes")

    def work(model, numbers, missing):
        if numbers[0] == 8:
            monkeypatch.setattr(Folder, "write_note", full)
            raise UserError("no more")
        return {"squares": [{"id": n, "value": n * n} for n in numbers]}

    with pytest.raises(UserError, match="no more"):
        compute(folder, work=work)
    monkeypatch.undo()
    assert folder.list_blocks("squares") < set(range(BLOCKS))
    assert compute(folder) >= 1
    assert folder.list_blocks("squares") == set(range(BLOCKS))


def test_those_who_wait_for_answers_are_told_to_stop_when_one_block_fails(folder):
    told, started = threading.Event(), threading.Barrier(2)

    class Asking(Squarer):
        def stop(self):
            told.set()

    def work(model, numbers, missing):
        if numbers[0] // SIZE > 1 or started.wait(10):
            raise UserError("refused")
        assert told.wait(10)
        return {"squares": []}

    with pytest.raises(UserError, match="refused"):
        compute(folder, work=work, model=Model.one("asking", Asking, "remote"))


@pytest.mark.parametrize(
    ("options", "place", "most", "threads"),
    [
        ({"endpoint": {"concurrency": 1}}, "remote", 1, 1),
        ({"endpoint": {"concurrency": 3}, "threads": 2}, "remote", 3, 1),
        ({"threads": 1}, "device", 1, 1),
        ({"threads": 3}, "device", 3, 1),
        ({"threads": 3, "device": "mps"}, "device", 1, 3),
    ],
)
def test_so_many_blocks_are_worked_on_at_once_and_so_many_threads_reach_torch(
    folder, whole, monkeypatch, options, place, most, threads
):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    at_work, seen, lock, square = [], set(), threading.Lock(), squares.squares().work

    def work(model, numbers, missing):
        with lock:
            at_work.append(numbers)
            seen.add((len(at_work), torch.get_num_threads()))
        time.sleep(0.05)
        with lock:
            at_work.remove(numbers)
        return square(model, numbers, missing)

    stages = two_stages(folder, work=work, model=Model.one("asking", Squarer, place))
    start_executor(RuntimeOptions.create(**{"device": "cpu", **options})).compute(stages)
    torch.set_num_threads(1)
    assert max(count for count, _ in seen) == most
    assert {each for _, each in seen} == {threads}
    assert results(folder.path) == whole


def test_a_gpu_does_not_wait_for_what_can_be_read_meanwhile(folder, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    together, later = threading.Barrier(run.READ_AHEAD), threading.Event()

    def reading(number):
        if number < run.READ_AHEAD:
            together.wait(20)  # breaks where one is read after the other
        later.set() if number == run.READ_AHEAD else None
        return number

    def work(model, number, missing):
        assert later.wait(20)  # the next is read while the first is computed
        return {"squares": []}

    Executor("mps").compute([Step(folder, squares.squares(folder, read=reading, work=work))])
    assert folder.list_blocks("squares") == set(range(BLOCKS))


def test_a_model_is_loaded_with_its_first_open_block_and_freed_after_its_last(folder):
    living, order = [], []

    def step(name, output):
        def load():
            gc.collect()
            order.append((name, [other for other, thing in living if thing() is not None]))
            living.append((name, weakref.ref(thing := Squarer())))
            return thing

        model = Model(name, load, lambda loaded: {})
        work = lambda loaded, numbers, missing: {output: []}  # noqa: E731
        return Step(folder, squares.squares(folder, name=output, outputs=(output,), model=model, work=work))

    steps = [step("a", "a1"), step("a", "a2"), step("b", "b1"), step("c", "c1")]
    executor = Executor("cpu")
    assert executor.compute(steps) == [BLOCKS] * 4
    assert order == [("a", []), ("b", []), ("c", [])]
    folder.block_path("c1", 0).unlink()
    assert executor.compute(steps) == [0, 0, 0, 1]
    assert [name for name, _ in order] == ["a", "b", "c", "c"]


def test_the_environment_names_a_share(monkeypatch):
    assert run.read_share() == (0, 1)
    monkeypatch.setenv(run.SHARE_VARIABLE, "63/64")
    assert run.read_share() == (63, 64)
    for wrong in ("64/64", "1", "a/b", "-1/2"):
        monkeypatch.setenv(run.SHARE_VARIABLE, wrong)
        with pytest.raises(UserError, match="must be r/n"):
            run.read_share()


def test_shares_make_what_they_can_and_the_last_command_what_needs_all_of_it(folder, whole):
    first, last = two_stages(folder)
    steps = [first, Step(folder, squares.totals(folder)), last]
    assert Executor("cpu", share=(0, 2)).compute(steps) == [3, 0, 3]
    assert Executor("cpu", share=(1, 2)).compute(steps) == [3, 1, 3]  # now all are there
    rest = Executor("cpu")
    assert rest.concludes
    assert rest.compute(steps) == [0, 2, 0]
    assert [row["value"] for row in folder.rows("totals", range(3))] == [sum(n * n for n in range(COUNT))] * 3
    assert results(folder.path) == whole


def test_what_a_dead_share_has_not_made_is_made_when_the_command_is_given_again(folder, whole):
    doomed, other = start(folder.path, (1, 2), pause=30.0), start(folder.path, (0, 2))
    other.join(60)
    assert other.exitcode == 0
    doomed.kill()
    doomed.join()
    assert folder.list_blocks("squares") == {0, 2, 4}
    squares.compute(folder.path)
    assert results(folder.path) == whole


def test_a_second_command_is_refused_while_the_first_lives_and_shares_go_together(folder, tmp_path):
    first = start(folder.path, pause=30.0, read=lambda number: (tmp_path / "began").touch())
    while not (tmp_path / "began").exists() and first.is_alive():
        time.sleep(0.01)
    for shared in (False, True):
        with (
            pytest.raises(UserError, check=with_code("locked")),
            Executor("cpu", share=(0, 1 + shared)).lock([folder]),
        ):
            pass
    first.kill()
    first.join()
    share = Executor("cpu", share=(0, 2))
    with share.lock([folder]), share.lock([folder]):
        with pytest.raises(UserError, check=with_code("locked")), Executor("cpu").lock([folder]):
            pass
    with Executor("cpu").lock([folder]):
        pass


def test_status_says_what_is_at_work_how_fast_and_until_when(tmp_path, monkeypatch, capsys):
    folder, start = squares.opened(tmp_path), time.time() - 100
    call = {"started": datetime.datetime.fromtimestamp(start).astimezone().isoformat(), "command": ["eval"]}
    facts = {"selected": {"squares": Blocks.first(100, 10).selection}, "invocation": call}
    folder.open({"numbers": squares.COUNT}, facts, overwrite=False)
    for number in (0, 1):
        (file := folder.block_path("squares", number)).parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.utime(file, (start + 50 + 50 * number,) * 2)
    with Executor("cpu").lock([folder]):
        said = progress.status(Runs(runs=[tmp_path]))
    assert re.search(
        r"incomplete, at work\n  squares: 20 of 100 samples, 0.2 a second, 0:06:[34]\d left\n", said
    )
    assert "At work: nein eval, since " in said
    assert "at work" not in progress.status(Runs(runs=[tmp_path])).lower()
    monkeypatch.setattr(run, "LOG_INTERVAL", 0.0)
    squares.compute(tmp_path / "b")
    assert re.search(r"^square: 23 of 23 samples, .* samples/s, 00:00 left$", capsys.readouterr().err, re.M)


@pytest.mark.parametrize(
    ("signals", "code", "ended"),
    [([signal.SIGINT], 130, True), ([signal.SIGINT] * 2, 130, False), ([signal.SIGTERM], 143, True)],
)
def test_a_signal_ends_after_the_blocks_in_work_and_a_second_one_at_once(folder, signals, code, ended):
    work = lambda words: exit_with(lambda: squares.compute(folder.path, pause=1.0))  # noqa: E731
    process = forks.start(work, [], folder.path.parent / "said")
    while not list((folder.path / "squares").rglob("*.jsonl")) and process.is_alive():
        time.sleep(0.02)  # the first blocks are made, the next are in work
    time.sleep(0.3)
    before = len(folder.list_blocks("squares"))
    for number in signals:
        os.kill(process.pid, number)
        time.sleep(0.2)
    process.join(30)
    assert process.exitcode == code
    said = (folder.path.parent / "said.err").read_text()
    assert ("Ctrl-C again: at once" in said) == (code == 130)
    assert (len(folder.list_blocks("squares")) > before) == ended
    assert not list(folder.path.rglob(".*.tmp"))


@pytest.mark.parametrize("on_cpu", [True, False])
def test_what_is_computed_side_by_side_is_in_order_and_each_on_one_thread(on_cpu):
    found = dict(machine.map_parallel(lambda n: (n * n, torch.get_num_threads()), range(9), on_cpu))
    assert found == {n: (n * n, 1) for n in range(9)}


def test_reading_ahead_keeps_order_and_raises_in_its_place():
    assert list(read_ahead(lambda n: n * n, range(6))) == [(n, n * n) for n in range(6)]
    numbers = read_ahead(lambda n: 1 // (3 - n), range(6))
    assert [next(numbers)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        next(numbers)


@pytest.mark.parametrize("limit", [None, 1, 4, 5, 10, 99])
def test_the_first_records_need_the_same_blocks_however_they_are_named(limit):
    blocks = Blocks.first(10, 4, limit)
    assert list(blocks.numbers) == Blocks(10, 4, list(blocks.indices)).numbers
    assert len(blocks.indices) == min(10, limit or 10)
    assert Blocks.first(10_000_000, 32).numbers == range(312_500)  # no list
    assert Blocks.read({"selected": {"edit": blocks.selection}}, "edit").numbers == blocks.numbers


def test_weights_that_begin_anywhere_are_moved_and_keep_their_values():
    layer = torch.nn.Linear(3, 2)
    values = torch.arange(7.0)
    layer.weight.data = values[1:].view(2, 3)  # as in a mapped file: 4 bytes off
    assert layer.weight.data_ptr() % ALIGNMENT
    before = layer.bias.data_ptr()
    assert align(layer) is layer
    assert layer.weight.data_ptr() % ALIGNMENT == 0
    assert layer.weight.tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert layer.bias.data_ptr() == before  # what lies right stays
