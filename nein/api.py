"""The commands as functions: `nein.evaluate(my_edit, limit=48)`, for notebooks and scripts.

A function takes the options of its command by their names (`nein eval --help`), and objects where the
command takes names. It works in this process and leaves the same folder: a call that is interrupted goes on
when it is made again.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from editors.base import digest
from editors.function import as_editor, name_of
from nein.benchmarks.nein import sections
from nein.benchmarks.nein.config import EvalConfig
from nein.benchmarks.nein.report import findings
from nein.benchmarks.nein.runs import find
from nein.engine.errors import UserError
from nein.engine.processes import from_environment
from nein.models import references
from nein.reporting import figures as frames
from nein.reporting import tables
from nein.reporting.tables import Sheet

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

#: A function (image, instruction) -> image, a pipeline of diffusers, an `editors.Editor`, or what
#: `nein eval --editor` takes: a name, a folder, a hub id, a place.
Editing: TypeAlias = Any


def evaluate(
    editor: Editing | Sequence[Editing] | Mapping[str, Editing],
    *,
    data: str | None = None,
    limit: int | None = None,
    metrics: Sequence[str] | None = None,
    control: Sequence[str] | None = None,
    preset: str = "nano",
    out: str | Path | None = None,
    **options: Any,
) -> EditingResult:
    """Edits, scores and reports, as `nein eval` does.

    editor   `edit(image: PIL.Image.Image, instruction: str) -> PIL.Image.Image`, with a further parameter
             `seed` if it draws anything; a pipeline of diffusers in memory; an `editors.Editor`; a name
             ("magicbrush"), a folder, a hub id, a place ("my_module:edit"); several of these; or a mapping
             from names to them.
    data     "nano" (drawn scenes that ship with nein), a folder in NeIn's layout, or "hub:OWNER/NAME".
    limit    Only the first samples.
    metrics  Names of `metrics.METRICS`; all of the preset's if None.
    control  Affirmative twins to run as well, "remove" and "add"; the preset's ("remove") if None.
    preset   "nano", or "paper": the published checkpoints, judges and settings.
    out      Folder of the results; what is there already is not computed again. If None, one below runs/
             that belongs to these editors: another function of the same name gets another one.
    options  The others of `nein eval`, by name: `seed`, `batch_size`, `device`, `models={"vqa": ...}`.

    Raises UserError, EditorError or MetricError (each a ValueError) with one sentence. What the function
    raises for a sample is that sample's error, which is counted and shown.
    """
    given = _named(editor)
    objects = {name: thing for name, thing in given.items() if not _is_text(thing)}
    asked = [name if name in objects else str(thing) for name, thing in given.items()]
    with references.offering(objects):
        config = EvalConfig.of(
            preset=preset,
            editor=asked,
            data=data,
            limit=limit,
            metrics=metrics,
            control=control,
            out=out,
            **options,
        )
    processes = from_environment()
    machine = {
        "device": processes.device(config.device),
        "dtype": config.dtype,
        "batch_size": config.batch_size,
        "preset": preset,
    }
    made = {
        name: as_editor(thing, name=name, **machine, **config.editor_overrides())
        for name, thing in objects.items()
    }
    if out is None and made:
        facts = [made[name].fingerprint if name in made else name for name in asked]
        config.out = f"runs/{preset}-{'-'.join(map(_safe, asked[:3]))}-{digest({'editors': facts})[:8]}"
    from nein.benchmarks.nein import evaluate as benchmark
    from nein.models.editor_choice import resolve_editors

    with references.offering(made):
        benchmark.evaluate(config, processes)
        choices = resolve_editors(config.editor, config.preset, config.editor_overrides(), config.edited)
    return EditingResult(config.out_dir, tuple(choice.slug for choice in choices))


@dataclass(frozen=True)
class Result:
    """Finished runs of one benchmark in a folder. In a notebook it shows as its table.

    out     The folder of the results.
    models  Names of the models as tables show them, those of this call.
    """

    out: Path
    models: tuple[str, ...]

    @functools.cached_property
    def figures(self) -> pd.DataFrame:
        """Every figure, tidy: what it is of, `value`, `low`, `high` (95 % interval), `n`, `unscored`
        (`nein.reporting.figures`)."""
        frame = frames.read(self.out / "figures.csv")
        return frames.select(frame, model=self.models).reset_index(drop=True)

    def _sheets(self) -> list[Sheet]:
        raise NotImplementedError

    def table(self) -> pd.DataFrame:
        """The main table as text, a row per model: values with their 95 % intervals."""
        return _as_frame(self._sheets()[0])

    def _repr_html_(self) -> str:
        shown = "".join(
            f"<h4>{sheet.title}</h4>{_as_frame(sheet).to_html(index=False)}" for sheet in self._sheets()
        )
        return f"{shown}<p>{html.escape(str(self.out))}</p>"

    def __repr__(self) -> str:
        return "\n\n".join(tables.plain(sheet) for sheet in self._sheets()) + f"\n{self.out}"


@dataclass(frozen=True, repr=False)
class EditingResult(Result):
    """What `evaluate` gives."""

    def _sheets(self) -> list[Sheet]:
        return tables.sheets(sections.results(), self.figures)

    def table(self) -> pd.DataFrame:
        """All metrics as text, a row per editor and kind of instruction: values with their 95 % intervals."""
        import pandas as pd

        named = [_as_frame(sheet).set_index(["editor", "instruction"]) for sheet in self._sheets()]
        together = [frame.drop(columns=["n", "unscored"]) for frame in named[:-1]]
        return pd.concat([*together, *named[-1:]], axis=1).reset_index()

    @property
    def runs(self) -> list[Path]:
        """The folders of the runs, one per editor and kind of instruction."""
        return [run.path for run in find(self.out) if run.editor in self.models]

    def gap(self) -> pd.DataFrame:
        """The negation gap per editor and judge, in points: Removal under "Remove the X." minus Removal
        under sentences that say X is absent; `value`, `low`, `high`, `n`. Empty without the control."""
        gaps = frames.select(self.figures, task="gap", statistic="gap")
        shown = gaps[["model", "metric", "value", "low", "high", "n"]].reset_index(drop=True)
        return shown.assign(**{name: 100 * shown[name] for name in ("value", "low", "high")})

    def samples(self) -> pd.DataFrame:
        """A row per sample, editor, kind of instruction and metric: `value`, or None with a `reason`."""
        import pandas as pd

        rows = [
            {"editor": run.editor, "track": run.track, **row}
            for run in find(self.out)
            if run.editor in self.models
            for row in run.read_scores()
        ]
        return pd.DataFrame(rows)

    def grid(self, number: int = 6, **options: Any) -> Image:
        """Samples as rows, editors as columns: the picture of `nein grid`, whose options it takes."""
        from PIL import Image

        from nein.benchmarks.nein.config import GridConfig
        from nein.benchmarks.nein.grid import grid

        file = Path(options.pop("out", self.out / "grid.png"))
        grid(GridConfig(runs=self.runs, number=number, out=file, **options))
        with Image.open(file) as picture:
            return picture.convert("RGB")

    def report(self, file: str | Path = "report.html", **options: Any) -> Path:
        """Writes the page of `nein report`, whose options it takes, and the tables beside it."""
        from nein.benchmarks.nein.config import ReportConfig
        from nein.benchmarks.nein.reporting.command import report

        report(ReportConfig(runs=self.runs, out=Path(file), **options))
        return Path(file)

    def _repr_html_(self) -> str:
        from base64 import b64encode

        said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in findings(self.figures))
        self.grid(3)
        picture = b64encode((self.out / "grid.png").read_bytes()).decode()
        return f'{said}<img src="data:image/png;base64,{picture}" alt="samples">{super()._repr_html_()}'


def _as_frame(sheet: Sheet) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(sheet.rows, columns=sheet.columns)


def _named(editor: Any) -> dict[str, Any]:
    """Name -> editor: one, several, or as they were named."""
    if isinstance(editor, Mapping):
        return {_safe(str(name)): thing for name, thing in editor.items()}
    several = list(editor) if isinstance(editor, list | tuple | set) else [editor]
    named: dict[str, Any] = {}
    for thing in several:
        name = str(thing) if _is_text(thing) else _safe(name_of(thing))
        number = 2
        while name in named:
            name, number = f"{name.rpartition('-')[0] or name}-{number}", number + 1
        named[name] = thing
    if not named:
        raise UserError("No editor was given; nein.evaluate takes a function, a name, or a list of them.")
    return named


def _is_text(thing: Any) -> bool:
    return isinstance(thing, str | Path)


def _safe(name: str) -> str:
    """A name that can be a folder's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "editor"
