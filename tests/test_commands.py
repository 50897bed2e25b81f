"""The command `nein`: its table, what is broken in it, and that every `--help` comes at once."""

import pytest

import nein
from nein import cli
from tests.helpers import packages
from tests.helpers.commands import in_a_process, outcome
from tests.test_startup import NOT_FOR_HELP

OURS = sorted(cli.COMMANDS)


def test_the_overview_lists_every_command_and_a_group_lists_its_own(capsys):
    code, text, _ = outcome(capsys, "--help")
    assert code == 0
    assert all(name.rpartition(" ")[2] in text for name in OURS)
    assert text.count("\n") <= 32  # a screen
    assert outcome(capsys)[0] == 2  # no command is a mistake, with the same answer
    assert outcome(capsys, "--version").stdout == f"{nein.__version__}\n"
    code, text, _ = outcome(capsys, "negbench", "--help")
    assert code == 0
    assert "nein negbench analyse " in text
    assert "nein eval" not in text
    assert outcome(capsys, "negbench")[0] == 2


@pytest.mark.parametrize(("line", "said", "unsaid"), [
    ("eval", ("--seed N random seed (default: 0)", "--edited FOLDER", "file: "), "--annotations"),
    ("slurm", ("nein slurm submits eval",), "error"),
    ("slurm eval", ("Evaluate image editors on", "--seed N random", "--partition"), "error"),
    ("fetch eval", ("Evaluate image editors on",), "error"),
    ("mend", ("preset of the kind's benchmark (default: nano)",), "configs/"),
    ("status", ("RUN",), "--dry-run"),
])  # fmt: skip
def test_help_says_defaults_what_is_expected_and_what_a_command_has(capsys, line, said, unsaid):
    code, text, _ = outcome(capsys, *line.split(), "--help")
    words = " ".join(text.split())
    assert (code, [part for part in said if part not in words], unsaid in words) == (0, [], False)
    assert text.count("\n  -") <= 47


def test_a_broken_entry_point_is_a_sentence_and_does_not_hide_the_other_commands(
    tmp_path, monkeypatch, capsys
):
    places = {"question": "nowhere_at_all:ANSWER", "doubt": "pathlib:Path", "eval": "nowhere_at_all:EVAL"}
    packages.install(tmp_path, {"nein.benchmarks": places})
    monkeypatch.syspath_prepend(str(tmp_path))
    code, _, error = outcome(capsys, "question")
    assert code == 2
    broken = "The benchmark 'question' (nowhere_at_all:ANSWER) cannot be loaded: No module"
    assert f"The command 'nein question' is broken ({broken}" in error
    assert "is broken ('pathlib:Path' is not a nein.benchm" in outcome(capsys, "doubt").stderr
    assert broken in outcome(capsys, "--help").stdout
    assert cli.commands()["eval"] == cli.COMMANDS["eval"]  # a name of ours stays ours
    assert outcome(capsys, "eval", "--help")[0] == 0


def test_help_comes_at_once():
    code = (
        "import sys, time; from nein import cli\n"
        f"for name in {['', *OURS]}:\n"
        "    before = time.process_time() if name else 0  # the first with the imports\n"
        "    try: cli.main([*name.split(), '--help'])\n"
        "    except SystemExit as end: assert not end.code\n"
        "    heavy = [m for m in sys.modules if m in set(sys.argv[1:])]\n"
        "    print(f'{name}:{time.process_time() - before}:{heavy}', file=sys.stderr)"
    )
    done = in_a_process(*NOT_FOR_HELP, script=("-c", code))
    assert done.returncode == 0, done.stderr
    for name, line in zip(["", *OURS], done.stderr.splitlines(), strict=True):
        assert f"usage: nein {name}" in done.stdout
        _, seconds, heavy = line.split(":")
        assert heavy == "[]", line
        assert float(seconds) < 0.5, line  # CPU time: other work on the machine does not count
