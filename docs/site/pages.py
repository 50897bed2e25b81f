"""What of the reference follows from the code: pages of commands and of docstrings, and tables within pages.

written()     the pages that do not lie in the repository, so that none can be out of date
filled(text)  a page's Markdown with its tables as they are now: what stands between the lines
              "<!-- table: metrics -->" and "<!-- end -->"

    python docs/site/pages.py    writes the tables into the pages of docs/
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nein import editors, metrics
from nein.benchmarks.negbench.models import MODELS
from nein.cli import commands
from nein.config import options
from nein.config.groups import Command
from nein.datasets.negbench import registry
from nein.editors.presets import EditorPreset
from nein.metrics import METRICS
from nein.metrics.judges.base import CAPTION, TEMPLATES
from nein.metrics.metric import Metric
from nein.nano import scenes
from nein.wording.families import FAMILIES

CONFIGS = Path(__file__).parents[2] / "configs"
#: Scripts of `train/` whose options are read as those of `nein`: what is typed -> the module with its
#: COMMAND, or the dataclass of its options.
SCRIPTS = {
    "python train/finetune_ip2p.py": "nein.train.editor_finetuning.options:TuneConfig",
    "python train/finetune_clip.py": "nein.train.clip_finetuning.options:ClipConfig",
}

#: Page of docstrings -> its title, and the modules that it shows.
API = {
    "nein": ("nein", ("nein.api",)),
    "editors": (
        "editors",
        (
            "nein.editors", "nein.editors.base", "nein.editors.function", "nein.editors.presets",
        ),
    ),
    "metrics": (
        "metrics",
        (
            "nein.metrics", "nein.metrics.models", "nein.metrics.base", "nein.metrics.metric",
            "nein.metrics.fid",
        ),
    ),
    "judges": (
        "Judges and answers",
        (
            "nein.metrics.judges.base", "nein.metrics.judges", "nein.metrics.presence",
            "nein.metrics.letters", "nein.metrics.choices", "nein.metrics.choice_prompts",
            "nein.metrics.rewards", "nein.metrics.dual",
        ),
    ),
    "benchmarks": (
        "Making a benchmark",
        (
            "nein.config.groups", "nein.config.options", "nein.benchmarks.runner",
            "nein.engine.stages", "nein.engine.folder", "nein.loading.errors", "nein.reporting.figures",
            "nein.reporting.tables", "nein.reporting.plots", "nein.reporting.page",
        ),
    ),
    "statistics": (
        "Statistics",
        (
            "nein.statistics.estimates", "nein.statistics.calibration", "nein.statistics.blind",
        ),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Page:
    """A page that is written: where it lies below docs/, its title in the navigation, its Markdown."""

    path: str
    title: str
    text: str


def written() -> dict[str, list[Page]]:
    """Pages by the part of the navigation that lists them: a page per command, per script, per package."""
    by_name = commands()
    return {
        "COMMANDS": [_command(f"nein {name}", command) for name, command in by_name.items()],
        "SCRIPTS": [_command(typed, _script(typed, place)) for typed, place in SCRIPTS.items()],
        "API": [
            Page(f"reference/api/{name}.md", title, _api(title, of)) for name, (title, of) in API.items()
        ],
    }


def filled(text: str) -> str:
    """Markdown with its tables as they are now."""

    def table(match: re.Match[str]) -> str:
        lines = "".join(TABLES[match[2]]()).strip("\n")
        return f"{match[1]}\n{lines}\n\n<!-- end -->"

    return re.sub(r"(<!-- table: (\S+) -->\n).*?<!-- end -->", table, text, flags=re.DOTALL)


def _api(title: str, modules: Sequence[str]) -> str:
    return f"# {title}\n" + "".join(map(_module, modules))


def _module(name: str) -> str:
    """The functions and classes that a module itself defines, in the order of its file."""
    members = [
        thing for thing, value in vars(importlib.import_module(name)).items()
        if not thing.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == name
    ]  # fmt: skip
    listed = "".join(f"        - {member}\n" for member in members) or "        []\n"
    return f"\n::: {name}\n    options:\n      members:\n{listed}"


# --- commands --------------------------------------------------------------------------------------------


def _script(typed: str, place: str) -> Command:
    if ":" not in place:
        return importlib.import_module(place).COMMAND
    module = importlib.import_module(typed.removeprefix("python ").removesuffix(".py").replace("/", "."))
    sentence = (module.__doc__ or "").splitlines()[0].rstrip(".")
    return Command(sentence, place, "")


def _command(typed: str, command: Command) -> Page:
    name = re.sub(r"^(nein |python -m |python )|\.py$", "", typed)
    return Page(f"reference/commands/{_slug(name)}.md", typed, "".join(_options(typed, command)))


def _options(typed: str, command: Command) -> Iterator[str]:
    cls = pkgutil.resolve_name(command.configuration)
    parser = options.make_parser(cls, typed, "")
    usage = parser.format_usage().removeprefix("usage: ").strip()
    yield f"# {typed}\n\n{_text(command.help[0].upper() + command.help[1:])}.\n\n```console\n$ {usage}\n```\n"
    if command.shared:
        yield "\nAny number of processes share its work: [on a cluster](../../howto/cluster.md).\n"
    names = cls.preset_names if cls.presets is not None else ()
    files = {name: CONFIGS / f"{cls.presets}{name}.yaml" for name in names}
    presets = {name: _flat(yaml.safe_load(file.read_text("utf-8"))) for name, file in files.items()}
    if presets:
        flags = ", ".join(f"`--{cls.preset_option} {name}`" for name in presets)
        yield f"\n{flags} fill in what is not given; their values stand with each option.\n"
    for group in parser._action_groups:
        actions = [a for a in group._group_actions if not isinstance(a, argparse._HelpAction)]
        if actions:
            title = {"options": "General", "positional arguments": "Arguments"}.get(str(group.title))
            yield f"\n## {title or group.title}\n"
            yield f"\n{_text(group.description)}\n" if group.description else ""
            yield from (_option(action, presets) for action in actions)


def _option(action: argparse.Action, presets: Mapping[str, Mapping[str, Any]]) -> str:
    flags = ", ".join(f"`{flag}`" for flag in action.option_strings) or f"`{action.metavar}`"
    lines = [_text(action.help or "")]
    if str(action.metavar).startswith("{"):
        lines.append(
            "One of " + ", ".join(f"`{c}`" for c in str(action.metavar).strip("{}").split(",")) + "."
        )
    values = {name: given[action.dest] for name, given in presets.items() if action.dest in given}
    shown = [f"{name} `{_value(value)}`" for name, value in values.items() if _is_said(value)]
    if shown:
        lines.append(f"*({'; '.join(shown)})*")
    return f"\n{flags}\n:   " + "<br>\n    ".join(lines) + "\n"


def _is_said(value: Any) -> bool:
    return value not in (None, False, argparse.SUPPRESS) and value not in ([], {}, "")


def _value(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _flat(values: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{start}{key}.") if isinstance(value, dict) else {f"{start}{key}": value}
    return flat


# --- tables ----------------------------------------------------------------------------------------------


def _metrics() -> Iterator[str]:
    yield _table(("name", "column", "range", "better", "needs", "source"), map(_metric, METRICS.values()))


def _metric(one: Metric) -> tuple[str, ...]:
    low, high = one.range
    needs = ", ".join((*one.images, *one.models))
    return f"`{one.name}`", one.title, f"{low:g} to {high:g}", one.better, needs, _text(one.source)


def _editors() -> Iterator[str]:
    yield _table(("name", "checkpoint", "options"), map(_editor, editors.PRESETS.values()))


def _editor(row: EditorPreset) -> tuple[str, ...]:
    settings = {"dtype": row.dtype, **row.options()}
    checkpoint = f"`{row.checkpoint}`" if row.checkpoint else _text(row.obtain)
    options = (f"`{key}={_value(value)}`" for key, value in settings.items() if value not in (None, ""))
    return f"`{row.name}`", checkpoint, ", ".join(options)


def _judges() -> Iterator[str]:
    rows = (
        (f"`{kind}`", f"`{checkpoint}`" if checkpoint else "any other", f"`{place}`")
        for kind, by_type in metrics.JUDGES.items()
        for checkpoint, place in by_type.items()
    )
    yield _table(("kind", "type of checkpoint", "loaded by"), rows)


def _questions() -> Iterator[str]:
    for name, template in TEMPLATES.items():
        wrapper = template.wrapper.replace("\n", "↵")
        yield f"- `{name}`: `{wrapper}`\n"
    for question in (*dict.fromkeys(template.presence for template in TEMPLATES.values()), CAPTION):
        yield f"- question: `{question}`\n"


def _worlds() -> Iterator[str]:
    def objects(one: scenes.World) -> str:
        few = one.named == frozenset(scenes.HELD_OUT)
        return ", ".join(sorted(one.named)) if few else f"{len(one.named)} of 30"

    rows = ((f"`{one.name}`", one.wording, one.style, objects(one)) for one in scenes.WORLDS.values())
    yield _table(("`--data`", "wording", "style", "objects that sentences name"), rows)


def _negbench_models() -> Iterator[str]:
    for model in MODELS.values():
        yield f"- `{model.name}`: {f'`{model.reference}`' if model.reference else _text(model.obtain)}\n"


def _negbench_data() -> Iterator[str]:
    for row in registry.ROWS.values():
        tasks = ", ".join(dict.fromkeys(part.task for part in row.parts))
        if row.suite == "NegBench":
            yield f"- `{row.name}`: {tasks}. Images: {_text(row.images)}\n"


def _families() -> Iterator[str]:
    for name, one in FAMILIES.items():
        yield f"\n### {name}\n\n" + "".join(f"- `{text}`\n" for text in one.templates)
        if one.stays:
            yield "\nThe object stays: the right edit is none.\n"


def _places(table: Mapping[str, str], head: str) -> Callable[[], Iterator[str]]:
    """A table of names and of what loads them."""
    return lambda: iter(
        [_table((head, "loaded by"), ((f"`{name}`", f"`{place}`") for name, place in table.items()))]
    )


#: What a page can ask for.
TABLES: dict[str, Callable[[], Iterable[str]]] = {
    "metrics": _metrics,
    "editors": _editors,
    "judges": _judges,
    "judge-prefixes": _places(metrics.REFERENCES, "prefix"),
    "questions": _questions,
    "encoders": _places(metrics.ENCODERS, "kind"),
    "towers": _places(metrics.DUALS, "prefix"),
    "worlds": _worlds,
    "negbench-models": _negbench_models,
    "negbench-data": _negbench_data,
    "families": _families,
}


# --- Markdown --------------------------------------------------------------------------------------------


def _text(text: str) -> str:
    """Plain text as Markdown: what would be markup stands for itself, addresses become links."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else _plain(part) for part in parts)


def _plain(text: str) -> str:
    parts = re.split(r"(https?://[^\s,;)]+)", text)
    return "".join(f"<{part}>" if part.startswith("http") else _escaped(part) for part in parts)


def _escaped(text: str) -> str:
    return re.sub(r"([\\*_\[\]|#])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def main() -> None:
    for path in (Path(__file__).parents[1] / "reference").glob("*.md"):
        text = path.read_text(encoding="utf-8")
        path.write_text(filled(text), encoding="utf-8")


if __name__ == "__main__":
    main()
