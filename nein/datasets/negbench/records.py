"""NegBench's records: a retrieval item, a question with its options, and the tasks they make up. An image
or video is named by a *reference*, which the `Media` of a task turns into pixels.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, ClassVar, TypeVar

import numpy as np
from PIL import Image

from nein.engine.atomic import Row
from nein.engine.images import ImageError, decode, find_file
from nein.loading.errors import UserError, shortlist
from nein.loading.references import is_local

ORIGINAL, NEGATED = "original", "negated"
KINDS = (ORIGINAL, NEGATED)
AFFIRMATION, NEGATION, HYBRID = "affirmation", "negation", "hybrid"
TEMPLATES = (AFFIRMATION, NEGATION, HYBRID)

AnyTask = TypeVar("AnyTask", bound="Task")
#: Questions that belong together: the score that counts such groups, the group's name, how many it has.
Group = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class RetrievalItem:
    """One image or video with its captions of one kind. The k-th original and the k-th negated caption are a
    pair if there are equally many; released files may have lost some."""

    id: str  # unique in its kind, the same in both
    image: str
    captions: tuple[str, ...]
    kind: str = ORIGINAL
    positives: tuple[str, ...] | None = None  # objects that the captions affirm, where known
    negatives: tuple[str, ...] | None = None  # those that they deny
    source: str = ""  # what resampling treats as one unit
    #: Without an `image`, two questions to a judge of what is found, about what is denied and affirmed.
    asked: tuple[str, str] | None = None

    @property
    def cluster(self) -> str:
        return self.source or self.id

    @property
    def texts(self) -> tuple[str, ...]:
        return self.captions

    @property
    def images(self) -> tuple[str, ...]:
        return (self.image,) if self.image else ()


@dataclass(frozen=True, slots=True)
class Option:
    text: str
    template: str | None = None  # "affirmation", "negation", "hybrid"; None: unknown
    image: str = ""  # image, or region of one, that it is held against; "": the question's

    @property
    def shown(self) -> str:
        return PurePosixPath(self.image).name if self.image else self.text


@dataclass(frozen=True, slots=True)
class Question:
    """Which of the options describes the image?"""

    id: str  # unique in its task; decides the order in which the options are shown
    image: str
    options: tuple[Option, ...]
    correct: int  # as the data have it (0 throughout in the released files)
    type: str | None = None  # template of the right option, or of the question; None: unknown
    positives: tuple[str, ...] | None = None
    negatives: tuple[str, ...] | None = None
    source: str = ""  # what resampling treats as one unit; "": the image
    asked: str = ""  # another question, whose options are answers, which no caption's score gives
    groups: tuple[Group, ...] = ()  # whose questions have to be answered right together
    difficulty: tuple[tuple[str, int], ...] = ()  # what makes it difficult, how much; what matters most last

    @property
    def cluster(self) -> str:
        return self.source or self.image

    @property
    def texts(self) -> list[str]:
        return [option.text for option in self.options]

    @property
    def images(self) -> list[str]:
        """The image of each option."""
        return [self.picture(option) for option in self.options]

    def picture(self, option: Option) -> str:
        return option.image or self.image


class Media:
    """The source of a task's images."""

    def frames(self, reference: str) -> list[np.ndarray]:
        """(H, W, 3) uint8 RGB arrays: one of an image, several of a video. Raises images.ImageError."""
        raise NotImplementedError

    def files(self, references: Iterable[str]) -> list[Path]:
        """The files behind references, one that is not there where there is none; [] without files."""
        return []


class Task:
    """Records about images of one `media`, in one wording. name: data set, then task: "coco/retrieval"."""

    name: str
    media: Media
    variant: str
    gallery: tuple[str, ...] = ()  # images besides those of the records
    origin: Row
    parts: ClassVar[tuple[str, ...]]  # fields with records

    @property
    def records(self) -> list[RetrievalItem | Question]:
        return [record for part in self.parts for record in getattr(self, part)]

    def map_records(self: AnyTask, change: Callable[[Any], Any]) -> AnyTask:
        """A copy with changed records; records for which `change` returns None are dropped."""
        fields: Any = {}
        for part in self.parts:
            fields[part] = tuple(new for record in getattr(self, part) if (new := change(record)) is not None)
        return replace(self, **fields)  # type: ignore[type-var]

    def first(self: AnyTask, limit: int) -> AnyTask:
        """Its first images with all their captions, or its first questions."""
        every = next(filter(None, (getattr(self, part) for part in self.parts)), ())
        ids = {record.id for record in every[:limit]}
        return self.map_records(lambda record: record if record.id in ids else None)

    @property
    def what(self) -> str:
        return self.name.partition("/")[2]

    @property
    def key(self) -> str:
        """Part of file names: "mcq.rephrased"."""
        return f"{self.what}.{self.variant}"

    @property
    def asked(self) -> bool:
        """Whether its captions bring the questions by which a judge says what is found."""
        return any(isinstance(record, RetrievalItem) and record.asked for record in self.records)

    @property
    def references(self) -> list[str]:
        return list(dict.fromkeys((*(name for r in self.records for name in r.images), *self.gallery)))

    @property
    def sentences(self) -> list[str]:
        return [text for record in self.records for text in record.texts]

    def fits_model(self, kind: str) -> bool:
        """Whether a model of that kind can do it: "dual" and "itm" score captions with images, "vlm" and
        "log" have seen one image."""
        questions = [record for record in self.records if isinstance(record, Question)]
        if kind not in ("vlm", "log"):
            return not any(question.asked for question in questions) and bool(kind == "dual" or questions)
        return bool(questions) and not any(option.image for q in questions for option in q.options)

    @functools.cached_property
    def sha256(self) -> str:
        """Over the records in order, not over pixels."""
        total = hashlib.sha256()
        for record in self.records:
            line = json.dumps(record, default=_entries, ensure_ascii=False, sort_keys=True)
            total.update(line.encode() + b"\n")
        return total.hexdigest()


def _entries(record: Any) -> dict[str, Any]:
    return {entry.name: getattr(record, entry.name) for entry in fields(record)}


@dataclass(frozen=True)
class RetrievalTask(Task):
    """Retrieval with original or negated captions, or both, over the same images."""

    parts = ("original", "negated")
    name: str
    original: tuple[RetrievalItem, ...]
    negated: tuple[RetrievalItem, ...]
    media: Media
    variant: str = "templated"
    origin: Row = field(default_factory=dict)
    gallery: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChoiceTask(Task):
    """Questions; `kind` is "mcq", or "binary": two captions of unknown templates."""

    parts = ("questions",)
    name: str
    questions: tuple[Question, ...]
    media: Media
    variant: str = "templated"
    kind: str = "mcq"
    origin: Row = field(default_factory=dict)


def check_records(records: Sequence[RetrievalItem | Question], source: str) -> None:
    """Raises UserError for an id twice, a lacking caption or a lacking option."""
    check_ids(records, source)
    for record in records:
        least, problem = 2, f"question '{record.id}' has an empty option or fewer than two"
        if isinstance(record, RetrievalItem):
            least, problem = 1, f"item '{record.id}' has an empty caption or none at all"
        if len(record.texts) < least or not all(text.strip() for text in record.texts):
            raise UserError(f"{source}: {problem}.")


def check_ids(records: Sequence[RetrievalItem | Question], source: str) -> None:
    repeated = [name for name, count in Counter(record.id for record in records).items() if count > 1]
    if repeated:
        raise UserError(f"{source}: {len(repeated)} ids occur more than once: {shortlist(repeated, 3)}.")


Box = tuple[float, float, float, float]
_BOX = "#box="
VIDEO_SUFFIXES = frozenset((".mp4", ".webm", ".mkv", ".avi", ".mov", ".m4v"))
PICTURE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp"))


def region(reference: str, box: Box) -> str:
    """A reference to a part of an image; box: x, y, width and height in pixels."""
    return f"{reference}{_BOX}{','.join(f'{number:.10g}' for number in box)}"


def split_region(reference: str) -> tuple[str, Box | None]:
    """The picture of a reference, and the box of a region."""
    name, mark, numbers = reference.partition(_BOX)
    if not mark:
        return reference, None
    x, y, width, height = map(float, numbers.split(","))
    return name, (x, y, width, height)


def path_parts(reference: str) -> tuple[str, ...]:
    """The names of a path of any system, without drive and root."""
    path = PureWindowsPath(reference) if "\\" in reference else PurePosixPath(reference)
    return path.parts[1:] if path.anchor else path.parts


def file_name(reference: str) -> str:
    return (path_parts(reference) or (reference,))[-1]


class Files(Media):
    """Images and videos on disk.

    root  (`--image-root`) A reference is tried below it, then shorter and shorter tails of it, then its file
          name anywhere below. None: references are paths, relative ones from `csv_folder`, the file's folder.
    """

    def __init__(self, root: Path | None = None, csv_folder: Path | None = None) -> None:
        if root is not None and not root.is_dir():
            raise UserError(f"There is no folder '{root}'; pass the folder of the images as --image-root.")
        self.root = root
        self.csv_folder = csv_folder or Path()

    def path(self, reference: str) -> Path:
        """Raises ImageError when the file is missing or its name is not unique."""
        if self.root is None:
            file = Path(reference)
            return find_file(file if file.is_absolute() or file.exists() else self.csv_folder / file)
        parts = [part for part in path_parts(reference) if part not in ("..", ".")]
        for start in range(len(parts)):
            candidate = find_file(self.root.joinpath(*parts[start:]))
            if is_local(candidate):
                return candidate
        named = self._files_by_name.get(unicodedata.normalize("NFC", file_name(reference)), [])
        if len(named) == 1:
            return named[0]
        advice = "; give the folder of the right one as --image-root" if named else ""
        raise ImageError(f"{reference}: {len(named)} files below '{self.root}' have this name{advice}")

    def listing(self) -> list[str]:
        """All images below the root, or beside the file, by name. Raises UserError without any."""
        top = self.root or self.csv_folder
        files = [file for file in top.rglob("*") if file.suffix.lower() in PICTURE_SUFFIXES]
        if not files:
            raise UserError(f"There are no images below '{top}'; pass their folder as --image-root.")
        return sorted(file.relative_to(top).as_posix() for file in files)

    def find_path(self, reference: str) -> Path | None:
        """The file of a reference, also of a region; None without one."""
        with contextlib.suppress(ImageError):
            if (path := self.path(split_region(reference)[0])).is_file():
                return path
        return None

    def files(self, references: Iterable[str]) -> list[Path]:
        return [self.find_path(reference) or self.csv_folder / "missing" for reference in references]

    def frames(self, reference: str) -> list[np.ndarray]:
        """A region is rounded to pixels, and black outside the image."""
        reference, box = split_region(reference)
        path = self.path(reference)
        if path.suffix.lower() in VIDEO_SUFFIXES:
            return video_frames(path)
        pixels = decode(path)  # (H, W, 3) uint8
        if box is not None:
            x, y, width, height = box
            pixels = np.asarray(Image.fromarray(pixels).crop((x, y, x + width, y + height)))
        return [pixels]

    @cached_property
    def _files_by_name(self) -> dict[str, list[Path]]:
        assert self.root is not None
        files: dict[str, list[Path]] = {}
        for file in self.root.rglob("*"):
            files.setdefault(unicodedata.normalize("NFC", file.name), []).append(file)
        return files


@dataclass(frozen=True)
class Drawn(Media):
    """Images drawn on request: `draw(reference)` returns one (H, W, 3) uint8 array or several."""

    draw: Callable[[str], np.ndarray | list[np.ndarray]]

    def frames(self, reference: str) -> list[np.ndarray]:
        frames = self.draw(reference)
        return frames if isinstance(frames, list) else [frames]


def frame_numbers(length: int) -> list[int]:
    """Which frames of a video of `length` frames are taken.

    >>> frame_numbers(100)
    [12, 36, 62, 86]
    """
    edges = np.linspace(0, length - 1, min(4, length) + 1).astype(int)
    return [int(np.round((a + b) / 2)) for a, b in itertools.pairwise(edges)]


def video_frames(path: Path) -> list[np.ndarray]:
    """The frames of `frame_numbers`, (H, W, 3) uint8 RGB. Raises ImageError, and UserError without PyAV."""
    try:
        import av
    except ImportError:
        raise UserError("Videos need one more package: pip install -e '.[negbench]'.") from None
    if not path.is_file():
        raise ImageError(f"{path}: the file is missing")
    try:
        numbers = frame_numbers(_length(path))
        with av.open(str(path)) as container:
            frames = enumerate(itertools.islice(container.decode(video=0), numbers[-1] + 1))
            arrays = {
                number: frame.to_ndarray(format="rgb24") for number, frame in frames if number in numbers
            }
    except (av.FFmpegError, IndexError, EOFError) as error:
        detail = getattr(error, "strerror", None) or "there is no video in it"
        raise ImageError(f"{path}: the video cannot be decoded ({detail})") from None
    return [arrays[number] for number in numbers]


def _length(path: Path) -> int:
    """Counts the decodable frames, since containers may be wrong. Raises ImageError for none, and for a file
    that ends before its index does; a clip may hold frames that are not shown."""
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        is_whole = all(entry.pos + entry.size <= path.stat().st_size for entry in stream.index_entries)
        length = 0
        with contextlib.suppress(*([] if is_whole else [av.FFmpegError])):
            for _ in container.decode(stream):
                length += 1
        if not is_whole:
            extent = f"{length} of its {stream.frames} frames can be decoded"
            raise ImageError(f"{path}: the video is cut short; {extent}")
    if length == 0:
        raise ImageError(f"{path}: the video has no frame that can be decoded")
    return length
