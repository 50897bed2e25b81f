"""The data card: counts, reasons, frequencies, on nano how right every stage was; a picture of examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nein.engine import atomic, images
from nein.generate.nein import filters
from nein.generate.nein.dataset import Tally, Way, lost_slots, spread
from nein.generate.nein.work import MODEL_OF, Job
from nein.reporting import format
from nein.reporting.contact_sheet import GREEN, GREY, RED, Badge, Cell, Row, draw
from nein.reporting.tables import pipes
from nein.wording.families import FAMILIES

EXAMPLES = 4
PICTURE_SIZE = 144


def figures(
    job: Job,
    counts: Tally,
    splits: Mapping[str, Sequence[Way]],
    *,
    data_sha256: str,
    truths: Mapping[str, Any] | None,
    errors: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Everything the card says, JSON-serialisable; no times and no paths."""
    accepted = [way for rows in splits.values() for way in rows]

    def count(key: str) -> dict[str, int]:
        return dict(Counter(str(w.candidate[key]) for w in accepted).most_common())

    models = job.folder.notes("models")
    templates = Counter(FAMILIES[w.candidate["family"]].templates[w.candidate["template"]] for w in accepted)
    return {
        "data_sha256": data_sha256,
        "samples": {split: len(rows) for split, rows in splits.items()},
        "source_images": {split: len({w.index for w in rows}) for split, rows in splits.items()},
        "images": counts.images,
        "image_problems": dict(counts.problems.most_common()),
        "list_notes": dict(counts.notes.most_common()),
        "queried": dict(counts.queried.most_common()),
        "slots_without_candidate": lost_slots(counts),
        "stages": dict(counts.stages),
        "rejected": dict(counts.reasons.most_common()),
        "families": count("family"),
        "templates": dict(templates.most_common()),
        "objects": count("object"),
        "truth": truths,
        "truth_errors": errors,
        "configuration": {
            key: getattr(job.config, key)
            for key in (
                "preset", "source", "objects", "queried", "kept", "absent_below", "families", "editor",
                "protocol", "image_format", "match_above", "seed", "evaluation_share",
            )
        },
        "models": {
            kind: {"name": _name_of(job, kind), "fingerprint": models[kind]["fingerprint"]}
            for kind in dict.fromkeys(MODEL_OF.values())
            if kind in models
        },
    }  # fmt: skip


def text(facts: Mapping[str, Any]) -> str:
    """The card as Markdown, without front matter."""
    parts = [_head(facts), _counts(facts)]
    if facts["truth"] is not None:
        parts.append(_truth(facts["truth"], facts["truth_errors"]))
    parts += [_frequencies(facts), _origin(facts)]
    return "\n\n".join(parts) + "\n"


def picture(job: Job, ways: Sequence[Way]) -> bytes:
    """PNG: a row of examples, source beside generated picture, of accepted samples and of every objection."""
    groups: dict[str, list[Way]] = {filters.ACCEPTED: [w for w in ways if w.accepted]}
    for verdict, _ in Counter(w.verdict for w in ways if not w.accepted).most_common():
        groups[verdict] = [w for w in ways if w.verdict == verdict]
    rows = []
    for verdict, group in groups.items():
        if not group:
            continue
        cells: list[Cell] = []
        for way in spread(group, EXAMPLES):
            cells += _pair(job, way)
        blank = np.full((8, 8, 3), 255, np.uint8)
        cells += [Cell(blank)] * (2 * EXAMPLES - len(cells))
        rows.append(Row(f"{verdict}: {len(group)}", "", cells))
    return draw(["source", "generated"] * EXAMPLES, rows, PICTURE_SIZE).encoded()


def write(job: Job, facts: Mapping[str, Any], ways: Sequence[Way], front: str | None) -> None:
    """OUT/card.json and card.png; the card with its picture in OUT/dataset and, with `front`, OUT/hub."""
    root, body = job.folder.path, text(facts)
    drawn = picture(job, ways) if ways else None
    atomic.write_json(root / "card.json", dict(facts))
    places = [root / "dataset"] if (root / "dataset").is_dir() else []
    if drawn is not None:
        atomic.write_bytes(root / "card.png", drawn)
    for place in places:
        atomic.write_text(place / "README.md", body)
        if drawn is not None:
            atomic.write_bytes(place / "card.png", drawn)
    if front is not None:
        atomic.write_text(root / "hub" / "README.md", front + body)
        if drawn is not None:
            atomic.write_bytes(root / "hub" / "card.png", drawn)


def _pair(job: Job, way: Way) -> list[Cell]:
    c = way.candidate
    try:
        source = Cell(images.decode(job.sources.sources[way.index].path), badges=[Badge(c["caption"], GREY)])
    except images.ImageError as error:
        source = Cell(None, str(error))
    badges = [Badge(c["generated"], GREEN if way.accepted else RED)]
    if way.match is not None and way.match["cosine"] is not None:
        badges.append(Badge(f"match {way.match['cosine']:.2f}", GREY))
    if way.ask is not None and "caption_answer" in way.ask:
        said = f"{way.ask['caption_answer']['text']} / {way.ask['object_answer']['text']}"
        badges.append(Badge(f"answers: {said}", GREY))
    if way.generated["image"] is None:
        return [source, Cell(None, way.generated["error"], color=RED)]
    return [source, Cell(images.decode(job.picture(way.generated["image"])), badges=badges)]


def _head(facts: Mapping[str, Any]) -> str:
    total = sum(facts["samples"].values())
    per = ", ".join(
        f"{n} in `{s}` from {facts['source_images'][s]} images" for s, n in facts["samples"].items() if n
    )
    nano = facts["truth"] is not None
    world = (
        " Images are drawn scenes of 64x64 pixels and miniature models made and checked the samples."
        if nano
        else ""
    )
    return (
        "# A NeIn data set\n\n"
        f"{total} samples ({per or 'none'}) for editing by negative instructions, built from captioned "
        'images after Bui et al., "NeIn: Telling What You Don\'t Want" (CVPR Workshops 2025). '
        "`T_negative` says of `NeIn`, a generated picture, what should not be in it; the source image "
        "`COCO` shows "
        f"the result to reach. No source image is in both splits.{world}\n\n"
        "![Accepted and rejected samples](card.png)"
    )


def _counts(facts: Mapping[str, Any]) -> str:
    stages = facts["stages"]
    unusable = sum(facts["image_problems"].values())
    rows = [["source images", facts["images"]], ["of them usable", facts["images"] - unusable]]
    names = ("candidates", "generated", "passed filter 1", "accepted")
    rows += [[name, stages.get(name, 0)] for name in names]
    parts = ["## Counts\n\n" + pipes(rows, ["stage", "number"])]
    if facts["rejected"]:
        parts.append(
            "### Why candidates were rejected\n\n"
            + pipes(list(facts["rejected"].items()), ["reason", "candidates"])
        )
    other = {**facts["image_problems"], **facts["list_notes"]}
    if other:
        parts.append("### What was wrong with images\n\n" + pipes(list(other.items()), ["problem", "images"]))
    if facts["slots_without_candidate"]:
        rows = list(facts["slots_without_candidate"].items())
        parts.append(
            "### Why images gave fewer candidates than asked\n\n"
            + pipes(rows, ["reason", "candidates lacking"])
        )
    parts.append(
        "### What became of the objects asked for\n\n"
        + pipes(list(facts["queried"].items()), ["fate", "objects"])
    )
    return "\n\n".join(parts)


def _truth(truth: Mapping[str, Any], errors: Mapping[str, Any] | None) -> str:
    rows = []
    for stage in ("clauses", "generate", "filter 1", "filter 2", "both filters"):
        rows += [[stage, name, _percent(entry), entry["n"]] for name, entry in truth[stage].items()]
    parts = [
        "## How right the stages were\n\n"
        "What a source scene holds is known. What a generated picture holds was measured from its pixels, "
        "without "
        "any trained model: an object is there when pasting one drawing of its category into the known scene "
        "explains the picture clearly better than the scene alone, and better than any other category at the "
        "same place; an object of the scene is still there when its pixels match (`nein/nano/truth.py`). "
        "A candidate is good when the object is there and so are all others. Precision: share of the passed "
        "that are good. Recall: share of the good that passed. Brackets: 95 % interval, clustered by source "
        "image.\n\n" + pipes(rows, ["stage", "figure", "%", "n"])
    ]
    if errors is not None:
        rows = [
            [
                how,
                kind,
                f"{100 * r['presence_wrong']:.1f}",
                f"{100 * r['intactness_wrong']:.1f}",
                r["pictures"],
            ]
            for how, kinds in errors.items()
            for kind, r in kinds.items()
        ]
        parts.append(
            "### Errors of this measurement itself\n\n"
            "On pictures whose content is known: scenes drawn anew after the change in the second column, "
            "as they "
            "are (drawn) and passed through the editor's autoencoder (rebuilt).\n\n"
            + pipes(rows, ["pictures", "change", "presence wrong, %", "others wrong, %", "n"])
        )
    return "\n\n".join(parts)


def _frequencies(facts: Mapping[str, Any]) -> str:
    parts = []
    for title, key in (
        ("Families of negation", "families"),
        ("Templates", "templates"),
        ("Objects", "objects"),
    ):
        parts.append(
            f"## {title}\n\n"
            + pipes(list(facts[key].items()), [key[:-1] if key != "families" else "family", "samples"])
        )
    return "\n\n".join(parts)


def _origin(facts: Mapping[str, Any]) -> str:
    rows = [[key, _plain(value)] for key, value in facts["configuration"].items()]
    rows += [
        [f"model: {kind}", f"{m['name']} ({m['fingerprint'][:12]})"] for kind, m in facts["models"].items()
    ]
    return (
        "## How it was made\n\n"
        + pipes(rows, ["", "value"])
        + f"\n\nContent: SHA-256 `{facts['data_sha256']}` "
        "over records and pixels. The licence of the source images applies to what was made from them."
    )


def _name_of(job: Job, kind: str) -> str:
    """A model as it was asked for; of a folder only the last part, which says nothing about the machine."""
    asked = job.config.editor if kind == "editor" else getattr(job.config.models, kind)
    return asked.rstrip("/").rpartition("/")[2] if asked.startswith(("/", "~", ".")) else asked


def _percent(entry: Mapping[str, Any]) -> str:
    return format.text({**entry, "unit": "%"})


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
