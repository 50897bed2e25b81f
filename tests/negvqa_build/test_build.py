import json
import random

import pytest

from nein import cli
from nein.datasets import negvqa as questions
from nein.engine import atomic, images
from nein.engine.folder import Folder
from nein.generate import negvqa as sources
from nein.nano.sentences import iter_questions
from tests.helpers import commands, killing
from tests.loopback import HANG_UP, say
from tests.negvqa_build.conftest import rows


def run(*arguments):
    assert commands.exit_code("negvqa", *arguments) == 0


def asked(body):
    """The question of a request: what stands last in the prompt."""
    text = body["messages"][0]["content"]
    assert text.startswith("**Task:**")
    return text.rpartition("Question: ")[2].partition("\n")[0]


def negation(question):
    return question.replace(" is ", " is not ", 1)


def good(body, _=0):
    answer = {"is_negatable": True, "negated_question": negation(asked(body))}
    return 200, say(json.dumps(answer)), {}


@pytest.fixture
def arguments(server, choices, tmp_path):
    server.rule = good
    model = f"openai:{server.url}#eye-7b"
    how = ["--llm.model", model, "--endpoint.retries", "0", "--endpoint.timeout", "5"]
    return ["generate", "--source", str(choices), "--out", str(tmp_path / "out"), *how]


def test_a_file_becomes_questions_that_the_evaluation_reads(arguments, server, tmp_path, capsys):
    run(*arguments)
    assert "24 of 24 questions negated, 12 with A right." in capsys.readouterr().out
    out = tmp_path / "out"
    found = questions.load(str(out / "questions.jsonl")).items
    for item, row in zip(sorted(found, key=lambda item: int(item.id)), rows(), strict=True):
        right = row[row["answer"]]
        assert item.questions == {"original": row["question"], "negated": negation(row["question"])}
        texts = dict(zip("AB", item.options, strict=True))
        assert texts[item.answers["original"]] == right != texts[item.answers["negated"]]
        assert images.decode(item.image).mean() == 40 * (row["index"] % 6)
    assert {asked(body) for body in server.requests} == {row["question"] for row in rows()}
    split = questions.load(
        str(out / "questions-original.jsonl"), negated=str(out / "questions-negated.jsonl")
    )
    assert split.items == found
    assert json.loads((out / "manifest.json").read_text())["status"] == "complete"


def test_the_notebook_s_letters_make_questions(arguments, tmp_path):
    run(*arguments, "--letters", "notebook")
    found = atomic.read_lines(tmp_path / "out" / "questions.jsonl")
    assert [row["negated_question"] for row in found] == [negation(row["question"]) for row in rows()]
    random.seed(1234)
    for row, made in zip(rows(), found, strict=True):
        incorrect = random.sample([row[key] for key in "ABCD" if key != row["answer"]], 1)[0]
        random.shuffle(options := [row[row["answer"]], incorrect])
        assert [made["A"], made["B"]] == options


def test_an_error_is_never_not_negatable_and_is_asked_again_by_the_same_command(
    arguments, server, tmp_path, capsys
):
    yes = {"is_negatable": True}
    special = {
        "What is on table 0?": (500, {}, {}),
        "What is on table 1?": (HANG_UP, None, {}),
        "What is on table 2?": (403, {}, {}),
        "What is on table 3?": (200, say("I would rather not."), {}),
        "What is on table 4?": (200, say('{"is_negatable": false, "negated_question": ""}'), {}),
        "What is on table 5?": (200, say('{"is_negatable": false, "negated_question": "What?"}'), {}),
        "What is on table 6?": (200, say(json.dumps({**yes, "negated_question": "what is on table 6?"})), {}),
    }
    server.rule = lambda body, count: special.get(asked(body)) or good(body)
    run(*arguments)
    said = capsys.readouterr().out
    assert "3 got no answer; rerun the command to retry them" in said
    records = {r["index"]: r for r in atomic.read_lines(tmp_path / "out" / "records.jsonl")}
    states = [(records[str(k)]["state"], records[str(k)]["kind"]) for k in range(8)]
    assert states == [
        ("failed", "server error"), ("failed", "connection"), ("failed", "refused"), ("failed", "nonsense"),
        ("not negatable", None), ("failed", "wrong schema"), ("failed", "unchanged question"),
        ("negated", None),
    ]  # fmt: skip
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["status"] == "incomplete"
    assert manifest["counts"] == {"failed": 6, "not negatable": 1, "negated": 17}
    server.rule = good
    server.requests.clear()
    run(*arguments)
    assert sorted(asked(body) for body in server.requests) == [f"What is on table {k}?" for k in range(3)]
    manifest = Folder(tmp_path / "out").manifest()
    assert (manifest["status"], manifest["counts"]["negated"]) == ("complete", 20)
    second, first = sorted(usage["requests"] for usage in manifest["usage"].values())
    assert (second, first > 20) == (3, True)  # with its retries


@pytest.mark.parametrize(
    "moment",
    [killing.Call("nein.engine.answers:AnswerCache.put", 9), killing.File("*/questions.jsonl")],
    ids=str,
)
def test_a_build_killed_at_any_moment_ends_as_if_it_had_not_been(arguments, server, tmp_path, moment):
    run(*arguments)
    expected = contents(tmp_path / "out")
    before_kill = len(server.requests)
    server.requests.clear()
    killed = [*arguments, "--out", str(tmp_path / "killed"), "--endpoint.concurrency", "1"]
    assert killing.run(cli.main, ["negvqa", *killed], moment) == killing.KILLED
    before = len(server.requests)
    run(*killed)
    assert contents(tmp_path / "killed") == expected
    again = len(server.requests) - before
    assert again == (before_kill - 8 if isinstance(moment, killing.Call) else 0)


def contents(out):
    kept = [*out.glob("*.jsonl"), *out.glob("images/*"), out / "check.html"]
    return {str(path.relative_to(out)): path.read_bytes() for path in kept}


def test_drawn_questions_need_no_model_and_records_of_no_use_are_counted(
    arguments, choices, tmp_path, capsys
):
    run("generate", "--questions", "12", "--out", tmp_path / "nano")
    assert "12 of 12 questions negated" in capsys.readouterr().out
    drawn = [(q.question, q.negated) for _, _, q in iter_questions(sources.SPLIT, 12)]
    rows_ = atomic.read_lines(tmp_path / "nano" / "questions.jsonl")
    assert [(row["original_question"], row["negated_question"]) for row in rows_] == drawn
    records = rows()
    records[5]["answer"] = "Z"
    choices.write_text("".join(json.dumps(record) + "\n" for record in records))
    run(*arguments)
    assert "1 unusable: no letter of an option in answer" in capsys.readouterr().out
    found = {r["index"]: r["state"] for r in atomic.read_lines(tmp_path / "out" / "records.jsonl")}
    assert (found["5"], found["4"]) == ("unusable", "negated")
