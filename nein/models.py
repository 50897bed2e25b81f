"""From the names in a configuration to loaded models: editors, encoders, judges.

A model reference is `nano:NAME` (embedded), a hub id `owner/name[@revision]`, or a local folder. Only this
file knows the first form; the leaf packages get a folder or an id.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import editors
import metrics
from editors.presets import CONTROLS, DEFAULT_ROWS, PAPER_EDITORS, WITHOUT_EFFECT, is_checkpoint
from nein.config import EvalConfig
from nein.errors import UserError
from nein.imported import Published, PublishedEditor
from nein.imported import find as find_published

ENCODER_OF = {metric: kind for metric, kind in metrics.NEEDS.items() if kind in metrics.ENCODERS}
log = logging.getLogger(__name__)
JUDGE_OF = {metric: kind for metric, kind in metrics.NEEDS.items() if kind in metrics.JUDGES}


@dataclass(frozen=True)
class EditorChoice:
    """An editor as the user named it, resolved but not loaded.

    slug        Name of its folder in a run: the name itself, or for a path or hub id its end and a short
                hash.
    row         Name given to `editors.get_editor`.
    checkpoint  Model reference as written in the table or by the user; None for editors without a model.
    options     Sampler settings of the row, overridden by the command line.
    published   Pictures made elsewhere, which stand in for an editor on one track (`--edited`).
    """

    asked: str
    slug: str
    row: str
    checkpoint: str | None
    revision: str | None
    options: dict[str, Any] = field(default_factory=dict)
    published: Published | None = None

    @property
    def has_maps(self) -> bool:
        """Whether the editor can return intermediate pictures."""
        return self.published is None and editors.has_maps(self.row)

    def load(self, *, device: str, dtype: str, batch_size: int) -> editors.Editor:
        """The editor, with its weights in memory. Raises EditorError."""
        if self.published is not None:
            return PublishedEditor(self.published)
        where: dict[str, Any] = {}
        if self.checkpoint is not None:
            where["checkpoint"], revision = resolve(self.checkpoint)
            where["revision"] = revision or self.revision
        further = {name: folder_of(self.options[name]) for name in self._further()}
        return editors.get_editor(
            self.row,
            device=device,
            dtype=dtype,
            batch_size=batch_size,
            **where,
            **{**self.options, **further},
        )

    def check_references(self) -> None:
        """Looks for the embedded models and local files among the editor's models, loading none.

        Raises UserError or EditorError for one that is not there.
        """
        if self.published is not None:
            return
        if self.checkpoint is not None:
            resolve(self.checkpoint)
        further = {name: folder_of(self.options[name]) for name in self._further()}
        editors.check_models(self.row, **further)

    def _further(self) -> list[str]:
        return [name for name in editors.model_options(self.row) if name in self.options]

    def identity(self) -> dict[str, Any]:
        """What the user chose, before any file is read."""
        if self.published is not None:
            return {"editor": self.row, "made": "elsewhere"}  # the fingerprint covers the pictures
        facts = {"editor": self.row, "checkpoint": self.checkpoint, "revision": self.revision}
        decisive = {key: value for key, value in self.options.items() if key not in WITHOUT_EFFECT}
        return {**facts, **{f"editor.{key}": value for key, value in sorted(decisive.items())}}


def resolve_editors(config: EvalConfig) -> list[EditorChoice]:
    """The editors of a command, in its order. Loads nothing.

    A name is an editor, a row, a reference, or "row=reference": that row's settings with another checkpoint.
    `all` is every editor of the paper that is there in the preset, and the controls; a warning names those
    that are not there. An option has to be known to at least one editor, and goes to those that know it.
    """
    if config.edited is not None:
        found = find_published(Path(config.edited).expanduser())
        return [
            EditorChoice(
                f"{p.method}/{p.track}",
                re.sub(r"[^A-Za-z0-9._-]+", "-", p.method),
                p.method,
                None,
                None,
                published=p,
            )
            for p in found
        ]
    asked: list[str] = []
    for name in config.editor:
        asked += every_editor(config.preset) if name == "all" else [name]
    overrides = config.editor_overrides()
    names = list(dict.fromkeys(asked))
    for option in overrides:
        if not any(editors.takes(_split(name)[0], option) for name in names):
            editors.check(_split(names[0])[0], **{option: overrides[option]})
    return [choose_editor(name, config.preset, overrides) for name in names]


def every_editor(preset: str) -> list[str]:
    """What `all` stands for: the paper's editors as far as they are there, then the controls."""
    there, absent = [], {}
    for name in PAPER_EDITORS:
        row = editors.PRESETS.get(DEFAULT_ROWS.get((name, preset), ""))
        if row is None:
            absent[name] = f"it has no {preset} preset"
        elif row.checkpoint is None:
            absent[name] = row.obtain
        elif not all(_ships(model) for model in (row.checkpoint, *row.models.values())):
            absent[name] = "its weights are not in this installation"
        else:
            try:
                local = {k: model for k, model in row.models.items() if not model.startswith("nano:")}
                editors.check_models(row.name, **local)
            except editors.EditorError as error:
                absent[name] = str(error)
            else:
                there.append(name)
    for name, reason in absent.items():
        log.warning("'--editor all' leaves out %s: %s.", name, reason)
    return [*there, *CONTROLS[preset]]


def _ships(reference: str) -> bool:
    """Whether an embedded model is there; True for what is not embedded."""
    if not reference.startswith("nano:"):
        return True
    from nein.nano import zoo

    return reference.removeprefix("nano:") in zoo.available()


def _split(name: str) -> tuple[str, str | None]:
    """("magicbrush", "./folder") from "magicbrush=./folder"; (name, None) from anything else."""
    left, equals, right = name.partition("=")
    return (left, right) if equals and right and left in editors.available() else (name, None)


def choose_editor(asked: str, preset: str, overrides: Mapping[str, Any]) -> EditorChoice:
    """One editor by name, hub id, folder or "row=reference", with the values of `preset`; loads nothing.

    Of `overrides` it takes what it knows. Raises EditorError or UserError.
    """
    name, checkpoint = _split(asked)
    if not is_checkpoint(name):
        editors.check(name)  # an unknown name is said to be unknown before a preset is looked for
    own = {key: value for key, value in overrides.items() if editors.takes(name, key)}
    if name in editors.available() and not editors.needs_checkpoint(name):
        if checkpoint is not None:
            raise UserError(f"Editor '{name}' has no model, so '={checkpoint}' says nothing; leave it out.")
        return EditorChoice(asked, name, name, None, None, own)
    row = editors.preset_row(name, preset)
    editors.check(row.name, **own)
    options = {**row.options(), **own}
    if checkpoint is not None:
        return EditorChoice(asked, f"{name}-{slug(checkpoint)}", row.name, checkpoint, None, options)
    if row.checkpoint is None:
        raise UserError(f"Editor '{name}' needs a checkpoint of yours: {row.obtain}.")
    return EditorChoice(asked, slug(name), row.name, row.checkpoint, row.revision, options)


def slug(name: str) -> str:
    """A folder name for an editor: a plain name as it is, a reference by its end and a hash."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) and not Path(name).exists():
        return name
    whole = str(Path(name).expanduser().resolve()) if Path(name).expanduser().exists() else name
    tail = re.sub(r"[^A-Za-z0-9._-]+", "-", whole.rstrip("/").rpartition("/")[2]).strip("-.") or "editor"
    return f"{tail}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def resolve(reference: str) -> tuple[str, str | None]:
    """(folder, file or hub id, revision or None) of a reference. UserError for an unknown nano model."""
    if reference.startswith("nano:"):
        from nein.nano import zoo

        try:
            return str(zoo.path(reference.removeprefix("nano:"))), None
        except (ValueError, KeyError, FileNotFoundError) as error:
            raise UserError(f"There is no embedded model '{reference}': {error}.") from None
    if reference.startswith("weakened:"):
        rates, _, inner = reference.removeprefix("weakened:").partition(":")
        where, revision = resolve(inner)
        return f"weakened:{rates}:{where}", revision
    if metrics.special_reference(reference):
        return reference, None
    if Path(reference).expanduser().exists():
        return str(Path(reference).expanduser()), None
    name, _, revision = reference.partition("@")
    return name, revision or None


def folder_of(reference: str) -> str:
    """The reference with an embedded model's name turned into its folder, and `~` into the home folder."""
    where, revision = resolve(reference)
    return f"{where}@{revision}" if revision else where


def check_references(wanted: Iterable[str], config: EvalConfig) -> None:
    """Looks at the models of the metrics `wanted` without loading one: it may be hours before they are.

    Raises UserError or MetricError for an unknown name, a missing folder, or a folder without safetensors.
    """
    kinds = dict.fromkeys(metrics.NEEDS[name] for name in wanted if name in metrics.NEEDS)
    for kind in kinds:
        where, _ = resolve(getattr(config.models, kind))
        if metrics.special_reference(where) or ("/" not in where and not Path(where).exists()):
            continue  # a name of the library behind the metric ("alex", "inception", "scripted:No")
        from metrics.loading import check_folder

        check_folder(where)


def load_encoders(wanted: Iterable[str], config: EvalConfig, device: str) -> dict[str, Any]:
    """Encoder kind -> loaded encoder, for the metrics `wanted`. Always float32: encoders measure."""
    kinds = dict.fromkeys(ENCODER_OF[name] for name in wanted if name in ENCODER_OF)
    loaded = {}
    for kind in kinds:
        where, revision = resolve(getattr(config.models, kind))
        loaded[kind] = metrics.load_encoder(kind, where, revision=revision, device=device, dtype="float32")
    return loaded


def load_judges(wanted: Iterable[str], config: EvalConfig, device: str) -> dict[str, Any]:
    """Judge kind ("vqa", "ovd") -> loaded judge, for the metrics `wanted`."""
    kinds = dict.fromkeys(JUDGE_OF[name] for name in wanted if name in JUDGE_OF)
    loaded = {}
    for kind in kinds:
        where, revision = resolve(getattr(config.models, kind))
        loaded[kind] = metrics.load_judge(
            kind,
            where,
            revision=revision,
            device=device,
            dtype=config.judge_dtype,
            **judge_options(kind, config),
        )
    return loaded


def judge_options(kind: str, config: EvalConfig) -> dict[str, Any]:
    """The options of a judge that are not the default, as `metrics.load_judge` takes them."""
    if kind == "vqa" and config.models.vqa_quantization != "none":
        return {"quantization": config.models.vqa_quantization}
    if kind == "ovd":
        return {"pad": config.models.ovd_pad, "backend": config.models.ovd_backend}
    return {}


def score_identity(metric: str, config: EvalConfig, device: str) -> dict[str, Any]:
    """Everything in the configuration that decides a metric's values, given the images."""
    facts: dict[str, Any] = {"device": device.partition(":")[0]}
    if metric in JUDGE_OF:
        kind = JUDGE_OF[metric]
        facts |= {
            "protocol": config.protocol,
            "model": getattr(config.models, kind),
            "dtype": config.judge_dtype,
        }
        facts |= judge_options(kind, config)
        facts |= {"article": config.article} if kind == "vqa" else {"threshold": config.threshold}
        return facts
    if metric in ENCODER_OF:
        facts["model"] = getattr(config.models, ENCODER_OF[metric])
    if metric == "fid":
        facts["protocol"] = config.protocol
    if metric != "clip_t":
        facts["align"] = config.align if config.align == "stretch" else f"crop at {config.align_resolution}"
    return facts
