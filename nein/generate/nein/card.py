"""The data card of NeIn: counts, reasons, frequencies, a sheet of examples; and `nein generate`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2
import numpy as np

from nein.engine import atomic, images
from nein.engine.run import Executor
from nein.generate.maker import make
from nein.generate.nein import algorithms, files
from nein.generate.nein.config import BuildConfig
from nein.generate.nein.files import Made, Way
from nein.generate.nein.stages import NeinMaker
from nein.reporting.contact_sheet import GREEN, GREY, RED, Badge, Cell, Row, draw
from nein.reporting.tables import pipes
from nein.wording.families import FAMILIES

EXAMPLES = 4
#: Why images gave fewer candidates than `kept`, commonest first.
LOST = (algorithms.NO_OBJECT, algorithms.NO_CAPTION_LEFT, algorithms.NO_FAMILY)
PICTURE_SIZE = 144
#: Options that the card names.
NAMED = (
    "preset", "source", "objects", "queried", "kept", "absent_below", "families", "editor", "protocol",
    "image_format", "match_above", "seed", "evaluation_share",
)  # fmt: skip


def build(config: BuildConfig, executor: Executor) -> str | None:
    """`nein generate`."""
    return make(NeinMaker, config, executor, finish)


def finish(maker: NeinMaker) -> tuple[str, dict[str, Any]]:
    """Writes data set and card: a summary in words, and what the manifest says of it."""
    made = files.read(maker)
    files.write(maker, made)
    facts = count(maker, made)
    write(maker, made, facts)
    stages, samples = facts["stages"], facts["samples"]
    came = ", ".join(f"{n} {stage.replace('passed', 'through')}" for stage, n in stages.items())
    reasons = {
        "rejected": facts["rejected"], "images unusable": facts["image_problems"],
        "candidates lacking": facts["slots_without_candidate"],
    }  # fmt: skip
    lines = [
        f"{facts['images']} images, {came} ({', '.join(f'{n} {split}' for split, n in samples.items())}).",
        *(f"  {n:6d} {what}: {why}" for what, counts in reasons.items() for why, n in counts.items()),
        f"Data set: {maker.folder.path / 'dataset'}",
    ]
    return "\n".join(lines) + "\n", {
        "data_sha256": facts["data_sha256"], "counts": stages, "samples": samples,
    }  # fmt: skip


def count(maker: NeinMaker, made: Made) -> dict[str, Any]:
    """What the card counts and was made by, JSON-serialisable; no times and no paths."""
    config, records = maker.config, made.records
    ways = [way for found in made.ways for way in found]
    accepted = [way.candidate for found in made.splits.values() for way in found]
    losses = Counter(why for record in records for why in record["lost"])
    models = maker.folder.models()
    asked = {"itm": config.models.itm, "editor": config.editor, "vqa": config.models.vqa}
    return {
        "data_sha256": files.content_hash(maker, made.splits),
        "images": len(records),
        "drawn": maker.listing.origin["kind"] == "nano",
        "samples": {split: len(found) for split, found in made.splits.items()},
        "source_images": {split: len({way.source for way in found}) for split, found in made.splits.items()},
        "image_problems": _counts(row["problem"].partition(":")[0] for row in records if row["problem"]),
        "list_notes": dict(Counter(maker.listing.notes).most_common()),
        "queried": _counts(row["fate"] for record in records for row in record["queried"]),
        "slots_without_candidate": {why: losses[why] for why in LOST if losses[why]},
        "stages": {
            "candidates": len(ways),
            "generated": sum(way.match is not None for way in ways),
            "passed filter 1": sum(way.ask is not None for way in ways),
            "accepted": len(accepted),
        },
        "rejected": _counts(way.verdict for way in ways if not way.accepted),
        "families": _counts(row["family"] for row in accepted),
        "templates": _counts(FAMILIES[row["family"]].templates[row["template"]] for row in accepted),
        "objects": _counts(row["object"] for row in accepted),
        "configuration": {key: getattr(config, key) for key in NAMED},
        "models": {
            kind: {"name": _name(name), "fingerprint": models[kind]["fingerprint"]}
            for kind, name in asked.items()
            if kind in models
        },
    }


def _counts(values: Iterable[Any]) -> dict[str, int]:
    return dict(Counter(map(str, values)).most_common())


def _name(reference: str) -> str:
    """A model as it was asked for; of a folder only the last part, which says nothing about the machine."""
    return reference.rstrip("/").rpartition("/")[2] if reference.startswith(("/", "~", ".")) else reference


def text(facts: Mapping[str, Any]) -> str:
    """The card as Markdown, without front matter."""
    usable = facts["images"] - sum(facts["image_problems"].values())
    per = [
        f"{n} in `{split}` from {facts['source_images'][split]} images"
        for split, n in facts["samples"].items()
        if n
    ]
    reasons = [
        ("Why candidates were rejected", facts["rejected"], ["reason", "candidates"]),
        ("What was wrong with images", facts["image_problems"] | facts["list_notes"], ["problem", "images"]),
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
    counts = [["source images", facts["images"]], ["of them usable", usable], *facts["stages"].items()]
    values = {**facts, "per": ", ".join(per), "reasons": reasons, "counts": counts, "origin": origin}
    card = environment.get_template("card.md.j2")
    return card.render(values, table=lambda rows, heads: pipes(list(rows), heads)) + "\n"


def front_matter(samples: Mapping[str, int], *, drawn: bool) -> str:
    """The YAML head of a hub card: what the files are, and how many samples (by split) there are."""
    bounds = {"n<1K": 1000, "1K<n<10K": 10_000, "10K<n<100K": 100_000, "100K<n<1M": 1_000_000}
    size = next((name for name, bound in bounds.items() if sum(samples.values()) < bound), "n>1M")
    splits = "\n".join(f"  - split: {split}\n    path: data/{split}-*" for split, n in samples.items() if n)
    return (
        "---\npretty_name: NeIn, built anew\nlanguage: [en]\ntask_categories: [image-to-image]\n"
        f"tags: [negation, image-editing, nein{', nano' if drawn else ''}]\nsize_categories: [{size}]\n"
        f"configs:\n- config_name: default\n  data_files:\n{splits}\n---\n\n"
    )


def write(maker: NeinMaker, made: Made, facts: Mapping[str, Any]) -> None:
    """OUT/card.json and card.png; the card with its sheet in OUT/dataset and OUT/hub."""
    root, card = maker.folder.path, text(facts)
    atomic.write_json(root / "card.json", dict(facts))
    cards = {root / "dataset": card} if (root / "dataset").is_dir() else {}
    if "parquet" in maker.config.formats:
        cards[root / "hub"] = front_matter(facts["samples"], drawn=facts["drawn"]) + card
    for folder, content in cards.items():
        atomic.write_text(folder / "README.md", content)
    if ways := [way for found in made.ways for way in found]:
        sheet = picture(maker, ways)
        for folder in (root, *cards):
            atomic.write_bytes(folder / "card.png", sheet)


def picture(maker: NeinMaker, ways: Sequence[Way]) -> bytes:
    """PNG: a row of examples, source beside generated image, of accepted samples and of every objection."""
    rejected = Counter(way.verdict for way in ways if not way.accepted).most_common()
    rows = []
    for verdict in (algorithms.ACCEPTED, *(verdict for verdict, _ in rejected)):
        # The smallest hashes of the names: the same examples in every build.
        group = sorted(
            (way for way in ways if way.verdict == verdict),
            key=lambda way: hashlib.sha256(way.candidate["id"].encode()).digest(),
        )
        cells = [cell for way in group[:EXAMPLES] for cell in _pair(maker, way)]
        cells += [Cell(np.full((8, 8, 3), 255, np.uint8))] * (2 * EXAMPLES - len(cells))
        rows += [Row(f"{verdict}: {len(group)}", "", cells)] if group else []
    return draw(["source", "generated"] * EXAMPLES, rows, PICTURE_SIZE)


def _pair(maker: NeinMaker, way: Way) -> list[Cell]:
    facts = way.candidate
    try:
        source = Cell(images.decode(way.source), badges=[Badge(facts["caption"], GREY)])
    except images.ImageError as error:
        source = Cell(None, str(error))
    if way.generated["image"] is None:
        return [source, Cell(None, way.generated["error"], color=RED)]
    badges = [Badge(facts["generated"], GREEN if way.accepted else RED)]
    if way.match is not None and way.match["cosine"] is not None:
        badges.append(Badge(f"match {way.match['cosine']:.2f}", GREY))
    if way.ask is not None and "caption_answer" in way.ask:
        answers = [way.ask[key]["text"] for key in ("caption_answer", "object_answer")]
        badges.append(Badge(f"answers: {' / '.join(answers)}", GREY))
    return [source, Cell(images.decode(maker.image_path(way.generated["image"])), badges=badges)]
