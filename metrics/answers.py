"""Reading yes and no out of a judge's answer. Two rules: the published figures depend on one of them."""

from __future__ import annotations

import string

_IGNORED = string.punctuation + string.whitespace + "“”‘’…"


def paper_removed(answer: str) -> bool:
    """NeIn's removal script: removed only if the answer is "No" to the letter ("no" and "No." are not).

    Source: https://github.com/tanbuinhat/NeIn, evaluation_protocol/VQA/removal_eval.py.
    """
    return answer.strip() == "No"


def paper_present(answer: str) -> bool:
    """NeIn's retention scripts: present only if the answer is "yes" in any case ("Yes." is not).

    Source: https://github.com/tanbuinhat/NeIn, evaluation_protocol/VQA/check_obj.py and retention_eval.py.
    """
    return answer.strip().lower() == "yes"


def parse_yes_no(answer: str) -> bool | None:
    """True for yes, False for no, None for anything else: the first word decides, case and punctuation do
    not.

    "No, there is no car." -> False; "Yes." -> True; "It depends", "Nothing", "" -> None.
    """
    words = answer.split()
    first = words[0].strip(_IGNORED).lower() if words else ""
    return {"yes": True, "no": False}.get(first)
