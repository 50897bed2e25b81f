import re
from dataclasses import dataclass
from typing import ClassVar

import pytest

from nein.engine import atomic
from nein.engine.answers import ANSWERS, AnswerCache
from nein.engine.folder import CONTENTS, Folder
from nein.loading.errors import UserError
from tests.helpers.commands import with_code
from tests.helpers.runs import write_block


class Answers(Folder):
    content_name = "answers"


def opened(path, overwrite=False, **identity):
    folder = Answers(path)
    folder.open(identity, {"invocation": {"started": "2026-01-01T00:00:00"}}, overwrite=overwrite)
    return folder


def test_another_identity_is_refused_by_the_first_key_that_differs(tmp_path):
    write_block(opened(tmp_path / "a", seed=0, model={"name": "x"}), "answers", 0, [{"id": 1}])
    with pytest.raises(UserError, match=r"holds answers made with model: name x, not y"):
        opened(tmp_path / "a", seed=1, model={"name": "y"})
    assert opened(tmp_path / "a", seed=0, model={"name": "x"}).list_blocks("answers") == {0}
    assert opened(tmp_path / "a", overwrite=True, seed=1, model={"name": "y"}).list_blocks("answers") == set()


def test_a_model_that_was_not_here_yet_is_no_other_one(tmp_path):
    for marks in ({}, {"vqa": "1"}, {}):
        opened(tmp_path / "a", **{CONTENTS: marks} if marks else {})
    opened(tmp_path / "a", **{CONTENTS: {"vqa": "1", "ovd": "3"}})
    with pytest.raises(UserError, match="made with weights or source: vqa 1, not 2"):
        opened(tmp_path / "a", **{CONTENTS: {"vqa": "2", "ovd": "3"}})


def test_what_is_discarded_leaves_the_answers_of_models(tmp_path):
    folder = opened(tmp_path / "a", seed=0)
    write_block(folder, "work/answers", 0, [{"id": 1}])
    with AnswerCache(folder.path / ANSWERS) as cache:
        cache.put("model", "question", {"text": "Yes"})
    opened(tmp_path / "a", overwrite=True, seed=1)
    assert sorted(path.name for path in folder.path.iterdir()) == ["answers.sqlite", "manifest.json"]
    with AnswerCache(folder.path / ANSWERS) as cache:
        assert cache.get("model", "question") == {"text": "Yes"}


def test_one_output_may_be_made_anew_without_the_others(tmp_path):
    folder = opened(tmp_path / "a", seed=0)
    for name in ("l1", "l2"):
        folder.open_output(f"scores/{name}", {"align": "crop"}, overwrite=False)
        write_block(folder, f"scores/{name}", 0, [{"value": 1.0}])
    with pytest.raises(
        UserError, match="holds l1 made with align crop, not stretch", check=with_code("mixed")
    ):
        folder.open_output("scores/l1", {"align": "stretch"}, overwrite=False)
    folder.open_output("scores/l1", {"align": "stretch"}, overwrite=True)
    assert (folder.list_blocks("scores/l1"), folder.list_blocks("scores/l2")) == (set(), {0})
    assert folder.outputs("scores") == {"l1": {"align": "stretch"}, "l2": {"align": "crop"}}


def test_a_block_that_is_missing_is_said_with_the_next_step(tmp_path):
    folder = opened(tmp_path / "a")
    write_block(folder, "answers", 0, [{"id": 1}])
    with pytest.raises(UserError, check=with_code("missing-block")):
        list(folder.rows("answers", [0, 1]))


def test_every_command_is_remembered_and_a_folder_of_another_version_left_alone(tmp_path):
    folder = opened(tmp_path / "a")
    folder.open({}, {"invocation": {"started": "2026-01-02T00:00:00"}}, overwrite=False)
    assert [call["started"][:10] for call in folder.manifest()["invocations"]] == ["2026-01-01", "2026-01-02"]
    folder.update(format=1)
    with pytest.raises(UserError, check=with_code("other-version")):
        opened(tmp_path / "a", overwrite=True)
    with pytest.raises(UserError, match=r"another version of nein \(format 1, not 7\); rerun its command"):
        folder.manifest()


def test_a_run_of_another_benchmark_is_named_with_what_to_do(tmp_path):
    class Answers(Folder):
        benchmark = "negvqa"

    class Edits(Folder):
        benchmark = "nein"

    Answers(tmp_path).open({}, {}, overwrite=False)
    assert Answers(tmp_path).manifest()["benchmark"] == Folder(tmp_path).manifest()["benchmark"] == "negvqa"
    with pytest.raises(UserError, check=with_code("other-benchmark")):
        Edits(tmp_path).manifest()


@dataclass(frozen=True)
class Part:
    side: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scored:
    id: str
    value: float | None
    part: Part | None = None
    again: bool = False


class Scores(Folder):
    row_types: ClassVar = {"scores": Scored}


def test_rows_are_dataclasses_and_what_equals_its_default_is_not_written(tmp_path):
    rows = [Scored("a", 0.0), Scored("b", None, Part(3, ("x", "é")), True), Scored("c", 1e-300, Part(0))]
    write_block(Scores(tmp_path), "scores/l1", 0, rows)
    lines = Scores(tmp_path).block_path("scores/l1", 0).read_text().splitlines()
    assert lines[1] == '{"id": "a", "value": 0.0}'
    assert lines[2:] == [
        '{"id": "b", "value": null, "part": {"side": 3, "names": ["x", "é"]}, "again": true}',
        '{"id": "c", "value": 1e-300, "part": {"side": 0}}',
    ]
    assert list(Scores(tmp_path).rows("scores/l1", [0])) == rows
    assert Folder(tmp_path).read("scores/l1", 0)[2]["part"] == {"side": 0}  # without a type


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"value": 1.5}', "line 2: 'id': Field required"),
        ('{"id": null, "value": 1.5}', "line 2: 'id': Input should be a valid string, not None"),
        ('{"id": "a", "value": true}', "line 2: 'value': Input should be a valid number, not True"),
        ('{"id": "a", "value": "1"}', "line 2: 'value': Input should be a valid number, not '1'"),
        ('{"id": "a", "value": 1, "part": {"side": 1.5}}', "line 2: 'part.side': Input should be a v"),
        ('{"id": "a", "value": 1, "part": {"side": 3, "names": [1]}}', "'part.names.0': Input should be a v"),
        ('{"id": "a", "value": 1, "again": 1}', "line 2: 'again': Input should be a valid boolean, not 1"),
    ],
)
def test_a_row_that_is_none_is_named_with_its_line(tmp_path, line, said):
    path = Scores(tmp_path).block_path("scores/l1", 0)
    atomic.write_text(path, '{"output": "scores/l1", "block": 0}\n' + line)
    with pytest.raises(UserError, match=re.escape(said)):
        Scores(tmp_path).read("scores/l1", 0)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("models/vqa.json", {"name": "x"}, "'fingerprint': Field required"),
        ("models/vqa.json", [], "should be an object"),
        ("notes/vm-1.json", {"stages": []}, "should be an object"),
        ("notes/vm-1.json", {"stages": {"edit": {"blocks": "2"}}, "usage": {}}, "should be a valid integer"),
        (
            "manifest.json",
            {"invocations": [{"started": "now", "command": "eval"}]},
            "should be a valid array",
        ),
        ("manifest.json", {"invocations": [{"started": "now", "environment": 3.5}]}, "should be a"),
        ("manifest.json", {"identity": None}, "should be a"),
    ],
)
def test_what_a_folder_is_read_by_has_a_shape(tmp_path, file, content, said):
    content = {"identity": {}, "status": "complete", **content} if file == "manifest.json" else content
    atomic.write_json(tmp_path / file, content)
    read = Folder(tmp_path).sum_costs if file.startswith("notes") else Folder(tmp_path).models
    with pytest.raises(UserError, match=f"(?s){file}.*{said}"):
        (Folder(tmp_path).manifest if file == "manifest.json" else read)()


def test_costs_are_summed_over_the_notes_of_workers(tmp_path):
    folder = Folder(tmp_path)
    for host in (3, 7):
        cost = {"blocks": 2, "rows": 5, "seconds": 0.5, "peak_memory": {"host": host}}
        folder.write_note({"stages": {"edit": cost}, "usage": {"vqa": {"requests": host}}})
    assert folder.sum_costs() == {
        "edit": {"blocks": 4, "rows": 10, "seconds": 1.0, "peak_memory": {"host": 7}}
    }
    folder.open({}, {}, overwrite=False)
    assert sorted(used["requests"] for used in folder.manifest()["usage"].values()) == [3, 7]
