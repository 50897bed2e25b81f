"""Reads annotated images for `nein negbench generate`, and writes NegBench's CSV files with a card.

OUT/dataset/          CSV files in the official layout, a card, and images that were drawn or made
OUT/unusable.jsonl    images that yield nothing, with the reason

Parts: the sources (COCO, PASCAL VOC, captions, medical tables), the files, the card.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar
from xml.etree import ElementTree

from nein import metrics
from nein.datasets import coco
from nein.datasets.negbench import drawn, official
from nein.datasets.negbench.media import PICTURE_SUFFIXES, VIDEO_SUFFIXES, Drawn, Files, Media
from nein.datasets.negbench.records import Question
from nein.datasets.negbench.sentences import Concepts, add_negatives
from nein.engine import atomic
from nein.engine.folder import Row
from nein.engine.images import write_png
from nein.generate import maker
from nein.generate.config import NegbenchConfig
from nein.generate.maker import NO_CAPTION, BuildFolder, Listing, Maker, llm_identity, make
from nein.generate.negbench import stages
from nein.generate.negbench.stages import Reworded
from nein.loading.errors import UserError
from nein.models import editor_choice, llm, references

# --- sources -----------------------------------------------------------------------------------
NO_OBJECT = "no annotated object"
BAD_FILE = "the annotation cannot be read"


def load_images(config: NegbenchConfig) -> Listing[Concepts]:
    """The images of `--source`, each id once. Raises UserError for an unreadable or empty source."""
    images: dict[str, Concepts] = {}
    notes = Counter[str]()
    for image in _iter_source(config):
        if image.id in images:
            notes["listed twice, left out the second time"] += 1
            continue
        images[image.id] = image
        if image.problem:
            notes[f"unusable: {image.problem}"] += 1
    if not images:
        raise UserError("The source lists no images; pass another --source.")
    return Listing([*images.values()], {"kind": config.source}, notes)


def image_root(config: NegbenchConfig) -> Path | None:
    """The folder of the images, to which their paths are relative; None for images that are drawn or made."""
    if config.source in ("nano", "pairs") and config.captions is None:
        return None
    if config.source == "voc":
        return maker.image_folder(config.images, Path(str(config.instances)) / "JPEGImages")
    listing = Path(str(config.captions or config.instances))
    return maker.image_folder(config.images, listing if listing.is_dir() else listing.parent)


def _iter_source(config: NegbenchConfig) -> Iterator[Concepts]:
    """Yields the images of `--source` in order; those of pairs made from text have an id alone."""
    instances, captions = config.instances, config.captions
    if config.source in TABLES:
        return TABLES[config.source](Path(str(instances)), config.absent)
    if config.source == "voc":
        return _read_voc(config, Path(str(instances)))
    if config.maker_for("text"):
        return (Concepts(f"pair-{number:06d}") for number in range(config.scenes))
    if config.source == "nano" or (config.source == "pairs" and captions is None):
        return iter(drawn.draw_concepts(config.split, config.scenes))
    has_objects = config.source == "pairs" and instances is not None
    if config.source == "coco" or has_objects or str(captions).endswith(".json"):
        return _read_coco(config)
    return _read_captioned(config, Path(str(captions)))


def _read_coco(config: NegbenchConfig) -> Iterator[Concepts]:
    """COCO's JSON files; an image without a caption yields questions only."""
    captions = None if config.captions is None else Path(config.captions)
    instances = None if config.instances is None else Path(config.instances)
    images = []
    for image in coco.read(captions=captions, instances=instances).images:
        texts = maker.clean_texts(image.captions)
        objects = maker.clean_texts(annotated.category for annotated in image.objects)
        if config.concepts == "llm":
            problem = "" if texts else NO_CAPTION
        else:
            problem = "" if objects else NO_OBJECT
        images.append(Concepts(image.stem, image.file_name, texts, objects, problem=problem))
    if config.concepts == "llm":
        return iter(images)
    return add_negatives(images, config.absent, screened=config.protocol == "fixed")


def _read_voc(config: NegbenchConfig, folder: Path) -> Iterator[Concepts]:
    """PASCAL VOC's XML files. Objects that are marked difficult count neither as present nor as absent."""
    annotations = folder / "Annotations"
    if not annotations.is_dir():
        raise UserError(f"'{folder}' has no folder Annotations; pass VOC2007's folder as --instances.")
    stems = sorted(path.stem for path in annotations.glob("*.xml"))
    if config.image_set is not None:
        listing = folder / "ImageSets" / "Main" / f"{config.image_set}.txt"
        stems = [line.split()[0] for line in atomic.read_text_lines(listing) if line.strip()]
    return add_negatives([_read_voc_image(annotations / f"{stem}.xml") for stem in stems], config.absent)


def _read_voc_image(path: Path) -> Concepts:
    try:
        tree = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError, ValueError, LookupError):  # the last two: an unknown encoding
        return Concepts(path.stem, f"{path.stem}.jpg", problem=BAD_FILE)
    clear, difficult = dict[str, None](), dict[str, None]()  # distinct names in order
    for entry in tree.iter("object"):
        names = difficult if (entry.findtext("difficult") or "").strip() == "1" else clear
        if name := (entry.findtext("name") or "").strip():
            names[name] = None
    unsure = tuple(name for name in difficult if name not in clear)
    file_name = (tree.findtext("filename") or "").strip() or f"{path.stem}.jpg"
    problem = "" if clear else NO_OBJECT
    return Concepts(path.stem, file_name, positives=tuple(clear), unsure=unsure, problem=problem)


def _read_captioned(config: NegbenchConfig, path: Path) -> Iterator[Concepts]:
    """Images with captions and no annotated objects; with `--thing video` also videos."""
    videos = VIDEO_SUFFIXES if config.thing == "video" else frozenset[str]()
    for image in maker.iter_captioned(path, PICTURE_SUFFIXES | videos):
        captions, name = maker.clean_texts(image.captions), image.file_name
        problem = "" if captions else NO_CAPTION
        yield Concepts(name.removesuffix(Path(name).suffix), name, captions, problem=problem)


#: CheXpert's columns of findings, without "No Finding".
FINDINGS = tuple(
    "Enlarged Cardiomediastinum, Cardiomegaly, Lung Opacity, Lung Lesion, Edema, Consolidation, Pneumonia, "
    "Atelectasis, Pneumothorax, Pleural Effusion, Pleural Other, Fracture, Support Devices".split(", ")
)
DIAGNOSES = {  # code of HAM10000 -> the diagnosis in words
    "akiec": "actinic keratosis", "bcc": "basal cell carcinoma", "bkl": "benign keratosis",
    "df": "dermatofibroma", "mel": "melanoma", "nv": "melanocytic nevus", "vasc": "vascular lesion",
}  # fmt: skip
NO_FINDING = "no finding that is there"


def read_chexpert(path: Path, count: int) -> Iterator[Concepts]:
    """CheXpert's images, with up to `count` absent findings that often occur with the present ones."""
    images = []
    for line, row in official.iter_rows(path, ("Path", *FINDINGS)):
        location = f"'{path}', line {line}"
        name = PurePosixPath(official.get_cell(row, "Path", location))
        labels: dict[str, float | None] = {}  # 1: present, 0: absent, -1: uncertain, None: not mentioned
        for finding in FINDINGS:
            try:
                label = float(row[finding]) if row[finding] else None
            except ValueError:
                label = math.nan
            if label not in (1, 0, -1, None):
                why = f"'{row[finding]}' is not a label; allowed: 1, 0, -1 or empty"
                raise UserError(f"{location}, {finding}: {why}.")
            labels[finding.lower()] = label
        findings = tuple(finding for finding, label in labels.items() if label == 1)
        unsure = tuple(finding for finding, label in labels.items() if label in (-1, None))
        patient = next((part for part in name.parts if part.startswith("patient")), "")
        images.append(Concepts(
            str(name.with_suffix("")), str(name), positives=findings, unsure=unsure,
            problem="" if findings else NO_FINDING, source_id=patient,
        ))  # fmt: skip
    yield from add_negatives(images, count)


def read_ham10000(path: Path, count: int) -> Iterator[Concepts]:
    """HAM10000's images. All other diagnoses are absent, whatever `count` is. A lesion is one `source_id`."""
    for line, row in official.iter_rows(path, ("lesion_id", "image_id", "dx")):
        location = f"'{path}', line {line}"
        code = official.get_cell(row, "dx", location)
        name = official.get_cell(row, "image_id", location)
        lesion = official.get_cell(row, "lesion_id", location)
        if code not in DIAGNOSES:
            allowed = ", ".join(DIAGNOSES)
            raise UserError(f"{location}, dx: '{code}' is not a diagnosis; allowed: {allowed}.")
        absent = tuple(diagnosis for other, diagnosis in DIAGNOSES.items() if other != code)
        present = (DIAGNOSES[code],)
        yield Concepts(name, f"{name}.jpg", positives=present, negatives=absent, source_id=lesion)


#: Value of --source -> reader of its table: (path, number of absent findings) -> images.
TABLES = {"chexpert": read_chexpert, "ham10000": read_ham10000}


# --- the files ---------------------------------------------------------------------------------
UNUSABLE = "nothing absent or too few objects"


class NegbenchFolder(BuildFolder):
    row_types: ClassVar[Any] = {"work": Concepts, "work/paraphrase": Reworded}


class NegbenchMaker(Maker):
    """Makes data in NegBench's layout."""

    config: NegbenchConfig
    folder_type = NegbenchFolder
    decides = (  # names of options
        "source form protocol concepts absent verify validate detector query threshold wording thing order "
        "captions_per_image asked mcq paraphrase affneg maker attempts steps seed shard_size dtype"
    )

    def __init__(self, config: NegbenchConfig) -> None:
        super().__init__(config, config.shard_size)
        is_pairs = config.source == "pairs"
        verifies = config.verify != "none"
        if config.asks_llm:  # models are checked now, and loaded hours later
            llm.check(str(config.llm.model))
        if is_pairs or verifies:
            metrics.check_reference(references.resolve(config.detector))
        if editor := config.maker_for("editor"):
            editor_choice.choose_editor(editor, config.preset, {})
        enabled = {  # stage -> whether the options need it
            stages.MakePairs: is_pairs,
            stages.ExtractConcepts: config.concepts == "llm" and not is_pairs,
            stages.Verify: verifies and not is_pairs,
            stages.Validate: config.validate,
            stages.Paraphrase: config.paraphrase,
        }
        self.stages = [stage for stage, is_enabled in enabled.items() if is_enabled]
        self.dataset = self.folder.path / "dataset"  # folder of the files
        self.root = image_root(config)  # None: images are drawn or made
        self.media: Media = Drawn(drawn.draw_image) if self.root is None else Files(self.root)
        self.listing = load_images(config)

    def identity(self, device: str) -> Row:
        asks_llm = self.config.asks_llm
        return {**super().identity(device), "llm": llm_identity(self.config.llm) if asks_llm else None}

    def concepts(self, shard: int, before: str = "paraphrase") -> list[Concepts]:
        """The images of a shard as the stages before `before` left them."""
        names = [stage.name for stage in self.stages]
        earlier = names[: names.index(before)] if before in names else names
        return self.rows(earlier[-1], shard) if earlier else self.members(shard)

    def finish(self) -> tuple[str, Row]:
        facts = self.write()
        atomic.write_json(self.folder.path / "card.json", facts)
        atomic.write_text(self.dataset / "README.md", format_card(self.config, facts))
        lines = [f"{facts['images']} images."]
        for name, file in facts["files"].items():
            lines.append(f"  {file['rows']:6d} rows, {file['captions']} captions: {name}")
        lines += maker.list_losses("unusable", facts["unusable"])
        lines += maker.list_losses("noted", facts["dropped"])
        lines += maker.list_losses("refused", facts["refused_paraphrases"])
        lines.append(f"Data set: {self.dataset}")
        if self.root is not None and self.config.source != "pairs":
            option = f"--image-root {self.root}"
            lines.append(f"Image paths are relative to '{self.root}': evaluate with {option}.")
        return "\n".join(lines) + "\n", {"facts": facts}

    def write(self) -> Row:
        """Writes all files in one pass; returns the card's facts. Raises UserError if there is no record."""
        config = self.config
        image_count = 0
        counts = {key: Counter[str]() for key in ("unusable", "dropped", "refused_paraphrases")}  # of reasons
        types = Counter[str]()  # type of question -> templated questions
        with contextlib.ExitStack() as stack:
            # All files are open at once; each one gets its name when the stack closes without an error.
            tables: dict[str, official.Table] = {}  # stem of a file -> its table
            for end in ("", "_rephrased"):
                for stem, options in stages.FILES.items():
                    path = self.dataset / f"{stem}{end}.csv"
                    tables[f"{stem}{end}"] = official.Table(path, stack, **options)
            unusable = stack.enter_context(atomic.write_file(self.folder.path / "unusable.jsonl"))

            for image, reworded in self.images():
                image_count += 1
                counts["dropped"].update(image.notes)
                if config.source == "nano" and not (path := self.dataset / image.path).exists():
                    write_png(path, self.media.frames(image.path)[0])
                tasks = stages.build_tasks(image, config)
                problem = image.problem
                if not problem and not tasks.keys() - {stages.ORIGINALS}:
                    problem = UNUSABLE
                if problem:
                    counts["unusable"][problem.partition(":")[0]] += 1
                    line = {"id": image.id, "image": image.path, "problem": problem}
                    unusable.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                    continue
                written = dict(tasks)
                if reworded is not None:
                    counts["refused_paraphrases"].update(why.partition(":")[0] for why in reworded.refused)
                    written |= stages.apply_paraphrases(tasks, reworded.texts)
                for stem, records in written.items():
                    for record in records:
                        tables[stem].add(record)
                questions = (*tasks.get("mcq", ()), *tasks.get("negmcq", ()))
                types.update(str(record.type) for record in questions if isinstance(record, Question))
            if not any(table.rows for stem, table in tables.items() if stem != stages.ORIGINALS):
                reasons = "; ".join(f"{n} x {reason}" for reason, n in counts["unusable"].most_common(3))
                raise UserError(f"{image_count} images yielded no caption and no question: {reasons}.")

        written_files = {}  # name -> facts
        for table in tables.values():
            if table.rows:
                facts = {"rows": table.rows, "captions": table.captions, "sha256": table.digest.hexdigest()}
                written_files[table.path.name] = facts
            else:  # a file of an earlier command is out of date
                table.path.unlink(missing_ok=True)
        return {
            "source": config.source, "form": config.form, "images": image_count,
            **{key: dict(counter.most_common()) for key, counter in counts.items()},
            "questions_by_type": dict(sorted(types.items())),
            "files": written_files,
            "listing": dict(self.listing.notes),
        }  # fmt: skip

    def images(self) -> Iterator[tuple[Concepts, Reworded | None]]:
        """Yields every selected image with its paraphrases, if any; of a pair both images."""
        selected = {self.listing.records[index].id for index in self.blocks.indices}
        for shard in self.blocks.numbers:
            rows = self.rows("paraphrase", shard) if self.config.paraphrase else []
            reworded = {row.id: row for row in rows}
            for image in self.concepts(shard):
                # Both images of a pair are made from the listed one, their source.
                listed = (image.source_id or image.id) if self.config.source == "pairs" else image.id
                if listed in selected:
                    yield image, reworded.get(image.id)


build = functools.partial(make, NegbenchMaker)  # runs `nein negbench generate`

# --- the card ----------------------------------------------------------------------------------
MEDICAL_NOTE = (
    "How the published medical questions were drawn is not known: sizes and sentences differ from theirs; "
    "tasks and columns do not."
)
NANO_NOTE = "Scenes of the nano world: figures on them say nothing about the published sets."


def format_card(config: NegbenchConfig, facts: Row) -> str:
    """The card as Markdown: contents, options, losses."""
    notes = {MEDICAL_NOTE: config.medical, NANO_NOTE: config.source == "nano"}  # note -> whether it applies
    files = facts["files"].items()
    parts = {  # title of a section -> its table
        "Files": {name: f"{file['rows']} rows, SHA-256 {file['sha256'][:16]}" for name, file in files},
        "Questions by type": facts["questions_by_type"],
        f"Unusable, of {facts['images']} images": facts["unusable"], "Dropped or noted": facts["dropped"],
        "Paraphrases refused": facts["refused_paraphrases"], "The source": facts["listing"],
    }  # fmt: skip
    return (
        "---\ntags: [negbench, negation, nein]\n---\n# NegBench data built with nein\n\n"
        f"Source: {config.source}; form: {config.form}; wording: {config.wording}. Layout: the CSV files of "
        "NegBench (Alhamoud et al., CVPR 2025), with the columns `id`, `source`, `template_K`, "
        "`positive_objects` and `negative_objects` added.\n"
        + "".join(f"\n{note}\n" for note, applies in notes.items() if applies)
        + "".join(maker.make_section(title, counts) for title, counts in parts.items())
    )
