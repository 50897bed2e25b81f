"""`nein list KIND`: what there is, where it comes from, its licence, and whether it is on this machine. Every
row follows from the table that loads the thing; nothing is loaded, and no network is used."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from nein.benchmarks import registry
from nein.config import options
from nein.config.options import Options, argument
from nein.fetch import gigabytes, names, options_of
from nein.loading.references import TEXTS, Need

HEAD = ("name", "what", "from", "licence", "size", "here")
WIDTH = 60  # of a column
#: Judges of edits: (as it is typed, what it is, where it comes from).
REWARDS = (
    ("editscore:FOLDER", "two questions (arXiv:2509.23909)", "EditScore/EditScore-7B and others"),
    ("editscore:MODEL", "the same to any image-text model", "a folder, hub id or openai:URL#MODEL"),
    ("pairwise:MODEL", "which of two edits obeys, both orders", "any model of nein negvqa --model"),
    ("matching:MODEL", "a BLIP that reads source and edit", "nano:reward, or one trained as it is"),
)
SHIPPED, OURS = "ships with nein", "Apache-2.0"


@dataclass(kw_only=True)
class ListConfig(Options):
    """What is listed."""

    kind: Literal["editors", "metrics", "judges", "models", "data", "benchmarks"] = argument(
        "KIND", "editors, metrics, judges, models, data or benchmarks"
    )


@dataclass(frozen=True)
class Entry:
    """A row.

    name     As it is typed.
    origin   A repository, "ships with nein", or how to come by it.
    needs    What of it comes from elsewhere.
    folder   Of the files that ship.
    lacking  Why it is not here, where neither needs nor files decide that.
    """

    name: str
    what: str
    origin: str
    licence: str
    needs: tuple[Need, ...] = ()
    folder: Path | None = None
    lacking: str = ""

    def row(self) -> tuple[str, ...]:
        """The cells of `HEAD`."""
        sizes = [on_disk(need) for need in self.needs]
        absent = sizes.count(None)
        files = [path for path in self.folder.rglob("*") if path.is_file()] if self.folder else []
        size = sum(size for size in sizes if size) + sum(path.stat().st_size for path in files)
        here = f"no: {absent} of {len(sizes)}" if 0 < absent < len(sizes) else "no" if absent else "yes"
        origin = self.origin if len(self.origin) <= WIDTH else f"{self.origin[: WIDTH - 3]}..."
        text = gigabytes(max(size, 100_000)) if size else ""
        return (self.name, self.what, origin, self.licence, text, self.lacking or here)


def run(config: ListConfig) -> str:
    import tabulate

    rows = [thing.row() for thing in KINDS[config.kind]()]
    here = sum(row[-1] == "yes" for row in rows)
    table = tabulate.tabulate(rows, HEAD, disable_numparse=True)
    return f"{table}\n\n{here} of {len(rows)} are here. {NOTES[config.kind]}\n"


# --- kinds ---------------------------------------------------------------------------------------


def _editors() -> Iterator[Entry]:
    from nein import editors
    from nein.editors.presets import DEFAULT_ROWS

    rows = editors.PRESETS.values()
    for row in rows:
        first = DEFAULT_ROWS[row.editor, row.preset] == row.name
        what = f"--editor {row.editor if first else row.name} --preset {row.preset}"
        if row.checkpoint is None:
            yield Entry(row.name, what, row.obtain.partition(":")[0], "see there", lacking="by hand")
            continue
        references = (row.checkpoint, *row.models.values())
        embedded = [name for name in references if name.startswith("nano:")]
        needs = () if embedded else tuple(editors.origins(row.name, None))
        files = [name for name in row.models.values() if name.endswith((".pth", ".ckpt", ".safetensors"))]
        lacking = f"no {files[0]}" if files and not (embedded or Path(files[0]).exists()) else ""
        yield _of(row.name, what, row.checkpoint, needs, lacking=lacking)
    known = {name for row in rows for name in (row.name, row.editor)}
    for name in editors.available():
        if name not in known:
            plugin = editors.plugins().get(name)
            origin = SHIPPED if plugin is None else f"plug-in {plugin.value}"
            yield Entry(name, "no model" if plugin is None else "", origin, OURS if plugin is None else "")


def _metrics() -> Iterator[Entry]:
    from nein import metrics

    for row in metrics.METRICS.values():
        asks = f"asks {', '.join(row.models)}" if row.models else "pixels"
        yield Entry(row.name, f"{row.title}, {row.better} is better; {asks}", row.source or SHIPPED, OURS)


def _judges() -> Iterator[Entry]:
    from nein import metrics
    from nein.metrics import judges

    yield from _played(metrics.JUDGES)
    for name, point in judges.available().items():
        yield Entry(f"plugin:{name}", "a judge", f"plug-in {point.value}", "")
    yield Entry("module:attribute", "a judge of yours", "a Python file of yours", "")
    for name, what, origin in REWARDS:
        yield Entry(name, f"reward, {what}", origin, "see its card", lacking="by hand")
    yield Entry("openai:URL#MODEL", "vqa, behind an endpoint", "the package openai", "the model's")


def _models() -> Iterator[Entry]:
    from nein import metrics
    from nein.benchmarks.negbench.models import MODELS
    from nein.nano import zoo

    for name in zoo.available():
        yield _of(f"nano:{name}", "embedded", f"nano:{name}", ())
    yield from _played((*metrics.ENCODERS, "model"), embedded=False)
    for row in MODELS.values():
        if row.reference is None:
            yield Entry(row.name, "two towers (negbench)", row.obtain, "see there", lacking="by hand")
        else:
            yield _of(row.name, "two towers (negbench)", row.reference, _needs("model", row.name))


def _data() -> Iterator[Entry]:
    from nein.datasets.hub import PUBLISHED
    from nein.datasets.negbench.registry import NEGBENCH, ROWS
    from nein.models.needs import of_data
    from nein.nano.scenes import WORLDS
    from nein.nano.scope import DATA

    for world in WORLDS.values():
        yield Entry(world.name, f"drawn scenes, wording {world.wording}", "drawn on first use", OURS)
    yield Entry(DATA, "drawn scenes, negation in scope: edits", "drawn on first use", OURS)
    for what, name in PUBLISHED.items():
        reference = f"hub:{name}"
        yield _of(reference, what, reference, tuple(of_data(reference)))
    for row in ROWS.values():
        rows = {task: f" ({count:,})" for task, count in row.sizes.items()}
        tasks = ", ".join(dict.fromkeys(part.task + rows.get(part.task, "") for part in row.parts))
        origin = row.pictures if row.suite == NEGBENCH else row.files_at
        what = f"{row.suite}, {row.title}: {tasks}"
        lacking = "" if origin.startswith("drawn") else "by hand"
        yield Entry(row.name, what, origin, row.licence, lacking=lacking)


def _benchmarks() -> Iterator[Entry]:
    from nein.models.needs import of_data, of_editors

    for name in registry.names():
        typed = registry.get(name).typed
        for preset, values in _presets(name):
            models = [item[3] for item in _named() if item[:2] == (name, preset)]
            edited = [] if preset == "nano" else of_editors(values.get("editor") or (), preset)
            needs = [*edited, *of_data(values.get("data"))]
            needs += [need for item in _named() if item[:2] == (name, preset) for need in _needs(*item[2:])]
            data = values.get("data") or ("nano" if preset == "nano" else "yours, by --data")
            what = f"models: {len(models)}; data: {data}"
            origin = ", ".join(dict.fromkeys(need.reference.strip("*") for need in needs)) or SHIPPED
            yield Entry(f"{typed} --preset {preset}", what, origin, "", tuple(dict.fromkeys(needs)))


KINDS: dict[str, Callable[[], Iterable[Entry]]] = {
    "editors": _editors,
    "metrics": _metrics,
    "judges": _judges,
    "models": _models,
    "data": _data,
    "benchmarks": _benchmarks,
}
_FETCH = "The others are downloaded at first use, or beforehand:"
NOTES = {
    "editors": f"{_FETCH} nein fetch --editor NAME. A folder, a hub id or module:function is an editor, too.",
    "metrics": "Their models: nein list judges, nein list models.",
    "judges": f"{_FETCH} nein fetch. A folder or a hub id is a judge, too.",
    "models": f"{_FETCH} nein fetch. A folder or a hub id is a model, too.",
    "data": "hub:OWNER/NAME is downloaded at its first use, or beforehand: nein fetch --data hub:OWNER/NAME.",
    "benchmarks": "The others, and their sizes: nein fetch --dry-run --preset PRESET --benchmarks NAME.",
}


# --- rows ----------------------------------------------------------------------------------------


def _of(name: str, what: str, reference: str, needs: tuple[Need, ...], *, lacking: str = "") -> Entry:
    """Of a reference: an embedded model, or what is downloaded."""
    from nein.nano import zoo

    if reference.startswith("nano:"):
        short = reference.removeprefix("nano:")
        folder = zoo.ZOO / zoo.ALIASES.get(short, short)
        return Entry(name, what, SHIPPED, _card_licence(folder) or OURS, (), folder)
    origin = str(needs[0]) if needs else reference
    if needs and needs[0].kind == "url":
        origin = f"the metric's package, as '{reference}'"
    of = [_card_licence(snapshot(need)) or "see its card" for need in needs if need.files != TEXTS]
    return Entry(name, what, origin, "; ".join(dict.fromkeys(of)) or "see its card", needs, None, lacking)


def _played(kinds: Iterable[str], *, embedded: bool = True) -> Iterator[Entry]:
    """What presets name as models of these kinds, each once; without the rows of NegBench."""
    from nein.benchmarks.negbench.models import MODELS

    parts: dict[tuple[str, str], list[str]] = {}
    for command, preset, kind, reference in _named():
        if kind in kinds and reference not in MODELS and (embedded or not reference.startswith("nano:")):
            parts.setdefault((reference, kind), []).append(f"{command} {preset}")
    for (reference, kind), where in parts.items():
        yield _of(reference, f"{kind} of {', '.join(where)}", reference, _needs(kind, reference))


def _needs(kind: str, reference: str) -> tuple[Need, ...]:
    """What of a preset's model comes from elsewhere. Networks of lpips and clean-fid, and repositories with
    an open_clip tag's weights, are looked for by name: to import these libraries takes seconds."""
    from nein import metrics
    from nein.benchmarks.negbench.models import MODELS
    from nein.models.needs import of_model

    if kind in metrics.ENCODERS and "/" not in reference and ":" not in reference:
        return (Need(f"{reference}*", kind="url"),)
    row = MODELS.get(reference) if kind == "model" else None
    if row is None or row.reference is None:
        return tuple(of_model("choices" if kind == "model" else kind, reference))
    weights = row.reference.partition("#")[0]
    same = [other.same for other in MODELS.values() if (other.reference or "").partition("#")[0] == weights]
    names = [
        weights.removeprefix("open_clip:").removeprefix("hf-hub:"),
        *(name for row in same for name in row),
    ]
    needs = [Need(name) for name in names if not name.startswith("ViT-")]
    return tuple([need for need in needs if on_disk(need) is not None][:1] or needs[-1:])


def _presets(command: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(preset, its values) of a command of `nein.fetch`."""
    kind = options_of(command)
    for preset in kind.preset_names:
        file = options.preset_file(preset, str(kind.presets))
        yield preset, yaml.safe_load(file.read_text(encoding="utf-8")) or {}


@functools.cache
def _named() -> tuple[tuple[str, str, str, str], ...]:
    """(command, preset, kind, reference) of every model that a preset names, or that is its default."""
    from nein import metrics

    found, kinds = [], {*metrics.ENCODERS, *metrics.JUDGES, "model"}
    for command in names():
        fields = {field.name: field for field in dataclasses.fields(options_of(command))}
        group = fields["models"].default_factory if "models" in fields else None
        defaults = dataclasses.asdict(group()) if callable(group) else {}
        for preset, values in _presets(command):
            models = {**defaults, **values.get("models", {}), "model": values.get("model")}
            for kind, option in (("vqa", "judge"), ("ovd", "detector")):
                models[kind] = values.get(option, models.get(kind))
            for kind, given in models.items():
                for reference in given if isinstance(given, list) else [given]:
                    if isinstance(reference, str) and kind in kinds:
                        found.append((command, preset, kind, reference))
    return tuple(found)


def on_disk(need: Need) -> int | None:
    """Bytes of a need on this machine; None where it is not here, or only in part."""
    if need.kind == "url":
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        home = os.environ.get("TORCH_HOME") or Path(cache, "torch")
        files = sorted(Path(home, "hub", "checkpoints").glob(need.reference.rpartition("/")[2]))
        return files[0].stat().st_size if files else None
    folder = snapshot(need)
    if folder is None or any(folder.parents[1].glob("blobs/*.incomplete")):
        return None
    files = [path for path in folder.rglob("*") if path.is_file()]
    weightless = need.files == TEXTS or need.kind == "dataset"
    whole = files if weightless else [path for path in files if path.suffix in (".safetensors", ".bin")]
    return sum(path.stat().st_size for path in files) if whole else None


def snapshot(need: Need) -> Path | None:
    """The folder in the hub's cache that has the files of a need, or some of them."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    if need.kind == "url":
        return None
    try:
        found = snapshot_download(
            need.reference, repo_type=need.kind, revision=need.revision, local_files_only=True
        )
    except (HFValidationError, LocalEntryNotFoundError):
        return None
    return Path(found)


def _card_licence(folder: Path | None) -> str | None:
    """What a card says: `license` of its first lines."""
    card = folder / "README.md" if folder is not None else None
    if card is None or not card.is_file():
        return None
    licence = re.search(
        r"^license: *(\S.*)$", card.read_text(encoding="utf-8", errors="replace"), re.MULTILINE
    )
    return licence[1].strip() if licence else None
