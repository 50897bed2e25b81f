"""The command `nein check`: does an editor or a judge keep its contract? A plain list, passed or failed.

nein check EDITOR             a name, a folder, a hub id, plugin of `nein.editors`, or module:attribute
nein check --judge vqa REF    a reference as `--models.vqa` takes it, or module:attribute; with
                              `--against REF` also whether it gives another judge's verdicts
"""

from __future__ import annotations

import itertools
from typing import Any

from nein.judges.config import CheckConfig


def run(options: CheckConfig) -> int:
    """Prints what passed and what failed; 0 when everything passes, 1 otherwise. Raises UserError."""
    from nein import metrics
    from nein.engine.processes import Processes
    from nein.judges import contracts, parity
    from nein.models import editor_choice, references

    def judge(reference: str) -> Any:
        where, revision = references.resolve(reference)
        return metrics.load_judge(
            str(options.judge), where, revision=revision, device=device, dtype=options.dtype
        )

    device = Processes().device(options.device)
    pairs: list[parity.Pair] = []
    if options.judge:
        subject = judge(options.subject)
        outcomes = contracts.check_judge(options.judge, subject, options.number)
        if options.against:
            pairs = parity.compare(options.judge, subject, judge(options.against), options.number)
            outcomes = itertools.chain(outcomes, parity.outcomes(pairs, options.against))
    else:
        [choice] = editor_choice.resolve_editors([options.subject], "nano", options.editor_options)
        subject = choice.load(device=device, dtype=options.dtype, batch_size=4)
        outcomes = contracts.check_editor(subject, options.number)
    failed = 0
    for outcome in outcomes:
        word = {True: "pass", False: "FAIL", None: "info"}[outcome.passed]
        failed += outcome.passed is False
        print(f"{word}  {outcome.name}{': ' if outcome.reason else ''}{outcome.reason}", flush=True)
    if pairs and options.against:
        print(f"\n{parity.table(pairs, options.subject, options.against)}")
    print(f"{options.subject}: {'all checks passed' if not failed else f'{failed} checks failed'}")
    return 1 if failed else 0
