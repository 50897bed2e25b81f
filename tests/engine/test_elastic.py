"""Workers that come, go and die: who does what, what is set aside, and what the files tell about it."""

import dataclasses
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nein.engine import attempts, processes
from nein.engine.attempts import Attempts, name_of
from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.executors import progress
from nein.engine.executors.threads import Threads
from nein.engine.executors.worker import Worker
from nein.engine.processes import Processes
from nein.engine.scheduler import Scheduler
from nein.engine.stages import Step
from tests.engine.squares import BLOCKS, COUNT, SIZE, results, squares, start, two_stages


def test_debug_does_one_block_after_the_other_in_order_and_gives_the_same(folder, whole):
    made = []

    def watched(stage):
        def work(model, inputs, missing):
            assert threading.current_thread() is threading.main_thread()
            made.append((missing[0], inputs[0] // SIZE))
            return stage.work(model, inputs, missing)

        return dataclasses.replace(stage, work=work)

    steps = [Step(folder, watched(step.stage)) for step in two_stages(folder)]
    assert Threads("cpu", debug=True).compute(steps) == [BLOCKS, BLOCKS]
    assert made == [(output, number) for output in ("squares", "halves") for number in range(BLOCKS)]
    assert results(folder.path) == whole


def test_a_second_command_joins_and_both_end_with_everything_done(folder, whole):
    both = [start(folder.path, pause=0.2) for _ in range(2)]
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    assert results(folder.path) == whole
    lines = [path.read_text().splitlines() for path in folder.cost_files()]
    assert len(lines) == 2  # both had a part in it
    assert sum(map(len, lines)) == 2 * BLOCKS  # nothing is made twice
    assert attempts.attempts(folder.path) == []


def test_what_another_one_is_at_is_left_to_it_and_judging_goes_on_meanwhile(folder):
    other = Attempts(folder.path / attempts.FOLDER)
    steps = two_stages(folder)
    steps = [Step(folder, squares(folder, outputs=("squares",))), steps[1]]
    order = []
    blocks, worker = Scheduler(steps), Worker("cpu")
    assert other.take(name_of("square", 3)) == 0
    while not blocks.over():
        task = blocks.next()
        if task is None:  # it is waited for, and made when the other one gives it back
            assert len(order) == 2 * BLOCKS - 2
            other.close()
            continue
        order.append((task.index, task.number))
        worker.make(task, task.step.stage.read(task.number))
        blocks.finished(task)
    assert set(order[:-2]) == {(s, n) for s in (0, 1) for n in range(BLOCKS) if n != 3}
    assert order[-2:] == [(0, 3), (1, 3)]


@pytest.mark.parametrize("blocks", [23, 16_000])
@pytest.mark.parametrize("size", [2, 3])
def test_shares_are_static_and_the_rest_is_begun_from_the_others_ends(folder, blocks, size):
    stage = squares(folder, blocks=Blocks.first(blocks, 1), read=lambda number: ())
    unit = 1 if blocks == 23 else 1000
    for rank in range(size):
        one = Scheduler([Step(folder, stage)], (rank, size))
        parts = [[*one._part(0, own)] for own in (True, False)]
        own, rest = ([number for _, numbers in part for number in numbers] for part in parts)
        assert own == [number for number in range(blocks) if number // unit % size == rank]
        assert sorted(own + rest) == list(range(blocks))
        assert rest[0] // unit % size == (rank + 1) % size


def test_who_has_a_number_of_ranks_and_of_slurms_array(monkeypatch):
    assert processes.share(Processes()) == (0, 1)
    assert processes.share(Processes(1, 2)) == (1, 2)
    for key, value in {"ID": 7, "MIN": 4, "COUNT": 8}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{key}", str(value))
    assert processes.share(Processes(1, 2)) == (7, 16)


def test_of_several_who_take_a_block_one_has_it_and_knows_of_the_deaths(folder):
    place = folder.path / attempts.FOLDER
    several = [Attempts(place) for _ in range(8)]
    for deaths in (0, 1, 2):
        with ThreadPoolExecutor(8) as pool:
            taken = pool.map(lambda one: one.take("a"), several)
        assert sorted(taken, key=str) == [deaths, *[None] * 7]
        path = place / f"a.{deaths}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "began": "earlier"}))
    next(one for one in several if one._held.get("a") == 2).close()  # in order: earlier deaths are remembered
    last = Attempts(place)
    assert last.take("a") == 2
    last.leave("a", done=True)
    assert not list(place.iterdir())


def test_a_worker_on_another_machine_is_dead_when_it_is_silent(folder):
    one = Attempts(folder.path / attempts.FOLDER)
    one.take("square-000001")
    path = folder.path / attempts.FOLDER / "square-000001.0.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "machine": "far"}))
    [attempt] = attempts.attempts(folder.path)
    assert attempt.alive
    old = time.time() - 2 * attempts.SILENCE
    os.utime(path, (old, old))
    assert not attempts.attempts(folder.path)[0].alive
    assert Attempts(folder.path / attempts.FOLDER).take("square-000001") == 1
    one.close()


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", '{"pid": [1]}', '{"pid": 1e20}', '{"pid": 100000000000000000000}', '"x"']
)
def test_a_damaged_attempt_is_one_of_somebody(folder, content):
    path = folder.path / attempts.FOLDER / f"{name_of('square', 1)}.0.json"
    path.parent.mkdir()
    path.write_text(content.replace("{", f'{{"machine": {json.dumps(attempts._machine())}, ', 1)
                    if "pid" in content else content)  # fmt: skip
    os.utime(path, (0, 0))
    Threads("cpu").compute(two_stages(folder))
    assert not list(path.parent.iterdir())


def test_a_clock_that_is_ahead_of_the_file_systems_takes_nobody_for_dead(folder, monkeypatch):
    one = Attempts(folder.path / attempts.FOLDER)
    one.take("square-000001")
    ahead = time.time() + 10 * attempts.SILENCE
    monkeypatch.setattr(time, "time", lambda: ahead)
    assert [attempt.alive for attempt in attempts.attempts(folder.path)] == [True]
    one.close()


def test_an_exception_or_a_signal_is_no_death(folder):
    def work(model, numbers, missing):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Threads("cpu", at_once=1).compute([Step(folder, squares(folder, work=work))])
    assert attempts.attempts(folder.path) == []


def test_a_folder_at_which_somebody_works_is_not_overwritten_by_another_command(folder):
    one = Attempts(folder.path / attempts.FOLDER)
    one.take("square-000001")
    with pytest.raises(UserError, match="with other options"):
        folder.open({"numbers": 5}, {}, overwrite=True)
    with pytest.raises(UserError, match="made with numbers 23, not 5"):
        folder.open({"numbers": 5}, {}, overwrite=False)
    folder.open({"numbers": COUNT}, {}, overwrite=True)  # the same options: it joins in
    one.close()
    folder.open({"numbers": 5}, {}, overwrite=True)


def test_the_state_of_a_run_is_told_from_its_files(folder):
    steps = [Step(folder, squares(folder, blocks=Blocks(COUNT, SIZE, [0, 1, 5, 22])))]
    progress.announce(steps)
    folder.write("squares", 0, [])
    folder.write("squares", 3, [])  # of a selection before this one
    one = Attempts(folder.path / attempts.FOLDER)
    one.take(name_of("square", 1))
    now = time.time()
    for second in range(10):
        folder.cost("square", 0, {"seconds": 0.5, "at": now - second})
    [state] = progress.states(folder, now)
    assert (state.wanted, state.done, state.running, state.open) == (3, 1, 1, 2)
    assert state.rate == pytest.approx(10 / 9)
    assert state.seconds_left == pytest.approx(1.8)
    one.close()
    assert progress.states(folder, now)[0].rate is None  # nobody is at work
