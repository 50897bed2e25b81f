"""What requests cost, to the cent, and a budget that is kept by threads, processes and later commands."""

import threading
import time
from decimal import Decimal

import pytest

from nein.engine.answers import AnswerCache, read_spending
from nein.engine.folder import Folder, find_runs
from nein.loading.service import BudgetError, compute_price, count_tokens
from nein.models import cached
from nein.models.cached import Spending
from tests.helpers import commands
from tests.loopback import say

#: 1,000 tokens in and 500 out: $0.15 and $0.60 a million.
USAGE = {"prompt_tokens": 1000, "completion_tokens": 500}
COST = Decimal("0.00045")


@pytest.mark.parametrize(
    ("model", "usage", "address", "dollars"),
    [
        ("gpt-4o-mini", USAGE, "", "0.00045"),
        ("gpt-4o-mini", USAGE, "http://127.0.0.1:1/v1", "0.00045"),  # by its name
        ("gpt-4o-mini", {**USAGE, "prompt_tokens_details": {"cached_tokens": 400}}, "", "0.00042"),
        ("gpt-4o-mini", {**USAGE, "completion_tokens_details": {"reasoning_tokens": 400}}, "", "0.00045"),
        (  # 200 of text at 5, 800 of images at 8, 100 of a made image at 32 dollars a million
            "gpt-image-1.5",
            {
                "input_tokens": 1000, "input_tokens_details": {"text_tokens": 200, "image_tokens": 800},
                "output_tokens": 100, "output_tokens_details": {"image_tokens": 100},
            },
            "", "0.0106",
        ),
        ("claude-sonnet-4-5", USAGE, "https://api.anthropic.com/v1", "0.0105"),
        ("eye-7b", USAGE, "http://127.0.0.1:1/v1", None),
    ],
)  # fmt: skip
def test_a_price_is_that_of_every_kind_of_token(model, usage, address, dollars):
    found = compute_price(model, count_tokens(usage), address)
    assert found == (None if dollars is None else Decimal(dollars))


@pytest.mark.parametrize("usage", [None, [], {"prompt_tokens": "many"}])
def test_a_usage_that_is_none_counts_nothing(usage):
    assert count_tokens(usage) == {}


def ask(spending, seconds=0.0):
    with spending.request("gpt-4o-mini", "") as paid:
        time.sleep(seconds)
        paid |= count_tokens(USAGE)


@pytest.fixture
def budget(tmp_path):
    """What counts the requests of a process that shares OUT, for a number of requests."""
    return lambda count: Spending(AnswerCache(tmp_path / "cache" / "answers.sqlite"), float(count * COST))


def test_threads_keep_a_budget_and_answers_on_their_way_come_first(tmp_path, budget, monkeypatch):
    monkeypatch.setattr(cached, "GRACE", 0.05)
    spending, ended = budget(Decimal("5.5")), []

    def work():
        try:
            while True:
                ask(spending, 0.02)
        except BudgetError as error:
            ended.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(ended) == 8
    [found] = read_spending(tmp_path / "run").values()
    assert found.pop("seconds") > 0
    counts = {"requests": 5, "input_tokens": 5000, "output_tokens": 2500}
    assert found == {**counts, "dollars": str(5 * COST), "dearest": str(COST)}


def test_a_budget_is_that_of_all_processes_and_later_commands(tmp_path, budget):
    first, second = budget(3), budget(3)
    for spending in (first, second, first):
        ask(spending)
    with pytest.raises(BudgetError, match="larger --budget"):
        ask(second)
    ask(budget(4))
    with pytest.raises(RuntimeError), first.request("eye-7b", ""):  # failed: nothing is paid
        raise RuntimeError
    assert read_spending(tmp_path)["gpt-4o-mini"]["dollars"] == str(4 * COST)


NEIN = ["eval", "--editor", "identity", "--metrics", "removal_vqa", "--limit", 12, "--batch-size", 4,
        "--models.vqa"]  # fmt: skip


def test_a_command_stops_before_its_budget_and_goes_on_with_a_larger_one(server, tmp_path, capsys):
    server.models = (200, {"data": [{"id": "gpt-4o-mini"}]}, {})
    server.rule = lambda body, count: (200, {**say("A"), "usage": USAGE}, {})
    words = [*NEIN, f"openai:{server.url}#gpt-4o-mini", "--device", "cpu", "--out", tmp_path]
    stopped = commands.outcome(capsys, *words, "--budget", 0.003375)  # 7.5 requests
    assert stopped.code == 2
    said = stopped.stderr.splitlines()[-1]
    assert "The next request to gpt-4o-mini might exceed the budget of $0.003375 ($0.00 " in said
    assert said.endswith("rerun the command with a larger --budget.")
    assert len(server.requests) == 7
    done = commands.outcome(capsys, *words, "--budget", 1)
    assert done.code == 0
    asked = [str(body["messages"]) for body in server.requests]
    assert len(asked) == len(set(asked)) == 12  # every question is paid once
    line = "gpt-4o-mini: $0.01 for 12 requests (12,000 tokens in, 6,000 out)"
    assert f"Note: {line}" in (tmp_path / "table.md").read_text()
    assert commands.outcome(capsys, "status", tmp_path).stdout.splitlines()[-1] == line
    for path in find_runs(tmp_path):
        assert Folder(path).manifest()["spent"]["gpt-4o-mini"]["dollars"] == str(12 * COST)


def announced(capsys, *words):
    """What `--dry-run` says of models behind an address."""
    printed = commands.outcome(capsys, *words, "--dry-run").stdout
    return [line[2:] for line in printed.splitlines() if line.startswith("# ") and "openai:" not in line]


def test_a_dry_run_tells_cost_and_time_by_a_table_and_then_by_the_first_samples(server, tmp_path, capsys):
    server.models = (200, {"data": [{"id": "gpt-4o-mini"}, {"id": "gpt-image-1.5"}]}, {})
    server.rule = lambda body, count: (200, {**say("A"), "usage": USAGE}, {})
    model = ["--model", f"openai:{server.url}#gpt-4o-mini", "--device", "cpu", "--out", tmp_path]
    asks = ["negvqa", "--questions", 40, "--blind", 0, "--batch-size", 5, *model]
    table = "(by a table: 600 tokens in, 10 out, 2 s a request)"
    assert announced(capsys, *asks) == [
        f"gpt-4o-mini: about 80 requests, $0.01, 0:00:20 at 8 at a time {table}"
    ]
    assert server.requests == []
    assert commands.exit_code(*asks, "--limit", 10) == 0
    [left, so_far] = announced(capsys, *asks)
    assert left.startswith("gpt-4o-mini: about 60 requests, $0.03, 0:00:0")
    assert left.endswith(" at 8 at a time (as the 20 so far)")
    assert so_far == "so far: gpt-4o-mini: $0.01 for 20 requests (20,000 tokens in, 10,000 out)"
    assert announced(capsys, "negvqa", "--model", "nano:negvqa") == []
