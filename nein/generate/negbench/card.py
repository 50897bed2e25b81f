"""The data card of NegBench data, and `nein negbench generate`.

OUT/dataset/          CSV files in the official layout, a card, and pictures that were drawn or made
OUT/unusable.jsonl    images that yield nothing, with the reason
"""

from __future__ import annotations

from typing import Any

from nein.engine import atomic
from nein.engine.run import Executor
from nein.generate.maker import make
from nein.generate.negbench import files, sources
from nein.generate.negbench.config import BuildConfig
from nein.generate.negbench.stages import NegbenchMaker

UNSAID = (
    "How the published medical questions were drawn is not known: sizes and sentences differ from theirs; "
    "tasks and columns do not."
)


def build(config: BuildConfig, executor: Executor) -> str | None:
    """`nein negbench generate`."""
    return make(NegbenchMaker, config, executor, finish)


def finish(maker: NegbenchMaker) -> tuple[str, dict[str, Any]]:
    """Writes data set and card: a summary in words, and what the manifest says of it."""
    facts = files.write(maker)
    atomic.write_json(maker.folder.path / "card.json", facts)
    atomic.write_text(maker.dataset / "README.md", text(maker.config, facts))
    lines = [f"{facts['images']} images."]
    lines += [f"  {f['rows']:7d} rows, {f['captions']} captions: {n}" for n, f in facts["files"].items()]
    for what, key in (("unusable", "unusable"), ("noted", "dropped"), ("refused", "refused_paraphrases")):
        lines += [f"  {count:7d} {what}: {reason}" for reason, count in facts[key].items()]
    lines.append(f"Data set: {maker.dataset}")
    where = sources.root(maker.config)
    if where is not None and maker.config.source != "pairs":
        lines.append(f"Image paths are relative to '{where}': evaluate with --image-root {where}.")
    return "\n".join(lines) + "\n", {"facts": facts}


def text(config: BuildConfig, facts: dict[str, Any]) -> str:
    """What the data set is, how it was made, what was lost on the way, as Markdown."""
    lines = [
        "---", "tags: [negbench, negation, nein]", "---", "# NegBench data built with nein", "",
        f"Source: {config.source}; form: {config.form}; wording: {config.wording}. Layout: the CSV files of "
        "NegBench (Alhamoud et al., CVPR 2025), with the columns `id`, `source`, `template_K`, "
        "`positive_objects` and `negative_objects` added.",
        "",
    ]  # fmt: skip
    lines += [UNSAID, ""] if config.medical else []
    if config.source == "nano":
        lines += ["Scenes of the nano world: figures on them say nothing about the published sets.", ""]
    lines += ["| file | rows | captions | SHA-256 |", "|---|---|---|---|"]
    lines += [
        f"| {n} | {f['rows']} | {f['captions']} | {f['sha256'][:16]} |" for n, f in facts["files"].items()
    ]
    sections = {
        "Questions by type": "questions_by_type",
        f"Unusable, of {facts['images']} images": "unusable",
        "Dropped or noted": "dropped",
        "Paraphrases refused": "refused_paraphrases",
        "The source": "listing",
    }
    for title, key in sections.items():
        if facts[key]:
            lines += ["", f"## {title}", "", "| what | count |", "|---|---|"]
            lines += [f"| {what} | {count} |" for what, count in facts[key].items()]
    return "\n".join(lines) + "\n"
