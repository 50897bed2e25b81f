"""`nein list KIND`: lists editors, metrics, judges, models, data or benchmarks, with origin, license, and
whether each is on this machine. Reads tables and presets; loads no model and uses no network."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from nein.benchmarks import registry
from nein.config.options import Options, argument, read, split_names
from nein.loading.references import TEXTS, Need, find_cached_folder

SHIPPED, OUR_LICENSE = "ships with nein", "Apache-2.0"  # origin and license of our own rows


@dataclass(kw_only=True)
class ListConfig(Options):
    kind: Literal["editors", "metrics", "judges", "models", "data", "benchmarks"] = argument(
        "KIND", "editors, metrics, judges, models, data or benchmarks"
    )


HEAD = ("name", "what", "from", "license", "here")  # of the printed table


@dataclass(frozen=True)
class Entry:
    """A row of the printed table."""

    name: str  # as a user types it
    about: str  # the column "what"
    origin: str  # a repository, "ships with nein", or how to get it
    license: str
    needs: tuple[Need, ...] = ()  # its downloads; it is here when all of them are
    obstacle: str = ""  # why it is not here, even if it needs no download: "by hand"

    def row(self) -> tuple[str, ...]:
        """The cells of the columns `HEAD`."""
        here = self.obstacle or ("yes" if all(map(is_here, self.needs)) else "no")
        origin = self.origin if len(self.origin) <= 60 else f"{self.origin[:57]}..."
        return (self.name, self.about, origin, self.license, here)


def run(config: ListConfig) -> str:
    """The table of a kind, as text."""
    import tabulate

    rows = [entry.row() for entry in KINDS[config.kind]()]
    available = sum(row[-1] == "yes" for row in rows)
    table = tabulate.tabulate(rows, HEAD, disable_numparse=True)
    return f"{table}\n\n{available} of {len(rows)} are here. {NOTES[config.kind]}\n"


# --- the rows of each kind -----------------------------------------------------------------------
def _editors() -> Iterator[Entry]:
    from nein import editors
    from nein.editors.presets import DEFAULT_ROWS

    presets = editors.PRESETS.values()
    for row in presets:
        is_default = DEFAULT_ROWS[row.editor, row.preset] == row.name
        about = f"--editor {row.editor if is_default else row.name} --preset {row.preset}"
        if row.checkpoint is None:
            yield Entry(row.name, about, row.obtain.partition(":")[0], "see there", obstacle="by hand")
            continue
        needs = () if row.checkpoint.startswith("nano:") else tuple(editors.find_needs(row.name, None))
        obstacle = ""
        for option in row.models:  # its further models: one may be a file that the user must bring
            file = str(row.settings.get(option))
            if needs and file.endswith((".pth", ".ckpt", ".safetensors")) and not Path(file).exists():
                obstacle = f"no {file}"
        yield _make_entry(row.name, about, needs, obstacle)
    preset_names = {name for row in presets for name in (row.name, row.editor)}
    for name in editors.available():
        if name in preset_names:
            continue
        if (plugin := editors.find_plugins().get(name)) is None:
            yield Entry(name, "no model", SHIPPED, OUR_LICENSE)
        else:
            yield Entry(name, "", f"plug-in {plugin.value}", "")


def _metrics() -> Iterator[Entry]:
    from nein import metrics

    for row in metrics.METRICS.values():
        basis = f"asks {', '.join(row.models)}" if row.models else "pixels"
        about = f"{row.title}, {row.better} is better; {basis}"
        yield Entry(row.name, about, row.source or SHIPPED, OUR_LICENSE)


#: Judges that score whole edits: (name, description, origin).
REWARDS = (
    ("editscore:FOLDER", "two questions (arXiv:2509.23909)", "EditScore/EditScore-7B and others"),
    ("editscore:MODEL", "the same to any image-text model", "a folder, hub id or openai:URL#MODEL"),
    ("pairwise:MODEL", "which of two edits obeys, both orders", "any model of nein negvqa --model"),
)


def _judges() -> Iterator[Entry]:
    from nein import metrics
    from nein.metrics.models import GROUP

    yield from _list_presets(metrics.JUDGES)
    for point in metadata.entry_points(group=GROUP):
        yield Entry(f"plugin:{point.name}", "a judge", f"plug-in {point.value}", "")
    yield Entry("module:attribute", "a judge of yours", "a Python file of yours", "")
    for name, about, origin in REWARDS:
        yield Entry(name, f"reward, {about}", origin, "see its card", obstacle="by hand")
    yield Entry("openai:URL#MODEL", "vqa, behind an endpoint", "the package openai", "the model's")


def _models() -> Iterator[Entry]:
    from nein import metrics
    from nein.benchmarks.negbench.models import MODELS
    from nein.models.needs import model_needs
    from nein.nano import zoo

    for name in zoo.available():
        yield _make_entry(f"nano:{name}", "embedded", ())
    yield from (entry for entry in _list_presets((*metrics.ENCODERS, "choices")) if entry.needs)
    for row in MODELS.values():
        about = "two towers (negbench)"
        if row.reference is None:
            yield Entry(row.name, about, row.obtain, "see there", obstacle="by hand")
        else:
            yield _make_entry(row.name, about, tuple(model_needs("dual", row.reference)))


def _data() -> Iterator[Entry]:
    from nein.datasets.hub import PUBLISHED
    from nein.datasets.negbench.registry import NEGBENCH, ROWS
    from nein.models.needs import data_needs
    from nein.nano.scenes import WORLDS
    from nein.nano.scope import DATA

    for world in WORLDS.values():
        yield Entry(world.name, f"drawn scenes, wording {world.wording}", "drawn on first use", OUR_LICENSE)
    yield Entry(DATA, "drawn scenes, negation in scope: edits", "drawn on first use", OUR_LICENSE)
    for about, name in PUBLISHED.items():
        yield _make_entry(f"hub:{name}", about, tuple(data_needs(f"hub:{name}")))
    for row in ROWS.values():
        sizes = {task: f" ({count:,})" for task, count in row.sizes.items()}
        tasks = ", ".join(dict.fromkeys(part.task + sizes.get(part.task, "") for part in row.parts))
        origin = row.images if row.suite == NEGBENCH else row.files_at
        about = f"{row.suite}, {row.title}: {tasks}"
        obstacle = "" if origin.startswith("drawn") else "by hand"
        yield Entry(row.name, about, origin, row.licence, obstacle=obstacle)


def _benchmarks() -> Iterator[Entry]:
    for name in registry.names():
        benchmark = registry.get(name)
        for preset, config in _read_presets(benchmark.config):
            needs = tuple(dict.fromkeys(config.needs()))
            origin = ", ".join(dict.fromkeys(need.reference for need in needs)) or SHIPPED
            yield Entry(f"{benchmark.typed} --preset {preset}", benchmark.title, origin, "", needs)


KINDS: dict[str, Callable[[], Iterable[Entry]]] = {  # KIND -> function that yields its rows
    "editors": _editors,
    "metrics": _metrics,
    "judges": _judges,
    "models": _models,
    "data": _data,
    "benchmarks": _benchmarks,
}
_FETCH = "The others are downloaded at first use, or beforehand:"
NOTES = {  # KIND -> the sentence below its table
    "editors": f"{_FETCH} nein fetch --preset paper --editor NAME. A folder or hub id is an editor, too.",
    "metrics": "Their models: nein list judges, nein list models.",
    "judges": f"{_FETCH} nein fetch COMMAND --preset paper. A folder or a hub id is a judge, too.",
    "models": f"{_FETCH} nein fetch COMMAND --preset paper. A folder or a hub id is a model, too.",
    "data": "hub:OWNER/NAME is downloaded at its first use, or beforehand: nein fetch --data hub:OWNER/NAME.",
    "benchmarks": "The others, and their sizes: nein fetch COMMAND --preset PRESET --dry-run.",
}


# --- rows of models and downloads ----------------------------------------------------------------
def _make_entry(name: str, about: str, needs: tuple[Need, ...], obstacle: str = "") -> Entry:
    """The row of a download or, without needs, of a part of nein."""
    if not needs:
        return Entry(name, about, SHIPPED, OUR_LICENSE)
    licenses = dict.fromkeys(_read_license(need) for need in needs if need.files != TEXTS)
    return Entry(name, about, str(needs[0]), "; ".join(licenses), needs, obstacle)


def _read_license(need: Need) -> str:
    """The license in the card of a download in the hub's cache."""
    from huggingface_hub import metadata_load

    folder = find_cached_folder(need.reference, need.revision, need.kind)
    facts = metadata_load(folder / "README.md") if folder and (folder / "README.md").is_file() else None
    return str((facts or {}).get("license") or "see its card")


def _read_presets(config_class: Any) -> Iterator[tuple[str, Any]]:
    """Yields (preset, options) for every preset of a command."""
    for preset in config_class.preset_names:
        yield preset, read(config_class, [f"--preset={preset}"], to_fetch=True)[0]


#: Commands that are no benchmarks and whose presets name models -> class of their options.
GENERATE = {
    "nein generate": "nein.generate.config:BuildConfig",
    "nein negbench generate": "nein.generate.config:NegbenchConfig",
}


def _list_presets(kinds: Iterable[str]) -> Iterator[Entry]:
    """The rows of models of these kinds in all presets, one per model, without those of NegBench's table."""
    from nein.benchmarks.negbench.models import MODELS
    from nein.models.needs import model_needs

    users_of: dict[tuple[str, str], list[str]] = {}  # (reference, kind) -> ["COMMAND PRESET"]
    commands = {benchmark.typed: benchmark.config for benchmark in map(registry.get, registry.names())}
    commands |= {command: pkgutil.resolve_name(name) for command, name in GENERATE.items()}
    # A command names models by kind in a group `models`, or by these options ("choices": multiple choice).
    option_names = {"vqa": "judge", "ovd": "detector", "choices": "model"}
    for command, config_class in commands.items():
        for preset, config in _read_presets(config_class):
            models = {kind: getattr(config, option, None) for kind, option in option_names.items()}
            if hasattr(config, "models"):
                models |= vars(config.models)
            for kind in kinds:
                for reference in split_names(models.get(kind) or []):
                    if reference not in MODELS:
                        users_of.setdefault((reference, kind), []).append(f"{command} {preset}")
    for (reference, kind), users in users_of.items():
        yield _make_entry(reference, f"{kind} of {', '.join(users)}", tuple(model_needs(kind, reference)))


def is_here(need: Need) -> bool:
    """Whether a download is on this machine, complete and with weights."""
    if need.kind == "url":  # a file in the cache `torch.hub.get_dir`, found without importing torch
        home = os.environ.get("TORCH_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "torch")
        return Path(home, "hub", "checkpoints", need.reference.rpartition("/")[2]).expanduser().is_file()
    if (folder := find_cached_folder(need.reference, need.revision, need.kind)) is None:
        return False
    if any(folder.parents[1].glob("blobs/*.incomplete")):  # of an interrupted download
        return False
    needs_no_weights = need.kind == "dataset" or need.files == TEXTS
    return needs_no_weights or any(path.suffix in (".safetensors", ".bin") for path in folder.rglob("*"))
