"""An address with a user, password or query is refused, and shown without them."""

import pytest

from nein import cli
from nein.editors import EditorError, get_editor
from nein.loading.references import hide_credentials
from nein.metrics import MetricError
from nein.metrics.chat import Message, Sampling
from nein.metrics.chat.endpoint import Endpoint, split_endpoint
from tests.loopback import say

USER, PASSWORD, TOKEN = "secretuser", "secretpass", "secrettoken"


def test_addresses_lose_their_credentials():
    hidden = {
        "http://u:p@h:8000/v1?t=1": "http://h:8000/v1",
        "openai:https://u:p@h/v1?t=1#owner/name@rev": "openai:https://h/v1#owner/name@rev",
        "llm:openai:http://u@h/v1#m": "llm:openai:http://h/v1#m",
        "Nobody answers at 'http://u:p@h/v1'.": "Nobody answers at 'http://h/v1'.",
        # passwords that should have been escaped
        **{f"openai:http://u:p{sign}w@h/v1#m": "openai:http://h/v1#m" for sign in "/?#"},
        "openai:http://u:p#w@h/v1": "openai:http://h/v1",
    }
    nothing = ("openai:http://[::1]:80/v1#m", "openai:http://h/v1#owner/name@rev", "owner/name@rev")
    for text, without in {**hidden, **dict(zip(nothing, nothing, strict=True))}.items():
        assert hide_credentials(text) == without


@pytest.mark.parametrize(
    "words",
    [
        "negvqa --model {} --out {o}",
        "negvqa --data {} --out {o}",
        "negvqa --columns.category {} --out {o}",
        "negvqa --matcher llm:{} --out {o}",
        "negvqa --config {o}/told.yaml --dry-run",
        "negvqa --modle {}",
        "negvqa --limit {}",
        "negvqa generate --source {o} --llm.model {} --out {o}",
        "negbench eval --vlm {} --model none --out {o}",
        "eval --editor {} --out {o}",
        "eval --mend rewrite:llm:{} --out {o}",
        "slurm eval --editor {} --out {o}",
        "check --kind vqa {}",
    ],
)
@pytest.mark.parametrize("form", ["{u}:{p}@{h}#eye-7b", "{h}?tok={t}#eye-7b", "{u}:{p}/x@host:1/v1"])
def test_a_command_is_refused_and_gives_nothing_away(server, capfd, tmp_path, monkeypatch, words, form):
    host = server.url.removeprefix("http://")
    address = f"openai:http://{form.format(u=USER, p=PASSWORD, h=host, t=TOKEN)}"
    (tmp_path / "told.yaml").write_text(f"model: ['{address}']\n")
    given = words.format(address, o=tmp_path).split()
    monkeypatch.setattr("sys.argv", ["nein", *given])
    with pytest.raises(SystemExit, match="2"):
        cli.main(given)
    said = "".join(capfd.readouterr())
    assert not [word for word in (USER, PASSWORD, TOKEN) if word in said], said
    assert "Traceback" not in said
    assert (server.paths, [path.name for path in tmp_path.iterdir()]) == ([], ["told.yaml"])


def test_a_reference_in_python_is_refused_without_its_password(monkeypatch):
    address = f"http://{USER}:{PASSWORD}@host/v1"
    with pytest.raises(MetricError, match="is not an endpoint") as judge:
        split_endpoint(f"openai:{address}#eye-7b")
    monkeypatch.setenv("OPENAI_BASE_URL", address)
    with pytest.raises(EditorError, match="is not a served editor") as editor:
        get_editor("openai:edit-1")
    assert PASSWORD not in f"{judge.value}{editor.value}"


def test_a_server_that_quotes_key_or_header_gives_nothing_away(server):
    key = "sk-SECRETKEY123"
    found = Endpoint(server.url, "eye-7b", key=key, retries=0)
    server.rule = lambda body, count: (400, {"error": f"{key}, Basic YTpi, Bearer other-key-9"}, {})
    [failed] = found.complete([Message(("Hello?",))], Sampling(9))
    assert "HTTP 400" in str(failed.error)
    for word in (key, "YTpi", "other-key-9"):
        assert word not in str(failed.error)
    server.rule = lambda body, count: (200, say(f"B, said {key}. A basic answer."), {})
    [said] = found.complete([Message(("Hello?",))], Sampling(9))
    assert said.text == "B, said .... A basic answer."
