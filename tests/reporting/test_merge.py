"""`nein merge`: parts of runs, made on several machines, in one folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import Folder
from nein.reporting import status
from nein.reporting.status import _finish
from tests.helpers.commands import outcome


def part(root: Path, blocks: dict[int, list[dict[str, Any]]], status: str = "running", seed: int = 0) -> Path:
    """A machine's folder with one run, ROOT/editor/track."""
    run = root / "editor" / "track"
    for number, rows in blocks.items():
        atomic.write_lines(run / "edit" / "000" / f"{number:06d}.jsonl", rows)
        for row in rows:
            if "image" in row:
                atomic.write_text(run / row["image"], f"{root.name}'s")
    atomic.write_text(run / "figures.csv", "canonical\n")
    atomic.write_text(run / "attempts" / "one", "at work")
    command = ["eval", "--limit", "8", "--out", str(root)]
    atomic.write_json(
        run / "notes" / "invocations" / f"{root.name}.json", {"started": "now", "command": command}
    )
    atomic.write_json(run / "manifest.json", {"format": 5, "status": status, "identity": {"seed": seed}})
    return root


def rows(number: int) -> list[dict[str, Any]]:
    return [{"id": str(number), "image": f"images/{number}.png"}]


def test_blocks_of_several_folders_are_put_together_with_their_pictures(tmp_path: Path) -> None:
    a = part(tmp_path / "a", {0: rows(0), 1: rows(1)})
    b = part(tmp_path / "b", {1: rows(1), 2: rows(2)})
    # A picture whose block was never finished there.
    atomic.write_text(a / "editor" / "track" / "images" / "2.png", "half")
    [merged] = status.merged([a, b], tmp_path / "out")
    run = tmp_path / "out" / "editor" / "track"
    assert sorted(file.name for file in run.rglob("0*.jsonl")) == [f"{n:06d}.jsonl" for n in range(3)]
    assert [(run / f"images/{n}.png").read_text() for n in range(3)] == ["a's", "a's", "b's"]
    assert list(merged.taken.values()) == [2, 1]
    assert merged.differing == []
    assert not (run / "figures.csv").exists()
    assert not (run / "attempts").exists()
    assert Folder(run).manifest()["status"] == "incomplete"
    assert len(Folder(run).manifest()["invocations"]) == 2


def test_a_block_that_is_set_aside_in_one_folder_and_made_in_another_is_the_one_that_was_made(
    tmp_path: Path,
) -> None:
    a = part(tmp_path / "a", {number: [{"id": str(number), "error": "set aside"}] for number in (0, 1)})
    for number in (0, 1):
        note = {"stage": "edit", "block": number, "reason": "set aside", "outputs": ["edit", "scores/fid"]}
        Folder(a / "editor" / "track").note("aside", f"edit-{number:06d}", note)
    b = part(tmp_path / "b", {0: rows(0)})
    [merged] = status.merged([a, b], tmp_path / "out")
    folder = Folder(tmp_path / "out" / "editor" / "track")
    assert folder.read("edit", 0) == rows(0)
    assert merged.differing == []
    assert folder.done("edit") == {0}  # the other one is tried again
    assert folder.notes("aside") == {}


def test_a_run_that_only_one_folder_has_comes_whole_and_again_changes_nothing(tmp_path: Path) -> None:
    a = part(tmp_path / "a", {0: rows(0)}, status="complete")
    for _ in range(2):
        status.merged([a], tmp_path / "out")
        run = tmp_path / "out" / "editor" / "track"
        assert (run / "figures.csv").read_text() == "canonical\n"
        assert Folder(run).manifest()["status"] == "complete"


def test_what_was_made_of_a_block_stays_newer_than_it_and_files_beside_are_no_blocks(tmp_path: Path) -> None:
    folders = []
    for number, name in enumerate("ab"):
        run = part(tmp_path / name, {}) / "editor" / "track"
        for second, output in enumerate(
            ("work/verify", "work/paraphrase")
        ):  # the second is made of the first
            for suffix in ("jsonl", "safetensors"):
                file = run / output / "000" / f"{number:06d}.{suffix}"
                atomic.write_text(file, '{"id": "0"}\n')
                os.utime(file, (second, second))
        folders.append(tmp_path / name)
    [merged] = status.merged(folders, tmp_path / "out")
    assert list(merged.taken.values()) == [2, 2]
    folder = Folder(tmp_path / "out" / "editor" / "track")
    for number in (0, 1):
        stamps = [folder.stamp(output, number) for output in ("work/verify", "work/paraphrase")]
        assert stamps == sorted(stamps, key=lambda stamp: stamp or 0)


def test_a_merge_that_was_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [part(tmp_path / name, {n: rows(n)}) for n, name in enumerate("abc")]
    copy, count = status._copy, 0

    def dying(file: Path, target: Path, *, again: bool = False) -> None:
        nonlocal count
        count += 1
        if count == 6:
            raise KeyboardInterrupt
        copy(file, target, again=again)

    with monkeypatch.context() as patched:
        patched.setattr(status, "_copy", dying)
        with pytest.raises(KeyboardInterrupt):
            status.merged(folders, tmp_path / "out")
    status.merged(folders, tmp_path / "out")
    run = tmp_path / "out" / "editor" / "track"
    assert [(run / f"images/{n}.png").read_text() for n in range(3)] == ["a's", "b's", "c's"]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: Folder(run).write("edit", 0, [{"id": "0", "image": "../../../../x"}]), "leads out of"),
        (lambda run: Folder(run).write("edit", 0, [{"id": "0", "image": "/etc/passwd"}]), "leads out of"),
        (lambda run: (run / "notes.txt").symlink_to("/etc/passwd"), "is a link"),
        (lambda run: (run / "linked").symlink_to("/etc"), "is a link"),
    ],
)
def test_a_run_from_somebody_else_writes_and_reads_nowhere_else(
    tmp_path: Path, spoil: Any, said: str
) -> None:
    (tmp_path / "x").write_text("mine")
    a = part(tmp_path / "parts" / "a", {0: rows(0)})
    spoil(a / "editor" / "track")
    with pytest.raises(UserError, match=said):
        status.merged([a], tmp_path / "out")
    assert (tmp_path / "x").read_text() == "mine"
    assert not list((tmp_path / "out").rglob("notes.txt"))


def test_blocks_that_differ_are_counted_and_the_first_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = part(tmp_path / "a", {0: [{"id": "0", "value": 1.0}]})
    b = part(tmp_path / "b", {0: [{"id": "0", "value": 1.0000001}]})
    said = outcome(capsys, "merge", a, b, "--out", tmp_path / "out")
    assert said.code == 0
    assert "1 blocks differ, of which the first were kept (edit/000/000000.jsonl" in said.stdout
    assert f"To finish:\n  nein eval --limit 8 --out {tmp_path / 'out'}\n" in said.stdout
    [block] = (tmp_path / "out").rglob("000000.jsonl")
    assert atomic.read_lines(block) == [{"id": "0", "value": 1.0}]


def test_what_are_no_parts_of_one_run_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    a, b = part(tmp_path / "a", {0: rows(0)}), part(tmp_path / "b", {1: rows(1)}, seed=1)
    with pytest.raises(UserError, match="not parts of one run: the second was made with seed 1, not 0"):
        status.merged([a, b], tmp_path / "out")
    with pytest.raises(UserError, match="There is no run in"):
        status.merged([a, tmp_path / "nothing"], tmp_path / "out")
    for folder, article in ((a, "none"), (b, "a_an")):
        run = folder / "editor" / "track"
        atomic.write_json(run / "scores" / "removal" / "identity.json", {"article": article})
        atomic.write_json(run / "manifest.json", {"format": 5, "status": "running", "identity": {}})
    with pytest.raises(
        UserError, match=r"'scores/removal' of .* differ: the first has article a_an, not none"
    ):
        status.merged([a, b], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("where", [["--out", "there"], ["--out=there"], ["-o", "there"], ["-othere"]])
def test_the_command_that_finishes_a_merged_run_names_its_new_folder_alone(where: list[str]) -> None:
    assert _finish(["eval", *where, "--limit", "8"], Path("here")) == "nein eval --limit 8 --out here"
    assert _finish(["eval", "--data", "my data"], Path("a b")) == "nein eval --data 'my data' --out 'a b'"
