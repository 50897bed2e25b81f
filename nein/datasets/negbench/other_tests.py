"""Other tests of negation (`registry.ROWS`), read as published as questions of NegBench's form; of SugarCrepe
and NaturalBench those items in which `polarity.denies` finds a denying word."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from nein.datasets.negbench import official, polarity, records
from nein.datasets.negbench.media import region
from nein.datasets.negbench.polarity import NO, YES, Pair, denies
from nein.datasets.negbench.records import AFFIRMATION, NEGATION, Group, Option, Question, RetrievalItem
from nein.datasets.nein.samples import load_folder
from nein.engine import atomic
from nein.engine.atomic import Shape
from nein.engine.errors import UserError
from nein.loading.errors import first_line
from nein.wording import families
from nein.wording.scope import DEPTH, OTHERS

ANSWERS = ("yes", "no")
#: Questions that have to be answered right together: the names of the scores.
REMOVED, KEPT = "thing removed", "thing kept"
EVALUATED = 40_000  # of CC-Neg: its last ones (src/configs/__init__.py of the released code)
VALID = 2  # of VALSE's three annotators
_VALSE = {"image_file": str, "caption": str, "foil": str, "mturk": {"caption": int}}
_CC_NEG = {
    "image_paths": [str],
    "annotations": [{"json": {"caption": str}, "sop_data": {"negative-prompt": str}}],
}
_SUGARCREPE = {"filename": str, "caption": str, "negative_caption": str}
_NEGREFCOCOG = {"image": str, "phrase": str, "ref_bbox": [float], "bbox_list": [[float]]}
_BEAF = {"id": int, "image": str, "question": str, "orig_img": bool, "removed_q": bool, "gt": str}
_RETRIEVAL = {"image_0": str, "image_1": str, "caption_0": str, "caption_1": str}
_SCOPE = {
    **_RETRIEVAL, "denies_0": bool, "denies_1": bool, "construction": str, "others": int, "depth": int,
}  # fmt: skip
SUFFIXES = ("Please answer Yes or No.", "Please output the letter corresponding to the correct option.")
_LETTERED = re.compile(r"(?s)(.*?)\s*\nOption:\s*A:(.*?)[;.]? B:(.*?)[;.]?\s*")
_BEAF_ASKED = re.compile(r"Is there (an? .+) in the image\?")


def read(reader: str, path: Path, protocol: str) -> tuple[Question, ...]:
    """The questions of a file. Raises UserError, naming file and item."""
    questions = tuple(cc_neg(path, protocol) if reader == "cc-neg" else READERS[reader](path))
    if not questions:
        raise UserError(f"'{path}' holds no item that this test asks about.")
    records.check_questions(questions, str(path))
    return questions


# --- captions to choose from -------------------------------------------------------------------


def valse(path: Path) -> Iterator[Question]:
    """VALSE, existence: the 505 of 534 items whose caption two of three annotators called true."""
    for name, item in _items(path, dict, _VALSE):
        if item["mturk"]["caption"] >= VALID:
            yield _captions(name, item["image_file"], (item["caption"], item["foil"]))


def cc_neg(path: Path, protocol: str = "fixed") -> Iterator[Question]:
    """CC-Neg: a torch file of which the last 40,000 items are for evaluation. Commas of the negation go by
    `protocol`: docs/reference/quirks.md."""
    import pickle

    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, KeyError, ValueError) as error:
        why = first_line(error)
        raise UserError(f"'{path}' cannot be read as plain data; nothing else in it is run: {why}") from None
    if fault := atomic.fault(content, _CC_NEG):
        raise UserError(f"'{path}': {fault}.")
    images, notes = content["image_paths"], content["annotations"]
    if len(images) != len(notes):
        raise UserError(f"'{path}' has {len(images)} image_paths and {len(notes)} annotations.")
    for number in range(max(0, len(images) - EVALUATED), len(images)):
        negation = notes[number]["sop_data"]["negative-prompt"]
        negation = negation.replace(",", "") if protocol == "paper" else negation
        texts = (notes[number]["json"]["caption"], negation)
        yield _captions(str(number), images[number], texts, (AFFIRMATION, NEGATION))


def sugarcrepe(path: Path) -> Iterator[Question]:
    """SugarCrepe: items in which just one of the two captions denies."""
    for name, item in _items(path, dict, _SUGARCREPE):
        texts = item["caption"], item["negative_caption"]
        if denies(texts[0]) != denies(texts[1]):
            yield _captions(name, item["filename"], texts)


def negrefcocog(path: Path) -> Iterator[Question]:
    """NegRefCOCOg: as its authors do, the phrase is held against every box, cut out."""
    for name, item in _items(path, list, _NEGREFCOCOG):
        image, boxes, right = item["image"], item["bbox_list"], item["ref_bbox"]
        if right not in boxes or any(len(box) != 4 or min(box[2:]) <= 0 for box in boxes):
            raise UserError(
                f"'{path}', item {name}: bbox_list must hold boxes, [x, y, width, height], and ref_bbox must "
                "be one of them."
            )
        options = tuple(Option(item["phrase"], NEGATION, region(image, tuple(box))) for box in boxes)
        yield Question(name, image, options, boxes.index(right), NEGATION, source=image)


def neat(path: Path) -> Iterator[Question]:
    """NEAT's copies of NegBench's negated captions; an inversion swaps affirmed and denied."""
    seen: Counter[str] = Counter()
    for row in official.Records(path, ("filepath", "captions", "inverted_captions")):
        where = f"'{path}', line {row.line}"
        image = official.cell(row.cells, "filepath", path, row.line)
        captions, inverted = (
            official.strings(row.cells[name], f"{where}, {name}")
            for name in ("captions", "inverted_captions")
        )
        if len(captions) != len(inverted):
            raise UserError(f"{where}: there are not as many inversions as captions.")
        for texts in zip(captions, inverted, strict=True):
            seen[image] += 1
            name = f"{official.file_name(image)}#{seen[image]}"
            yield Question(name, image, tuple(map(Option, texts)), 0, source=image)


# --- questions ---------------------------------------------------------------------------------


def beaf(path: Path) -> Iterator[Question]:
    """BEAF: the original of a picture, then its copies: COCO_val2014_000000001171_00.png.

    A question about the removed thing belongs to the same question about the original: both right is BEAF's
    true understanding, the first alone its positive stubbornness, the second alone its negative one, neither
    its ignorance. Of things that stay, one right alone is its indecision.
    """
    items = [item for _, item in _items(path, list, _BEAF)]
    together: dict[tuple[str, str], list[Group]] = {}
    for item in items:
        if not item["orig_img"] and (item["gt"] == "no" or not item["removed_q"]):
            # What is asked about, and is there, though it was removed: from another copy.
            group = (REMOVED if item["removed_q"] else KEPT, str(item["id"]), 2)
            together.setdefault((_original(item), item["question"]), []).append(group)
    for item in items:
        if item["gt"] not in ANSWERS:
            raise UserError(f"'{path}', id {item['id']}: gt is '{item['gt']}', not {' or '.join(ANSWERS)}.")
        name, source, prompt = str(item["id"]), _original(item), item["question"]
        groups = [g for g in together.get((source, prompt), ()) if item["orig_img"] or g[1] == name]
        yield Question(
            name, item["image"], (Option(YES), Option(NO)), ANSWERS.index(item["gt"]), polarity.kind(prompt),
            source=source, asked=prompt, groups=tuple(groups),
        )  # fmt: skip


def naturalbench(path: Path) -> Iterator[Question]:
    """NaturalBench: [question, image, answer, type], four for a pair of pictures: each question about the
    first and the second. Fours are read in which a question or an option denies."""
    rows = [_natural(row, f"'{path}', row {name}") for name, row in _items(path, list, [str])]
    if len(rows) % 4:
        raise UserError(f"'{path}' has {len(rows)} rows; there must be four for every pair of pictures.")
    for number in range(len(rows) // 4):
        four = rows[4 * number : 4 * number + 4]
        texts = [text for prompt, options, _, _ in four for text in (prompt, *options) if text != NO]
        if not any(map(denies, texts)):
            continue
        pair = f"{four[0][2]} {four[1][2]}"
        for index, (prompt, options, image, right) in enumerate(four):
            k, m = divmod(index, 2)
            yield Question(
                f"{number}/q{k}i{m}", image, tuple(map(Option, options)), right, polarity.kind(prompt),
                source=pair, asked=prompt, groups=polarity.asked_groups(str(number), k, m),
            )  # fmt: skip


def _natural(row: list[str], where: str) -> tuple[str, tuple[str, ...], str, int]:
    """(question, options, image, right option)."""
    if len(row) != 4:
        raise UserError(f"{where} is not [question, image, answer, type].")
    prompt, image, answer, _ = row
    for suffix in SUFFIXES:
        prompt = prompt.removesuffix(suffix)
    lettered = _LETTERED.fullmatch(prompt)
    options = (YES, NO) if lettered is None else (lettered[2].strip(), lettered[3].strip())
    answers = (YES, NO) if lettered is None else ("A", "B")
    if answer not in answers:
        raise UserError(f"{where}: the answer is '{answer}', not {' or '.join(answers)}.")
    return (prompt if lettered is None else lettered[1]).strip(), options, image, answers.index(answer)


# --- pairs of pictures -------------------------------------------------------------------------


def natural_pairs(path: Path) -> Iterator[Pair]:
    """NaturalBench-Retrieval: pairs in which a caption denies; caption k is true of picture k."""
    for name, item in _items(path, list, _RETRIEVAL):
        if denies(item["caption_0"]) or denies(item["caption_1"]):
            yield _pair(name, item)


def scope_pairs(path: Path) -> Iterator[Pair]:
    """What `nein.nano.scope.write_pairs` wrote. The four comparisons of a pair are right together."""
    for name, item in _items(path, list, _SCOPE):
        difficulty = (OTHERS, item["others"]), (DEPTH, item["depth"])
        groups = ((item["construction"], name, 4),)
        yield _pair(name, item, groups, difficulty, (item["denies_0"], item["denies_1"]))


def nein_pairs(path: Path) -> Iterator[Pair]:
    """NeIn's annotations: the picture with the object and a sentence that affirms it, the source picture and
    the sample's own sentence; of families in `families.DENYING`."""
    for sample in load_folder(path.parent, split=path.stem, annotations=path).samples:
        if (sample.family or "plain") in families.DENYING:
            images = [f"{file.parent.name}/{file.name}" for file in (sample.sample_path, sample.source_path)]
            texts = families.affirmed(sample.template, sample.object), sample.negative
            yield Pair(sample.id, (images[0], images[1]), texts, sample.source_id)


def beaf_pairs(path: Path) -> Iterator[Pair]:
    """Of `beaf`'s file: "There is a car in the image." of a picture, "There is no car ..." of its copy."""
    items = [item for _, item in _items(path, list, _BEAF)]
    whole = {_original(item): item["image"] for item in items if item["orig_img"]}
    for item in items:
        if item["orig_img"] or not item["removed_q"] or item["gt"] != "no" or _original(item) not in whole:
            continue
        match = _BEAF_ASKED.fullmatch(item["question"])
        if match is None:
            raise UserError(
                f"'{path}', id {item['id']}: the question \"{item['question']}\" is not of the form "
                "'Is there a THING in the image?'."
            )
        thing, image = match[1], whole[_original(item)]
        texts = f"There is {thing} in the image.", f"There is no {thing.partition(' ')[2]} in the image."
        yield Pair(str(item["id"]), (image, item["image"]), texts, image)


def _pair(
    name: str, item: dict[str, Any], groups: Any = (), difficulty: Any = (), denies: Any = None
) -> Pair:
    images, texts = ((item[f"{what}_0"], item[f"{what}_1"]) for what in ("image", "caption"))
    return Pair(name, images, texts, "", groups, difficulty, denies)


def _each(
    pairs_of: Callable[[Path], Iterable[Pair]], ask: Callable[[Pair], Iterable[Question]]
) -> Callable[[Path], Iterator[Question]]:
    return lambda path: (question for pair in pairs_of(path) for question in ask(pair))


def simpleneg(path: Path) -> tuple[RetrievalItem, ...]:
    """SimpleNeg: [caption, question about the denied, about the affirmed]. Raises UserError."""
    items = []
    for name, row in _items(path, list, [str]):
        if len(row) != 3 or not all(text.strip() for text in row):
            wanted = "[caption, question about what it denies, about what it affirms]"
            raise UserError(f"'{path}', row {name} is not {wanted}.")
        items.append(RetrievalItem(name, "", (row[0],), records.NEGATED, asked=(row[1], row[2])))
    if not items:
        raise UserError(f"'{path}' holds no caption.")
    return tuple(items)


READERS: dict[str, Callable[[Path], Iterator[Question]]] = {
    "valse": valse, "cc-neg": cc_neg, "sugarcrepe": sugarcrepe, "negrefcocog": negrefcocog, "neat": neat,
    "beaf": beaf, "naturalbench": naturalbench,
    "naturalbench-retrieval": _each(natural_pairs, polarity.compared),
    "scope": _each(scope_pairs, polarity.compared),
    "scope-asked": _each(scope_pairs, polarity.asked),
    "nein": _each(nein_pairs, polarity.compared),
    "nein-asked": _each(nein_pairs, polarity.asked),
    "beaf-pairs": _each(beaf_pairs, polarity.compared),
    "beaf-asked": _each(beaf_pairs, polarity.asked),
}  # fmt: skip


def _captions(
    name: str, image: str, texts: Sequence[str], templates: Sequence[str] | None = None
) -> Question:
    """Which of two captions is true: the first."""
    kinds = templates or [polarity.kind(text) for text in texts]
    options = tuple(Option(text, kind) for text, kind in zip(texts, kinds, strict=True))
    return Question(name, image, options, 0, kinds[0], source=image)


def _original(item: dict[str, Any]) -> str:
    """The picture that a picture of BEAF was made from, without its suffix."""
    stem = PurePosixPath(item["image"]).stem
    return stem if item["orig_img"] else stem.rpartition("_")[0]


def _items(path: Path, kind: type, shape: Shape) -> Iterator[tuple[str, Any]]:
    """(name or number, item) of a JSON file, which must hold a `kind`."""
    content = atomic.read_json(path)
    if atomic.fault(content, kind):
        raise UserError(f"'{path}' holds no JSON {'object' if kind is dict else 'list'} of items.")
    for name, item in content.items() if kind is dict else enumerate(content):
        if fault := atomic.fault(item, shape):
            raise UserError(f"'{path}', item {name}: {fault}.")
        yield str(name), item
