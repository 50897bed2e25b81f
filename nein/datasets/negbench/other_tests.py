"""Other tests of negation (`registry.ROWS`) as questions of NegBench's form. SugarCrepe and NaturalBench give
only items in which `polarity.denies` finds a denying word."""

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
#: Questions that have to be answered right together: the names of the scores.
TEXT, IMAGE, GROUP = "text", "image", "group"
ONE_QUESTION, ONE_IMAGE, ALL_FOUR = "a question, both pictures", "a picture, both questions", "all four"
REMOVED, KEPT = "thing removed", "thing kept"
EVALUATED = 40_000  # of CC-Neg: its last ones (src/configs/__init__.py of the released code)
VALID = 2  # of VALSE's three annotators
SUFFIXES = ("Please answer Yes or No.", "Please output the letter corresponding to the correct option.")
_LETTERED = re.compile(r"(?s)(.*?)\s*\nOption:\s*A:(.*?)[;.]? B:(.*?)[;.]?\s*")
_BEAF_ASKED = re.compile(r"Is there (an? .+) in the image\?")
_BEAF = record({"id": int, "image": str, "question": str, "orig_img": bool, "removed_q": bool, "gt": str})
_PAIR = {"image_0": str, "image_1": str, "caption_0": str, "caption_1": str}


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
    """captions[k] is true of images[k], and false of the other. Asked as four questions, either way."""

    name: str
    images: tuple[str, str]
    captions: tuple[str, str]
    source: str = ""  # what resampling treats as one unit; "": these two images
    groups: tuple[Group, ...] = ()  # further scores that the four questions are right together for
    difficulty: tuple[tuple[str, int], ...] = ()
    denies: tuple[bool, bool] | None = None  # which captions have a denying word; None: by the English rule

    def build_comparisons(self) -> Iterator[Question]:
        """Asks which caption fits each image, and which image fits each caption."""
        captions = self._options
        for k, image in enumerate(self.images):
            images = tuple(replace(captions[k], image=name) for name in self.images)
            for score, options in ((TEXT, captions), (IMAGE, images)):
                groups = (score, self.name, 2), (GROUP, self.name, 4)
                yield self._question(f"{score}{k}", image, options, k, captions[k].template, groups)

    def build_questions(self) -> Iterator[Question]:
        """Asks of both captions whether they are true of either image."""
        for k, caption in enumerate(self._options):
            for m, image in enumerate(self.images):
                groups = name_groups(self.name, k, m)
                question = self._question(f"q{k}i{m}", image, ANSWERS, int(k != m), caption.template, groups)
                yield replace(question, asked=f"Is it true of the picture? {caption.text}")

    @property
    def _options(self) -> tuple[Option, ...]:
        denying = self.denies or map(denies, self.captions)
        kinds = [NEGATION if negated else AFFIRMATION for negated in denying]
        return tuple(map(Option, self.captions, kinds))

    def _question(
        self, name: str, image: str, options: Any, correct: int, kind: Any, groups: Any
    ) -> Question:
        source, groups = self.source or " ".join(self.images), (*groups, *self.groups)
        question = Question(f"{self.name}/{name}", image, options, correct, kind, source=source)
        return replace(question, groups=groups, difficulty=self.difficulty)


ANSWERS = (Option(YES), Option(NO))


def name_groups(name: str, question: int, image: int) -> tuple[Group, ...]:
    pairs = (ONE_QUESTION, f"{name}/q{question}", 2), (ONE_IMAGE, f"{name}/i{image}", 2)
    return *pairs, (ALL_FOUR, name, 4)


# --- captions to choose from -------------------------------------------------------------------


def valse(path: Path, protocol: str) -> Iterator[Question]:
    """VALSE, existence: the 505 of 534 items with a caption that two of three annotators called true."""
    item_type = record({"image_file": str, "caption": str, "foil": str, "mturk": record({"caption": int})})
    for name, item in _items(path, dict, item_type):
        if item["mturk"]["caption"] >= VALID:
            yield _two_captions(name, item["image_file"], item["caption"], item["foil"])


def cc_neg(path: Path, protocol: str) -> Iterator[Question]:
    """CC-Neg: the last 40,000 items of a torch file. `protocol` decides on commas (quirks.md)."""
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, KeyError, ValueError) as error:
        why = first_line(error)
        raise UserError(f"'{path}' is not plain data ({why}); code in it is never run.") from None
    note: Any = record({"json": record({"caption": str}), "sop_data": record({"negative-prompt": str})})
    notes_type = list[note]
    atomic.parse(content, record({"image_paths": list[str], "annotations": notes_type}), f"'{path}'")
    images, notes = content["image_paths"], content["annotations"]
    for number in range(max(0, len(images) - EVALUATED), len(images)):
        caption, negation = notes[number]["json"]["caption"], notes[number]["sop_data"]["negative-prompt"]
        negation = negation.replace(",", "") if protocol == "paper" else negation
        options = Option(caption, AFFIRMATION), Option(negation, NEGATION)
        yield Question(str(number), images[number], options, 0, AFFIRMATION, source=images[number])


def sugarcrepe(path: Path, protocol: str) -> Iterator[Question]:
    """SugarCrepe: items in which just one of the two captions denies."""
    item_type = record({"filename": str, "caption": str, "negative_caption": str})
    for name, item in _items(path, dict, item_type):
        if denies(item["caption"]) != denies(item["negative_caption"]):
            yield _two_captions(name, item["filename"], item["caption"], item["negative_caption"])


def negrefcocog(path: Path, protocol: str) -> Iterator[Question]:
    """NegRefCOCOg: as its authors do, the phrase is held against every box, cut out."""
    item_type = record({"image": str, "phrase": str, "ref_bbox": list[float], "bbox_list": list[list[float]]})
    for name, item in _items(path, list, item_type):
        image, boxes, right = item["image"], item["bbox_list"], item["ref_bbox"]
        if right not in boxes or any(len(box) != 4 or min(box[2:]) <= 0 for box in boxes):
            rule = "bbox_list must hold [x, y, width, height], and ref_bbox must be one of them"
            raise UserError(f"'{path}', item {name}: {rule}.")
        options = tuple(Option(item["phrase"], NEGATION, make_region(image, tuple(box))) for box in boxes)
        yield Question(name, image, options, boxes.index(right), NEGATION, source=image)


# --- questions ---------------------------------------------------------------------------------


def beaf(path: Path, protocol: str) -> Iterator[Question]:
    """BEAF: the original of an image, then its copies: COCO_val2014_000000001171_00.png.

    A question about the removed thing belongs to the same question about the original: both right is BEAF's
    true understanding, the first alone its positive stubbornness, the second alone its negative one, neither
    its ignorance. Of things that stay, one right alone is its indecision.
    """
    items = [item for _, item in _items(path, list, _BEAF)]
    groups_of: dict[tuple[str, str], list[Group]] = {}  # (original, question) -> the groups of its copies
    for item in items:
        # What is removed, asked about and still there was removed from another copy.
        if not item["orig_img"] and (item["gt"] == "no" or not item["removed_q"]):
            group = (REMOVED if item["removed_q"] else KEPT, str(item["id"]), 2)
            groups_of.setdefault((_original(item), item["question"]), []).append(group)
    for item in items:
        if item["gt"] not in ("yes", "no"):
            raise UserError(f"'{path}', id {item['id']}: gt is '{item['gt']}'; it must be yes or no.")
        name, source, prompt = str(item["id"]), _original(item), item["question"]
        groups = [g for g in groups_of.get((source, prompt), ()) if item["orig_img"] or g[1] == name]
        question = _build_question(name, item["image"], prompt, ANSWERS, int(item["gt"] == "no"))
        yield replace(question, source=source, groups=tuple(groups))


def naturalbench(path: Path, protocol: str) -> Iterator[Question]:
    """NaturalBench: four rows [question, image, answer, type] per pair of images. Fours with a denial."""
    questions = []
    for name, row in _items(path, list, list[str]):
        if len(row) != 4:
            raise UserError(f"'{path}', row {name} is not [question, image, answer, type].")
        prompt, image, answer, _ = row
        for suffix in SUFFIXES:
            prompt = prompt.removesuffix(suffix)
        options, answers = ANSWERS, (YES, NO)
        if lettered := _LETTERED.fullmatch(prompt):
            prompt, answers = lettered[1], ("A", "B")
            options = Option(lettered[2].strip()), Option(lettered[3].strip())
        if answer not in answers:
            raise UserError(f"'{path}', row {name}: the answer is '{answer}', not {' or '.join(answers)}.")
        questions.append(_build_question("", image, prompt.strip(), options, answers.index(answer)))
    if len(questions) % 4:
        raise UserError(f"'{path}' has {len(questions)} rows; there must be four per pair of images.")
    for number in range(len(questions) // 4):
        four = questions[4 * number : 4 * number + 4]
        texts = [text for question in four for text in (question.asked, *question.texts)]
        if not any(denies(text) for text in texts if text != NO):
            continue
        for index, question in enumerate(four):
            k, m = divmod(index, 2)  # question, image
            groups, source = name_groups(str(number), k, m), f"{four[0].image} {four[1].image}"
            yield replace(question, id=f"{number}/q{k}i{m}", source=source, groups=groups)


# --- pairs of images -------------------------------------------------------------------------


def naturalbench_pairs(path: Path, protocol: str) -> Iterator[Pair]:
    """NaturalBench-Retrieval: pairs in which a caption denies; caption k is true of image k."""
    for name, item in _items(path, list, record(_PAIR)):
        texts = item["caption_0"], item["caption_1"]
        if any(map(denies, texts)):
            yield Pair(name, (item["image_0"], item["image_1"]), texts)


def scope(path: Path, protocol: str) -> Iterator[Pair]:
    """Pairs of `nein.nano.scope.write_pairs`. The four comparisons of a pair are right together."""
    fields = {"denies_0": bool, "denies_1": bool, "construction": str, "others": int, "depth": int}
    for name, item in _items(path, list, record({**_PAIR, **fields})):
        images, texts, denying = (
            (item[f"{name_part}_0"], item[f"{name_part}_1"]) for name_part in ("image", "caption", "denies")
        )
        difficulty = (OTHERS, item["others"]), (DEPTH, item["depth"])
        yield Pair(name, images, texts, "", ((item["construction"], name, 4),), difficulty, denying)


def nein(path: Path, protocol: str) -> Iterator[Pair]:
    """NeIn: the sample with the affirmed sentence, the source image with the sample's own sentence."""
    for sample in load_folder(path.parent, split=path.stem).samples:
        if (sample.family or "plain") in families.DENYING:
            files = sample.sample_path, sample.source_path
            first, second = (f"{file.parent.name}/{file.name}" for file in files)
            texts = families.affirm(sample.template, sample.object), sample.negative
            yield Pair(sample.id, (first, second), texts, sample.source_id)


def beaf_pairs(path: Path, protocol: str) -> Iterator[Pair]:
    """BEAF's file as pairs: "There is a car in the image." for an image, "There is no car ..." for a copy."""
    items = [item for _, item in _items(path, list, _BEAF)]
    originals = {_original(item): item["image"] for item in items if item["orig_img"]}
    for item in items:
        image = originals.get(_original(item))
        if item["orig_img"] or not item["removed_q"] or item["gt"] != "no" or image is None:
            continue
        if (match := _BEAF_ASKED.fullmatch(item["question"])) is None:
            location = f"'{path}', id {item['id']}"
            raise UserError(f"{location}: \"{item['question']}\" is not 'Is there a THING in the image?'.")
        thing = match[1]
        texts = f"There is {thing} in the image.", f"There is no {thing.partition(' ')[2]} in the image."
        yield Pair(str(item["id"]), (image, item["image"]), texts, image)


#: Reader of `registry` -> what reads its file.
READERS: dict[str, Callable[[Path, str], Iterator[Question] | Iterator[Pair]]] = {
    read.__name__.replace("_", "-"): read
    for read in (
        *(valse, cc_neg, sugarcrepe, negrefcocog, beaf, naturalbench),
        *(naturalbench_pairs, scope, nein, beaf_pairs),
    )
}


def simpleneg(path: Path) -> tuple[RetrievalItem, ...]:
    """SimpleNeg: [caption, question about the denied, about the affirmed]. Raises UserError."""
    items = []
    for name, row in _items(path, list, list[str]):
        if len(row) != 3 or not all(text.strip() for text in row):
            raise UserError(f"'{path}', row {name} is not [caption, question, question].")
        items.append(RetrievalItem(name, "", (row[0],), records.NEGATED, asked=(row[1], row[2])))
    if not items:
        raise UserError(f"'{path}' has no captions.")
    return tuple(items)


def _two_captions(name: str, image: str, right: str, wrong: str) -> Question:
    options = Option(right, _kind(right)), Option(wrong, _kind(wrong))
    return Question(name, image, options, 0, _kind(right), source=image)


def _build_question(
    name: str, image: str, prompt: str, options: tuple[Option, ...], correct: int
) -> Question:
    return Question(name, image, options, correct, _kind(prompt), asked=prompt)


def _kind(text: str) -> str:
    return NEGATION if denies(text) else AFFIRMATION


def _original(item: Row) -> str:
    """The picture that a picture of BEAF was made from, without its suffix."""
    stem = PurePosixPath(item["image"]).stem
    return stem if item["orig_img"] else stem.rpartition("_")[0]


def _items(path: Path, kind: type, item: Any) -> Iterator[tuple[str, Any]]:
    """(name or number, item) of a JSON file, a list or a dict of such items."""
    content = atomic.read_json(path, list[item] if kind is list else dict[str, item])
    for name, row in content.items() if isinstance(content, dict) else enumerate(content):
        yield str(name), row
