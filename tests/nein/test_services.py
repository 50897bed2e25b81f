"""Editors behind a service: what is sent again, counted and paid once; folders of edited pictures."""

import pytest

from nein.benchmarks.nein import protocols, sections
from nein.benchmarks.nein import runs as of_runs
from nein.benchmarks.nein.runs import RunDir
from nein.editors import EditResult
from nein.reporting import figures as frames
from tests.helpers.runs import edits_of

NAMES = [f"NeIn_{source:012d}_{k}" for source in (1, 2, 3) for k in (1, 2)]


SENT: list[str] = []


class Service:
    """An editor that notes what it was sent. answers: the end of an id -> what comes of it in place of a
    picture."""

    fingerprint, name, paid, answers = "service-1", "service", True, {}

    def describe(self):
        return {"editor": self.name}

    def edit(self, requests):
        return [self.edit_one(request) for request in requests]

    def edit_one(self, request):
        SENT.append(request.id)
        if (answer := self.answers.get(request.id[-3:])) is not None:
            return EditResult(request.id, None, **answer)
        return EditResult(request.id, 255 - request.image)


@pytest.fixture
def service(monkeypatch):
    def does(paid=True, **answers):
        monkeypatch.setattr(Service, "paid", paid)
        monkeypatch.setattr(Service, "answers", {name[1:]: answer for name, answer in answers.items()})

    return does


@pytest.fixture
def edit(make_data, evaluate, tmp_path):
    data = make_data(3, 2)

    def run(*more, out="out", code=0):
        SENT.clear()
        done = evaluate(
            "--editor", f"{__name__}:Service", "--data", data, "--out", tmp_path / out, "--device", "cpu",
            "--batch-size", 4, "--metrics", "l1,removal_vqa", "--models.vqa", "tests.rehearsal:no",
            "--control", "none", *more,
        )  # fmt: skip
        assert done.code == code, done.stderr
        SENT.sort()  # blocks are made side by side
        return RunDir(tmp_path / out / "Service" / "negative"), done

    return run


def notes_of(run):
    return " ".join((run.out / "table.md").read_text().split())


def contents(run):
    kept = (path for path in run.path.rglob("*") if path.suffix in (".png", ".csv", ".jsonl"))
    return {str(path.relative_to(run.path)): path.read_bytes() for path in kept if "costs" not in path.parts}


BUSY = {"error": "HTTP 429: too many requests", "transient": True}
REFUSED = {"error": "moderation_blocked: violence", "refused": True}


def test_what_a_service_failed_at_is_sent_again_and_nothing_else(service, edit):
    whole, _ = edit(out="whole")
    assert {row["image"] for row in edits_of(whole.path)} == {f"images/000/{name}.png" for name in NAMES}
    assert RunDir.image_name(12_999, "a") == "images/012/a.png"  # folders of a thousand
    service(s1_2=BUSY, s3_1=BUSY)
    run, done = edit()
    assert "2 x not edited: HTTP 429: too many requests" in done.stderr
    assert "4 failed; retry with" in done.stderr  # two samples in two metrics
    kept = {path: path.stat().st_mtime_ns for path in run.path.rglob("*.png")}
    assert len(kept) == 4
    service(s3_1=BUSY)
    edit()
    assert SENT == [NAMES[1], NAMES[4]]
    assert [row["id"] for row in edits_of(run.path) if row["again"]] == [NAMES[4]]
    service()
    edit()
    assert SENT == [NAMES[4]]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert contents(run) == contents(whole)
    edit()
    assert SENT == []


def test_what_costs_money_is_made_of_the_selected_samples_alone_and_completed_later(service, edit):
    whole, _ = edit(out="whole")
    run, done = edit("--limit", 3)
    assert SENT == NAMES[::2]  # one of each source image
    assert "have no score" not in done.stderr
    edit("--limit", 3)
    assert SENT == []
    edit()
    assert SENT == NAMES[1::2]
    assert contents(run) == contents(whole)
    run.image_path(run.edits[NAMES[1]]).unlink()
    edit()
    assert SENT == [NAMES[1]]
    assert contents(run) == contents(whole)
    service(paid=False)  # one that costs nothing makes blocks, as wholes
    free, _ = edit("--limit", 3, out="free")
    free.image_path(free.edits[NAMES[2]]).unlink()
    edit("--limit", 3, out="free")
    assert SENT == NAMES[::2]


def test_pictures_of_another_aspect_ratio_are_counted_and_what_compares_them_is_named(edit, monkeypatch):
    def edit_one(self, request):
        height = len(request.image)
        kept = height * 2 // 3 if request.id == NAMES[1] else height - 1
        return EditResult(request.id, 255 - request.image[:kept])

    monkeypatch.setattr(Service, "edit_one", edit_one)
    run, _ = edit()
    assert [row["id"] for row in edits_of(run.path) if row["reshaped"]] == [NAMES[1]]
    said = "Service/negative: 1 of 6 images came back with another aspect ratio and are"
    assert f"{said} stretched to the target's size for L1." in notes_of(run)


def test_a_refusal_is_an_outcome_of_its_own_counted_by_template_and_not_sent_again(service, edit, tmp_path):
    service(s1_1=REFUSED, s3_1=REFUSED)
    run, _ = edit()
    assert "2 of 6 edits were refused by the editor, for instance: moderation_blocked" in notes_of(run)
    sheet = sections.make_paper_tables()[1].sheet(frames.read(tmp_path / "out" / "figures.csv"))
    assert sheet.rows[0][sheet.columns.index("refused")] == "2 of 6"
    found = frames.records(frames.select(frames.read(run.path / "figures.csv"), task="refusals"))
    counts = {one["group"]: (round(one["value"] * one["n"]), one["n"]) for one in found}
    told = {row["id"]: of_runs.TEMPLATES[row["template"]] for row in edits_of(run.path)}
    assert counts.pop("all") == (2, 6)
    assert counts == {told[name]: (int(name in (NAMES[0], NAMES[4])), 1) for name in NAMES}
    values = {row.id: row.value for row in run.score_rows() if row.metric == "removal_vqa"}
    assert [values[name] for name in NAMES] == [None, 1, 1, 1, None, 1]
    shift = {(row["quirk"], row["statistic"]): row for row in protocols.make_rows(RunDir(run.path))}
    assert shift["denominator", "paper"]["n"] == 4  # no failure of the editor under any protocol
    service()
    edit()
    assert SENT == []
    run.image_path(run.edits[NAMES[1]]).unlink()
    edit()
    assert SENT == NAMES[1:2]
    (run.path / "c.yaml").write_text("retry_refused: true")
    _, done = edit("--config", run.path / "c.yaml")
    assert SENT == [NAMES[0], NAMES[4]]
    assert "refused" not in done.stdout
