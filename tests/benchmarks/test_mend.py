"""nein mend: what a model is, which remedies it gets, and what is recommended."""

import re

import pytest

from nein.benchmarks import mend
from nein.benchmarks.mend_config import MendConfig
from tests.helpers import commands
from tests.loopback import say
from tests.negvqa.tiny import records, write_questions


@pytest.mark.parametrize(
    ("model", "kind", "arms"),
    [
        ("ip2p", "editor", "rewrite attention negative-prompt negative-prompt-alone vsf nag"),
        ("mine=nano:ip2p", "editor", "rewrite attention negative-prompt negative-prompt-alone vsf nag"),
        ("identity", "editor", "rewrite"),
        ("flux2", "editor", "rewrite"),
        ("flux-kontext", "editor", "rewrite negative-prompt negative-prompt-alone"),
        ("tests/benchmarks/test_mend.py:edit", "editor", "rewrite"),
        ("nano:clip", "encoder", "decompose spacevlm"),
        ("random", "encoder", "decompose spacevlm"),
        ("nano:negvqa", "vlm", "flip consistent chain-of-thought"),
    ],
)
def test_a_model_gets_the_remedies_that_can_act_on_it(model, kind, arms):
    preset = "paper" if model.startswith("flux") else "nano"
    config = MendConfig(model=model, preset=preset)
    assert mend.find_kind(config) == kind
    assert mend.list_applicable(config) == arms.split()


def edit(image, instruction):
    return image


TITLES = {"removal_vqa": "Removal (VQA)", "removal_ovd": "Removal (OVD)", "retention_vqa": "Retention (VQA)"}
CASES = [  # remedy, change of the gap by each judge, its p, Retention where told and denied; what is said
    ("good", (-0.5, -0.4), 0.01, 0.0, 0.1, "closes the gap"),
    ("better but harmful", (-0.9, -0.9), 0.01, -0.3, 0.0, "closes the gap; worse: Retention (VQA), told"),
    ("one judge only", (-0.9, 0.1), 0.01, 0.0, 0.0, "no clear gain"),
    ("by chance", (-0.9, -0.9), 0.06, 0.0, 0.0, "no clear gain"),
    ("against", (0.4, 0.3), 0.01, 0.0, -0.2, "widens the gap; worse: Retention (VQA), negative"),
    ("idle", (0.0, 0.0), 1.0, 0.0, 0.0, "did not act"),
]


def test_the_widest_gain_that_makes_nothing_worse_is_recommended():
    rows = []
    for arm, gaps, p, told, denied, _ in CASES:
        changes = [("removal_vqa", "gap", gaps[0]), ("removal_ovd", "gap", gaps[1]),
                   ("retention_vqa", "remove", told), ("retention_vqa", "negative", denied)]  # fmt: skip
        for metric, variant, value in changes:
            row = {"model": arm, "metric": metric, "variant": variant, "unit": "points", "n": 48,
                   "what": f"{TITLES[metric]}, {'told' if variant == 'remove' else variant}",
                   "statistic": "difference", "value": value, "low": value - 0.1, "high": value + 0.1,
                   "p_holm": p if variant == "gap" else 0.01}  # fmt: skip
            rows.append(row)
    rows.append({**rows[0], "statistic": "second", "value": 0.8})
    judged = mend.judge_remedies(mend.KINDS["editor"], rows, [case[0] for case in CASES])
    assert [row["verdict"] for row in judged] == [case[-1] for case in CASES]
    assert mend.recommend(judged, rows) == (
        "Without a remedy the gap is 80.0 points (Removal (VQA), 48 samples). Recommended: good, which "
        "changes the gap by -50.0 [-60.0, -40.0] points and makes nothing worse."
    )
    others = [row for row in judged if row["model"] != "good"]
    assert "Recommended: none; no remedy closes the gap significantly" in mend.recommend(others, rows)


def test_a_model_behind_an_address_is_mended_and_its_requests_are_counted(tmp_path, server, capsys):
    """A model that overhears "not": flip gives it all the answers that it lacks."""

    def rule(body, count):
        text = " ".join(part["text"] for part in body["messages"][0]["content"] if part["type"] == "text")
        number = int(re.search(r"What is (?:not )?number (\d+)", text)[1])
        return 200, say("AB"[number % 2]), {}

    server.rule = rule
    questions = write_questions(tmp_path, records(12))
    done = commands.outcome(
        capsys, "mend", f"openai:{server.url}#eye-7b", "--kind", "vlm", "--mend", "flip,chain-of-thought",
        "--data", questions, "--out", tmp_path / "out", "--endpoint.concurrency", "2",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert (
        "Without a remedy the gap is 100.0 points (accuracy, 24 samples). Recommended: flip"
        in done.stdout.replace("\n", " ")
    )
    assert "Gap: score on affirmative inputs minus score on negated ones" in done.stdout
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line}
    assert "closes the gap" in lines["flip"]
    requests = [
        int(re.search(r"\d+\.\d\s+(\d+)", lines[name])[1]) for name in ("as", "flip", "chain-of-thought")
    ]
    assert sum(requests) == len(server.requests)
    assert requests == [48, 0, 96]  # flip asks what was asked before
    table = (tmp_path / "out" / "mend" / "table.md").read_text()
    assert re.search(r"\| flip +\| accuracy, negated +\| 100.0 +\| 0.0 ", table)


def test_runs_on_captions_are_compared_by_task_and_kind(tmp_path, capsys):
    words = "--kind encoder --limit 4 --mend decompose --device cpu --out".split()
    assert commands.exit_code("mend", "random", *words, tmp_path) == 0
    compared = commands.outcome(capsys, "compare", tmp_path, "--format", "csv")
    assert compared.code == 0, compared.stderr
    for what in ('"recall@1, retrieval templated",gap', '"accuracy, mcq templated",negation'):
        assert what in compared.stdout
