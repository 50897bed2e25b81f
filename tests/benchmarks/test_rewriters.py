"""Rewriters alone: what they make of what an instruction denies."""

import dataclasses

import pandas as pd
import pytest

from nein.benchmarks.rewriters import Rewrite
from nein.datasets.nein import load
from nein.engine.folder import Blocks
from nein.metrics.chat import Chat, Completion
from nein.models import rewriters
from nein.wording.denials import OUTCOMES, find_outcome
from tests.helpers.commands import exit_code
from tests.loopback import say

SCRIPT = '''
from nein.nano.scenes import CATEGORIES
ENDS = ["Remove the {}.", "There is no {} anywhere.", "Keep the scene as it is.", "Paint a bright {} here."]
count = iter(range(10**9))


def of_four(instruction):
    """One way after the other."""
    return ENDS[next(count) % 4].format(*[name for name in CATEGORIES if name in instruction.lower()])


def fails(instruction):
    raise RuntimeError("no words")
'''


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Remove the cup.", "removed"),
        ("Erase the dog and the two cups from the table; keep everything else.", "removed"),
        ("Delete the dog but keep the cup where it is.", "affirmed"),
        ("A table without any cup.", "denied"),
        ("The image has no cups.", "denied"),
        ("Keep the lighting and composition unchanged.", "dropped"),
        ("Remove the cupboard.", "dropped"),
        ("Replace the cup on the left with a bare table.", "removed"),
        ("Replace the plate with a cup.", "affirmed"),
        ("Show a blue cup on the table.", "affirmed"),
        ("", "dropped"),
    ],
)
def test_what_becomes_of_the_thing_is_read_from_the_text(text, expected):
    assert find_outcome(text, "cup") == (expected, "")


def shares(folder):
    table = pd.read_csv(folder / "scores.csv")
    return table.groupby("metric")["value"].mean().to_dict(), table["value"].isna().sum()


def test_scripted_rewriters_give_their_error_rates_back(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(SCRIPT)
    out, words = tmp_path / "out", ["--limit", "32", "--device", "cpu", "--on", "debug"]
    given = f"rule,four={file}:of_four,broken={file}:fails"
    assert exit_code("rewriters", "--rewriter", given, *words, "--out", out) == 0
    found, unscored = shares(out / "four")
    assert {name: found[name] for name in OUTCOMES} == dict.fromkeys(OUTCOMES, 0.25)
    assert (found["invented"], unscored) == (0.0, 0)
    assert shares(out / "rule")[0]["removed"] > 0.9
    assert shares(out / "broken")[1] == 5 * 32
    assert "no words" in capsys.readouterr().err


def test_the_prompt_of_a_vendor_is_sent_as_diffusers_has_it_and_answers_are_kept(server, tmp_path):
    from diffusers.pipelines.flux2.system_messages import SYSTEM_MESSAGE_UPSAMPLING_I2I

    server.rule = lambda body, count: (200, say("Remove the bus. Replace it by a fire hydrant."), {})
    asked = ["--rewriter", f"vendor=flux2:openai:{server.url}#eye-7b", "--limit", "4", "--device", "cpu"]
    assert exit_code("rewriters", *asked, "--out", tmp_path / "out") == 0
    parts = server.requests[0]["messages"][-1]["content"]
    assert parts[0]["text"] == SYSTEM_MESSAGE_UPSAMPLING_I2I
    assert [part["type"] for part in parts] == ["text", "image_url", "text"]
    assert len(server.requests) == 4
    assert "4 requests" in (tmp_path / "out" / "table.md").read_text()  # what they cost
    assert exit_code("rewriters", *asked, "--out", tmp_path / "out", "--overwrite") == 0
    assert len(server.requests) == 4
    system, request = rewriters.find_prompt("flux3")
    assert "{instruction}" in request
    assert len(system) > 1000


def test_a_broken_image_leaves_its_sample_without_a_text_and_the_others_are_asked(tmp_path):
    class Echo(Chat):
        def complete(self, messages, sampling):
            return [Completion(text=message.parts[-1]) for message in messages]

    first, second = load("nano").samples[:2]
    broken = dataclasses.replace(first, sample_path=tmp_path / "none.png")
    stage = Rewrite(blocks=Blocks.first(2, 2), samples=[broken, second], model=None, shows_images=True)
    vendor = rewriters.VendorRewriter(Echo(), "", "Edit: {instruction}")
    rows = stage.work(vendor, stage.read(0), ())["rewritten"]
    assert "the file is missing" in rows[0].error
    assert (rows[1].text, rows[1].error) == (f"Edit: {second.negative}", "")
