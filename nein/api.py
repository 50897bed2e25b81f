"""The commands as functions, for notebooks and scripts: `nein.evaluate(my_edit, limit=48)`.

A function takes the options of its command by name, and objects in place of names. It works in this process
and writes the same folder, which a second call resumes.
"""

from __future__ import annotations

import contextlib
import functools
import html
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from nein.benchmarks.negbench.config import EvalConfig as NegbenchConfig
from nein.benchmarks.negvqa.config import NegvqaConfig
from nein.benchmarks.nein import sections
from nein.benchmarks.nein.config import EvalConfig
from nein.benchmarks.nein.report import make_finding
from nein.benchmarks.runner import FIGURES_CSV, SCORES_CSV, Benchmark
from nein.config.groups import start
from nein.editors.function import FUNCTION_OPTIONS, make_editor, name_of, takes_options
from nein.engine.exits import explain_error
from nein.engine.folder import Folder, find_runs
from nein.engine.machine import Processes
from nein.loading.digests import Json, json_digest
from nein.loading.errors import UserError
from nein.metrics import dual
from nein.metrics.choices import is_choice_model, make_choice_model
from nein.models import references
from nein.reporting import figures as frames
from nein.reporting import tables
from nein.reporting.scores import ScoreTable
from nein.reporting.tables import Sheet, Table

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
    concurrency: int | None = None,
    **options: Any,
) -> EditingResult:
    """Edits, scores and reports, as `nein eval` does.

    editor   `edit(image: PIL.Image.Image, instruction: str) -> PIL.Image.Image`, with a parameter `seed` if
             it is random; a diffusers pipeline; an `editors.Editor`; a name ("magicbrush"), a folder, a hub
             id, a place ("my_module:edit"); several of these; or a mapping from names to them.
    data     "nano" (drawn scenes that ship with nein), a folder in NeIn's layout, or "hub:OWNER/NAME".
    limit    Only the first samples.
    metrics  Names of `metrics.METRICS` (default: the preset's).
    control  Affirmative twins to run as well, "remove" and "add" (default: the preset's, "remove").
    preset   "nano", or "paper": the published checkpoints, judges and settings.
    out      Folder of results, which is resumed (default: one below runs/ for these editors, and another one
             for another function of the same name).
    concurrency  Parallel calls of a function (default: 1). It may be async. It is called again if a service
             is busy or silent (see `editors.function`), and raises `nein.Refused` if a service declines.
    options  Other options of `nein eval` by name: `seed`, `batch_size`, `device`, `models={"vqa": ...}`.

    Raises UserError, EditorError or MetricError (each a ValueError). An exception of the function is the
    error of its sample, which is counted and shown; if all first samples fail, it is raised.
    """
    if concurrency is not None:
        options["endpoint"] = {**options.get("endpoint", {}), "concurrency": concurrency}
        options["editor_options"] = {**options.get("editor_options", {}), "concurrency": concurrency}
    editors, objects = _name_models(editor)
    values = {"data": data, "limit": limit, "metrics": metrics, "control": control, "out": out}
    config = EvalConfig.create(preset=preset, editor=editors, **values, **options)
    machine: Json = {"dtype": config.dtype, "batch_size": config.batch_size, "preset": preset}

    # Editors get the options that they take; if none takes one, the first editor raises an error.
    any_takes = len(editors) > len(objects) or any(map(takes_options, objects.values()))

    def make(name: str, thing: Any, device: str) -> Any:
        overrides = config.editor_options
        if any_takes and not takes_options(thing):
            overrides = {key: value for key, value in overrides.items() if key in FUNCTION_OPTIONS}
        return make_editor(thing, name=name, device=device, **machine, **overrides)

    from nein.benchmarks.nein.run import NEIN

    return EditingResult(*_run(NEIN, config, objects, make), tuple(sections.make_paper_tables()))


def negvqa(
    model: Any,
    *,
    data: str | None = None,
    limit: int | None = None,
    preset: str = "nano",
    out: str | Path | None = None,
    **options: Any,
) -> Result:
    """Asks questions and their negations, as `nein negvqa` does.

    model    `answer(image: PIL.Image.Image, question: str, options: list[str]) -> str`: a letter, or a
             sentence that begins with one; what `nein negvqa --model` takes ("nano:negvqa", a folder, a hub
             id); several of these; or a mapping from names to them.
    data     "nano" (drawn questions), "hub:OWNER/NAME", or a file in NegVQA's layout.

    Other arguments and exceptions: as for `evaluate`.
    """
    models, objects = _name_models(model)
    if len(objects) == len(models) and not any(map(is_choice_model, objects.values())):
        options.setdefault("scoring", ["generated"])  # a function gives no probabilities
    config = NegvqaConfig.create(preset=preset, model=models, data=data, limit=limit, out=out, **options)

    def make(name: str, thing: Any, device: str) -> Any:
        return make_choice_model(thing, name)

    from nein.benchmarks.negvqa.runs import NEGVQA
    from nein.benchmarks.negvqa.sections import GAP, accuracy_table

    return Result(*_run(NEGVQA, config, objects, make), (accuracy_table(config.protocol, "clustered"), GAP))


def run(benchmark: str, *, preset: str = "nano", out: str | Path | None = None, **options: Any) -> Result:
    """Evaluates on a benchmark by its name, also of a plug-in, with the options of its command by name."""
    from nein.benchmarks import registry

    entry = registry.get(benchmark)
    config: Any = entry.config.create(preset=preset, out=out, **options)
    finished = _run(entry, config, {}, lambda name, thing, device: thing)
    return Result(*finished, tuple(entry.headline))


def negbench(
    model: Any,
    *,
    data: str | None = None,
    limit: int | None = None,
    preset: str = "nano",
    out: str | Path | None = None,
    **options: Any,
) -> Result:
    """Retrieval and multiple choice with negated captions, as `nein negbench eval` does.

    model    An object with `encode_image(pictures) -> (N, D)` and `encode_text(sentences) -> (N, D)`; (model,
             processor) of transformers; (model, transform, tokenizer) of open_clip; what `nein negbench eval
             --model` takes ("nano:clip", a folder, a hub id); a list of these; or a mapping from names to
             them. An object may have a `fingerprint`, a text that changes with its weights (default: digits
             of its code and of the weights of its torch modules).
    data     "nano" (drawn scenes), or a folder with NegBench's released files.

    Other arguments and exceptions: as for `evaluate`.
    """
    models, objects = _name_models([model] if isinstance(model, tuple) else model)
    config = NegbenchConfig.create(preset=preset, model=models, data=data, limit=limit, out=out, **options)

    def make(name: str, thing: Any, device: str) -> Any:
        mark = getattr(thing, "fingerprint", None)
        if not isinstance(mark, str):  # `dual.make_dual` hashes the weights of (model, processor)
            mark = "" if isinstance(thing, tuple) else dual.fingerprint_of(thing)
        return dual.make_dual(thing, name=name, batch_size=config.batch_size, fingerprint=mark)

    from nein.benchmarks.negbench.runs import NEGBENCH
    from nein.benchmarks.negbench.sections import SECTIONS

    headline = tuple(table for section in SECTIONS[:2] for table in section.tables)
    return Result(*_run(NEGBENCH, config, objects, make), headline)


def judge(
    images: Any, questions: Any, *, model: str = "nano:llava", device: str = "auto", dtype: str = "float32"
) -> pd.DataFrame:
    """Asks a judge about images, as Removal does.

    images     One or several: `PIL.Image.Image`, or (H, W, 3) uint8.
    questions  One or several, for every image.
    model      A value of `--models.vqa`.

    Returns a row per image and question: `image` (index), `question`, `answer`, `p_yes`, `p_no`. Raises
    UserError or MetricError.
    """
    import numpy as np
    import pandas as pd

    from nein import metrics
    from nein.metrics.judges.base import find_template

    single = not isinstance(images, list | tuple)
    pictures = [np.array(image) for image in ([images] if single else images)]
    several = isinstance(questions, Iterable) and not isinstance(questions, str)
    words = list(questions) if several else [questions]
    if strange := [question for question in words if not isinstance(question, str)]:
        raise UserError(f"A question is {strange[0]!r}; give a sentence, or a list of them.")
    device = Processes().device(device)
    loaded = metrics.load_judge("vqa", references.resolve(model), device=device, dtype=dtype)
    prompts = [find_template(loaded.template).wrap(question) for question in words]
    rows = [
        (number, question, answer.text, answer.p_yes, answer.p_no)
        for number, answers in enumerate(loaded.ask(pictures, [prompts] * len(pictures)))
        for question, answer in zip(words, answers, strict=True)
    ]
    return pd.DataFrame(rows, columns=["image", "question", "answer", "p_yes", "p_no"])


def _run(
    benchmark: Benchmark, config: Any, objects: Mapping[str, Any], make: Callable[[str, Any, str], Any]
) -> tuple[Benchmark, Path, tuple[str, ...]]:
    """Makes models of the objects and runs the benchmark here; returns the first fields of a `Result`."""
    if objects and config.on == "ray":
        raise UserError(
            f"on='{config.on}' computes in other processes, which lack {', '.join(objects)}; leave out `on`."
        )
    with contextlib.closing(start(config)) as executor:
        models = {name: make(name, thing, executor.device) for name, thing in objects.items()}
        if config.out is None and models:  # a folder for these models, by their names and a digest
            marks = json_digest({name: thing.fingerprint for name, thing in models.items()})[:8]
            config.out = f"{config.out_dir}-{'-'.join([*models][:3])}-{marks}"
        for option in ("editor", "model") if models else ():
            words = getattr(config, option, [])
            loaded = [references.InMemory(name, models[name]) if name in models else name for name in words]
            setattr(config, option, loaded)
        try:
            benchmark(config, executor)
        except UnicodeEncodeError as error:  # half a character, in the answer of a function
            raise UserError(explain_error(error) or str(error)) from None
        names = dict.fromkeys(run.name for run in benchmark.runs(config, executor.device))
        return benchmark, config.out_dir, tuple(names)


@dataclass(frozen=True, repr=False)
class Result:
    """Finished runs of one benchmark in a folder. A notebook shows its tables.

    out    The folder of results, with the benchmark's tables and plots.
    names  Names of the runs of this call in tables.
    shown  The tables.
    """

    benchmark: Benchmark
    out: Path
    names: tuple[str, ...]
    shown: tuple[Table, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "out", self.out.absolute())  # stays valid in another working folder

    @functools.cached_property
    def figures(self) -> pd.DataFrame:
        """Every estimate, tidy: its dimensions, `value`, `low`, `high` (95 % interval), `n`, `unscored`."""
        file = self.out / FIGURES_CSV  # of NegBench, which says of each what data it is on
        files = [file] if file.exists() else sorted(self.out.rglob(FIGURES_CSV))
        figures = frames.concat(map(frames.read, files))
        return frames.select(figures, model=self.models).reset_index(drop=True)

    @property
    def models(self) -> tuple[str, ...]:
        """The entries of the column "model" of this call."""
        return self.names

    def table(self) -> pd.DataFrame:
        """The main table as text, a row per model: values with their 95 % intervals."""
        return _to_frame(tables.make_sheets(self.shown, self.figures)[0])

    @property
    def runs(self) -> list[Path]:
        """The folders of the runs of this call; for `evaluate` one per editor and kind of instruction."""
        return [path for path in find_runs(self.out) if Folder(path).entries().get("name") in self.names]

    def gap(self) -> pd.DataFrame:
        """The negation gap per model and metric, in points: the loss when the input is negated (for
        `evaluate`: Removal after "Remove the X." minus Removal after a sentence that X is absent); `value`,
        `low`, `high`, `n`. Empty without a pair to compare."""
        every = self.benchmark.gaps(self.benchmark.load_finished(self.runs))
        gaps = frames.select(every, statistic="gap").rename(columns={"metric": "", "measure": "metric"})
        gaps = gaps.reindex(columns=["model", "metric", "value", "low", "high", "n"]).reset_index(drop=True)
        return gaps.assign(**{name: 100 * gaps[name] for name in ("value", "low", "high")})

    def samples(self) -> pd.DataFrame:
        """A row per sample, run and metric: `model`, the sample, `value`, or NaN with a `reason`."""
        import pandas as pd

        parts = []
        for run in self.runs:
            part = ScoreTable.read(run / SCORES_CSV).frame.assign(model=Folder(run).entries()["name"])
            parts.append(part.astype({"metric": object, "reason": object}))
        return pd.concat(parts, ignore_index=True)

    def report(self, file: str | Path = "report.html", **options: Any) -> Path:
        """Writes the page of `nein report`, with its options: `formats=["html", "csv"]` adds files."""
        from nein.benchmarks.finished import report

        values = {"runs": self.runs, "out": Path(file), "formats": ["html"], **options}
        report(self.benchmark.report_config(**values))
        return Path(file)

    def _repr_html_(self) -> str:
        sheets = tables.make_sheets(self.shown, self.figures)
        parts = (f"<h4>{sheet.title}</h4>{_to_frame(sheet).to_html(index=False)}" for sheet in sheets)
        return f"{''.join(parts)}<p>{html.escape(str(self.out))}</p>"

    def __repr__(self) -> str:
        sheets = tables.make_sheets(self.shown, self.figures)
        return "\n\n".join(tables.format_plain(sheet, 20) for sheet in sheets) + f"\n{self.out}"


class EditingResult(Result):
    @property
    def models(self) -> tuple[str, ...]:
        """The names of the editors: "ip2p" of "ip2p/negative"."""
        return tuple({name.rpartition("/")[0] for name in self.names})

    def table(self) -> pd.DataFrame:
        """All metrics as text, a row per editor and kind of instruction: values with their 95 % intervals."""
        return _to_frame(sections.make_results_table().sheet(self.figures))

    def samples(self) -> pd.DataFrame:
        """A row per sample, editor, kind of instruction and metric: `value`, or NaN with a `reason`."""
        table = super().samples()
        table[["editor", "track"]] = table["model"].str.rsplit("/", n=1).tolist()
        return table

    def grid(self, number: int = 6, **options: Any) -> Image:
        """The image of `nein grid`, with its options: samples as rows, editors as columns."""
        from PIL import Image

        from nein.benchmarks.nein.config import GridConfig
        from nein.benchmarks.nein.grid import draw_grid

        file = Path(options.pop("out", self.out / "grid.png"))
        draw_grid(GridConfig(runs=self.runs, number=number, out=file, **options))
        with Image.open(file) as image:
            return image.convert("RGB")

    def _repr_html_(self) -> str:
        from base64 import b64encode

        sentences = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in make_finding(self.figures))
        self.grid(3)
        image = b64encode((self.out / "grid.png").read_bytes()).decode()
        return f'{sentences}<img src="data:image/png;base64,{image}" alt="samples">{super()._repr_html_()}'


def _to_frame(sheet: Sheet) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(sheet.rows, columns=sheet.columns)


def _name_models(models: Any) -> tuple[list[str], Json]:
    """The names of models for the command, and the objects among them by name. models: one model, several, or
    a mapping from names to them: texts or paths, or objects."""
    several = models if isinstance(models, Mapping | list | tuple | set) else [models]
    pairs = several.items() if isinstance(several, Mapping) else [("", thing) for thing in several]
    names: list[str] = []
    objects: Json = {}
    for name, thing in pairs:
        if thing is None:
            raise UserError(
                "None is no editor or model; give a function, an object, a name, or a list of them."
            )
        if not name and not isinstance(thing, str | Path):
            name = name_of(thing[0] if isinstance(thing, tuple) and thing else thing)  # (model, processor)
        safe = name and (re.sub(r"[^A-Za-z0-9._-]+", "-", str(name)).strip("-.") or "model")
        if isinstance(thing, str | Path):
            names.append(f"{safe}={thing}" if safe else str(thing))
        else:
            safe = f"my-{safe}" if safe in ("all", "none") else safe  # words that a list of names reserves
            endings = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
            free = next(f"{safe}{end}" for end in endings if f"{safe}{end}" not in objects)
            names.append(references.InMemory(free, thing))
            objects[free] = thing
    if not names:
        raise UserError(
            "There is no editor or model to evaluate; give a function, a name, or a list of them."
        )
    return names, objects
