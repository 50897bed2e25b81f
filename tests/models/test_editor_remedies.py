"""Arms before editors: what is sent, what stays as it is, and what cannot be sent."""

from types import SimpleNamespace

import numpy as np
import pytest

from nein.editors import EditRequest
from nein.editors.base import Identity
from nein.engine.answers import AnswerCache
from nein.metrics.chat import local
from nein.models import editor_choice, rewriters
from nein.models.cached import Services
from nein.models.remedies import editors as remedies
from nein.wording import denials
from tests.rehearsal import ScriptedChat

PICTURE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
CUP = "The image doesn't have any cup."


class Listening(Identity):
    family = "sd"

    def __init__(self):
        super().__init__(name="listening")
        self.sent = []

    def _paint(self, request):
        self.sent.append(request)
        return 255 - request.image


def edit(arm, *sentences):
    editor = Listening()
    mended = remedies.add_remedy(editor, arm, services=None, device="cpu")
    requests = [EditRequest(str(k), PICTURE, sentence, k) for k, sentence in enumerate(sentences)]
    return editor.sent, mended.edit(requests)


@pytest.mark.parametrize(
    ("sentence", "absent", "present"),
    [
        ("There is no red ball.", ["red ball"], []),
        ("no cats, dogs or birds", ["cats", "dogs", "birds"], []),
        ("no cat and a dog on the grass", ["cat"], ["dog", "grass"]),
        ("A street empty of cars.", ["cars"], ["street"]),
        ("The cup has gone.", ["cup"], []),
        ("There used to be a cup on the table.", ["cup"], ["table"]),
        ("The cat isn\N{RIGHT SINGLE QUOTATION MARK}t in the picture.", ["cat"], []),
        ("Keep everything the same, but no umbrella.", ["umbrella"], ["same"]),
        ("A man who is not smiling holds a cup.", [], ["man", "smiling", "cup"]),
        ("Not all dogs are black.", [], ["dogs"]),
        ("nothing but a cup", [], ["cup"]),
        ("The table is not without a cup.", [], ["table", "cup"]),
        ("A man wears a tie, but noticeably absent is a handbag.", ["handbag"], ["man", "tie"]),
        ("Absent from the image is a car, but a dog is there.", ["car"], ["dog"]),
        ("A car is missing from the street and the dog is brown.", ["car"], ["street", "dog"]),
        ("In the absence of a chair, a hydrant stands there.", ["chair"], ["hydrant"]),
        ("A street with cars, notably lacking a bus.", ["bus"], ["street", "cars"]),
        ("A clock tower, with no one in sight.", ["person"], ["clock tower"]),
        ("A tray unaccompanied by anyone.", ["person"], ["tray"]),
        ("The room is unoccupied.", ["person"], ["room"]),
        ("Can anyone see the dog?", [], ["dog"]),
        ("The image is people-free, with a building.", ["people"], ["building"]),
        ("There is no table nearby.", ["table"], []),
        ("Two people are going home.", [], ["people"]),
    ],
)
def test_what_a_sentence_says_is_absent(sentence, absent, present):
    [read] = denials.read([sentence])
    assert list(read.absent) == absent
    assert set(present) <= set(read.present)


def test_a_denial_becomes_a_command_other_sentences_stay_and_a_denied_denial_is_not_sent():
    neither, twice = "Neither a bus nor a dog is in the image.", "The image is not without a cup."
    sent, results = edit("rewrite", CUP, neither, twice, "Add a cup.")
    assert [(request.id, request.instruction, request.seed) for request in sent] == [
        ("0", "Remove the cup.", 0), ("1", "Remove the bus and the dog.", 1), ("3", "Add a cup.", 3),
    ]  # fmt: skip
    assert results[0].note == "sent with instruction 'Remove the cup.'"
    assert [one.note for one in results[2:]] == [remedies.AFFIRMED, remedies.AS_IT_IS]
    assert (results[0].image == 255 - PICTURE).all()
    assert (results[2].image == PICTURE).all()


def test_a_rule_of_attention_is_part_of_what_the_editor_is():
    made = {
        name: remedies.add_remedy(Listening(), name, services=None, device="cpu")
        for name in ("nag", "nag:8", "vsf")
    }
    assert made["nag:8"].describe()["mended"]["rule"] == {"scale": 8.0, "tau": 2.5, "alpha": 0.38}
    assert len({editor.fingerprint for editor in made.values()}) == 3


def test_what_the_remedy_takes_is_added_to_what_the_editor_takes(monkeypatch):
    editor, client = Listening(), SimpleNamespace(describe=dict)
    client.usage = lambda: {"requests": 3, "versions": {"a": 1, "b": 2}, "retries": 1}
    monkeypatch.setattr(rewriters.llm, "load", lambda options, **how: client)
    mended = remedies.add_remedy(editor, "rewrite:llm:owner/name", services=None, device="cpu")
    editor.usage = lambda: {"requests": 2, "versions": {"a": 2}, "adapted": {"size": ""}}
    total = {"requests": 5, "versions": {"a": 3, "b": 2}, "adapted": {"size": ""}, "retries": 1}
    assert mended.usage() == total


def test_what_is_absent_is_what_guidance_goes_away_from():
    [beside], _ = edit("negative-prompt", CUP)
    [alone], _ = edit("negative-prompt-alone", CUP)
    [weighted], _ = edit("attention", CUP)
    [flipped, untouched], _ = edit("vsf:3", CUP, "Add a cup.")
    assert (flipped.instruction, flipped.negative_prompt, flipped.guided) == (CUP, "cup", "vsf:3")
    assert (untouched.negative_prompt, untouched.guided) == ("", "")
    assert (beside.instruction, beside.negative_prompt) == (CUP, "cup")
    assert (alone.instruction, alone.negative_prompt) == ("", "cup")
    assert (weighted.instruction, dict(weighted.weights)) == (CUP, {"cup": -2.0})


@pytest.mark.parametrize(
    ("text", "told", "note", "error"),
    [
        ('{"command": "Remove the cup."}', ["Remove the cup."], "sent with instruction 'Remove the", ""),
        ('{"command": " "}', [], remedies.AFFIRMED, ""),
        ("I would rather not.", [], "", "no rewriting: nonsense, no JSON object"),
        ('{"command": 3}', [], "", "no rewriting: wrong schema, command: "),
    ],
)
def test_a_language_model_rewrites_and_what_it_cannot_say_is_an_error(
    text, told, note, error, tmp_path, monkeypatch
):
    def rewrite(message):
        assert CUP in message.parts[0]
        return text

    model = ScriptedChat(rewrite)
    monkeypatch.setattr(local, "load_text", lambda *where, **how: model)
    for _ in range(2):
        with AnswerCache(tmp_path / "answers.sqlite") as cache:
            editor = Listening()
            services, name = Services(cache, {}), "rewrite:llm:owner/name"
            mended = remedies.add_remedy(editor, name, services=services, device="cpu")
            [result] = mended.edit([EditRequest("a", PICTURE, CUP, 0)])
        assert [request.instruction for request in editor.sent] == told
        assert result.note.startswith(note)
        assert (result.error or "").startswith(error)
        assert bool(result.error) == bool(error) == (result.image is None)
    assert model.asked == 1


def test_every_editor_is_followed_by_its_cures_under_names_of_their_own():
    mend = ["rewrite", "best-of:4:removal"]
    choices = editor_choice.resolve_editors(["ip2p", "magicbrush"], "nano", {}, mend=mend)
    assert [choice.slug for choice in choices] == [
        f"{editor}{arm}"
        for editor in ("ip2p", "magicbrush")
        for arm in ("", "+rewrite", "+best-of-4-removal")
    ]
    assert choices[1].identity() == {**choices[0].identity(), "mend": "rewrite"}
