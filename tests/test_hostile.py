"""Text of somebody else that becomes a path, a command, a page or a cell (docs/explanation/threats.md)."""

import hashlib
import html.parser
import itertools
import json
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from nein.benchmarks.nein.runs import EditRow, RunDir
from nein.datasets import negvqa as questions
from nein.datasets.negbench.media import Files, ImageError
from nein.datasets.nein import load_folder
from nein.loading.errors import UserError
from nein.models import references
from tests.helpers.commands import outcome
from tests.loopback import say
from tests.nein.conftest import write_data

SECRET = "SECRET-42"
#: Of paths, shells, pages, spreadsheets, terminals, archives and templates.
PARTS = (
    "../", "../../secret.txt", "/etc/passwd", "..", ".", "~", "~root/", "~nobody-here/", "..\\..\\x",
    "%2e%2e%2f", "x\0y", "a/b", "\n", "\r", "$(touch pwned)", "`touch pwned`", "; touch pwned #",
    "| touch pwned", "pipe:touch pwned", "-rf", "--out=x", "file:///etc/passwd", "http://127.0.0.1:9/",
    "<script>x()</script>", "</script>", '"><img src=x onerror=x()>', "<svg/onload=x()>", "javascript:x()",
    "=1+1", "+1", "@SUM(A1)", "|calc", "\t=1", "\x1b[2J", "\x1b]0;x\x07", "\u202e", "{{7*7}}", "${HOME}",
    "%s%n", "'", '"', "\\", "CON", "x" * 300, "é", " ", "",
)  # fmt: skip


def drawn(seed, count):
    rng = random.Random(seed)
    return [*PARTS, *("".join(rng.choices(PARTS, k=rng.choice((2, 3)))) for _ in range(count))]


@pytest.fixture
def room(tmp_path, monkeypatch):
    """The current folder. Outside it nothing may change, and nothing inside it may be made by a shell."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NEIN_CACHE", str(tmp_path / "a" / "room" / "cache"))
    (tmp_path / "secret.txt").write_text(SECRET)
    Image.new("RGB", (8, 8), (250, 0, 0)).save(tmp_path / "secret.png")
    room = tmp_path / "a" / "room"
    room.mkdir(parents=True)
    monkeypatch.chdir(room)
    before = outside(tmp_path)
    yield room
    assert outside(tmp_path) == before
    assert not list(tmp_path.rglob("*pwned*"))


def outside(place):
    files = (path for path in place.rglob("*") if path.is_file() and "room" not in path.parts)
    return {str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def nein_ids(room):
    write_data(room / "data", 1, 1)
    file = room / "data" / "val.json"
    records = json.loads(file.read_text())

    def look(text):
        file.write_text(json.dumps([{**records[0], "NeIn": text}]))
        return load_folder(room / "data").samples[0].sample_path

    return look


def images_without_a_thing(room):
    write_data(room / "data", 1, 1)
    file = room / "data" / "val.json"
    [record] = json.loads(file.read_text())

    def look(text):
        things = [{"name": "cup", "stays": False, "without": text}]
        file.write_text(json.dumps([{**record, "things": things}]))
        return load_folder(room / "data").samples[0].things[0].without

    return look


def negbench_pictures(room):
    (room / "pictures").mkdir()
    Image.new("RGB", (8, 8), (0, 0, 250)).save(room / "pictures" / "x.png")
    files = Files(room / "pictures")

    def look(text):
        for name in (text, f"{text}/../../../secret.png", f"../../../{text}"):
            try:
                assert np.array_equal(files.frames(name)[0][0, 0], (0, 0, 250))
            except ImageError:
                continue

    return look


def hub_questions(room):
    options = {"A": "cat", "B": "dog"}
    record = {
        "index": 1, "image": "", "question": "Is it a cat?", "negated_question": "Is it no cat?",
        "original_answer": "A", "negated_answer": "B", **options,
    }  # fmt: skip
    (room / "pictures").mkdir()

    def look(text):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(questions.hub, "read", lambda *given: [{**record, "image": text}])
            picture = questions.load("hub:some/body", image_folder=str(room / "pictures")).items[0].image
        return picture if isinstance(picture, Path) else None

    return look


def edits(room):
    run = RunDir(room / "run" / "identity" / "negative")
    return lambda text: run.image_path(EditRow("", "", "", "", image=text))


def model_folders(room):
    def look(text):
        folder = references.slugify(text)
        assert folder not in ("", ".", "..")
        assert Path(folder).name == folder
        assert folder.isprintable()
        return room / folder

    return look


PLACES = [nein_ids, images_without_a_thing, negbench_pictures, hub_questions, edits, model_folders]


@pytest.mark.parametrize("place", PLACES)
def test_no_name_leads_out_of_its_folder(place, room):
    look = place(room)
    for text in drawn(7, 60):
        try:
            path = look(text)
        except UserError:
            continue
        assert path is None or path.resolve().is_relative_to(room), text


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.active = []

    def handle_starttag(self, tag, attrs):
        if tag in ("script", "iframe", "object", "embed", "base", "form", "link"):
            self.active.append((tag, ""))
        for name, value in attrs:
            address = (value or "").strip().lower()
            outer = name in ("src", "href", "action") and not address.startswith(("data:", "#"))
            if name.startswith("on") or outer:
                self.active.append((f"{tag} {name}", address))


def assert_harmless(room, folder, made, capsys, plain):
    """Of a run and its page, which runs and fetches as much as a `plain` one; that is what is returned."""
    report = outcome(capsys, "report", f"{folder}/run", "-o", f"{folder}/p.html")
    assert report.code == 0, made.stderr + report.stderr
    said = made.stdout + made.stderr + report.stdout + report.stderr
    assert all(c.isprintable() or c == "\n" for c in said)
    page = Page()
    page.feed((room / folder / "p.html").read_text())
    assert plain in (page.active, None)
    tables = list((room / folder).rglob("*.csv"))
    assert tables
    for file in tables:
        cells = pd.read_csv(file, dtype=str, keep_default_na=False).stack()
        words = cells[pd.to_numeric(cells, errors="coerce").isna()]
        assert not words.str.startswith(("=", "+", "-", "@", "|", "\t", "\r")).any(), file
    for file in (room / folder).rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()
    return page.active


def test_text_of_a_data_set_stays_text(room, capsys):
    file = write_data(room / "data", 12, 2) / "val.json"
    records, plain = json.loads(file.read_text()), None
    texts = itertools.cycle(
        text for text in drawn(3, 40) if any(map(str.isalnum, text)) and text.isprintable()
    )
    for folder in ("plain", "hostile"):
        if folder != "plain":
            for record in records:
                noun = next(texts)
                record["T_original"] = next(texts)
                record["T_negative"] = f"The image doesn't have any {noun}."
                record["T_generated"] = f"Add a {noun}."
            file.write_text(json.dumps(records))
        words = ("--editor", "identity", "--metrics", "l1", "--data", "data", "--out", f"{folder}/run")
        plain = assert_harmless(room, folder, outcome(capsys, "eval", *words), capsys, plain)


def test_what_a_server_says_stays_text(room, capsys, server):
    plain = None
    for folder in ("plain", "answers", "errors"):
        texts = ["A"] if folder == "plain" else drawn(5, 20)
        code = 400 if folder == "errors" else 200

        def rule(body, count, texts=texts, code=code):
            text = texts[count % len(texts)]
            return (code, {"error": {"message": text}} if code == 400 else say(text), {})

        server.rule = rule
        words = ("--model", f"m=openai:{server.url}#eye-7b", "--questions", "8", "--blind", "0")
        made = outcome(capsys, "negvqa", *words, "--out", f"{folder}/run")
        plain = assert_harmless(room, folder, made, capsys, plain)


def test_a_run_folder_shows_no_picture_from_elsewhere(room, capsys):
    write_data(room / "data", 1, 2)
    run = room / "run" / "identity" / "negative"
    words = ("--editor", "identity", "--metrics", "l1", "--data", "data", "--out", "run")
    assert outcome(capsys, "eval", *words).code == 0
    first, second = (run / "images" / "000" / f"NeIn_00000000000{1}_{k}.png" for k in (1, 2))
    first.unlink()
    first.symlink_to(room.parents[1] / "secret.png")
    for command in ("report", "grid"):
        shown = outcome(capsys, command, "run", "-o", "p.html" if command == "report" else "g.png")
        assert shown.code == 2
        assert "leads out of" in shown.stderr
    block = run / "edit" / "000" / "000000.jsonl"
    text = block.read_text()
    for name in ("../../../../../../secret.png", "/etc/x.png"):
        block.write_text(text.replace(f"images/000/{second.name}", name))
        assert outcome(capsys, "grid", "run", "-o", "g.png").code == 2


def test_the_status_of_a_run_folder_moves_no_cursor_and_ends_in_no_traceback(room, capsys):
    write_data(room / "data", 1, 1)
    words = ("--editor", "identity", "--metrics", "l1", "--data", "data", "--out", "run")
    assert outcome(capsys, "eval", *words).code == 0
    run = (room / "run" / "identity").rename(room / "run" / "\x1b[2J\u202e") / "negative"
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "status": "\x1b]0;x\x07\r"}))
    said = outcome(capsys, "status", "run")
    assert said.code == 0
    assert said.stdout.startswith("run/?[2J?/negative: ?]0;x??\n")
    assert all(c.isprintable() or c == "\n" for c in said.stdout)
    for file in (*run.glob("notes/*"), run / "manifest.json"):
        text = file.read_text()
        file.write_text("[" * 100_000 + "\n")
        said = outcome(capsys, "status", "run")
        assert (said.code, said.stdout) == (2, "")
        assert "recursion limit exceeded" in said.stderr
        assert all(c.isprintable() or c == "\n" for c in said.stderr)
        file.write_text(text)
