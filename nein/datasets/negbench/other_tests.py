"""Reads other published tests of negation (`registry.ROWS`) as questions in NegBench's form: captions to
choose from, questions, pairs of images; and SimpleNeg's captions. `READERS` names the readers.

Items of SugarCrepe and NaturalBench without a denying word (`polarity.denies`) are left out."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from nein.datasets.negbench import records
from nein.datasets.negbench.media import make_region
from nein.datasets.negbench.polarity import denies
from nein.datasets.negbench.records import AFFIRMATION, NEGATION, Group, Option, Question, RetrievalItem
from nein.datasets.nein import load_folder
from nein.engine import atomic
from nein.engine.atomic import record
from nein.engine.folder import Row
from nein.loading.errors import UserError, first_line
from nein.wording import families
from nein.wording.families import DEPTH, OTHERS

YES, NO = "Yes", "No"
ANSWERS = (Option(YES), Option(NO))
# Scores of questions that have to be answered right together (`Group.score`):
TEXT, IMAGE, GROUP = "text", "image", "group"  # of `Pair.build_comparisons`
ONE_QUESTION, ONE_IMAGE, ALL_FOUR = "a question, both pictures", "a picture, both questions", "all four"
REMOVED, KEPT = "thing removed", "thing kept"  # of BEAF


def read(reader: str, path: Path, protocol: str) -> tuple[Question, ...]:
    """The questions of a file; "NAME-asked" asks yes-no questions about pairs. Raises UserError."""
    questions: list[Question] = []
    for item in READERS[reader.removesuffix("-asked")](path, protocol):
        if isinstance(item, Question):
            questions.append(item)
        else:
            questions += item.build_questions() if reader.endswith("-asked") else item.build_comparisons()
    if not questions:
        raise UserError(f"'{path}' has no item for this test.")
    records.check_records(questions, str(path))
    return tuple(questions)


@dataclass(frozen=True)
class Pair:
    """Two captions and two images: captions[k] is true of images[k] alone. It makes four questions."""

    name: str
    images: tuple[str, str]
    captions: tuple[str, str]
    source: str = ""  # what resampling treats as one unit; "": these two images
    groups: tuple[Group, ...] = ()  # further groups of the four questions
    difficulty: tuple[tuple[str, int], ...] = ()  # (axis, level)
    denies: tuple[bool, bool] | None = None  # which captions deny; None: by `polarity.denies`

    def build_comparisons(self) -> Iterator[Question]:
        """Asks which caption fits each image, and which image fits each caption."""
        caption_options = self._caption_options
        for k, image in enumerate(self.images):
            own = caption_options[k]
            image_options = tuple(replace(own, image=name) for name in self.images)
            for score, options in ((TEXT, caption_options), (IMAGE, image_options)):
                question = Question(f"{self.name}/{score}{k}", image, options, k, own.template)
                yield self._add_facts(question, Group(score, self.name, 2), Group(GROUP, self.name, 4))

    def build_questions(self) -> Iterator[Question]:
        """Asks of both captions whether they are true of either image."""
        for k, caption in enumerate(self._caption_options):
            for m, image in enumerate(self.images):
                correct = 0 if k == m else 1  # yes, no
                question = Question(f"{self.name}/q{k}i{m}", image, ANSWERS, correct, caption.template)
                question = replace(question, asked=f"Is it true of the picture? {caption.text}")
                yield self._add_facts(question, *make_groups(self.name, k, m))

    @property
    def _caption_options(self) -> tuple[Option, ...]:
        if self.denies is None:
            return tuple(Option(caption, _find_template(caption)) for caption in self.captions)
        templates = [NEGATION if is_denying else AFFIRMATION for is_denying in self.denies]
        return tuple(map(Option, self.captions, templates))

    def _add_facts(self, question: Question, *groups: Group) -> Question:
        source = self.source or " ".join(self.images)
        return replace(question, source=source, groups=(*groups, *self.groups), difficulty=self.difficulty)


def make_groups(name: str, question: int, image: int) -> tuple[Group, ...]:
    """The groups of one of four questions: two questions (0, 1), each about two images (0, 1)."""
    same_question = Group(ONE_QUESTION, f"{name}/q{question}", 2)
    same_image = Group(ONE_IMAGE, f"{name}/i{image}", 2)
    return same_question, same_image, Group(ALL_FOUR, name, 4)


# --- captions to choose from: a reader yields the questions of a file -------------------------------
def valse(path: Path, protocol: str) -> Iterator[Question]:
    """VALSE, existence: the 505 of 534 items with a caption that two of three annotators called true."""
    item_type = record({"image_file": str, "caption": str, "foil": str, "mturk": record({"caption": int})})
    for name, item in _iter_items(path, dict, item_type):
        if item["mturk"]["caption"] >= 2:
            yield _make_choice(name, item["image_file"], item["caption"], item["foil"])


EVALUATED = 40_000  # items of CC-Neg, the last ones (src/configs/__init__.py of the released code)


def cc_neg(path: Path, protocol: str) -> Iterator[Question]:
    """CC-Neg: the last 40,000 items of a torch file. `protocol` decides on commas (quirks.md)."""
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, KeyError, ValueError) as error:
        reason = first_line(error)
        raise UserError(f"'{path}' is not plain data ({reason}); code in it is never run.") from None
    note: Any = record({"json": record({"caption": str}), "sop_data": record({"negative-prompt": str})})
    atomic.parse(content, record({"image_paths": list[str], "annotations": list[note]}), f"'{path}'")
    images, notes = content["image_paths"], content["annotations"]
    for number in range(max(0, len(images) - EVALUATED), len(images)):
        caption = notes[number]["json"]["caption"]
        negation = notes[number]["sop_data"]["negative-prompt"]
        negation = negation.replace(",", "") if protocol == "paper" else negation
        options = Option(caption, AFFIRMATION), Option(negation, NEGATION)
        yield Question(str(number), images[number], options, 0, AFFIRMATION, source=images[number])


def sugarcrepe(path: Path, protocol: str) -> Iterator[Question]:
    """SugarCrepe: the items in which just one of the two captions denies."""
    item_type = record({"filename": str, "caption": str, "negative_caption": str})
    for name, item in _iter_items(path, dict, item_type):
        if denies(item["caption"]) != denies(item["negative_caption"]):
            yield _make_choice(name, item["filename"], item["caption"], item["negative_caption"])


def negrefcocog(path: Path, protocol: str) -> Iterator[Question]:
    """NegRefCOCOg: which box does the phrase describe? Every box is cut out, as its authors do."""
    item_type = record({"image": str, "phrase": str, "ref_bbox": list[float], "bbox_list": list[list[float]]})
    for name, item in _iter_items(path, list, item_type):
        image, boxes, right = item["image"], item["bbox_list"], item["ref_bbox"]
        if right not in boxes or any(len(box) != 4 or min(box[2:]) <= 0 for box in boxes):
            rule = "bbox_list must hold [x, y, width, height], and ref_bbox must be one of them"
            raise UserError(f"'{path}', item {name}: {rule}.")
        options = tuple(Option(item["phrase"], NEGATION, make_region(image, tuple(box))) for box in boxes)
        yield Question(name, image, options, boxes.index(right), NEGATION, source=image)


# --- questions ---------------------------------------------------------------------------------
_BEAF = record({"id": int, "image": str, "question": str, "orig_img": bool, "removed_q": bool, "gt": str})


def beaf(path: Path, protocol: str) -> Iterator[Question]:
    """BEAF: questions about an image, and about copies without a thing: COCO_val2014_000000001171_00.png.

    A question about a copy forms a group with the same question about the original. If the thing was removed,
    both right is BEAF's true understanding, the original alone its positive stubbornness, the copy alone its
    negative one, neither its ignorance. If the thing stays, just one right is its indecision."""
    items = [item for _, item in _iter_items(path, list, _BEAF)]
    groups_of: dict[tuple[str, str], list[Group]] = {}  # (original, question) -> the groups of its copies
    for item in items:
        # A thing that is marked as removed and still there was removed from another copy.
        if not item["orig_img"] and (item["gt"] == "no" or not item["removed_q"]):
            group = Group(REMOVED if item["removed_q"] else KEPT, str(item["id"]), 2)
            groups_of.setdefault((_name_original(item), item["question"]), []).append(group)
    for item in items:
        if item["gt"] not in ("yes", "no"):
            raise UserError(f"'{path}', id {item['id']}: gt is '{item['gt']}'; it must be yes or no.")
        name, original = str(item["id"]), _name_original(item)
        groups = groups_of.get((original, item["question"]), [])
        if not item["orig_img"]:  # a copy is in its own group, the original in those of all its copies
            groups = [group for group in groups if group.name == name]
        correct = 0 if item["gt"] == "yes" else 1
        prompt = item["question"]
        question = Question(name, item["image"], ANSWERS, correct, _find_template(prompt), asked=prompt)
        yield replace(question, source=original, groups=tuple(groups))


SUFFIXES = ("Please answer Yes or No.", "Please output the letter corresponding to the correct option.")
_LETTERED = re.compile(
    r"(?s)(.*?)\s*\nOption:\s*A:(.*?)[;.]? B:(.*?)[;.]?\s*"
)  # question, option A, option B


def naturalbench(path: Path, protocol: str) -> Iterator[Question]:
    """NaturalBench: four rows [question, image, answer, type] per pair of images, if one of them denies."""
    questions = []
    for name, row in _iter_items(path, list, list[str]):
        if len(row) != 4:
            raise UserError(f"'{path}', row {name} is not [question, image, answer, type].")
        prompt, image, answer, _ = row
        for suffix in SUFFIXES:
            prompt = prompt.removesuffix(suffix)
        options, answers = ANSWERS, (YES, NO)
        if lettered := _LETTERED.fullmatch(prompt):
            prompt = lettered[1]
            options, answers = (Option(lettered[2].strip()), Option(lettered[3].strip())), ("A", "B")
        if answer not in answers:
            raise UserError(f"'{path}', row {name}: the answer is '{answer}', not {' or '.join(answers)}.")
        prompt, correct = prompt.strip(), answers.index(answer)
        questions.append(Question("", image, options, correct, _find_template(prompt), asked=prompt))
    if len(questions) % 4:
        raise UserError(f"'{path}' has {len(questions)} rows; there must be four per pair of images.")
    for number in range(len(questions) // 4):
        four = questions[4 * number : 4 * number + 4]
        texts = [text for question in four for text in (question.asked, *question.texts)]
        if not any(denies(text) for text in texts if text != NO):
            continue
        source = f"{four[0].image} {four[1].image}"
        for index, question in enumerate(four):
            k, m = divmod(index, 2)  # question, image
            groups = make_groups(str(number), k, m)
            yield replace(question, id=f"{number}/q{k}i{m}", source=source, groups=groups)


# --- pairs of images and captions: a reader yields the pairs of a file -------------------------------
_PAIR = {"image_0": str, "image_1": str, "caption_0": str, "caption_1": str}


def naturalbench_pairs(path: Path, protocol: str) -> Iterator[Pair]:
    """NaturalBench-Retrieval: pairs in which a caption denies; caption k is true of image k."""
    for name, item in _iter_items(path, list, record(_PAIR)):
        captions = item["caption_0"], item["caption_1"]
        if any(map(denies, captions)):
            yield Pair(name, (item["image_0"], item["image_1"]), captions)


def scope(path: Path, protocol: str) -> Iterator[Pair]:
    """Pairs of `nein.nano.scope.write_pairs`. The four comparisons of a pair are right together."""
    fields = {"denies_0": bool, "denies_1": bool, "construction": str, "others": int, "depth": int}
    for name, item in _iter_items(path, list, record({**_PAIR, **fields})):
        yield Pair(
            name,
            images=(item["image_0"], item["image_1"]),
            captions=(item["caption_0"], item["caption_1"]),
            groups=(Group(item["construction"], name, 4),),
            difficulty=((OTHERS, item["others"]), (DEPTH, item["depth"])),
            denies=(item["denies_0"], item["denies_1"]),
        )


def nein(path: Path, protocol: str) -> Iterator[Pair]:
    """NeIn: the sample image with the affirmed sentence, the source image with the sample's own sentence."""
    for sample in load_folder(path.parent, split=path.stem).samples:
        if (sample.family or "plain") in families.DENYING:
            files = sample.sample_path, sample.source_path
            first, second = (f"{file.parent.name}/{file.name}" for file in files)
            captions = families.affirm(sample.template, sample.object), sample.negative
            yield Pair(sample.id, (first, second), captions, sample.source_id)


_BEAF_QUESTION = re.compile(r"Is there (an? .+) in the image\?")


def beaf_pairs(path: Path, protocol: str) -> Iterator[Pair]:
    """BEAF's file as pairs: "There is a car in the image." for an image, "There is no car ..." for a copy."""
    items = [item for _, item in _iter_items(path, list, _BEAF)]
    originals = {_name_original(item): item["image"] for item in items if item["orig_img"]}
    for item in items:
        image = originals.get(_name_original(item))
        if item["orig_img"] or not item["removed_q"] or item["gt"] != "no" or image is None:
            continue
        match = _BEAF_QUESTION.fullmatch(item["question"])
        if match is None:
            location = f"'{path}', id {item['id']}"
            raise UserError(f"{location}: \"{item['question']}\" is not 'Is there a THING in the image?'.")
        thing = match[1]  # "a car"
        captions = f"There is {thing} in the image.", f"There is no {thing.partition(' ')[2]} in the image."
        yield Pair(str(item["id"]), (image, item["image"]), captions, source=image)


#: `registry.Part.reader` -> the function that reads its file; `protocol` is that of the command.
READERS: dict[str, Callable[[Path, str], Iterator[Question] | Iterator[Pair]]] = {
    "valse": valse,
    "cc-neg": cc_neg,
    "sugarcrepe": sugarcrepe,
    "negrefcocog": negrefcocog,
    "beaf": beaf,
    "naturalbench": naturalbench,
    "naturalbench-pairs": naturalbench_pairs,
    "scope": scope,
    "nein": nein,
    "beaf-pairs": beaf_pairs,
}


# --- captions without images -----------------------------------------------------------------------
def simpleneg(path: Path) -> tuple[RetrievalItem, ...]:
    """SimpleNeg: [caption, question about the denied thing, about the affirmed one]. Raises UserError."""
    items = []
    for name, row in _iter_items(path, list, list[str]):
        if len(row) != 3 or not all(text.strip() for text in row):
            raise UserError(f"'{path}', row {name} is not [caption, question, question].")
        items.append(RetrievalItem(name, "", (row[0],), records.NEGATED, asked=(row[1], row[2])))
    if not items:
        raise UserError(f"'{path}' has no captions.")
    return tuple(items)


# --- helpers of the readers --------------------------------------------------------------------------
def _make_choice(name: str, image: str, right: str, wrong: str) -> Question:
    """The question which of two captions describes the image."""
    options = Option(right, _find_template(right)), Option(wrong, _find_template(wrong))
    return Question(name, image, options, 0, _find_template(right), source=image)


def _find_template(text: str) -> str:
    return NEGATION if denies(text) else AFFIRMATION


def _name_original(item: Row) -> str:
    """The image that an image of BEAF was made from, without its suffix."""
    stem = PurePosixPath(item["image"]).stem
    return stem if item["orig_img"] else stem.rpartition("_")[0]


def _iter_items(path: Path, kind: type, item: Any) -> Iterator[tuple[str, Any]]:
    """Yields (name or number, item) of a JSON file; kind: list or dict of the items."""
    content = atomic.read_json(path, list[item] if kind is list else dict[str, item])
    for name, row in content.items() if isinstance(content, dict) else enumerate(content):
        yield str(name), row
