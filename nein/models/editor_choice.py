"""Resolves the editors of a command (`--editor`, `--edited`, `--mend`), which `EditorChoice.load` then loads.
Parts: the choice; from names to choices; edited images of other programs in place of an editor."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nein import editors
from nein.datasets.nein import IMAGE_SUFFIXES, TRACKS, Sample, image_name
from nein.editors import EditResult
from nein.editors.presets import CONTROLS, PAPER_EDITORS
from nein.engine import images
from nein.loading.digests import Json
from nein.loading.errors import UserError, shortlist
from nein.loading.references import expand_user, is_local, is_served, parse_reference
from nein.models import references
from nein.models.cached import Services
from nein.models.references import resolve, slugify

log = logging.getLogger(__name__)

# --- the choice ------------------------------------------------------------------------------------------

#: Options that do not change an image, not even its last bits; they may differ when a run resumes.
WITHOUT_EFFECT = ("offload", "concurrency", "timeout", "retries")
FAMILIES = ("qwen", "gpt", "gemini", "grok")  # part of the names of editors and of judges


@dataclass(frozen=True)
class EditorChoice:
    """An editor as the user named it, resolved but not loaded."""

    name: str  # as the user wrote it, with the remedy
    slug: str  # its folder in a run: its name, or the end of its path or hub id
    editor: str  # name for `editors.get_editor`: a row, a plug-in or a reference
    checkpoint: str | None = None  # reference of the table or the user; None for editors without a model
    revision: str | None = None  # of the checkpoint
    options: Json = field(default_factory=dict)  # settings of the row, overridden by the command line
    instance: Any = None  # an editor in memory, from Python, or `ExternalEdits`
    remedy: str = ""  # around the editor (`nein.models.remedies`); "" for none
    without_remedy: EditorChoice | None = None  # the same editor, if there is a remedy
    edits_per_sample: int = 1
    uses_run_judge: bool = False  # whether the run's judge chooses among the edits

    @property
    def external(self) -> ExternalEdits | None:
        """Images of `--edited`, in place of an editor."""
        return self.instance if isinstance(self.instance, ExternalEdits) else None

    @property
    def requests(self) -> int | None:
        """Number of parallel edits, each a block; 0: as many as the command says; None: it edits batches."""
        if self.instance is not None:
            return getattr(self.instance, "concurrency", None)
        if is_served(self.editor) or "concurrency" in self.options:
            return int(self.options.get("concurrency") or 0)
        plugin = editors.load_plugin(self.editor)  # None for an editor of ours
        if plugin is None or isinstance(plugin, type):
            return 0 if getattr(plugin, "paid", False) else None
        return 1  # a function

    def load(
        self, *, device: str, dtype: str, batch_size: int, services: Callable[[], Services] | None = None
    ) -> editors.Editor:
        """The editor without its remedy. services: settings of served editors. Raises EditorError."""
        if self.instance is not None:
            return self.instance
        settings: dict[str, Any] = {"device": device, "dtype": dtype, "batch_size": batch_size}
        if services is not None and is_served(self.editor):
            settings |= services().options
        if self.checkpoint is not None:
            settings |= {"checkpoint": self.checkpoint, "revision": self.revision}
        return editors.get_editor(self.editor, **{**settings, **self.options})

    def warn_of_kinship(self, judge: str) -> str:
        """A warning if the judge is of the editor's family, by their names; "" otherwise."""
        judge_name = parse_reference(references.split_label(judge)[1]).name.lower()
        editor_name = parse_reference(self.checkpoint or self.editor).name.lower()
        for family in FAMILIES:
            if family in judge_name and family in editor_name:
                return (
                    f"The judge '{judge}' and the editor '{self.name}' are of one family, {family}; judges "
                    "prefer their own (arXiv:2604.11589); compare with another judge."
                )
        return ""

    def check_references(self) -> None:
        """Raises UserError or EditorError for a missing embedded model or local file."""
        if self.instance is not None:
            return
        if self.checkpoint is not None:
            resolve(self.checkpoint)
        row = editors.find_row(self.editor)
        if row is None:
            return
        for option, source in row.models.items():
            path = resolve(self.options[option])
            if source is None and not is_local(path):  # a file that the user must get
                how = row.note.partition("; ")[0]  # the note begins with the way to get the file
                raise UserError(f"Editor '{row.name}' has no file '{path}' for '{option}'. {how}.")

    def identity(self) -> Json:
        """The user's choice, for the manifest: names, options, and digests of files; loads nothing."""
        facts: Json = {"editor": parse_reference(self.editor).without_address}
        if self.remedy:
            facts["mend"] = self.remedy
        if self.remedy.startswith("rewrite:"):
            from nein.models.rewriters import find_source

            source = find_source(self.remedy.removeprefix("rewrite:"))
            if digests := references.digest_models({"source": source}):
                facts["mend.rewriter"] = digests

        if self.external is not None:
            facts["made"] = "elsewhere"
            if self.external.plain:
                facts["decoding"] = "plain"
            return facts
        if self.instance is not None:
            return {**facts, "made": "in memory", "fingerprint": self.instance.fingerprint}

        facts |= {"checkpoint": self.checkpoint, "revision": self.revision}
        decisive = {key: value for key, value in self.options.items() if key not in WITHOUT_EFFECT}
        facts |= {f"editor.{key}": value for key, value in sorted(decisive.items())}
        return facts | references.digest_models(self._find_models())

    def _find_models(self) -> dict[str, str]:
        """Role -> reference of the editor's models and code, for digests."""
        row = editors.find_row(self.editor)
        if row is None:
            if parse_reference(self.editor).kind == "name":
                return {"editor": editors.find_plugins()[self.editor].value}  # module:attribute
            return {"editor": self.editor}
        models = {}
        if self.checkpoint:
            models["checkpoint"] = self.checkpoint + (f"@{self.revision}" if self.revision else "")
        for option in (*row.models, "lora"):
            if self.options.get(option):
                models[option] = str(self.options[option])
        return models


# --- from names to choices -------------------------------------------------------------------------------


def resolve_editors(
    names: Sequence[str],
    preset: str,
    overrides: Json,
    edited: str | None = None,
    mend: Sequence[str] = (),
    as_released: bool = False,
) -> list[EditorChoice]:
    """The editors of a command, in its order. Loads nothing.

    names      An editor, a row, a reference, or "row=reference": the row's settings with another checkpoint;
               each may have a label before it: "mine=magicbrush=FOLDER". `all`: `every_editor`.
    overrides  Options, each for the editors that know it; at least one must.
    edited     A folder of edited images in place of editors, read `as_released`.
    mend       Remedies; every editor is repeated with each of them.
    """
    if edited is not None:
        choices = []
        for edits in find_external_edits(expand_user(edited), as_released):
            name, slug = f"{edits.name}/{edits.track}", _make_folder_name(edits.name)
            choices.append(EditorChoice(name, slug, edits.name, instance=edits))
        return choices
    expanded: list[str] = []
    for name in names:
        expanded += every_editor(preset) if name == "all" else [name]
    distinct = list(dict.fromkeys(expanded))

    # Overrides that no editor knows: `check` raises an error that names the options of the first editor.
    if all(references.get_object(name) is None for name in distinct):  # an editor in memory has its options
        rows = [editors.find_row(split_editor(name)[1]) for name in distinct]
        for option, value in overrides.items():
            if not any(row is None or option in row.settings for row in rows):
                editors.check(split_editor(distinct[0])[1], **{option: value})

    choices = []
    for name in distinct:
        plain = choose_editor(name, preset, overrides)
        choices.append(plain)
        for remedy in mend:
            from nein.models.remedies import editors as remedies  # imports language models and rewards

            remedies.check(remedy, plain.editor)
            count, judge = 1, ""
            if remedy.startswith(remedies.BEST_OF):
                count, judge = remedies.parse_best_of(remedy)
            mended = replace(
                plain,
                name=f"{plain.name}+{remedy}",
                slug=f"{plain.slug}+{_make_folder_name(remedy)}",
                remedy=remedy,
                without_remedy=plain,
                edits_per_sample=count,
                uses_run_judge=judge == remedies.judges.REMOVAL,
            )
            choices.append(mended)

    for choice in choices:
        same = " and ".join(repr(other.name) for other in choices if other.slug == choice.slug)
        if same != repr(choice.name):
            raise UserError(f"{same} have the same name, '{choice.slug}'; rename one: NAME=EDITOR.")
    return choices


def _make_folder_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)


def every_editor(preset: str) -> list[str]:
    """The editors of `all`: the paper's editors that exist here, then the controls."""
    present = []
    for name in PAPER_EDITORS:
        try:
            choose_editor(name, preset, {}).check_references()
            present.append(name)
        except UserError as error:
            log.warning("'--editor all' leaves out %s: %s", name, error)
    return [*present, *CONTROLS[preset]]


def split_editor(name: str) -> tuple[str | None, str, str | None]:
    """(label, editor or reference, checkpoint) of "mine=magicbrush=./folder"; None for a missing part."""
    label, reference = references.split_label(name)
    available = editors.available()
    if label is not None and reference not in available:
        # In "ip2p=hqedit" the first name is a label, since an editor is no checkpoint.
        editor, checkpoint = references.split_label(reference)
        if editor is not None and editor in available:
            return label, editor, checkpoint
        if label in available:
            return None, label, reference
    return label, reference, None


def choose_editor(text: str, preset: str, overrides: Json) -> EditorChoice:
    """One editor, as `resolve_editors` does. Raises EditorError or UserError."""
    if (instance := references.get_object(text)) is not None:
        return EditorChoice(text, text, text, instance=instance)
    label, name, checkpoint = split_editor(text)
    parsed = parse_reference(name)
    row = editors.find_row(name)  # None for an editor that is not ours
    options = {key: value for key, value in overrides.items() if row is None or key in row.settings}
    if parsed.kind in ("attribute", "served"):
        editors.check(name)
        without_address = slugify(parsed.without_address.replace(":#", "-"))
        slug = parsed.name if parsed.kind == "attribute" else without_address
        return EditorChoice(text, label or slug, name, options=options)
    if row is None or not row.preset:
        if checkpoint is not None:
            raise UserError(f"Editor '{name}' has no model; leave out '={checkpoint}'.")
        return EditorChoice(text, label or name, name, options=options)
    row = editors.find_preset_row(name, preset)
    editors.check(row.name, **options)
    options = {**row.options(), **options}
    if checkpoint is not None:
        slug = label or f"{name}-{slugify(checkpoint)}"
        return EditorChoice(text, slug, row.name, checkpoint=checkpoint, options=options)
    if row.checkpoint is None:
        raise UserError(f"Editor '{name}' needs your checkpoint: {row.obtain}.")
    slug = label or slugify(name)
    return EditorChoice(text, slug, row.name, row.checkpoint, row.revision, options=options)


# --- edited images of other programs ---------------------------------------------------------------------


@dataclass(frozen=True)
class ExternalEdits:
    """Edited images of one method on one track; a missing one is a failed edit."""

    name: str  # of the method
    track: str
    files: Mapping[str, Path]  # by sample id
    plain: bool = False  # decoded as in NeIn's released scripts: see `images.decode`

    def check_samples(self, samples: Sequence[Sample]) -> None:
        """Raises UserError if no image is of these samples."""
        if not self.files.keys() & {sample.id for sample in samples}:
            raise UserError(
                f"No image of '{self.name}' is named after a sample; images: {shortlist(self.files, 2)}, "
                f"samples: {shortlist((s.id for s in samples[:9]), 2)}."
            )

    def describe(self) -> Json:
        return {"editor": self.name, "class": type(self).__name__}

    def read(self, sample_id: str) -> tuple[EditResult, int]:
        """The image of a sample, (H, W, 3) uint8 RGB, and its EXIF orientation (1 unless `plain`)."""
        if (path := self.files.get(sample_id)) is None:
            error = f"there is no image of {sample_id} in '{self.name}'"
            return EditResult(sample_id, None, error), 1
        try:
            image = images.decode(path, plain=self.plain)
        except images.ImageError as error:
            return EditResult(sample_id, None, str(error).replace(str(path.parent), self.name)), 1
        return EditResult(sample_id, image), images.read_orientation(path) if self.plain else 1


def find_external_edits(folder: Path, plain: bool = False) -> list[ExternalEdits]:
    """Every method and track below `folder`: METHOD/ID.jpg, METHOD/TRACK/ID.jpg, or ID.jpg of one method,
    also in folders of a thousand samples (000/). Raises UserError."""
    files_of: dict[tuple[str, str], dict[str, Path]] = {}  # (method, track) -> sample id -> file
    for path in sorted(folder.rglob("*")):
        parents = path.relative_to(folder).parts[:-1]
        parts = [part for part in parents if not re.fullmatch(r"\d{3,}", part)]
        method = parts[0] if parts else folder.resolve().name
        track = parts[1] if len(parts) > 1 else "negative"
        is_other = len(parts) > 2 or track not in TRACKS or any(part.startswith(".") for part in parts)
        if is_other or path.suffix.lower() not in IMAGE_SUFFIXES:
            continue
        files = files_of.setdefault((method, track), {})
        sample_id = image_name(path.name)
        if sample_id in files:
            raise UserError(f"'{files[sample_id]}' and '{path}' are of one sample; remove one of them.")
        files[sample_id] = path
    if not files_of:
        raise UserError(
            f"'{folder}' holds no edited images; --edited takes a folder with <method>/<NeIn id>.jpg (or "
            f"{', '.join(IMAGE_SUFFIXES)})."
        )
    return [ExternalEdits(method, track, files, plain) for (method, track), files in sorted(files_of.items())]
