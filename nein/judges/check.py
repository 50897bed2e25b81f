"""The command `nein check`: does an editor or a judge keep its contract? A plain list, passed or failed.

nein check EDITOR             a name, a folder, a hub id, plugin of `nein.editors`, or module:attribute
nein check --judge vqa REF    a reference as `--models.vqa` takes it, or module:attribute; with
                              `--against REF` also whether it gives another judge's verdicts
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from nein.judges.config import CheckConfig


def run(options: CheckConfig) -> int:
    """Prints what passed and what failed; 0 when everything passes, 1 otherwise. Raises UserError."""
    from nein.engine.processes import Processes
    from nein.judges import contracts, parity

    device = Processes().device(options.device)
    pairs: list[parity.Pair] = []
    if options.judge:
        subject = build_judge(options.judge, options.subject, device, options.dtype)
        outcomes = contracts.check_judge(options.judge, subject, options.number)
        if options.against:
            other = build_judge(options.judge, options.against, device, options.dtype)
            pairs = parity.compare(options.judge, subject, other, options.number)
            outcomes = itertools.chain(outcomes, parity.outcomes(pairs, options.against))
    else:
        subject = build_editor(options.subject, device, options.dtype, options.editor_options)
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


def build_editor(name: str, device: str, dtype: str, options: Mapping[str, Any]) -> Any:
    """The editor, as `nein eval --editor` finds it."""
    from nein.models import editor_choice

    [choice] = editor_choice.resolve_editors([name], "nano", options)
    return choice.load(device=device, dtype=dtype, batch_size=4)


def build_judge(kind: str, reference: str, device: str, dtype: str) -> Any:
    """The judge, as `--models.<kind>` finds it."""
    from nein import metrics
    from nein.models import references

    where, revision = references.resolve(reference)
    return metrics.load_judge(kind, where, revision=revision, device=device, dtype=dtype)
