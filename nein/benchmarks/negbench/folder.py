"""Defines the folder of a NegBench run: its outputs and the types of their rows (docs/reference/files.md)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from typing_extensions import NotRequired

from nein.engine.atomic import record
from nein.engine.folder import MANIFEST_FIELDS, Folder, find_runs

#: Outputs: "pictures" for all tasks of a data set, the others for each task, as "answers/mcq.rephrased".
PICTURES = "pictures"
SENTENCES, ANSWERS, SCORES, VERDICTS = "sentences", "answers", "scores", "verdicts"
UNUSABLE = "the picture is unusable: "  # how the reason for an unreadable image begins
IMAGE_FAILED, MODEL_FAILED = "picture", "model"  # why a row is tried again (`failed`); "": final

_FAILURE = {"reason": str, "failed": str}  # of every row without a value
_ENCODED = record({"name": str, "key": str, "reason": str, "cut": NotRequired[bool]})
_ANSWER = {"id": str, "answer": str | None, "letter": str | None, "chosen": int | None}
_VERDICT = {"id": str, "source": str, "kind": str, "thing": str, "asked": bool, "rank": int, "image": str}
_SUMMARY = {
    **dict.fromkeys(("model", "dataset", "title", "preset", "protocol", "kind"), str),
    "features": str | None,
    "limit": int | None,
    "row": str | None,
}


class ResultsDir(Folder):
    """The folder OUT/<model>/<data set>."""

    benchmark = "negbench"
    row_types: ClassVar = {
        PICTURES: _ENCODED,
        SENTENCES: _ENCODED,
        ANSWERS: record({**_ANSWER, **_FAILURE}),
        SCORES: record({"id": str, "scores": list[float] | None, **_FAILURE}),
        VERDICTS: record({**_VERDICT, "absent": float | None, **_FAILURE}),
    }
    manifest_type: ClassVar = record(
        {
            **MANIFEST_FIELDS,
            "summary": NotRequired[record(_SUMMARY)],
            "data": NotRequired[record({"records_sha256": str})],
            "cut": NotRequired[record({"count": int, "of": int})],
        }
    )


def find(out: Path) -> list[ResultsDir]:
    """The runs below a folder, by model, then data set."""
    return [ResultsDir(path) for path in find_runs(out)]
