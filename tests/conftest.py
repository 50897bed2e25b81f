"""For the whole suite: no network, and one thread per process, since tiny models are slower on several."""

import functools
import gc
import os
import re
import sqlite3
import ssl
import sys
import tracemalloc

import pytest

# They are read when the libraries are first imported, so they are set before any test module is.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
# The tests' own servers and browser are on this machine, which a proxy cannot reach.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"

from nein.engine.machine import tune_process
from tests.helpers.commands import PLUGINS
from tests.helpers.hub import Hub
from tests.loopback import Server

sys.path.insert(0, str(PLUGINS))

gc.disable()  # until everything is imported, which is no garbage
#: Thresholds of the three generations: Python's own, and those of the tests.
OFTEN, SELDOM = gc.get_threshold(), (50_000, 5, 2)
tune_process()  # a multiple of the speed for everything below that runs a model


#: The files that take longest, longest first: one that is begun last would leave the other core idle.
LONGEST = [
    f"tests/{name}.py"
    for name in """
    engine/test_ray benchmarks/test_restart train/editor_finetuning/test_finetune test_docs
    reporting/test_export benchmarks/test_identity test_site engine/test_slurm test_api
    reporting/test_browser train/clip_finetuning/test_finetune test_mistakes reporting/test_files
    benchmarks/test_mend nein/test_judges negbench/test_eval benchmarks/test_counting negvqa/test_run
""".split()
]

#: Files that look at plots; elsewhere a plot is a few pixels, since most of a command's time would be theirs.
DRAWN = {
    f"tests/{name}.py"
    for name in """
    negvqa/test_figures nein/test_report reporting/test_browser reporting/test_files
    reporting/test_one_interval reporting/test_reporting
""".split()
}


def pytest_collection_modifyitems(items):
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(place)))


def pytest_collection_finish():
    gc.set_threshold(*SELDOM)
    gc.enable()


@pytest.fixture
def often_swept():
    """For tests that measure memory: garbage is looked for often, so that little of it is counted."""
    gc.set_threshold(*OFTEN)
    yield
    gc.set_threshold(*SELDOM)


@pytest.fixture
def peak(often_swept):
    """What gives the bytes that a call holds at most: the smaller of two times, without what is made once."""

    def measured(call):
        return min(once(call) for _ in range(2))

    def once(call):
        tracemalloc.start()
        try:
            call()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return measured


@pytest.fixture
def half_as_default():
    """What calls a function as if another thread loaded a model in half precision: the libraries make that
    the default dtype of the whole process meanwhile."""
    import torch

    def call(function, *arguments):
        torch.set_default_dtype(torch.float16)
        try:
            return function(*arguments)
        finally:
            torch.set_default_dtype(torch.float32)

    return call


@pytest.fixture(scope="module", autouse=True)
def swept():
    """What a file leaves behind is thrown away, and what is alive after it is not looked through again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_power_cuts():
    """Processes are killed here, whose files the system keeps; to wait for the disk would prove nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Unsynced))
        yield


class Unsynced(sqlite3.Connection):
    def execute(self, sql, *given):
        return super().execute(re.sub("(?<=synchronous = )EXTRA", "OFF", sql), *given)


@pytest.fixture(scope="session", autouse=True)
def certificates():
    """The certificates that every client of an endpoint would read anew; the tests' servers have none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="module", autouse=True)
def sketched(request):
    """In files that do not look at plots; slow tests compare them with other processes'."""
    from tests.helpers import drawings

    slow = any(item.get_closest_marker("slow") for item in request.session.items)
    with pytest.MonkeyPatch.context() as patch:
        if request.node.nodeid not in DRAWN and not slow:
            drawings.sketch(patch)
        yield


@pytest.fixture(scope="session")
def accelerator():
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    pytest.skip("PyTorch sees no accelerator on this machine (CUDA, ROCm, MPS): nothing was compared")


@pytest.fixture(scope="session")
def cuda(accelerator):
    if accelerator != "cuda":
        pytest.skip(f"the accelerator of this machine is '{accelerator}', and this is for CUDA and ROCm")
    return accelerator


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A stand-in for the hub in the place of the real one, and an empty cache; nothing is offline."""
    from huggingface_hub import constants

    stand_in = Hub()
    address = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
    monkeypatch.setattr(constants, "ENDPOINT", stand_in.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", stand_in.url + address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache of the hub"))
    yield stand_in
    stand_in.close()


@pytest.fixture
def server(monkeypatch):
    """An OpenAI-compatible endpoint on the loopback address; it is asked again without much ado."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    found = Server()
    yield found
    found.close()
