"""`--batch-api`: every request goes in a batch, is paid once wherever a command is killed, ends as usual."""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from decimal import Decimal

import numpy as np
import pytest
from PIL import Image

from nein import cli
from nein.engine.folder import Folder, runs_below
from nein.engine.images import encode_png
from nein.loading import batches, spending
from tests.helpers import commands, killing
from tests.loopback import say
from tests.served.batch_api import BatchApi

USAGE = {"prompt_tokens": 1000, "completion_tokens": 500}
COST = Decimal("0.000225")  # of gpt-4o-mini, at half of $0.15 and $0.60 a million


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(batches, "PAUSES", [0.01, 0.01])
    yield
    assert batches.current() is None


def words_of(server, out, *more):
    line = ["negvqa", "--questions", 6, "--blind", 0, "--formats", "csv", "--device", "cpu", "--out", out]
    return [str(word) for word in (*line, "--model", f"openai:{server.url}#gpt-4o-mini", *more)]


def letter(body):
    """Of what is asked, one that depends on every word."""
    return "AB"[sum(json.dumps(body["messages"]).encode()) % 2]


@pytest.fixture
def api(server):
    server.models = (200, {"data": [{"id": "gpt-4o-mini"}]}, {})
    return BatchApi(server, lambda body: (200, {**say(letter(body)), "usage": USAGE}))


def figures(out):
    return (out / "figures.csv").read_bytes()


@pytest.fixture
def direct(server, tmp_path):
    """The figures of the same command without batches."""
    server.models = (200, {"data": [{"id": "gpt-4o-mini"}]}, {})
    server.rule = lambda body, count: (200, {**say(letter(body)), "usage": USAGE}, {})
    assert commands.exit_code(*words_of(server, tmp_path / "direct")) == 0
    server.requests.clear()
    return figures(tmp_path / "direct")


MOMENTS = [
    None,
    ("nein.loading.batches:Batches._send", 1),  # the requests are on disk
    ("nein.loading.batches:Batches._note", 1),  # uploaded
    ("nein.loading.batches:Batches._note", 2),  # begun, and its id not yet known
    ("nein.loading.batches:Batches._fetch", 1),
    ("nein.loading.spending:Ledger.paid", 5),  # the replies are being kept
    ("nein.loading.batches:Batches.reply", 20),  # the second round
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_command_in_batches_gives_the_figures_of_any_other_and_pays_once_wherever_it_is_killed(
    moment, direct, server, api, tmp_path, capsys
):
    out = tmp_path / "out"
    if moment is not None:
        words = words_of(server, out, "--batch-api", "--on", "debug")
        assert killing.run(cli.main, words, killing.Call(*moment)) == killing.KILLED
    done = commands.outcome(capsys, *words_of(server, out, "--batch-api"))
    assert done.code == 0, done.stderr
    assert figures(out) == direct
    assert len(api.batches) == 1
    assert Counter(len(lines) for lines in api.lines) == {12: 1}
    assert not [body for body in server.requests if "messages" in body]
    found = spending.spent(out)["gpt-4o-mini (batch)"]
    assert (found["requests"], found["dollars"]) == (12, float(12 * COST))
    assert not list((out / "batches").glob("*.requests.jsonl"))


def test_parameters_that_a_model_refuses_cost_a_round_and_the_next_command_asks_nothing(
    server, api, tmp_path
):
    def picky(body):
        if "max_tokens" in body:
            error = {
                "message": "Unsupported parameter",
                "type": "invalid_request_error",
                "param": "max_tokens",
            }
            return 400, {"error": error}
        return answer(body)

    answer, api.answer = api.answer, picky
    for _ in range(2):
        assert commands.exit_code(*words_of(server, tmp_path, "--batch-api")) == 0
    assert [len(lines) for lines in api.lines] == [12, 12]
    assert all("max_completion_tokens" in line["body"] for line in api.lines[1])


def test_an_edit_of_a_batch_is_refused_failed_or_lost_and_only_the_latter_are_sent_again(
    server, api, tmp_path, capsys
):
    server.models = (200, {"data": [{"id": "gpt-image-1.5"}]}, {})
    usage = {"input_tokens": 1000, "input_tokens_details": {"image_tokens": 800}, "output_tokens": 100}
    bad = [(400, {"error": {"code": "moderation_blocked", "message": "no"}}), (500, {}), (0, "lost"), None]
    order = []

    def edited(body):
        url = body["images"][0]["image_url"]
        if (place := url + body["prompt"]) not in order:
            order.append(place)
        if order.index(place) < len(bad) and len(api.batches) == 1:
            return bad[order.index(place)]
        picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))
        made = base64.b64encode(encode_png(255 - picture)).decode()
        return 200, {"data": [{"b64_json": made}], "usage": usage}

    api.answer = edited
    line = ["eval", "--editor", f"openai:{server.url}#gpt-image-1.5", "--stages", "edit", "--limit", 8]
    line += ["--control", "none", "--device", "cpu", "--out", tmp_path, "--batch-api"]
    assert commands.exit_code(*line) == 0
    [run] = map(Folder, runs_below(tmp_path))
    errors = [row["error"] or "" for row in run.rows("edit", [0])][:8]
    assert sorted(filter(None, errors))[0].startswith("the batch gave no answer (batch_completed")
    assert [
        sum(part in one for one in errors) for part in ("server_error: lost", "HTTP 500", "withheld")
    ] == [1] * 3
    assert commands.exit_code(*line) == 0
    assert [len(lines) for lines in api.lines] == [8, 3]
    rows = [*run.rows("edit", [0])][:8]
    assert [row.get("refused") for row in rows if row["image"] is None] == [True]
    assert spending.spent(tmp_path)["gpt-image-1.5 (batch)"]["requests"] == 7


def test_a_budget_sends_one_request_first_and_then_as_many_as_it_has_room_for(server, api, tmp_path, capsys):
    stopped = commands.outcome(capsys, *words_of(server, tmp_path, "--batch-api", "--budget", 0.001))
    assert (stopped.code, [len(lines) for lines in api.lines]) == (2, [1, 3])
    assert "The next request to gpt-4o-mini (batch) might pass the budget of $0.001" in stopped.stderr
    assert commands.exit_code(*words_of(server, tmp_path, "--batch-api", "--budget", 1)) == 0
    assert [len(lines) for lines in api.lines] == [1, 3, 8]
    assert len({json.dumps(body) for body in api.bodies}) == 12


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ([], "takes no batches (HTTP 404); leave --batch-api out."),
        (["--on", "ray"], "--batch-api is for one process; start the command without --on ray."),
    ],
)
def test_what_has_no_batches_is_one_sentence(more, sentence, server, tmp_path, capsys):
    server.pages = {"/v1/batches?limit=1": lambda: (404, {}, {})}
    done = commands.outcome(capsys, *words_of(server, tmp_path, "--batch-api", *more))
    assert (done.code, server.requests) == (2, [])
    assert done.stderr.splitlines()[-1].endswith(sentence)


def test_two_commands_do_not_send_the_same_requests(server, api, tmp_path, capsys):
    other = batches.Batches(tmp_path)
    done = commands.outcome(capsys, *words_of(server, tmp_path, "--batch-api"))
    other.close()
    assert (done.code, server.requests) == (2, [])
    assert "Another command has the batches of" in done.stderr
