"""The data card: counts, reasons, frequencies; a picture of examples."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2
import numpy as np

from nein.engine import atomic, images
from nein.generate.nein import algorithms
from nein.generate.nein.dataset import Way
from nein.generate.nein.work import MODEL_OF, Job
from nein.reporting.contact_sheet import GREEN, GREY, RED, Badge, Cell, Row, draw
from nein.reporting.tables import pipes
from nein.wording.families import FAMILIES

EXAMPLES = 4
#: Why images gave fewer candidates than `kept`, commonest first.
LOST = (algorithms.NO_OBJECT, algorithms.NO_CAPTION_LEFT, algorithms.NO_FAMILY)
PICTURE_SIZE = 144


def figures(
    job: Job, rows: Sequence[tuple[int, dict[str, Any], list[Way]]], splits: Mapping[str, Sequence[Way]]
) -> dict[str, Any]:
    """What the card counts and was made by, JSON-serialisable; no times and no paths."""
    records, ways = [record for _, record, _ in rows], [way for _, _, chosen in rows for way in chosen]
    accepted = [way for chosen in splits.values() for way in chosen]
    losses = Counter(why for record in records for why in record["lost"])

    def counts(values: Iterable[Any]) -> dict[str, int]:
        return dict(Counter(map(str, values)).most_common())

    def name_of(kind: str) -> str:
        """As it was asked for; of a folder only the last part, which says nothing about the machine."""
        given = job.config.editor if kind == "editor" else getattr(job.config.models, kind)
        return given.rstrip("/").rpartition("/")[2] if given.startswith(("/", "~", ".")) else given

    models = job.folder.models()
    return {
        "samples": {split: len(chosen) for split, chosen in splits.items()},
        "source_images": {split: len({w.index for w in chosen}) for split, chosen in splits.items()},
        "image_problems": counts(entry["problem"].partition(":")[0] for entry in records if entry["problem"]),
        "list_notes": dict(job.sources.notes.most_common()),
        "queried": counts(row["fate"] for entry in records for row in entry["queried"]),
        "slots_without_candidate": {why: n for why in LOST if (n := losses[why])},
        "stages": {
            "candidates": len(ways), "generated": sum(way.match is not None for way in ways),
            "passed filter 1": sum(way.ask is not None for way in ways), "accepted": len(accepted),
        },
        "rejected": counts(way.verdict for way in ways if not way.accepted),
        "families": counts(w.candidate["family"] for w in accepted),
        "templates": counts(
            FAMILIES[w.candidate["family"]].templates[w.candidate["template"]] for w in accepted
        ),
        "objects": counts(w.candidate["object"] for w in accepted),
        "configuration": {
            key: getattr(job.config, key)
            for key in (
                "preset", "source", "objects", "queried", "kept", "absent_below", "families", "editor",
                "protocol", "image_format", "match_above", "seed", "evaluation_share",
            )
        },
        "models": {
            kind: {"name": name_of(kind), "fingerprint": models[kind]["fingerprint"]}
            for kind in dict.fromkeys(MODEL_OF.values())
            if kind in models
        },
    }  # fmt: skip


def text(facts: Mapping[str, Any]) -> str:
    """The card as Markdown, without front matter."""
    stages, samples = facts["stages"], facts["samples"]
    usable = facts["images"] - sum(facts["image_problems"].values())
    per = [f"{n} in `{s}` from {facts['source_images'][s]} images" for s, n in samples.items() if n]
    passed = [
        [name, stages.get(name, 0)] for name in ("candidates", "generated", "passed filter 1", "accepted")
    ]
    wrong = {**facts["image_problems"], **facts["list_notes"]}
    reasons = [
        ("Why candidates were rejected", facts["rejected"], ["reason", "candidates"]),
        ("What was wrong with images", wrong, ["problem", "images"]),
        ("Why images gave fewer candidates than asked", facts["slots_without_candidate"],
         ["reason", "candidates lacking"]),
        ("What became of the objects asked for", facts["queried"], ["fate", "objects"]),
    ]  # fmt: skip
    origin = [
        [key, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)]
        for key, value in facts["configuration"].items()
    ]
    origin += [
        [f"model: {kind}", f"{m['name']} ({m['fingerprint'][:12]})"] for kind, m in facts["models"].items()
    ]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__), undefined=jinja2.StrictUndefined, trim_blocks=True,
        autoescape=False,  # Markdown
    )  # fmt: skip
    return environment.get_template("card.md.j2").render(
        {**facts, "per": ", ".join(per), "reasons": reasons},
        counts=[["source images", facts["images"]], ["of them usable", usable], *passed],
        origin=origin, table=lambda rows, heads: pipes(list(rows), heads),
    ) + "\n"  # fmt: skip


def picture(job: Job, ways: Sequence[Way]) -> bytes:
    """PNG: a row of examples, source beside generated picture, of accepted samples and of every objection."""
    rejected = Counter(w.verdict for w in ways if not w.accepted).most_common()
    rows = []
    for verdict in (algorithms.ACCEPTED, *(verdict for verdict, _ in rejected)):
        # The smallest hashes of the names: the same examples in every build.
        group = sorted(
            (w for w in ways if w.verdict == verdict),
            key=lambda w: hashlib.sha256(w.candidate["id"].encode()).digest(),
        )
        if not group:
            continue
        cells = [cell for way in group[:EXAMPLES] for cell in _pair(job, way)]
        cells += [Cell(np.full((8, 8, 3), 255, np.uint8))] * (2 * EXAMPLES - len(cells))
        rows.append(Row(f"{verdict}: {len(group)}", "", cells))
    return draw(["source", "generated"] * EXAMPLES, rows, PICTURE_SIZE)


def write(job: Job, facts: Mapping[str, Any], ways: Sequence[Way], front: str | None) -> None:
    """OUT/card.json and card.png; the card with its picture in OUT/dataset and, with `front`, OUT/hub."""
    root, body = job.folder.path, text(facts)
    drawn = picture(job, ways) if ways else None
    atomic.write_json(root / "card.json", dict(facts))
    cards = {root / "dataset": body} if (root / "dataset").is_dir() else {}
    if front is not None:
        cards[root / "hub"] = front + body
    for folder, card in cards.items():
        atomic.write_text(folder / "README.md", card)
    if drawn is not None:
        for folder in (root, *cards):
            atomic.write_bytes(folder / "card.png", drawn)


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
        message = f"{way.ask['caption_answer']['text']} / {way.ask['object_answer']['text']}"
        badges.append(Badge(f"answers: {message}", GREY))
    if way.generated["image"] is None:
        return [source, Cell(None, way.generated["error"], color=RED)]
    return [source, Cell(images.decode(job.picture(way.generated["image"])), badges=badges)]
