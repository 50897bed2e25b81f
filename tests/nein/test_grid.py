"""`nein grid`: what it reads, which samples it takes, and that the pictures are where they belong."""

import base64
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from nein.benchmarks.nein import grid
from nein.benchmarks.nein.config import GridConfig
from nein.benchmarks.nein.runs import EDIT
from nein.datasets.nein import load_folder
from nein.engine.images import decode
from nein.loading.errors import UserError
from nein.reporting import contact_sheet
from nein.reporting.contact_sheet import GREEN, GREY, RED, Badge, Cell, Row
from tests.reporting import made

RED_RGB = (0xB3, 0x26, 0x1E)


@pytest.fixture
def dataset(make_data):
    return load_folder(make_data(sources=4, per_source=2))


@pytest.fixture
def make_run(tmp_path, dataset):
    """Writes a finished run; `scores` is metric -> values in data order, `failed` indices without an edit."""
    data = dataset.samples[0].source_path.parents[1]
    rows = json.loads((data / "val.json").read_text())

    def make(editor="ip2p", track="negative", scores=None, failed=(), out="out", sha=dataset.records_sha256):
        values = {metric: column.__getitem__ for metric, column in (scores or {}).items()}
        told = {"failed": failed, "sha": sha, "size": 2}
        return made.write_run(tmp_path / out, data, editor, track, rows, values, **told)

    return make


def ids(samples):
    return [sample.id for sample in samples]


def options(**given):
    return GridConfig(runs=[], **given)


def draw(*words):
    return grid.draw_grid(GridConfig.parse([str(word) for word in words]))


def where(whole, part):
    h, w = part.shape[:2]
    corners = np.argwhere((whole[: 1 - h or None, : 1 - w or None] == part[0, 0]).all(-1))
    return [(y, x) for y, x in corners.tolist() if np.array_equal(whole[y : y + h, x : x + w], part)]


def test_the_command_writes_one_png_with_every_picture_in_its_column(make_run, dataset):
    first, second = make_run(), make_run("magicbrush")
    sample, path = dataset.samples[3], first.out / "grid.png"
    assert draw(first.out, "--samples", sample.id, "--size", 96).strip() == str(path)
    edits = [run.image_path([*run.edits.values()][3]) for run in (first, second)]
    pictures = [decode(one) for one in (sample.sample_path, *edits, sample.source_path)]
    places = [where(decode(path), np.asarray(contact_sheet.fit(picture, 96))) for picture in pictures]
    [tops, lefts] = zip(*(place for [place] in places), strict=True)
    assert len(set(tops)) == 1
    assert list(lefts) == [contact_sheet.MARGIN + i * (96 + contact_sheet.GAP) for i in range(4)]


def test_tracks_are_columns_and_their_instructions_head_the_row(make_run, dataset):
    make_run(track="remove")
    run, sample = make_run(track="negative"), dataset.samples[0]
    found = grid.read_runs([run.out])
    assert [records.track for records in found] == ["negative", "remove"]
    row = grid.build_row(sample, grid.list_columns(found), options())
    assert row.title == f"negative: {sample.negative}\nremove: {sample.instruction('remove')}"
    assert len(row.cells) == 4
    assert [column.caption for column in grid.list_columns(found)[1:-1]] == ["ip2p\nnegative", "ip2p\nremove"]
    only = grid.read_runs([run.out], ["remove"])
    assert grid.build_row(sample, grid.list_columns(only), options()).title == sample.instruction("remove")
    assert grid.list_columns(only)[1].caption == "ip2p"


def test_verdicts_are_read_from_the_scores(make_run, dataset):
    run = make_run(scores={
        "removal_vqa": [1.0, 0.0, None, *[1.0] * 5], "removal_ovd": [0.0, 1.0, 1.0, *[1.0] * 5],
        "clip_i": [0.8125, 0.5, None, *[0.1] * 5],
    })  # fmt: skip
    columns = grid.list_columns(grid.read_runs([run.out]))
    one, two, three = (
        grid.build_row(s, columns, options(metric="clip_i")).cells[1].badges for s in dataset.samples[:3]
    )
    assert one == [Badge("VQA: removed", GREEN), Badge("OVD: still there", RED), Badge("CLIP-I 81.2", GREY)]
    assert two[:2] == [Badge("VQA: still there", RED), Badge("OVD: removed", GREEN)]
    assert (three[0], three[2]) == (Badge("VQA: unscored", GREY), Badge("CLIP-I unscored", GREY))


def test_failed_missing_and_unreadable_pictures_are_labelled_cells(make_run, dataset):
    samples = dataset.samples
    run = make_run(failed=[0])
    run.block_path(EDIT, 3).unlink()
    run.image_path([*run.edits.values()][1]).unlink()
    samples[1].sample_path.write_bytes(samples[1].sample_path.read_bytes()[:40])
    columns = grid.list_columns(grid.read_runs([run.out]))
    failed, broken, absent = (grid.build_row(samples[i], columns, options()).cells for i in (0, 1, -1))
    assert failed[1].message == "not edited: the editor <b>broke</b>"
    assert failed[1].image is None
    assert "missing" in broken[1].message
    assert str(samples[1].sample_path) in broken[0].message
    assert absent[1].message == "not edited yet"
    draw(run.out, "--samples", ",".join(samples[i].id for i in (0, 1, -1)))
    assert (decode(run.out / "grid.png").reshape(-1, 3) == RED_RGB).all(1).sum() > 20  # the error text


def test_chosen_ids_keep_their_order_and_random_ones_follow_the_seed_and_stay(make_run, dataset):
    found = grid.read_runs([make_run().out])
    wanted = [dataset.samples[i].id for i in (5, 0, 3)]
    assert ids(grid.pick_samples(dataset, found, options(samples=wanted))) == wanted
    with pytest.raises(UserError, match=r"no sample 'NeIn_000000000001_9'.*did you mean 'NeIn_000000000001_"):
        grid.pick_samples(dataset, found, options(samples=["NeIn_000000000001_9"]))
    few, more, again = (ids(grid.pick_samples(dataset, found, options(number=n, seed=1))) for n in (3, 5, 3))
    assert few == again
    assert set(few) < set(more)
    assert more == [name for name in ids(dataset.samples) if name in more]
    draws = (grid.pick_samples(dataset, found, options(number=3, seed=seed)) for seed in range(8))
    assert len({tuple(ids(samples)) for samples in draws}) > 3


def test_worst_and_best_follow_the_direction_of_the_metric_and_equal_ones_the_seed(make_run, dataset):
    values = [0.3, 0.1, 0.9, None, 0.7, 0.5, 0.2, 0.4]
    found = grid.read_runs([make_run(scores={"clip_i": values, "l1": values, "removal_vqa": [0.0] * 8}).out])
    names = ids(dataset.samples)

    def chosen(select, metric, runs=found, number=3):
        made = grid.pick_samples(dataset, runs, options(select=select, metric=metric, number=number))
        return [names.index(name) for name in ids(made)]

    assert chosen("worst", "clip_i") == chosen("best", "l1") == [1, 6, 0]
    assert chosen("best", "clip_i") == chosen("worst", "l1") == [2, 4, 5]
    picks = (
        grid.pick_samples(dataset, found, options(select="worst", number=2, seed=seed)) for seed in range(8)
    )
    assert len({tuple(ids(pick)) for pick in picks}) > 3
    make_run(scores={"dino": [0.9, 0.1, None, *[0.5] * 5]}, out="two")
    run = make_run("magicbrush", scores={"dino": [0.0, 0.3, None, *[0.5] * 5]}, out="two")
    order = chosen("worst", "dino", grid.read_runs([run.out]), 8)
    assert order[:2] == [1, 0]  # means 0.2 and 0.45
    assert (2 in order, len(order)) == (False, 7)


def test_mixed_data_are_refused_and_equal_editors_told_apart(make_run):
    run, other = make_run(), make_run(out="other", sha="0" * 64)
    with pytest.raises(UserError, match="different data"):
        draw(run.out, other.out)
    found = grid.read_runs([run.out, make_run(out="other").out, run.path])
    assert [column.caption for column in grid.list_columns(found)[1:-1]] == ["out/ip2p", "other/ip2p"]


def test_pictures_are_scaled_to_the_long_side_and_long_text_stays_inside():
    wide = np.zeros((30, 60, 3), np.uint8)
    assert contact_sheet.fit(wide, 192).size == (192, 96)
    assert contact_sheet.fit(wide.transpose(1, 0, 2), 20).size == (10, 20)
    row = Row("word " * 300, "x" * 2000, [Cell(None, "unbroken" * 50, [Badge("b" * 300, GREEN)])])
    drawn = contact_sheet.draw(["column" * 40], [row], 128)
    picture = np.asarray(Image.open(io.BytesIO(drawn)))
    assert picture.shape[1] == 128 + 2 * contact_sheet.MARGIN
    assert (picture[:, -contact_sheet.MARGIN + 4 :] == 255).all()
    assert (picture[-contact_sheet.MARGIN :] == 255).all()


def test_a_vector_file_has_letters_pictures_as_they_are_and_equal_bytes(make_run, dataset, tmp_path):
    run = make_run(scores={"removal_vqa": [1.0] * 8})
    words = (run.out, "--samples", dataset.samples[3].id)
    for name in ("a.svg", "b.svg", "a.pdf", "b.pdf"):
        draw(*words, "--out", tmp_path / name)
    text, pdf = (tmp_path / "a.svg").read_text(), (tmp_path / "a.pdf").read_bytes()
    assert f">{dataset.samples[3].negative}<" in text
    assert ">VQA: removed<" in text
    assert pdf.startswith(b"%PDF-")
    assert b"/Subtype /Type0" in pdf or b"/FontDescriptor" in pdf  # letters in a font, not outlines
    assert (pdf, text) == ((tmp_path / "b.pdf").read_bytes(), (tmp_path / "b.svg").read_text())
    draw(*words, "--size", 16, "--out", tmp_path / "small.svg")
    pictures = re.findall(r'xlink:href="data:image/png;base64,([^"]+)"', (tmp_path / "small.svg").read_text())
    sizes = {Image.open(io.BytesIO(base64.b64decode(one))).size for one in pictures}
    assert (32, 24) in sizes  # as the editor made it, and not 16 wide


def test_columns_captions_and_highlights_are_chosen(make_run, dataset, tmp_path):
    run = make_run(scores={"removal_vqa": [1.0] * 8})
    make_run("magicbrush")
    first, second = dataset.samples[1].id, dataset.samples[4].id
    svg, png = tmp_path / "figure.svg", tmp_path / "figure.png"
    draw(run.out, "--samples", f"{first},{second}", "--columns", "target,magicbrush=MagicBrush", "--captions",
         "instruction", "--no-verdicts", "--highlight", f"magicbrush,{second}", "--out", svg)  # fmt: skip
    text = svg.read_text()
    assert text.index(">target<") < text.index(">MagicBrush<")
    assert not any(word in text for word in (">ip2p<", ">NeIn sample<", ">VQA", "object: "))
    assert text.count(contact_sheet.MARKED) == 2  # a column and a row
    draw(run.out, "--samples", first, "--highlight", "ip2p", "--out", png)
    marked = tuple(int(contact_sheet.MARKED[at : at + 2], 16) for at in (1, 3, 5))
    assert (decode(png).reshape(-1, 3) == marked).all(1).sum() > 1000
