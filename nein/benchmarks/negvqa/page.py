"""The page of a NegVQA report: tables, plots, and questions with the answers they got."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from nein.benchmarks.nein.reporting.page import _read, _uri, policy
from nein.benchmarks.nein.reporting.plots import Plot
from nein.benchmarks.nein.reporting.sections import Table
from nein.datasets.negvqa.questions import VARIANTS, Item
from nein.engine import atomic, images
from nein.engine.seeds import sample_seed

SIDE = 128
OUTCOMES: dict[tuple[str, ...], str] = {
    ("right", "right"): "both",
    ("right", "wrong"): "original",
    ("wrong", "right"): "negated",
    ("wrong", "wrong"): "neither",
}
Lines = Sequence[Mapping[str, Any]]


def write(
    path: Path,
    *,
    title: str,
    notes: Sequence[str],
    tables: Sequence[Table],
    plots: Sequence[Plot],
    samples: Sequence[Mapping[str, Any]],
) -> None:
    """Writes one HTML file that opens from disk. Everything that came from data is escaped text; the policy
    allows the page's own script and style by hash and nothing from any network."""
    folder = Path(__file__).parent / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    css = _read("report.css") + (folder / "negvqa.css").read_text(encoding="utf-8")
    script = (folder / "negvqa.js").read_text(encoding="utf-8")
    subsets = list(dict.fromkeys(sample["subset"] for sample in samples))
    html = environment.get_template("negvqa.html.j2").render(
        policy=policy(script, css, outside=False),
        css=Markup(css),
        script=Markup(script),
        title=title,
        notes=notes,
        tables=tables,
        plots=[{"title": plot.title, "uri": _uri(plot)} for plot in plots],
        samples=samples,
        subsets=subsets,
    )
    atomic.write_text(path, html)


def samples(
    answers: Mapping[str, Lines],
    scores: Mapping[str, Lines],
    items: Sequence[Item] | None,
    limit: int,
    headlines: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """What the page shows: the first model's questions in data order, `limit` random ones if there are more.

    answers, scores  Model -> lines of answers.jsonl and scores.jsonl.
    headlines        Model -> the scoring that makes an answer right or wrong; "generated" by default, where
                     there is that.
    """
    first_of = headlines or {}
    pictures = {item.id: item for item in items or ()}
    verdicts: dict[tuple[str, str, str, str], Mapping[str, Any]] = {
        (model, row["id"], row["variant"], row["scoring"]): row
        for model, rows in scores.items()
        for row in rows
        if row["protocol"] == "fixed"
    }
    replies = {(m, row["id"], row["variant"]): row for m, rows in answers.items() for row in rows}
    first = next(iter(answers.values()), [])
    ids = list(dict.fromkeys(row["id"] for row in first))
    drawn = set(sorted(ids, key=lambda identity: sample_seed(0, identity))[:limit])
    found = []
    known: dict[str, str] = {}
    for identity in (name for name in ids if name in drawn):
        rows = {v: replies[next(iter(answers)), identity, v] for v in VARIANTS}
        item = pictures.get(identity)
        models = [
            _model(
                model,
                [replies.get((model, identity, v)) for v in VARIANTS],
                verdicts,
                first_of.get(model, "generated"),
            )
            for model in answers
        ]
        found.append(
            {
                "id": identity,
                "subset": rows["original"]["subset"],
                "options": list(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", rows["original"]["options"], strict=False)),
                "questions": [
                    {"variant": v, "text": rows[v]["question"], "answer": rows[v]["answer"]} for v in VARIANTS
                ],
                "picture": _thumbnail(item, known) if item else "",
                "models": models,
                "outcomes": " ".join(sorted({model["outcome"] for model in models})),
            }
        )
    return found


def _model(
    model: str,
    pair: Sequence[Mapping[str, Any] | None],
    verdicts: Mapping[tuple[str, str, str, str], Any],
    headline: str,
) -> dict[str, Any]:
    """What one model said to both questions, and which kind of pair that makes."""
    said: list[dict[str, str]] = []
    for row in pair:
        if row is None:
            said.append({"text": "not asked", "letters": "", "mark": "none"})
            continue
        keys = [(model, row["id"], row["variant"], scoring) for scoring in ("generated", "logprob")]
        own = [verdicts[key] for key in keys if key in verdicts]
        letters = ", ".join(f"{r['scoring']} {r['letter'] or r['reason']}" for r in own)
        if row["logprobs"]:
            shown = ["–" if p is None else f"{p:.2f}" for p in row["logprobs"]]
            letters += f"; log p {' / '.join(shown)}"
        chief = next((r for r in own if r["scoring"] == headline), own[0] if own else None)
        value = chief["value"] if chief else None
        mark = "none" if value is None else "right" if value else "wrong"
        said.append({"text": row["error"] or row["text"] or "", "letters": letters, "mark": mark})
    marks = tuple(one["mark"] for one in said)
    return {"name": model, "said": said, "outcome": OUTCOMES.get(marks, "unscored")}


def _thumbnail(item: Item, known: dict[str, str]) -> str:
    """A data URL of the picture, its longer side at most `SIDE`; "" when it cannot be read."""
    from PIL import Image

    key = hashlib.sha256(str(item.source).encode()).hexdigest()
    if key not in known:
        try:
            picture = Image.fromarray(item.load())
        except images.ImageError:
            known[key] = ""
        else:
            if max(picture.size) > SIDE:
                picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
            buffer = io.BytesIO()
            picture.save(buffer, format="WEBP", quality=80, method=2)
            known[key] = "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
    return known[key]
