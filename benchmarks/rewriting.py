"""What does the rewriting of negative sentences get wrong, by family of negation?

    python -m benchmarks.rewriting [--arm rewrite | rewrite:llm:MODEL] [--objects 80]

Every sentence of `nein.wording.families` and of the nano world's wordings, about every object, is sent
through the arm of `--mend`. Right: the command removes what the sentence says is absent, all of it and
nothing else, or leaves the picture alone where the sentence affirms. The rule was written with the
sentences of the families at hand and without those of the wordings.
Prints a table, and an example of every kind of error. Results: docs/explanation/findings.md.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tabulate import tabulate

from nein.editors import EditRequest
from nein.generate.nein.sources import COCO
from nein.models.remedies import editors as remedies
from nein.nano import data
from nein.wording import nouns
from nein.wording.families import FAMILIES, choices, removal, sentence

WORDINGS = {
    "other sentences": data.VARIED,
    "held-out sentences": data.UNSEEN,
    "other denying words": data.NEGATOR,
}
PICTURE = np.zeros((8, 8, 3), np.uint8)


@dataclass(frozen=True)
class Case:
    """A sentence, what it says is absent (singular names), and where it comes from."""

    group: str
    sentence: str
    absent: tuple[str, ...]


def cases(objects: list[str]) -> Iterator[Case]:
    for place, name in enumerate(objects):
        second, present = (objects[(place + step) % len(objects)] for step in (7, 13))
        for label, family in FAMILIES.items():
            for index in choices(label, name, "fixed"):
                told = sentence(label, index, name, second=second, present=present)
                absent = () if family.stays else (name, second) if family.needs == "T" else (name,)
                yield Case(label, told, absent)
        taught = set(data.NEGATIVES[data.TAUGHT])
        for group, wording in WORDINGS.items():
            for template in data.NEGATIVES[wording]:
                if template not in taught:
                    yield Case(group, data.said(template, name), (name,))


def verdict(case: Case, sent: remedies.Sent) -> str:
    """ "right", or what is wrong."""
    if sent.error:
        return "no answer"
    told = "" if sent.request is None else sent.request.instruction
    names = [case.absent, tuple(nouns.plural(name) for name in case.absent)]
    if told in [removal(" and the ".join(name)) if name else "" for name in names]:
        return "right"
    if told == case.sentence:
        return "not noticed"
    return "left alone" if not told else "another command"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--arm", default="rewrite")
    parser.add_argument("--objects", type=int, default=len(COCO))
    arguments = parser.parse_args()
    asked = list(cases(list(COCO[: arguments.objects])))
    requests = [EditRequest(str(k), PICTURE, case.sentence, 0) for k, case in enumerate(asked)]
    model = arguments.arm.removeprefix(remedies.LLM)
    by_rule = model == arguments.arm
    arm = remedies.ByRule(model) if by_rule else remedies.ByLanguageModel(model, None, "cpu")
    counts: dict[str, Counter[str]] = {}
    examples: dict[tuple[str, str], str] = {}
    for case, sent in zip(asked, arm.send(requests), strict=True):
        said = verdict(case, sent)
        counts.setdefault(case.group, Counter())[said] += 1
        if said != "right":
            told = sent.request.instruction if sent.request else sent.error or "(nothing)"
            examples.setdefault((case.group, said), f"{case.sentence} -> {told}")
    kinds = ["right", "another command", "not noticed", "left alone", "no answer"]
    rows = [
        [
            group,
            total := sum(of.values()),
            f"{100 * of['right'] / total:.1f}",
            *(of[kind] for kind in kinds[1:]),
        ]
        for group, of in counts.items()
    ]
    print(tabulate(rows, ["sentences", "n", "right %", *kinds[1:]], tablefmt="github"))
    for (group, said), example in examples.items():
        print(f"- {group}, {said}: {example}")


if __name__ == "__main__":
    main()
