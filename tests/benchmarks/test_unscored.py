"""Samples without a score are counted aloud by every benchmark, and may be made an error."""

from tests.helpers import commands
from tests.loopback import say


def test_what_has_no_score_is_said_and_is_an_error_where_that_is_asked_for(server, tmp_path, capsys):
    server.rule = lambda body, count: (200, say("Perhaps."), {})
    judge = f"openai:{server.url}#eye-7b"
    words = ["eval", "--editor", "identity", "--models.vqa", judge, "--metrics", "removal_vqa", "--limit", 2]
    words += ["--out", tmp_path / "out"]
    lax = commands.outcome(capsys, *words)
    assert lax.code == 0
    assert "have no score (" in lax.stderr
    strict = commands.outcome(capsys, *words, "--fail-on-unscored")
    assert strict.code == 3
    assert strict.stdout == lax.stdout != ""
