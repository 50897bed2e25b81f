"""The Python API: evaluations as functions, for notebooks and scripts: `nein.evaluate(my_edit, limit=48)`.

A function takes the options of its command by name, and models as objects or by name. It works in this
process, writes the same folder as the command, which a second call resumes, and returns a `Result`.
"""

from __future__ import annotations

import contextlib
import functools
import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


# --- evaluations ---------------------------------------------------------------------------------
def evaluate(
    editor: Any,
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
    """Evaluates image editors on negative instructions, as `nein eval` does.

    editor   `edit(image: PIL.Image.Image, instruction: str) -> PIL.Image.Image`, with a parameter `seed` if
             it is random; a diffusers pipeline; an `editors.Editor`; what `nein eval --editor` takes
             ("magicbrush", "my_module:edit", a folder, a hub id); several; or a mapping from names to them.
    data     "nano" (drawn scenes that ship with nein), a folder in NeIn's layout, or "hub:OWNER/NAME".
    limit    Only the first samples.
    metrics  Names of `metrics.METRICS` (default: the preset's).
    control  Affirmative twins to run as well, "remove" and "add" (default: the preset's, "remove").
    preset   "nano", or "paper": the published checkpoints, judges and settings.
    out      Folder of results, which is resumed (default: below runs/, named by the editors and a digest).
    concurrency  Parallel calls of a function (default: 1). It may be async. It is called again if a service
             is busy or silent (see `editors.function`), and raises `nein.Refused` if a service declines.
    options  Other options of `nein eval` by name: `seed`, `batch_size`, `device`, `models={"vqa": ...}`.

    Raises UserError, EditorError or MetricError (each a ValueError). An exception of the function counts as
    the error of its sample; if all first samples fail, it is raised.
    """
    if concurrency is not None:
        options["endpoint"] = {**options.get("endpoint", {}), "concurrency": concurrency}
        options["editor_options"] = {**options.get("editor_options", {}), "concurrency": concurrency}
    editors, objects = _name_models(editor)
    values = {"data": data, "limit": limit, "metrics": metrics, "control": control, "out": out}
    config = EvalConfig.create(preset=preset, editor=editors, **values, **options)
    # An editor gets --editor-options only if it takes any; if none does, all get them, and the first raises.
    any_takes_options = len(editors) > len(objects) or any(map(takes_options, objects.values()))

    def load(name: str, model: Any, device: str) -> Any:
        settings: Json = {"dtype": config.dtype, "batch_size": config.batch_size, "preset": preset}
        overrides = config.editor_options
        if any_takes_options and not takes_options(model):
            overrides = {key: value for key, value in overrides.items() if key in FUNCTION_OPTIONS}
        return make_editor(model, name=name, device=device, **settings, **overrides)

    from nein.benchmarks.nein.run import NEIN

    return EditingResult(*_run_benchmark(NEIN, config, objects, load), sections.make_paper_tables())


def negvqa(
    model: Any,
    *,
    data: str | None = None,
    limit: int | None = None,
    preset: str = "nano",
    out: str | Path | None = None,
    **options: Any,
) -> Result:
    """Evaluates vision-language models on questions and their negations, as `nein negvqa` does.

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

    from nein.benchmarks.negvqa.runs import NEGVQA
    from nein.benchmarks.negvqa.sections import GAP, accuracy_table

    finished = _run_benchmark(NEGVQA, config, objects, lambda name, model, _: make_choice_model(model, name))
    return Result(*finished, [accuracy_table(config.protocol, "clustered"), GAP])


def negbench(
    model: Any,
    *,
    data: str | None = None,
    limit: int | None = None,
    preset: str = "nano",
    out: str | Path | None = None,
    **options: Any,
) -> Result:
    """Evaluates retrieval and multiple choice with negated captions, as `nein negbench eval` does.

    model    An object with `encode_image(images) -> (N, D)` and `encode_text(sentences) -> (N, D)`; (model,
             processor) of transformers; (model, transform, tokenizer) of open_clip; what `nein negbench eval
             --model` takes ("nano:clip", a folder, a hub id); a list of these; or a mapping from names to
             them. An object may have a `fingerprint`, a text that changes with its weights (default: a digest
             of its code and of the weights of its torch modules).
    data     "nano" (drawn scenes), or a folder with NegBench's released files.

    Other arguments and exceptions: as for `evaluate`.
    """
    models, objects = _name_models([model] if isinstance(model, tuple) else model)
    config = NegbenchConfig.create(preset=preset, model=models, data=data, limit=limit, out=out, **options)

    def load(name: str, model: Any, device: str) -> Any:
        fingerprint = getattr(model, "fingerprint", None)
        if not isinstance(fingerprint, str):  # `dual.make_dual` hashes the weights of (model, processor)
            fingerprint = "" if isinstance(model, tuple) else dual.fingerprint_object(model)
        return dual.make_dual(model, name=name, batch_size=config.batch_size, fingerprint=fingerprint)

    from nein.benchmarks.negbench.runs import NEGBENCH
    from nein.benchmarks.negbench.sections import SECTIONS

    retrieval, choice = SECTIONS[:2]
    return Result(*_run_benchmark(NEGBENCH, config, objects, load), [*retrieval.tables, *choice.tables])


def run(benchmark: str, *, preset: str = "nano", out: str | Path | None = None, **options: Any) -> Result:
    """Evaluates on a benchmark by its name, also of a plug-in, with the options of its command by name."""
    from nein.benchmarks import registry

    entry = registry.get(benchmark)
    config: Any = entry.config.create(preset=preset, out=out, **options)
    return Result(*_run_benchmark(entry, config, {}, lambda name, model, device: model), entry.headline)


def judge(
    images: Any, questions: Any, *, model: str = "nano:llava", device: str = "auto", dtype: str = "float32"
) -> pd.DataFrame:
    """Asks a judge questions about images, as the metric Removal does.

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

    image_list = images if isinstance(images, list | tuple) else [images]
    arrays = [np.array(image) for image in image_list]  # (H, W, 3) uint8 each
    several = isinstance(questions, Iterable) and not isinstance(questions, str)
    sentences = list(questions) if several else [questions]
    if strange := [question for question in sentences if not isinstance(question, str)]:
        raise UserError(f"A question is {strange[0]!r}; give a sentence, or a list of them.")
    device = Processes().device(device)
    loaded = metrics.load_judge("vqa", references.resolve(model), device=device, dtype=dtype)
    prompts = [find_template(loaded.template).wrap(question) for question in sentences]
    rows = []
    for number, answers in enumerate(loaded.ask(arrays, [prompts] * len(arrays))):
        for question, answer in zip(sentences, answers, strict=True):
            rows.append((number, question, answer.text, answer.p_yes, answer.p_no))
    return pd.DataFrame(rows, columns=["image", "question", "answer", "p_yes", "p_no"])


def _run_benchmark(
    benchmark: Benchmark, config: Any, objects: Mapping[str, Any], load: Callable[[str, Any, str], Any]
) -> tuple[Benchmark, Path, tuple[str, ...]]:
    """Runs a benchmark in this process; returns the first three fields of a `Result`. objects: a user's, by
    name; load: (name, object, device) -> the model for the benchmark."""
    if objects and config.on == "ray":
        raise UserError(f"on='ray' computes in other processes, which lack {', '.join(objects)}; omit `on`.")
    with contextlib.closing(start(config)) as executor:
        models = {name: load(name, user_object, executor.device) for name, user_object in objects.items()}
        if config.out is None and models:  # a folder for these models, by three of their names and a digest
            digest = json_digest({name: model.fingerprint for name, model in models.items()})[:8]
            config.out = f"{config.out_dir}-{'-'.join([*models][:3])}-{digest}"
        for option in ("editor", "model"):  # the benchmark has one of them
            if models and hasattr(config, option):
                in_memory = {name: references.InMemory(name, model) for name, model in models.items()}
                setattr(config, option, [in_memory.get(name, name) for name in getattr(config, option)])
        try:
            benchmark(config, executor)
        except UnicodeEncodeError as error:  # half a character, in the answer of a function
            raise UserError(explain_error(error) or str(error)) from None
        run_names = dict.fromkeys(run.name for run in benchmark.runs(config, executor.device))
        return benchmark, config.out_dir, tuple(run_names)


# --- results -------------------------------------------------------------------------------------
@dataclass(frozen=True, repr=False)
class Result:
    """Finished runs of one benchmark. `print` and notebooks display the headline."""

    benchmark: Benchmark
    out: Path  # the folder of results, with the benchmark's tables and plots
    names: tuple[str, ...]  # of the runs of this call
    headline: Sequence[Table] = ()  # the main tables of the benchmark

    def __post_init__(self) -> None:
        object.__setattr__(self, "out", self.out.absolute())  # stays valid in another working folder

    @functools.cached_property
    def figures(self) -> pd.DataFrame:
        """Every estimate, tidy: its dimensions, `value`, `low`, `high` (95 % interval), `n`, `unscored`."""
        file = self.out / FIGURES_CSV  # NegBench has one for all runs; others have one in each
        files = [file] if file.exists() else sorted(self.out.rglob(FIGURES_CSV))
        figures = frames.concat(map(frames.read, files))
        return frames.select(figures, model=self.models).reset_index(drop=True)

    @property
    def models(self) -> tuple[str, ...]:
        """The models of this call, as the column "model" of `figures` names them."""
        return self.names

    def table(self) -> pd.DataFrame:
        """The main table as text, a row per model: values with their 95 % intervals."""
        return _to_frame(tables.make_sheets(self.headline, self.figures)[0])

    @property
    def runs(self) -> list[Path]:
        """The folders of the runs of this call; for `evaluate` one per editor and kind of instruction."""
        return [path for path in find_runs(self.out) if Folder(path).entries().get("name") in self.names]

    def gap(self) -> pd.DataFrame:
        """The negation gap per model and metric, in points: the loss when the input is negated (for
        `evaluate`: Removal after "Remove the X." minus Removal after a sentence that X is absent); `value`,
        `low`, `high`, `n`. Empty without a pair to compare."""
        gaps = frames.select(self.benchmark.gaps(self.benchmark.load_finished(self.runs)), statistic="gap")
        gaps = gaps.drop(columns="metric", errors="ignore").rename(columns={"measure": "metric"})
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
        sheets = tables.make_sheets(self.headline, self.figures)
        parts = (f"<h4>{sheet.title}</h4>{_to_frame(sheet).to_html(index=False)}" for sheet in sheets)
        return f"{''.join(parts)}<p>{html.escape(str(self.out))}</p>"

    def __repr__(self) -> str:
        sheets = tables.make_sheets(self.headline, self.figures)
        return "\n\n".join(tables.format_plain(sheet, 20) for sheet in sheets) + f"\n{self.out}"


class EditingResult(Result):
    """What `evaluate` returns: each editor has a run per kind of instruction ("ip2p/negative")."""

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the editors."""
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
        self.grid(3)  # writes grid.png
        image = b64encode((self.out / "grid.png").read_bytes()).decode()
        return f'{sentences}<img src="data:image/png;base64,{image}" alt="samples">{super()._repr_html_()}'


def _to_frame(sheet: Sheet) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(sheet.rows, columns=sheet.columns)


# --- models as arguments -------------------------------------------------------------------------
def _name_models(models: Any) -> tuple[list[str], Json]:
    """(names for the command, name -> object), of one model, several, or a mapping from names to models."""
    several = models if isinstance(models, Mapping | list | tuple | set) else [models]
    pairs = several.items() if isinstance(several, Mapping) else [("", model) for model in several]
    names: list[str] = []
    objects: Json = {}  # what the user gave as an object, not by a name
    for name, model in pairs:
        if model is None:
            raise UserError("None is no editor or model; give a function, an object, a name, or a list.")
        is_object = not isinstance(model, str | Path)
        if is_object and not name:
            name = name_of(model[0] if isinstance(model, tuple) and model else model)  # (model, processor)
        label = name and (re.sub(r"[^A-Za-z0-9._-]+", "-", str(name)).strip("-.") or "model")
        if is_object:
            label = f"my-{label}" if label in ("all", "none") else label  # words that lists of names reserve
            base, number = label, 1
            while label in objects:
                number += 1
                label = f"{base}-{number}"
            names.append(references.InMemory(label, model))
            objects[label] = model
        else:
            names.append(f"{label}={model}" if label else str(model))
    if not names:
        raise UserError("There is no editor or model to evaluate; give a function, a name, or a list.")
    return names, objects
