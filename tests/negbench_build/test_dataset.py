"""What is written as it comes: the same bytes whatever the chunks, little memory, nothing out of date."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nein.datasets.negbench import official
from nein.datasets.negbench.concepts import Concepts
from nein.datasets.negbench.media import Drawn
from nein.engine.errors import UserError
from nein.engine.folder import Folder
from nein.generate.negbench import dataset, listing
from nein.generate.negbench.config import BuildConfig
from nein.generate.negbench.work import Job
from tests.helpers.memory import Peak
from tests.negbench_build.test_build import coco_arguments, contents


def job_of(out: Path, images: list[Concepts], **options: Any) -> Job:
    config = BuildConfig(**{"source": "captions", "captions": "x", "form": "training", **options})
    drawn, folder = Drawn(lambda name: np.zeros((4, 4, 3), np.uint8)), Folder(out)
    return Job(config, listing.write(folder, images, 4), drawn, folder)


def scenes(count: int) -> list[Concepts]:
    return [
        Concepts(f"{k}", f"{k}.jpg", (f"A dog, a cat and table {k}",), ("dog", "cat"), ("car", "boat"))
        for k in range(count)
    ]


def test_the_length_of_a_chunk_decides_nothing(
    coco: Path, negbench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert negbench(*coco_arguments(coco, tmp_path / "whole")).code == 0
    monkeypatch.setattr(dataset, "CHUNK", 2)
    assert negbench(*coco_arguments(coco, tmp_path / "parts")).code == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    assert len(official.read_questions(tmp_path / "parts" / "dataset" / "mcq.csv")) > 4


def test_a_file_that_an_earlier_command_wrote_and_this_one_does_not_is_gone(
    coco: Path, negbench: Callable[..., Any], tmp_path: Path
) -> None:
    assert negbench(*coco_arguments(coco, tmp_path)).code == 0
    (tmp_path / "dataset" / "mcq_rephrased.csv").write_text("of another time\n")
    assert negbench(*coco_arguments(coco, tmp_path)).code == 0
    found = {path.name for path in (tmp_path / "dataset").iterdir()}
    assert found == {"README.md", "negated_retrieval.csv", "retrieval.csv", "mcq.csv"}


def test_memory_does_not_grow_with_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peak: Peak
) -> None:
    monkeypatch.setattr(dataset, "CHUNK", 50)

    def of(count: int) -> int:
        job = job_of(tmp_path / str(count), scenes(count))

        def write() -> None:
            assert dataset.write(job)["files"]["negcap.csv"]["rows"] == 3 * count

        return peak(write)

    assert (of(900) - of(100)) / 800 < 600  # bytes; records that are all kept take 3,700


def test_an_id_that_occurs_twice_is_refused_and_what_was_there_stays(tmp_path: Path) -> None:
    job = job_of(tmp_path, scenes(2), source="pairs")
    one = scenes(1)[0].row()
    job.folder.write("work/pairs", 0, [one, one])
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "negcap.csv").write_text("before")
    with pytest.raises(UserError, match="the id '0' occurs more than once"):
        dataset.write(job)
    assert [path.name for path in (tmp_path / "dataset").iterdir()] == ["negcap.csv"]
    assert (tmp_path / "dataset" / "negcap.csv").read_text() == "before"


def test_a_failed_pair_is_counted_whatever_its_picture_is_called(tmp_path: Path) -> None:
    start = [Concepts("a-with", "a.png"), Concepts("b-without", "b.png"), Concepts("c", "c.png")]
    made = [
        Concepts("a-with", problem="no try"),
        Concepts("b-without-without", "b1.png", ("A dog",), ("dog",), ("cat",)),
        Concepts("b-without-with", "b2.png", ("A dog and a cat",), ("dog", "cat"), ("car",)),
        Concepts("c", problem="no try"),
    ]
    job = job_of(tmp_path, start, source="pairs")
    job.folder.write("work/pairs", 0, [image.row() for image in made])
    facts = dataset.write(job)
    one = replace(job, config=replace(job.config, limit=1))
    assert [image.id for image, _ in dataset.images(one)] == ["a-with"]
    assert facts["unusable"] == {"no try": 2}
    assert facts["images"] == 4


def test_odd_characters_in_names_do_not_cut_a_line_of_the_list(tmp_path: Path) -> None:
    odd = [Concepts(f"a\u2028{k}\x85", f"a\u2028{k}.jpg", ("A\u2028dog",), ("dog",)) for k in range(6)]
    folder = Folder(tmp_path)
    found = listing.write(folder, [*odd, odd[0]], 4)
    assert [*listing.members(folder, 0), *listing.members(folder, 1)] == odd
    assert listing.write(None, odd, 3).sha256 == found.sha256
    assert found.notes == {"listed twice, left out the second time": 1}
