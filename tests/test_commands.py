"""The command `nein`: its table, what other packages add to it, and that every `--help` comes at once."""

import pytest

import nein
from nein import cli
from tests.helpers import packages
from tests.helpers.commands import in_a_process, outcome
from tests.test_startup import NOT_FOR_HELP

OURS = sorted(cli.COMMANDS)


def advertise(folder, **places):
    """Installs a package with these commands; "_" stands for a blank."""
    packages.install(folder, {cli.GROUP: {name.replace("_", " "): place for name, place in places.items()}})


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
    ("eval", ("--seed N random seed (default: 0)", "--edited FOLDER", "file: annotations,"), "--annotations"),
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
    assert text.count("\n  -") <= 45


def test_another_package_adds_a_command_by_an_entry_point(tmp_path, monkeypatch, capsys):
    (tmp_path / "elsewhere_commands.py").write_text(
        "from dataclasses import dataclass\n"
        "from nein.config.commands import Command\n"
        "from nein.config.options import Options, argument, option\n"
        "ANSWER = Command('say the answer', 'elsewhere_commands:Question', 'elsewhere_commands:answer')\n"
        "@dataclass(kw_only=True)\n"
        "class Question(Options):\n"
        "    about: str = argument('ABOUT', 'what the question is about')\n"
        "    code: int = option(7, 'how it ends')\n"
        "def answer(options):\n    print(42, options.about)\n    return options.code\n"
    )
    place = "elsewhere_commands:ANSWER"
    advertise(tmp_path, negvqa_answer=place, question=place, eval=place)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert outcome(capsys, "negvqa", "answer", "everything") == (7, "42 everything\n", "")
    assert outcome(capsys, "question", "life", "--code", "0") == (0, "42 life\n", "")
    assert "nein question needs ABOUT; see nein question --help." in outcome(capsys, "question")[2]
    assert "did you mean 'nein negvqa answer'?" in outcome(capsys, "negvqa", "answr")[2]
    text = outcome(capsys, "--help")[1]
    assert text.count("say the answer") == 1
    assert "check, answer\n" in text
    assert cli.commands()["eval"] == cli.COMMANDS["eval"]  # a name of ours stays ours


def test_a_broken_entry_point_is_a_sentence_and_does_not_hide_the_other_commands(
    tmp_path, monkeypatch, capsys
):
    advertise(tmp_path, question="nowhere_at_all:ANSWER", doubt="pathlib:Path")
    monkeypatch.syspath_prepend(str(tmp_path))
    code, _, error = outcome(capsys, "question")
    assert code == 2
    assert "The command 'nein question' is broken (nowhere_at_all:ANSWER: No module" in error
    assert "is broken (pathlib:Path: no nein.config.commands.Command)" in outcome(capsys, "doubt").stderr
    assert "is broken (nowhere_at_all:ANSWER: No module" in outcome(capsys, "--help").stdout
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
