"""User, password and query of an endpoint's address reach the endpoint, and nothing else."""

import base64
import sys

import pytest

from nein import cli
from nein.engine.images import write_png
from nein.loading import credentials
from nein.loading.credentials import Credentials
from nein.metrics import MetricError
from nein.metrics.backends.endpoint import Endpoint, split_endpoint
from nein.metrics.judges.endpoint import EndpointChoices
from tests.loopback import say
from tests.negbench_build.conftest import picture
from tests.negvqa.tiny import write_questions

USER, PASSWORD, TOKEN = "secretuser", "secretpass", "secrettoken"


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setenv(credentials.VARIABLE, "{}")  # and as it was, afterwards


def test_addresses_lose_their_credentials():
    hidden = {
        "http://u:p@h:8000/v1?t=1": "http://h:8000/v1",
        "openai:https://u:p@h/v1?t=1#owner/name@rev": "openai:https://h/v1#owner/name@rev",
        "--model=openai:http://u:p@h/v1#a,openai:http://g/v1?t=1#b": "--model=openai:http://h/v1#a,openai:http://g/v1#b",
        "llm:openai:http://u@h/v1#m": "llm:openai:http://h/v1#m",
        "Nobody answers at 'http://u:p@h/v1'.": "Nobody answers at 'http://h/v1'.",
        # passwords that should have been escaped
        **{f"openai:http://u:p{sign}w@h/v1#m": "openai:http://h/v1#m" for sign in "/?#"},
        "openai:http://u:p#w@h/v1": "openai:http://h/v1",
    }  # fmt: skip
    nothing = ("openai:http://[::1]:80/v1#m", "http://h/@x/y", "owner/name@rev")
    for text, without in {**hidden, **dict(zip(nothing, nothing, strict=True))}.items():
        assert credentials.without(text) == without


@pytest.mark.parametrize("option", ["--model", "--data", "--columns.category"])
def test_an_address_that_takes_no_password_is_refused_without_it(capsys, option):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["negvqa", option, f"http://{USER}:{PASSWORD}@h/v1#m"])
    said = capsys.readouterr()
    assert "'http://h/v1#m' was given with a user or password" in said.err
    assert PASSWORD not in said.err + said.out


def test_what_was_put_aside_belongs_to_a_model_at_an_address():
    one, other = "openai:http://u:p@h/v1/?t=1#a", "openai:http://v:q@h/v1#b"
    assert credentials.put_aside(f"{one},{other}") == "openai:http://h/v1/#a,openai:http://h/v1#b"
    assert credentials.of("http://h/v1", "a") == Credentials("u:p", "t=1")
    assert credentials.of("http://h/v1", "b") == Credentials("v:q", "")
    assert credentials.of("http://h/v1", "c") == Credentials("", "")
    chain = "best-of:2:editscore:openai:http://me:PASS@i/v1?tok=1#a"
    bare = "best-of:2:editscore:openai:http://i/v1#a"
    assert credentials.put_aside(f"{chain},rewrite") == f"{bare},rewrite"  # which is no part of the model
    both = credentials.put_aside(f"{chain},rewrite:llm:openai:https://you:WORD@j/v1#b")
    assert both == f"{bare},rewrite:llm:openai:https://j/v1#b"
    assert credentials.of("http://i/v1", "a") == Credentials("me:PASS", "tok=1")
    assert credentials.of("https://j/v1", "b") == Credentials("you:WORD", "")


def test_a_reference_that_is_none_is_refused_without_its_password():
    with pytest.raises(MetricError, match="is not an endpoint") as refused:
        split_endpoint(f"openai:http://{USER}:{PASSWORD}@host/v1")
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize("aside", [False, True])
def test_the_endpoint_receives_user_password_and_query(server, aside):
    url, model = split_endpoint(secret(server))
    if aside:
        url = credentials.put_aside(f"openai:{url}#{model}")[7:].partition("#")[0]
    asked = EndpointChoices(Endpoint(url, model))
    asked.endpoint.check()
    asked.endpoint.chat("Hello?")
    assert server.paths == [f"/v1/models?tok={TOKEN}", f"/v1/chat/completions?tok={TOKEN}"]
    expected = base64.b64encode(f"{USER}:{PASSWORD}!".encode()).decode()
    assert server.headers[0]["Authorization"] == f"Basic {expected}"
    assert asked.describe()["reference"] == server.url


def test_a_server_that_quotes_request_key_or_header_gives_nothing_away(server):
    key, basic = "sk-SECRETKEY123", base64.b64encode(f"{USER}:{PASSWORD}!".encode()).decode()
    echo = f"no path /v1?tok={TOKEN} for {USER}:{PASSWORD}%21, {key}, Basic {basic}, Bearer other-key-9"
    found = Endpoint(*split_endpoint(secret(server)), key=key, retries=0)
    server.rule = lambda body, count: (400, {"error": echo}, {})
    with pytest.raises(RuntimeError, match="HTTP 400") as failed:
        found.chat("Hello?")
    for word in (USER, PASSWORD, TOKEN, key, basic, "other-key-9"):
        assert word not in str(failed.value)
    server.rule = lambda body, count: (200, say(f"B, said {key} ({basic}). A basic answer."), {})
    assert found.chat("Hello?").text == "B, said ... (...). A basic answer."


def secret(server, model="eye-7b"):
    return f"openai:{server.url.replace('//', f'//{USER}:{PASSWORD}%21@')}?tok={TOKEN}#{model}"


#: Command lines by benchmark: {s} is a secret endpoint, {s2} another model of it, {b} a broken reference, {o}
#: the folder of results, {d} data. The mistaken end with a sentence, or print what they were told.
LINES = {
    "negvqa": """
        negvqa --model {s} --data {d} --out {o}/a --matcher llm:{s2} --formats html,md,csv,tex
        negvqa --model judge --judge {s} --judge-asking letters --data {d} --out {o}/b --formats md
        negvqa generate --source nano --questions 3 --negator llm --llm.model {s} --out {o}/c""",
    "negbench": """
        negbench eval --vlm {s} --model none --scenes 6 --tasks mcq --out {o}/a
        negbench generate --source captions --captions {d} --form training --concepts llm --verify none \
--llm.model {s} --out {o}/b""",
    "nein": """
        eval --editor identity --models.vqa {s} --metrics removal_vqa --limit 2 --out {o}/a
        eval --editor {s} --metrics l1 --limit 2 --out {o}/b
        report {o}/a -o {o}/page.html
        calibrate {o}/a --judges vqa --sets sources --limit 2
        check --judge vqa {s}""",
    "mistaken": """
        negvqa --config {d} --dry-run
        negvqa --config {d} --model {s2} --questions 4 --blind 0 --out {o}/a
        negvqa --model {b} --out {o}/b
        negvqa --model {s} --limit {b}
        negvqa --modle {s}
        negbench eval --vlm {b} --model none --out {o}/c
        eval --editor {b} --out {o}/d
        check --judge ovd {s}""",
}


def data(name, server, root):
    if name == "negvqa":
        return write_questions(root / "data")
    if name == "negbench":
        for number in range(2):
            write_png(root / f"data/{number}.png", picture(10 * number))
            (root / f"data/{number}.txt").write_text(f"A picture of dog and cat, number {number}.")
        return root / "data"
    (root / "told.yaml").write_text(f"model: ['{secret(server)}']\nmatcher: llm:{secret(server)}\n")
    return root / "told.yaml"


@pytest.mark.parametrize("name", LINES)
def test_no_writer_leaves_a_trace_of_them(server, tmp_path, capfd, monkeypatch, name):
    def rule(body, count):
        if "messages" not in body:  # an edit
            return (400, {"error": TOKEN}, {}) if count % 3 else (200, {"data": [{"b64_json": ""}]}, {})
        told = isinstance(body["messages"][0]["content"], str)
        return (
            (200, say("B" if told else "The second one."), {}) if count % 3 else (400, {"error": TOKEN}, {})
        )

    server.rule = rule
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    broken = f"openai:http://{USER}:{PASSWORD}/x@host:1/v1?tok={TOKEN}"
    filled = {"s": secret(server), "s2": secret(server, "eye-70b"), "b": broken, "o": tmp_path / "out"}
    for line in LINES[name].format(**filled, d=data(name, server, tmp_path)).strip().splitlines():
        words = line.split()
        monkeypatch.setattr(sys, "argv", ["nein", *words])
        before = len(server.paths)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = "".join(capfd.readouterr())
        assert "Traceback" not in said, said
        if name != "mistaken" and words[0] != "report":
            assert len(server.paths) > before, (words, said)
        assert ended.value.code in (0, 1, 2), said
        for word in (USER, PASSWORD, TOKEN):
            assert word not in said, (words, said)
    assert all(f"tok={TOKEN}" in path for path in server.paths)
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert written or name == "mistaken"
    for path in written:
        for word in (USER, PASSWORD, TOKEN):
            assert word not in str(path)
            assert word.encode() not in path.read_bytes(), path
