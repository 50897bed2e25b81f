"""User, password and query of an endpoint's address reach the endpoint, and nothing else."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any

import pytest

from nein import cli
from nein.metrics import MetricError
from nein.metrics.choices.endpoint import EndpointChoices
from nein.metrics.served import credentials
from nein.metrics.served.credentials import Credentials
from nein.metrics.served.endpoint import Endpoint, split_endpoint
from tests.loopback import Server, say
from tests.negvqa.tiny import write_questions

USER, PASSWORD, TOKEN = "secretuser", "secretpass", "secrettoken"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(credentials.VARIABLE, "{}")  # and as it was, afterwards


@pytest.mark.parametrize(
    "text, without",
    [
        ("http://u:p@h:8000/v1?t=1", "http://h:8000/v1"),
        ("openai:https://u:p@h/v1?t=1#owner/name@rev", "openai:https://h/v1#owner/name@rev"),
        ("--model=openai:http://u:p@h/v1#a,openai:http://g/v1?t=1#b", "--model=openai:http://h/v1#a,openai:http://g/v1#b"),
        ("llm:openai:http://u@h/v1#m", "llm:openai:http://h/v1#m"),
        ("Nobody answers at 'http://u:p@h/v1'.", "Nobody answers at 'http://h/v1'."),
        # passwords that should have been escaped
        ("openai:http://u:p/w@h/v1#m", "openai:http://h/v1#m"),
        ("openai:http://u:p?w@h/v1#m", "openai:http://h/v1#m"),
        ("openai:http://u:p#w@h/v1#m", "openai:http://h/v1#m"),
        ("openai:http://u:p#w@h/v1", "openai:http://h/v1"),
        # nothing to hide
        ("openai:http://[::1]:80/v1#m", "openai:http://[::1]:80/v1#m"),
        ("http://h/@x/y", "http://h/@x/y"),
        ("owner/name@rev", "owner/name@rev"),
    ],
)  # fmt: skip
def test_addresses_lose_their_credentials(text: str, without: str) -> None:
    assert credentials.without(text) == without


def test_what_was_put_aside_belongs_to_a_model_at_an_address() -> None:
    one, other = "openai:http://u:p@h/v1/?t=1#a", "openai:http://v:q@h/v1#b"
    assert credentials.put_aside(f"{one},{other}") == "openai:http://h/v1/#a,openai:http://h/v1#b"
    assert credentials.of("http://h/v1", "a") == Credentials("u:p", "t=1")
    assert credentials.of("http://h/v1", "b") == Credentials("v:q", "")
    assert credentials.of("http://h/v1", "c") == Credentials("", "")


def test_a_reference_that_is_none_is_refused_without_its_password() -> None:
    with pytest.raises(MetricError, match="is not an endpoint") as refused:
        split_endpoint(f"openai:http://{USER}:{PASSWORD}@host/v1")
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize("aside", [False, True])
def test_the_endpoint_receives_user_password_and_query(server: Server, aside: bool) -> None:
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


def test_a_server_that_quotes_the_request_gives_nothing_away(server: Server) -> None:
    echo = f"no path /v1?tok={TOKEN} for {USER}:{PASSWORD}%21"
    server.rule = lambda body, count: (400, {"error": echo}, {})
    found = EndpointChoices(Endpoint(*split_endpoint(secret(server)), retries=0))
    with pytest.raises(RuntimeError, match="HTTP 400") as failed:
        found.endpoint.chat("Hello?")
    for word in (USER, PASSWORD, TOKEN):
        assert word not in str(failed.value)


def test_a_server_that_quotes_key_or_header_gives_nothing_away(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-SECRETKEY123"
    basic = base64.b64encode(f"{USER}:{PASSWORD}!".encode()).decode()
    found = Endpoint(*split_endpoint(secret(server)), key=key, retries=0)
    server.rule = lambda body, count: (400, {"error": f"key {key}: Basic {basic}, Bearer other-key-9"}, {})
    with pytest.raises(RuntimeError, match="HTTP 400") as failed:
        found.chat("Hello?")
    server.rule = lambda body, count: (200, say(f"B, said {key} ({basic}). A basic answer."), {})
    said = found.chat("Hello?").text
    assert said == "B, said ... (...). A basic answer."
    for word in (key, basic, "other-key-9"):
        assert word not in str(failed.value)


def secret(server: Server, model: str = "eye-7b") -> str:
    return f"openai:{server.url.replace('//', f'//{USER}:{PASSWORD}%21@')}?tok={TOKEN}#{model}"


def negvqa(server: Server, root: Path) -> list[list[Any]]:
    asked = [
        "negvqa",
        "--model",
        secret(server),
        "--data",
        write_questions(root / "data"),
        "--out",
        root / "out/a",
    ]
    made = ["negvqa", "generate", "--source", "nano", "--questions", 3, "--negator", "llm", "--llm.model"]
    judged = ["--model", "judge", "--judge", secret(server), "--judge-asking", "letters"]
    return [
        [*asked, "--matcher", f"llm:{secret(server, 'eye-70b')}", "--formats", "html,md,csv,tex"],
        [
            "negvqa",
            *judged,
            "--data",
            root / "data/questions.jsonl",
            "--out",
            root / "out/b",
            "--formats",
            "md",
        ],
        [*made, secret(server), "--out", root / "out/c"],
    ]


def negbench(server: Server, root: Path) -> list[list[Any]]:
    asked = ["negbench", "eval", "--vlm", secret(server), "--model", "none", "--scenes", 6, "--tasks", "mcq"]
    (root / "captions").mkdir()
    from nein.engine.images import write_png
    from tests.negbench_build.conftest import picture

    for number in range(2):
        write_png(root / f"captions/{number}.png", picture(10 * number))
        (root / f"captions/{number}.txt").write_text(f"A picture of dog and cat, number {number}.")
    made = [
        "negbench",
        "generate",
        "--source",
        "captions",
        "--captions",
        root / "captions",
        "--form",
        "training",
    ]
    made += ["--concepts", "llm", "--verify", "none", "--llm.model", secret(server)]
    return [[*asked, "--out", root / "out/a"], [*made, "--out", root / "out/b"]]


def nein(server: Server, root: Path) -> list[list[Any]]:
    judge, run = ["--models.vqa", secret(server)], root / "out/a"
    asked = ["eval", "--editor", "identity", *judge, "--metrics", "removal_vqa", "--limit", 2, "--out", run]
    return [
        asked,
        ["report", run, "-o", root / "out/page.html"],
        ["calibrate", run, "--judges", "vqa", "--sets", "sources", "--limit", 2],
        ["check", "--judge", "vqa", secret(server)],
    ]


def mistaken(server: Server, root: Path) -> list[list[Any]]:
    """Commands that end with a sentence, or print what they were told."""
    told = root / "told.yaml"
    told.write_text(f"model: ['{secret(server)}']\nmatcher: llm:{secret(server)}\n")
    broken = f"openai:http://{USER}:{PASSWORD}/x@host:1/v1?tok={TOKEN}"
    return [
        ["negvqa", "--config", told, "--dry-run"],
        ["negvqa", "--config", told, "--model", secret(server, "eye-8b"), "--out", root / "out/a"],
        ["negvqa", "--model", broken, "--out", root / "out/b"],
        ["negvqa", "--model", secret(server), "--limit", broken],
        ["negvqa", "--modle", secret(server)],
        ["negbench", "eval", "--vlm", broken, "--model", "none", "--out", root / "out/c"],
        ["eval", "--editor", secret(server), "--out", root / "out/d"],
        ["check", "--judge", "ovd", secret(server)],
    ]


@pytest.mark.parametrize("commands", [negvqa, negbench, nein, mistaken])
def test_no_writer_leaves_a_trace_of_them(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    commands: Any,
) -> None:  # fmt: skip
    def rule(body: dict[str, Any], count: int) -> Any:
        told = isinstance(body["messages"][0]["content"], str)
        return (
            (200, say("B" if told else "The second one."), {}) if count % 3 else (400, {"error": TOKEN}, {})
        )

    server.rule = rule
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for words in commands(server, tmp_path):
        monkeypatch.setattr(sys, "argv", ["nein", *map(str, words)])
        before = len(server.paths)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = "".join(capfd.readouterr())
        assert "Traceback" not in said, said
        if commands is not mistaken and words[1] != "report" and words[0] != "report":
            assert len(server.paths) > before, (words, said)
        assert ended.value.code in (0, 1, 2), said
        for word in (USER, PASSWORD, TOKEN):
            assert word not in said, (words, said)
    assert all(f"tok={TOKEN}" in path for path in server.paths)
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert written or commands is mistaken
    for path in written:
        for word in (USER, PASSWORD, TOKEN):
            assert word not in str(path)
            assert word.encode() not in path.read_bytes(), path


def test_what_follows_a_reference_in_a_list_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(credentials.VARIABLE, "{}")
    first = "best-of:2:editscore:openai:http://me:PASS@host/v1?tok=1#eye-7b"
    second = "rewrite:llm:openai:https://you:WORD@other/v1#ear-7b"
    bare = "best-of:2:editscore:openai:http://host/v1#eye-7b"
    assert credentials.put_aside(f"{first},rewrite") == f"{bare},rewrite"
    both = credentials.put_aside(f"{first},{second}")
    assert both == f"{bare},rewrite:llm:openai:https://other/v1#ear-7b"
    assert credentials.of("http://host/v1", "eye-7b") == credentials.Credentials("me:PASS", "tok=1")
    assert credentials.of("https://other/v1", "ear-7b") == credentials.Credentials("you:WORD", "")
