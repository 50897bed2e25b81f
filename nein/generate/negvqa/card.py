"""What came of a conversion: counts, reasons, a sheet for people (OUT/check.html); `nein negvqa generate`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from nein.config.launch import start
from nein.engine import atomic
from nein.engine.blocks import sample_seed
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE, INCOMPLETE
from nein.generate.maker import make
from nein.generate.negvqa import check, files
from nein.generate.negvqa.config import ConversionConfig
from nein.generate.negvqa.stages import NEGATED, NegvqaMaker
from nein.loading.references import is_served
from nein.models.llm import client as llm

SHOWN = 12  # reasons in the summary


def build(config: ConversionConfig) -> str | None:
    """`nein negvqa generate`. Only a local model needs the device."""
    if config.negator == "llm":
        llm.check(str(config.llm.model))
    is_local = config.negator == "llm" and not is_served(str(config.llm.model))
    return make(NegvqaMaker, config, start(config if is_local else replace(config, device="cpu")), finish)


def finish(maker: NegvqaMaker) -> tuple[str, dict[str, Any]]:
    """Writes files and sheet: a summary in words, and what the manifest says. Raises UserError where nothing
    could be negated."""
    found = files.read(maker)
    right, negations = files.write(maker, found), [negation for _, negation in found]
    reasons = Counter((neg.state, neg.kind or neg.reason) for neg in negations if neg.state != NEGATED)
    lines = [f"{len(right)} of {len(found)} questions negated, {right.count('A')} with A right."]
    lines += [f"  {count:6d} {state}: {why}" for (state, why), count in reasons.most_common(SHOWN)]
    if not right:
        what = " ".join(lines[1:3]).strip()
        raise UserError(f"Not one of {len(found)} questions could be negated. {what}")
    if len(reasons) > SHOWN:
        lines.append(f"         and {len(reasons) - SHOWN} further reasons, in records.jsonl")
    if again := sum(negation.again for negation in negations):
        lines.append(f"{again} got no answer; retry them with the same command.")
    write_sheet(maker)
    out = maker.folder.path
    lines += [f"Questions: {out / 'questions.jsonl'}", f"Check sheet: {out / 'check.html'}"]
    return "\n".join(lines) + "\n", {
        "status": INCOMPLETE if again else COMPLETE,
        "counts": dict(Counter(negation.state for negation in negations)),
        "questions": len(right),
        "reasons": [{"state": state, "reason": why, "count": n} for (state, why), n in reasons.most_common()],
    }


def write_sheet(maker: NegvqaMaker) -> None:
    """The page on which people label `--sheet` random conversions."""
    rows = {row["index"]: row for row in atomic.checked_lines(maker.folder.path / "questions.jsonl")}
    picked = [rows[name] for name in chosen([*rows], maker.config.sheet, maker.config.seed)]
    negator = " ".join(str(maker.negator[key]) for key in ("negator", "model") if maker.negator.get(key))
    check.write_sheet(maker.folder.path / "check.html", picked, population=len(rows), negator=negator)


def chosen(ids: list[str], count: int, seed: int) -> list[str]:
    """`count` of the ids at random for the check sheet (all, if fewer), whatever their order.

    In random order, so that whoever stops early has checked a random sample too.
    """
    return sorted(ids, key=lambda name: sample_seed(seed, f"sheet/{name}"))[:count]
