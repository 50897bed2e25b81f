"""`nein grid`: what it reads, which samples it takes, and that the pictures are where they belong."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nein.benchmarks.nein.config import GridConfig
from nein.benchmarks.nein.reporting import grid
from nein.benchmarks.nein.runs import EDIT, RunDir
from nein.datasets.nein.samples import Dataset, load_folder
from nein.engine.errors import UserError
from nein.engine.images import decode, write_png
from nein.reporting import contact_sheet
from nein.reporting.contact_sheet import GREEN, GREY, RED, Badge, Cell, Row
from tests.helpers import runs

RED_RGB = (0xB3, 0x26, 0x1E)


@pytest.fixture
def dataset(make_data: Callable[..., Path]) -> Dataset:
    return load_folder(make_data(sources=4, per_source=2))


@pytest.fixture
def make_run(tmp_path: Path, dataset: Dataset) -> Callable[..., RunDir]:
    """Writes a finished run: every edit is one colour; `scores` is metric -> values in data order."""

    def make(editor="ip2p", track="negative", color=(200, 30, 40), scores=None, failed=(), out="out", **data):
        run = RunDir(tmp_path / out, editor, track)
        edits = []
        for sample in dataset.samples:
            edit: dict[str, object] = {
                "id": sample.id, "image": f"images/{sample.id}.png", "error": None, "template": None,
                "source_id": sample.source_id, "object": sample.object, "instruction": sample.negative,
            }  # fmt: skip
            if sample.id in failed:
                edit |= {"image": None, "error": "the model gave values that are not finite"}
            else:
                write_png(run.image_path(sample.id), np.full((24, 32, 3), color, np.uint8))
            edits.append(edit)
        lines = [
            {"id": s.id, "metric": m, "value": v, "reason": "because", "detail": {}}
            for m, values in (scores or {}).items()
            for s, v in zip(dataset.samples, values, strict=True)
        ]
        origin = {**dataset.origin, "records_sha256": dataset.records_sha256, **data}
        return runs.write(run, edits, lines, data=origin, size=2)

    return make


def ids(samples):
    return [sample.id for sample in samples]


def where(whole: np.ndarray, part: np.ndarray) -> list[tuple[int, int]]:
    """(top, left) of every place where `part` stands in `whole`."""
    corners = np.argwhere(
        (whole[: 1 - part.shape[0] or None, : 1 - part.shape[1] or None] == part[0, 0]).all(-1)
    )
    h, w = part.shape[:2]
    return [(y, x) for y, x in corners.tolist() if np.array_equal(whole[y : y + h, x : x + w], part)]


def test_the_command_writes_one_png_with_every_picture_in_its_column(make_run, dataset):
    first, second = make_run(color=(200, 30, 40)), make_run("magicbrush", color=(30, 40, 200))
    done = grid.grid(GridConfig.parse([str(first.out), "--ids", dataset.samples[3].id, "--size", "96"]))
    path = first.out / "grid.png"
    assert done.strip() == str(path)
    drawn = decode(path)
    sample = dataset.samples[3]
    expected = [
        decode(sample.sample_path),
        decode(first.image_path(sample.id)),
        decode(second.image_path(sample.id)),
        decode(sample.source_path),
    ]
    places = [where(drawn, np.asarray(contact_sheet.fit(picture, 96))) for picture in expected]
    assert [len(place) for place in places] == [1, 1, 1, 1]
    tops, lefts = zip(*(place[0] for place in places), strict=True)
    assert len(set(tops)) == 1
    assert list(lefts) == [contact_sheet.MARGIN + i * (96 + contact_sheet.GAP) for i in range(4)]


def test_one_run_directory_can_be_drawn_alone_and_elsewhere(make_run, dataset, tmp_path):
    run, other = make_run(), make_run("magicbrush")
    grid.grid(GridConfig.parse([str(run.path), "-n", "2", "--out", str(tmp_path / "new" / "a.png")]))
    grid.grid(GridConfig.parse([str(run.path), str(other.path), "-n", "2", "--out", str(tmp_path / "b.png")]))
    narrow, wide = Image.open(tmp_path / "new" / "a.png").size, Image.open(tmp_path / "b.png").size
    assert wide[0] - narrow[0] == 192 + contact_sheet.GAP
    assert wide[1] == narrow[1]


def test_tracks_are_columns_and_their_instructions_head_the_row(make_run, dataset):
    make_run(track="remove")
    run = make_run(track="negative")
    found = grid.read_runs([run.out])
    assert [records.run.track for records in found] == ["negative", "remove"]
    sample = dataset.samples[0]
    row = grid.build_row(sample, grid.columns(found))
    assert row.title == f"negative: {sample.negative}\nremove: {sample.instruction('remove')}"
    assert len(row.cells) == 4
    assert [column.caption for column in grid.columns(found)[1:-1]] == ["ip2p\nnegative", "ip2p\nremove"]
    only = grid.read_runs([run.out], ["remove"])
    assert grid.build_row(sample, grid.columns(only)).title == sample.instruction("remove")
    assert grid.columns(only)[1].caption == "ip2p"


def test_verdicts_are_read_from_the_scores(make_run, dataset):
    run = make_run(
        scores={
            "removal_vqa": [1.0, 0.0, None, *[1.0] * 5],
            "removal_ovd": [0.0, 1.0, 1.0, *[1.0] * 5],
            "clip_i": [0.8125, 0.5, None, *[0.1] * 5],
        }
    )
    found = grid.read_runs([run.out])
    badges = [
        grid.build_row(sample, grid.columns(found), "clip_i").cells[1].badges
        for sample in dataset.samples[:3]
    ]
    assert badges[0] == [
        Badge("VQA: removed", GREEN),
        Badge("OVD: still there", RED),
        Badge("CLIP-I 81.2", GREY),
    ]
    assert badges[1][:2] == [Badge("VQA: still there", RED), Badge("OVD: removed", GREEN)]
    assert badges[2][0] == Badge("VQA: unscored", GREY)
    assert badges[2][2] == Badge("CLIP-I unscored", GREY)


def test_failed_missing_and_unreadable_pictures_are_labelled_cells(make_run, dataset):
    samples = dataset.samples
    run = make_run(failed=[samples[0].id])
    run.block_path(EDIT, 3).unlink()
    run.image_path(samples[1].id).unlink()
    samples[1].sample_path.write_bytes(samples[1].sample_path.read_bytes()[:40])
    found = grid.read_runs([run.out])
    failed, broken, absent = (grid.build_row(samples[i], grid.columns(found)).cells for i in (0, 1, -1))
    assert failed[1].message == "failed: the model gave values that are not finite"
    assert failed[1].picture is None
    assert "missing" in broken[1].message
    assert str(samples[1].sample_path) in broken[0].message
    assert absent[1].message == "not edited yet"
    grid.grid(GridConfig.parse([str(run.out), "--ids", ",".join(samples[i].id for i in (0, 1, -1))]))
    drawn = decode(run.out / "grid.png")
    assert (drawn.reshape(-1, 3) == RED_RGB).all(1).sum() > 20  # the error text


def test_a_run_still_under_way_is_drawn_from_its_blocks(make_run, dataset):
    run = make_run()
    rows = run.read_edits()
    for number in (1, 2, 3):
        run.block_path(EDIT, number).unlink()
    (records,) = grid.read_runs([run.out])
    assert list(records.place) == [row["id"] for row in rows[:2]]
    assert ids(grid.choose(dataset, [records], number=5)) == [row["id"] for row in rows[:2]]


def test_chosen_ids_keep_their_order(make_run, dataset):
    found = grid.read_runs([make_run().out])
    wanted = [dataset.samples[i].id for i in (5, 0, 3)]
    assert ids(grid.choose(dataset, found, ids=wanted)) == wanted
    with pytest.raises(UserError, match=r"no sample 'NeIn_000000000001_9'.*did you mean 'NeIn_000000000001_"):
        grid.choose(dataset, found, ids=["NeIn_000000000001_9"])


def test_random_samples_follow_the_seed_and_stay_when_more_are_drawn(make_run, dataset):
    found = grid.read_runs([make_run().out])
    few = ids(grid.choose(dataset, found, number=3, seed=1))
    more = ids(grid.choose(dataset, found, number=5, seed=1))
    assert few == ids(grid.choose(dataset, found, number=3, seed=1))
    assert set(few) < set(more)
    everything = ids(dataset.samples)
    assert more == [name for name in everything if name in more]
    assert len({tuple(ids(grid.choose(dataset, found, number=3, seed=seed))) for seed in range(8)}) > 3


def test_worst_and_best_follow_the_direction_of_the_metric(make_run, dataset):
    values = [0.3, 0.1, 0.9, None, 0.7, 0.5, 0.2, 0.4]
    found = grid.read_runs([make_run(scores={"clip_i": values, "l1": values}).out])
    names = ids(dataset.samples)

    def chosen(select, metric):
        return [
            names.index(name)
            for name in ids(grid.choose(dataset, found, select=select, metric=metric, number=3))
        ]

    assert chosen("worst", "clip_i") == chosen("best", "l1") == [1, 6, 0]
    assert chosen("best", "clip_i") == chosen("worst", "l1") == [2, 4, 5]


def test_selection_averages_over_runs_and_leaves_out_unscored(make_run, dataset):
    make_run(scores={"dino": [0.9, 0.1, None, *[0.5] * 5]})
    run = make_run("magicbrush", scores={"dino": [0.0, 0.3, None, *[0.5] * 5]})
    found = grid.read_runs([run.out])
    order = ids(grid.choose(dataset, found, select="worst", metric="dino", number=8))
    names = ids(dataset.samples)
    assert order[:2] == [names[1], names[0]]  # means 0.2 and 0.45
    assert names[2] not in order
    assert len(order) == 7


def test_equal_values_are_ordered_by_the_seed(make_run, dataset):
    found = grid.read_runs([make_run(scores={"removal_vqa": [0.0] * 8}).out])
    picks = {
        tuple(ids(grid.choose(dataset, found, select="worst", number=2, seed=seed))) for seed in range(8)
    }
    assert len(picks) > 3


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--metric", "dinno", "--select", "worst"], "did you mean 'dino'"),
        (["--metric", "dino", "--select", "worst"], "no scores of dino"),
        (["--tracks", "add"], "no run of track add"),
        (["--number", "0"], "--number is '0'; it must be a whole number above 0"),
        (["--data", "/nowhere"], "no data folder '/nowhere'"),
    ],
)
def test_mistakes_are_sentences(arguments, expected, make_run):
    run = make_run()
    with pytest.raises(UserError, match=expected):
        grid.grid(GridConfig.parse([str(run.out), *arguments]))


def test_folders_that_are_no_runs_and_mixed_data_are_refused(make_run, tmp_path):
    with pytest.raises(UserError, match=r"holds no run \(no manifest.json\)"):
        grid.grid(GridConfig.parse([str(tmp_path)]))
    run, other = make_run(), make_run(out="other", records_sha256="0" * 64)
    with pytest.raises(UserError, match="different data"):
        grid.grid(GridConfig.parse([str(run.out), str(other.out)]))


def test_equal_editors_of_two_outputs_are_told_apart(make_run):
    run, other = make_run(), make_run(out="other")
    found = grid.read_runs([run.out, other.out, run.path])
    assert [column.caption for column in grid.columns(found)[1:-1]] == ["out/ip2p", "other/ip2p"]


def test_pictures_are_scaled_to_the_long_side_and_keep_their_shape():
    wide = np.zeros((30, 60, 3), np.uint8)
    assert contact_sheet.fit(wide, 192).size == (192, 96)
    assert contact_sheet.fit(wide.transpose(1, 0, 2), 20).size == (10, 20)


def test_long_text_stays_inside_the_picture():
    row = Row("word " * 300, "x" * 2000, [Cell(None, "unbroken" * 50, [Badge("b" * 300, GREEN)])])
    drawn = contact_sheet.draw(["column" * 40], [row], 128)
    picture = np.asarray(Image.open(io.BytesIO(drawn.encoded())))
    assert picture.shape[:2] == (drawn.height, drawn.width)
    assert drawn.width == 128 + 2 * contact_sheet.MARGIN
    assert (picture[:, -contact_sheet.MARGIN + 4 :] == 255).all()
    assert (picture[-contact_sheet.MARGIN :] == 255).all()


def test_a_vector_file_has_letters_pictures_as_they_are_and_equal_bytes(make_run, dataset, tmp_path):
    run = make_run(color=(200, 30, 40), scores={"removal_vqa": [1.0] * 8})
    words = [str(run.out), "--ids", dataset.samples[3].id]
    grid.grid(GridConfig.parse([*words, "--out", str(tmp_path / "a.svg")]))
    text = (tmp_path / "a.svg").read_text()
    assert f">{dataset.samples[3].negative}<" in text
    assert ">VQA: removed<" in text
    grid.grid(GridConfig.parse([*words, "--size", "16", "--out", str(tmp_path / "small.svg")]))
    small = (tmp_path / "small.svg").read_text()
    pictures = re.findall(r'xlink:href="data:image/png;base64,([^"]+)"', small)
    sizes = {Image.open(io.BytesIO(base64.b64decode(one))).size for one in pictures}
    assert (32, 24) in sizes  # as the editor made it, and not 16 wide
    for name in ("a.pdf", "b.pdf"):
        grid.grid(GridConfig.parse([*words, "--out", str(tmp_path / name)]))
    pdf = (tmp_path / "a.pdf").read_bytes()
    assert pdf.startswith(b"%PDF-")
    assert b"/Subtype /Type0" in pdf or b"/FontDescriptor" in pdf  # letters in a font, not outlines
    assert pdf == (tmp_path / "b.pdf").read_bytes()
    grid.grid(GridConfig.parse([*words, "--out", str(tmp_path / "b.svg")]))
    assert (tmp_path / "b.svg").read_text() == text


def test_columns_captions_and_highlights_are_chosen(make_run, dataset, tmp_path):
    run = make_run(scores={"removal_vqa": [1.0] * 8})
    make_run("magicbrush")
    first, second = dataset.samples[1].id, dataset.samples[4].id
    out = tmp_path / "figure.svg"
    grid.grid(GridConfig.parse([
        str(run.out), "--ids", f"{first},{second}", "--columns", "target,magicbrush=MagicBrush", "--captions",
        "instruction", "--no-verdicts", "--highlight", f"magicbrush,{second}", "--out", str(out),
    ]))  # fmt: skip
    text = out.read_text()
    assert text.index(">target<") < text.index(">MagicBrush<")
    assert not any(word in text for word in (">ip2p<", ">NeIn sample<", ">VQA", "object: "))
    assert text.count(contact_sheet.MARKED) == 2  # a column and a row
    png = tmp_path / "figure.png"
    grid.grid(GridConfig.parse([str(run.out), "--ids", first, "--highlight", "ip2p", "--out", str(png)]))
    marked = tuple(int(contact_sheet.MARKED[at : at + 2], 16) for at in (1, 3, 5))
    assert (decode(png).reshape(-1, 3) == marked).all(1).sum() > 1000


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--out", "x.docx"], "'x.docx' is no picture that can be written; --out takes .png, .pdf or .svg."),
        (["--out", "x"], "--out takes .png, .pdf or .svg"),
        (["--out", "."], "'.' is a folder; --out takes a file, for example grid.png."),
        (["--columns", "sample,ipp2"], "Unknown column 'ipp2'; did you mean 'ip2p'?"),
        (["--highlight", "nobody"], "Unknown column or sample 'nobody'"),
    ],
)
def test_a_wrong_file_column_or_highlight_is_a_sentence(arguments, expected, make_run, tmp_path, monkeypatch):
    run = make_run()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=re.escape(expected)):
        grid.grid(GridConfig.parse([str(run.out), "-n", "1", *arguments]))
    assert not list(tmp_path.glob("x*"))


def test_sheets_that_are_drawn_side_by_side_have_the_bytes_of_sheets_drawn_in_turn():
    def sheet(number: int) -> bytes:
        picture = np.full((32, 32, 3), number, np.uint8)
        cells = [Cell(picture, f"cell {number}", [Badge("VQA: removed", GREEN)])] * 4
        columns = [f"column {letter} {number}" for letter in "abcd"]
        return contact_sheet.draw(
            columns, [Row(f"row {number} of a sheet", "a note", cells)], size=48
        ).encoded()

    in_turn = [sheet(number) for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert list(pool.map(sheet, range(24))) == in_turn
