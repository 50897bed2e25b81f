import pytest
from pydantic import BaseModel, ConfigDict

from nein.models.llm import (
    CUT_OFF,
    NONSENSE,
    WRONG_SCHEMA,
    AnswerError,
    instructions,
    parse,
    wire_schema,
)


class Found(BaseModel):
    model_config = ConfigDict(extra="forbid")
    objects: list[str]
    sure: bool


GOOD = '{"objects": ["cat", "a {b}"], "sure": true}'


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"  {GOOD}\n",
        f"```json\n{GOOD}\n```",
        f"Here is the object you asked for:\n{GOOD}\nLet me know!",
        f'<think>Is it {{"objects": []}}? No.</think>\n{GOOD}',
        f'Is it {{"objects": []}}? No.</think>\n{GOOD}',
    ],
)
def test_the_one_object_is_found_whatever_stands_around_it(text):
    assert parse(text, Found) == Found(objects=["cat", "a {b}"], sure=True)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", NONSENSE),
        ("No.", NONSENSE),
        ("objects: cat, sure: yes", NONSENSE),
        ('["cat"]', NONSENSE),
        (GOOD[:-3], NONSENSE),
        (f"{GOOD} {GOOD}", NONSENSE),
        (f"{GOOD} or rather {{objects: none}}", NONSENSE),
        ('{"objects": [], "sure": NaN}', WRONG_SCHEMA),
        ("{'objects': [], 'sure': True}", NONSENSE),
        ('{"a": ' + "[" * 100_000, NONSENSE),
        ('{"a":' * 100_000, NONSENSE),
        ('{"objects": [], "sure": "true"}', WRONG_SCHEMA),
        ('{"objects": [], "sure": 1}', WRONG_SCHEMA),
        ('{"objects": [7], "sure": true}', WRONG_SCHEMA),
        ('{"objects": "cat", "sure": true}', WRONG_SCHEMA),
        ('{"objects": []}', WRONG_SCHEMA),
        ('{"objects": [], "sure": true, "why": "x"}', WRONG_SCHEMA),
        ("{}", WRONG_SCHEMA),
    ],
    ids=range(18),
)
def test_an_answer_that_is_not_plainly_the_object_is_a_failure_of_its_kind(text, kind):
    with pytest.raises(AnswerError) as found:
        parse(text, Found)
    assert found.value.kind == kind
    assert str(found.value)


def test_an_answer_cut_short_is_told_from_nonsense_but_used_when_complete():
    with pytest.raises(AnswerError) as found:
        parse(GOOD[:20], Found, finished=False)
    assert found.value.kind == CUT_OFF
    assert parse(GOOD + "\nAnd", Found, finished=False).sure is True


def test_the_schema_for_servers_requires_every_key_and_allows_no_other():
    class Inner(BaseModel):
        name: str = "x"

    class Outer(BaseModel):
        inner: list[Inner]
        flag: bool = False

    shape = wire_schema(Outer)
    assert shape["required"] == ["flag", "inner"]
    assert shape["additionalProperties"] is False
    assert shape["$defs"]["Inner"]["required"] == ["name"]
    assert '"sure"' in instructions(Found)
