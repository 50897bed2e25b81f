"""`nein negbench nano`: the whole study on the miniature world, in one command and without a network.

1. The text that the shipped CLIP learned from is searched for negation.
2. The CLIP is fine-tuned on drawn NegCap and NegMCQ, at several values of alpha.
3. All of them answer NegBench on scenes none has seen: negation gap, multiple choice, trade-off.

    OUT/study.md              tables and what they say
    OUT/tradeoff.*            table, figures and plot over alpha
    OUT/alpha-A/model         the fine-tuned models
    OUT/evaluation/           everything per sample; table.md and plots

Every figure is measured. Nothing here says anything about the published data sets.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from nein.engine import atomic
from nein.reporting import format
from nein.statistics import Estimate
from train.contrast.options import StudyConfig

#: Words that deny: what an affirmative text must not contain.
NEGATION = re.compile(
    r"\b(?:no|not|none|never|nothing|nobody|nowhere|neither|nor|without|lacks?|lacking|absent|absence|missing|except"
    r"|cannot|devoid)\b|n['\u2019]t\b",
    re.IGNORECASE,
)


def study(given: StudyConfig) -> str:
    """Runs what is left of the study and writes its report, which is returned."""
    from train import finetune_clip
    from train.contrast import options, sweep

    words = ["--preset", "nano", "--device", "cpu", "--out", str(given.out_dir), "--base", given.base]
    words += ["--seed", str(given.seed), "--alpha", ",".join(given.alpha)]
    words += ["--steps", str(given.steps)] if given.steps else []
    config, _ = options.parse([*words, *(["--overwrite"] if given.overwrite else [])])
    start = time.perf_counter()
    if len(config.alphas) > 1:
        models = finetune_clip.run(config)
    else:  # laid out as a sweep all the same
        alpha = config.alphas[0]
        models = finetune_clip.run(config.at(alpha, config.out_dir / f"alpha-{options.spelled(alpha)}"))
    rows = sweep.evaluate(config, models, scenes=given.scenes)
    text = sweep.write(rows, config.out_dir)
    denials, texts = search(training_texts())
    evaluation = (config.out_dir / "evaluation" / "table.md").read_text(encoding="utf-8")
    report = "\n".join(
        [
            "# NegBench in the nano world",
            "",
            affirmative(denials, texts),
            "",
            text,
            *(f"- {sentence}" for sentence in findings(rows)),
            "",
            evaluation,
        ]
    )
    atomic.write_text(config.out_dir / "study.md", report)
    minutes = (time.perf_counter() - start) / 60
    return f"{report}\nStudy: {config.out_dir / 'study.md'} ({minutes:.1f} minutes)\n"


def training_texts() -> Iterable[str]:
    """Every sentence that the shipped CLIP, and its tokenizer, learned from."""
    from train.nano.pool import described
    from train.nano.text import corpus
    from train.nano.vision import POOL

    yield from corpus()
    for index in range(POOL):
        yield from described("train", index)[1]


def search(texts: Iterable[str]) -> tuple[Counter[str], int]:
    """(denying words and how often each occurs, number of texts)."""
    words: Counter[str] = Counter()
    count = 0
    for text in texts:
        count += 1
        words.update(word.casefold() for word in NEGATION.findall(text))
    return words, count


def affirmative(denials: Counter[str], texts: int) -> str:
    """What the search of the training text found, in words."""
    if denials:
        words = ", ".join(f"'{word}' ({n})" for word, n in denials.most_common(5))
        return f"The {texts} texts that the nano CLIP learned from contain negation: {words}."
    return f"None of the {texts} texts that the nano CLIP learned from contains a negation."


def findings(rows: Sequence[Any]) -> list[str]:
    """What the tables say, in sentences whose numbers and verbs are measured."""
    from nein.datasets.negbench.records import NEGATED, ORIGINAL
    from train.contrast import sweep

    base = next(row for row in rows if row.alpha is None)
    tuned = [row for row in rows if row.alpha is not None]
    gap, chance = base.gap(1), base.figure(task="mcq", metric="chance")
    types = {t: base.accuracy(t) for t in ("affirmation", "hybrid", "negation")}
    sentences = [
        f"Before fine-tuning, recall@1 is {_per(base.recall(ORIGINAL, 1))} with the original captions and "
        f"{_per(base.recall(NEGATED, 1))} with the negated ones: negation gap {format.text(gap)} points.",
        f"Before fine-tuning, multiple choice is {_per(base.accuracy())} right (chance {_per(chance)}): "
        + ", ".join(f"{_per(figure)} of {name} questions" for name, figure in types.items())
        + ".",
    ]
    for row in tuned:
        accuracy, narrower = sweep.change(base, row, "accuracy"), sweep.change(base, row, "gap")
        share = narrower.value / gap["value"] if gap and gap["value"] else float("nan")
        sentences.append(
            f"Alpha {row.alpha:g}: the negation gap is {format.text(row.gap(1))} points, "
            f"{_points(narrower)} points less than before ({100 * share:.0f} % of it gone); multiple choice "
            f"is {_per(row.accuracy())} right, {_points(accuracy)} points more than before."
        )
    if len(tuned) > 1:
        recall = max(tuned, key=lambda row: row.recall(ORIGINAL, 1)["value"])
        choice = max(tuned, key=lambda row: row.accuracy()["value"])
        sentences.append(
            f"Recall with the original captions is highest at alpha {recall.alpha:g}, multiple choice at "
            f"alpha {choice.alpha:g}."
        )
    return sentences


def _per(figure: Any) -> str:
    return f"{format.text(figure, interval='none')} %"


def _points(estimate: Estimate) -> str:
    return format.text({**estimate.as_dict(), "unit": "points"})
