"""From the names in a configuration to loaded models: editors, encoders, judges.

A model reference is `nano:NAME` (embedded), a hub id `owner/name[@revision]`, or a local folder. Only this
file knows the first form; the leaf packages get a folder or an id.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import editors
import metrics
from editors.presets import DEFAULT_ROWS, is_checkpoint
from nein.config import EvalConfig
from nein.errors import UserError
from nein.imported import Published, PublishedEditor
from nein.imported import find as find_published

ENCODER_OF = {metric: kind for metric, kind in metrics.NEEDS.items() if kind in metrics.ENCODERS}
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

    def load(self, *, device: str, dtype: str, batch_size: int) -> editors.Editor:
        """The editor, with its weights in memory. Raises EditorError."""
        if self.published is not None:
            return PublishedEditor(self.published)
        where: dict[str, Any] = {}
        if self.checkpoint is not None:
            where["checkpoint"], revision = resolve(self.checkpoint)
            where["revision"] = revision or self.revision
        return editors.get_editor(
            self.row, device=device, dtype=dtype, batch_size=batch_size, **where, **self.options
        )

    def identity(self) -> dict[str, Any]:
        """What the user chose, before any file is read."""
        if self.published is not None:
            return {"editor": self.row, "made": "elsewhere"}  # the fingerprint covers the pictures
        facts = {"editor": self.row, "checkpoint": self.checkpoint, "revision": self.revision}
        return {**facts, **{f"editor.{key}": value for key, value in sorted(self.options.items())}}


def resolve_editors(config: EvalConfig) -> list[EditorChoice]:
    """The editors of a command, in its order; `all` is every editor of the preset. Loads nothing."""
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
        asked += _every_editor(config.preset) if name == "all" else [name]
    return [_choose(name, config) for name in dict.fromkeys(asked)]


def _every_editor(preset: str) -> list[str]:
    """The editors that have a row in the preset and, in the nano preset, a model that ships."""
    rows = {editor: editors.PRESETS[row] for (editor, p), row in DEFAULT_ROWS.items() if p == preset}
    if preset != "nano":
        return list(rows)
    from nein.nano import zoo

    shipped = zoo.available()
    return [editor for editor, row in rows.items() if row.checkpoint.removeprefix("nano:") in shipped]


def _choose(name: str, config: EvalConfig) -> EditorChoice:
    overrides = config.editor_overrides()
    if name in editors.available() and not editors.needs_checkpoint(name):
        editors.check(name, **overrides)
        return EditorChoice(name, name, name, None, None, overrides)
    if not is_checkpoint(name):
        editors.check(name)  # an unknown name is said to be unknown before a preset is looked for
    row = editors.preset_row(name, config.preset)
    editors.check(row.name, **overrides)
    options = {**row.options(), **overrides}
    return EditorChoice(name, slug(name), row.name, row.checkpoint, row.revision, options)


def slug(name: str) -> str:
    """A folder name for an editor: a plain name as it is, a reference by its end and a hash."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) and not Path(name).is_dir():
        return name
    whole = str(Path(name).expanduser().resolve()) if Path(name).expanduser().is_dir() else name
    tail = re.sub(r"[^A-Za-z0-9._-]+", "-", whole.rstrip("/").rpartition("/")[2]).strip("-.") or "editor"
    return f"{tail}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def resolve(reference: str) -> tuple[str, str | None]:
    """(folder or hub id, revision or None) of a reference. Raises UserError for an unknown nano model."""
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
    if Path(reference).expanduser().is_dir():
        return str(Path(reference).expanduser()), None
    name, _, revision = reference.partition("@")
    return name, revision or None


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
