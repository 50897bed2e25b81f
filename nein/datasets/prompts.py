"""Reads prompts that deny something, for text-to-image models: what must be in the image, and what must not.

nano          120 drawn ones: "A cat and no dog on a beach.", with both other variants
FILE.csv      columns prompt, wanted, forbidden (things, separated by ";"); optional: id, and the variants
              affirmed (asks for what is forbidden) and unmentioned (does not name it)
UniGenBench   its CSV in English; its test points say what is denied: github.com/CodeGoat24/UniGenBench, data
SpaceVLM      its two lists as JSON: github.com/sepehrkr/SpaceVLM, T2I

A thing is a noun phrase ("dog"), a sentence ("the tail is fluffy."), or a question ("Is the dog running?").
The last two are for actions and attributes, and affirm what the prompt denies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nein.engine import atomic
from nein.loading.digests import Json, json_digest
from nein.loading.errors import UserError
from nein.loading.references import expand_user
from nein.nano import scenes
from nein.nano.sentences import PLACES
from nein.wording import denials
from nein.wording.families import a_or_an, find_named

#: Variants of a prompt: it denies a thing, asks for the same thing, or does not mention it.
VARIANTS = DENIED, AFFIRMED, UNMENTIONED = ("denied", "affirmed", "unmentioned")


@dataclass(frozen=True)
class Prompt:
    """One prompt, with the things that must and must not be in its image."""

    id: str
    texts: Mapping[str, str]  # variant -> prompt; `DENIED` is always there
    forbidden: tuple[str, ...]
    wanted: tuple[str, ...] = ()  # () where nobody says what must be there
    left_out: tuple[str, ...] = ()  # denied phrases that no single question decides


@dataclass(frozen=True)
class Prompts:
    records: Sequence[Prompt]
    name: str  # of their file, or "nano"

    @property
    def facts(self) -> Json:
        """Name, digest and counts, for a manifest."""
        sentences = sum(not is_noun(thing) for record in self.records for thing in record.forbidden)
        left_out = sum(len(record.left_out) for record in self.records)
        facts: Json = {"name": self.name, "sha256": json_digest({"prompts": [*map(asdict, self.records)]})}
        return {**facts, "prompts": len(self.records), "sentences": sentences, "left_out": left_out}

    def find_without(self, index: int, noun: str) -> int | None:
        """Index of the next prompt that does not name a noun (the first follows the last); None: all do."""
        for other in (*range(index + 1, len(self.records)), *range(index)):
            record = self.records[other]
            if not find_named([record.texts[DENIED], *record.forbidden, *record.wanted], [noun]):
                return other
        return None


def is_noun(thing: str) -> bool:
    """Whether a thing is a noun phrase: its presence is asked, and a detector can look for it."""
    return not thing.endswith((".", "?"))


# --- files ---------------------------------------------------------------------------------------------
def load(source: str) -> Prompts:
    """The prompts of "nano" or of a file. Raises UserError, with the line, for a file that cannot be read."""
    if source == "nano":
        return Prompts([draw(index) for index in range(120)], source)
    path = expand_user(source)
    if path.suffix not in (".csv", ".json"):
        raise UserError(f"'{source}' is no list of prompts; give nano, a .csv file, or SpaceVLM's .json.")
    if path.suffix == ".json":
        read = _read_spacevlm
    else:
        header = next(iter(atomic.read_text_lines(path)), "")
        if "prompt_zh" in header:
            raise UserError(f"'{path}' is in Chinese; give the English file: denials are read in English.")
        read = _read_unigenbench if "sub_dims" in header else _read_table
    records: dict[str, Prompt] = {}
    for place, record in read(path):
        if not all(text.strip() for text in record.texts.values()):
            raise UserError(f"{place}: the prompt is empty; write one, or remove the line.")
        if not record.forbidden and not record.left_out:
            raise UserError(f"{place}: 'forbidden' is empty; name what the prompt denies.")
        if record.id in records:
            raise UserError(f"{place}: the id '{record.id}' stands above, too; change one.")
        records[record.id] = record
    if not records:
        raise UserError(f"'{path}' has no prompt that denies something.")
    return Prompts([*records.values()], path.name)


def _read_table(path: Path) -> Iterator[tuple[str, Prompt]]:
    """Yields every prompt after its place in the file, for messages; so do the other readers."""
    for number, (line, row) in enumerate(atomic.read_csv(path, ("prompt", "wanted", "forbidden"))):
        texts = {DENIED: row["prompt"], **{name: row[name] for name in VARIANTS if row.get(name)}}
        forbidden, wanted = _split_things(row["forbidden"]), _split_things(row["wanted"])
        yield f"'{path}', line {line}", Prompt(row.get("id") or str(number), texts, forbidden, wanted)


def _split_things(text: str) -> tuple[str, ...]:
    return tuple(thing.strip() for thing in text.split(";") if thing.strip())


def _read_spacevlm(path: Path) -> Iterator[tuple[str, Prompt]]:
    """Forbidden things are questions in the list of single denials, and also nouns in that of several."""
    for number, row in enumerate(atomic.read_json(path, list[dict[str, Any]]), start=1):
        place = f"'{path}', entry {number}"
        try:
            if "Prompt" in row:
                texts, forbidden = {DENIED: row["Prompt"]}, (row["Question2"],)
            else:
                texts = {DENIED: row["full_prompt"], UNMENTIONED: row["affirmative_prompt"]}
                forbidden = tuple(row["negative_prompts"])
            yield place, Prompt(str(row.get("id", number)), texts, forbidden, (row["Question1"],))
        except KeyError as error:
            raise UserError(f"{place} has no {error}; expected a list of SpaceVLM.") from None


#: UniGenBench's test point of denials, and its points that no question about the image alone decides.
NEGATION, UNASKED = "Grammar - Negation", ("Logical Reasoning", "Text Generation")
_POINTS = atomic.record({"Testpoints": list[str], "Testpoint Description": list[str]})
#: Denials of a verb, as in "is not"; and all denials.
_NOT = re.compile(r"\s*\b(?:not|never)\b|n't\b", re.IGNORECASE)
_DENYING = re.compile(r"\b(?:no|not|never|none|neither|nor|without)\b|n't\b|\brather than\b", re.IGNORECASE)


def _read_unigenbench(path: Path) -> Iterator[tuple[str, Prompt]]:
    """The prompts with a denial. The sentences of their other test points are wanted things."""
    for line, row in atomic.read_csv(path, ("index",)):
        place = f"'{path}', line {line}"
        ending = "_en" if "prompt_en" in row else ""  # of the columns' names
        entry = atomic.parse(row[f"sub_dims{ending}"].encode(), _POINTS, place)
        forbidden, wanted, left_out = dict[str, None](), dict[str, None](), dict[str, None]()  # ordered sets
        for point, phrase in zip(entry["Testpoints"], entry["Testpoint Description"], strict=False):
            if point == NEGATION:
                things = read_denial(phrase)
                forbidden |= dict.fromkeys(things)
                left_out |= {} if things else {phrase: None}
            elif point not in UNASKED and not _DENYING.search(phrase):
                wanted[f"{phrase.strip().rstrip('.')}."] = None
        if forbidden or left_out:
            texts = {DENIED: row[f"prompt{ending}"]}
            yield place, Prompt(row["index"], texts, (*forbidden,), (*wanted,), (*left_out,))


def read_denial(phrase: str) -> tuple[str, ...]:
    """The things that a phrase denies: the nouns that the denial rule finds; for an action or attribute the
    affirmed sentence; () where several are denied."""
    lacking = re.sub(r"n't have\b| not have\b", " lack", phrase)  # "does not have a tail" denies a noun
    if not _NOT.search(lacking) and "neither" not in lacking.lower():
        return denials.read([phrase])[0].absent
    is_single = len(_DENYING.findall(lacking)) == 1 and lacking == phrase
    return (f"{_NOT.sub('', phrase).strip().rstrip('.')}.",) if is_single else ()


# --- drawn prompts -------------------------------------------------------------------------------------
#: Forms of the drawn prompts. w: wanted thing with its article; x: denied noun, a_x: with its article.
DRAWN = ("{w} and no {x} {place}.", "{w} {place}, without {a_x}.", "There is {w} {place}. There is no {x}.")


def draw(index: int) -> Prompt:
    """A prompt of the miniature world in all variants: one thing is wanted, another is denied."""
    rng = scenes.rng_for("val", index, "prompts")
    wanted, denied = rng.sample(scenes.CATEGORIES, 2)
    background = rng.choice(tuple(scenes.BACKGROUNDS))
    place = rng.choice(PLACES[background][1])
    forms = {DENIED: rng.choice(DRAWN), AFFIRMED: "{w} and {a_x} {place}.", UNMENTIONED: "{w} {place}."}
    texts = {}
    for variant, form in forms.items():
        text = form.format(w=a_or_an(wanted), x=denied, a_x=a_or_an(denied), place=place)
        texts[variant] = text[0].upper() + text[1:]
    return Prompt(f"{index:04d}", texts, (denied,), (wanted,))
