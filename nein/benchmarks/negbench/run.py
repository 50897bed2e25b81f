"""What `nein negbench eval` does once its options are known."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nein.benchmarks.negbench import figures, models, report, results, vlm
from nein.benchmarks.negbench.config import EvalConfig
from nein.benchmarks.negbench.encode import Encoder
from nein.benchmarks.negbench.folder import EvalDir
from nein.benchmarks.negbench.models import Choice
from nein.datasets.negbench import sources
from nein.datasets.negbench.records import ChoiceTask, RetrievalTask, Task
from nein.datasets.negbench.registry import BINARY
from nein.datasets.negbench.sources import DataSet
from nein.engine import atomic, environment, images
from nein.engine.errors import UserError
from nein.engine.world import World

COMPLETE = "complete"


def evaluate(config: EvalConfig, world: World) -> str | None:
    """Encodes what is missing, writes rows and figures of every model and data set; the tables as text on the
    main process.

    Everything that can be wrong with names, files and folders is found before a model is loaded. Raises
    UserError or MetricError.
    """
    choices = [models.choose(name) for name in config.model]
    choices += [models.choose(name, "vlm") for name in config.vlm]
    sets = sources.load(
        config.data,
        names=config.datasets,
        image_roots=config.image_root,
        scenes=config.scenes,
        split=config.split,
        seed=config.seed,
    )
    selected = {
        data.name: [
            sources.limited(task, config.limit)
            for task in sources.select(data.tasks, config.tasks, config.variants)
        ]
        for data in sets
    }
    if not any(selected.values()):
        there = ", ".join(f"{task.name} ({task.variant})" for data in sets for task in data.tasks)
        raise UserError(f"None of the tasks and variants asked for is there; there are: {there}.")
    for data in sets:
        if selected[data.name]:
            sources.check_pictures(data)
    atomic.check_writable(config.out_dir)
    device = world.device(config.device)
    with _lock(config.out_dir) if world.is_main else contextlib.nullcontext():
        plans = [(choice, _begin(config, choice, sets, selected, device, world)) for choice in choices]
        world.barrier()
        for choice, work in plans:
            _model(config, choice, work, selected, device, world)
        text = report.report(config.out_dir) if world.is_main else None
    world.barrier()
    return text


Work = Sequence[tuple[DataSet, EvalDir]]


def _begin(
    config: EvalConfig,
    choice: Choice,
    sets: Sequence[DataSet],
    selected: Mapping[str, Sequence[Task]],
    device: str,
    world: World,
) -> Work:
    """The data sets of a model with their run directories, begun or gone on with; nothing is loaded."""
    models.check(choice)
    work = [(data, EvalDir(config.out_dir / choice.slug / data.name)) for data in sets if selected[data.name]]
    if choice.kind == "vlm":
        work = [
            (data, run) for data, run in work if any(isinstance(t, ChoiceTask) for t in selected[data.name])
        ]
        if not work:
            raise UserError(f"--vlm {choice.asked} answers multiple choice only, and there is no such task.")
    if world.is_main:
        for data, run in work:
            run.open(_identity(config, choice, data, device), _entries(config, data, world, device),
                     overwrite=config.overwrite)  # fmt: skip
            _check_weights(choice, run)
    return work


def _model(
    config: EvalConfig,
    choice: Choice,
    work: Work,
    selected: Mapping[str, Sequence[Task]],
    device: str,
    world: World,
) -> None:
    """One model on all data sets. It is loaded once, and only if something is missing."""
    known = _known(work)

    def load() -> Any:
        model = models.load(choice, device=device, dtype=config.dtype, batch_size=config.batch_size)
        if world.is_main:
            for _, run in work:
                _note(run, choice, model)
        return model

    encoder = Encoder(
        load,
        known,
        config.cache_dir,
        batch_size=config.batch_size,
        workers=world.workers(device),
        world=world,
    )
    for data, run in work:
        label = f"{data.name} for {choice.name}"
        if choice.kind == "dual":
            needed = list(dict.fromkeys(name for task in selected[data.name] for name in task.references))
            encoder.pictures(data.media, data.references, needed, run.journals, label=label)
        found = []
        for task in selected[data.name]:
            whole = next(t for t in data.tasks if (t.name, t.variant) == (task.name, task.variant))
            if choice.kind == "dual":
                encoder.texts(_sentences(whole), _sentences(task), label=f"{task.name} for {choice.name}")
            elif isinstance(task, RetrievalTask):
                continue
            rows = _rows(config, choice, encoder, data, whole, task, run, world)
            if world.is_main:
                atomic.write_lines(run.samples(task.name, task.variant), iter(rows))
                found += _figures(task, rows)
        if world.is_main:
            if (run.manifest().get("models") or {}).get("model") is None:
                _note(run, choice, encoder.model)
            atomic.write_json(
                run.summary, {"model": choice.name, "dataset": data.name, "title": data.title,
                              **_shown(config, choice), "figures": found})  # fmt: skip
            run.update(status=COMPLETE, tasks=[f"{t.name}/{t.variant}" for t in selected[data.name]])


def _rows(
    config: EvalConfig,
    choice: Choice,
    encoder: Encoder,
    data: DataSet,
    whole: Task,
    task: Task,
    run: EvalDir,
    world: World,
) -> list[dict[str, Any]]:
    if choice.kind == "vlm":
        assert isinstance(task, ChoiceTask)
        assert isinstance(whole, ChoiceTask)
        answers = vlm.ask(
            lambda: encoder.model,
            whole,
            len(task.questions),
            run.journals,
            manner=vlm.Manner(config.prompt, config.scoring, config.letters, config.protocol, config.seed),
            batch_size=config.batch_size,
            world=world,
            label=f"{task.name} for {choice.name}",
            fingerprint=_known([(data, run)]),
        )
        return results.answer_rows(task, answers, protocol=config.protocol, seed=config.seed)
    if not world.is_main:
        return []
    pictures = encoder.read_pictures(data.references, task.references, run.journals, pooling=config.pooling)
    texts = encoder.read_texts(_sentences(whole), _sentences(task))
    about = (run.manifest().get("models") or {}).get("model") or {}
    if "scale" not in about:
        _note(run, choice, encoder.model)
        about = run.manifest()["models"]["model"]
    own = {"scale": about["scale"], "bias": about["bias"]}
    if isinstance(task, RetrievalTask):
        return results.retrieval_rows(task, pictures, texts, **own, protocol=config.protocol)
    return results.choice_rows(
        task, pictures, texts, **own, features=config.features, protocol=config.protocol, seed=config.seed
    )


def _figures(task: Task, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    about = {"task": task.name.partition("/")[2], "variant": task.variant}
    if isinstance(task, RetrievalTask):
        found = figures.of_retrieval(rows)
    else:
        found = figures.of_choices(rows)
        if task.kind == BINARY:  # two captions, of which nothing is known but which is right
            found = [figure for figure in found if figure["metric"] in ("accuracy", "chance")]
    return [{**about, **figure} for figure in found]


def _sentences(task: Task) -> list[str]:
    if isinstance(task, RetrievalTask):
        return [text for item in (*task.original, *task.negated) for text in item.captions]
    return [option.text for question in task.questions for option in question.options]


def _identity(config: EvalConfig, choice: Choice, data: DataSet, device: str) -> dict[str, Any]:
    """What decides the rows, but for the selection."""
    facts: dict[str, Any] = {
        "model": choice.asked,
        "kind": choice.kind,
        "revision": choice.revision,
        "dtype": config.dtype,
        "device": device.partition(":")[0],
        "batch_size": config.batch_size,
        "data": f"{data.name} {data.sha256[:16]}",
        "protocol": config.protocol,
        "seed": config.seed,
        "image_rule": images.RULE,
    }
    if choice.kind == "vlm":
        return {**facts, "prompt": config.prompt, "scoring": config.scoring, "letters": config.letters}
    return {**facts, "features": config.features, "pooling": config.pooling}


def _shown(config: EvalConfig, choice: Choice) -> dict[str, Any]:
    """What a table says about a run."""
    return {
        "preset": config.preset,
        "protocol": config.protocol,
        "features": config.features if choice.kind == "dual" else None,
        "limit": config.limit,
        "kind": choice.kind,
        "row": choice.row.name if choice.row else None,
    }


def _entries(config: EvalConfig, data: DataSet, world: World, device: str) -> dict[str, Any]:
    return {
        "config": dataclasses.asdict(config),
        "data": {
            "name": data.name,
            "records_sha256": data.sha256,
            "tasks": {f"{t.name}/{t.variant}": {**t.origin, "sha256": t.sha256} for t in data.tasks},
        },
        "invocations": [
            {
                "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "command": list(sys.argv[1:]),
                "processes": world.size,
                "environment": environment.describe(device),
            }
        ],
    }


def _known(work: Sequence[tuple[DataSet, EvalDir]]) -> str | None:
    """The model's fingerprint, if an earlier command loaded it for one of the runs."""
    for _, run in work:
        found = (run.manifest().get("models") or {}).get("model")
        if found is not None:
            return str(found["fingerprint"])
    return None


def _note(run: EvalDir, choice: Choice, model: Any) -> None:
    about = model.describe()
    if choice.kind == "dual":
        about |= {"scale": model.scale, "bias": model.bias}
    run.note_model("model", model.fingerprint, about)


def _check_weights(choice: Choice, run: EvalDir) -> None:
    """Refuses a run whose model folder has changed since: nothing might be left to load that would notice."""
    known = ((run.manifest().get("models") or {}).get("model") or {}).get("weights")
    folder = Path(choice.reference)
    if known is None or not folder.is_dir():
        return
    from metrics.loading import folder_digest

    if folder_digest(folder) != known:
        raise UserError(
            f"The weights in '{choice.reference}' have changed since '{run.path}' was begun; "
            "choose another --out, or remove that folder."
        )


@contextlib.contextmanager
def _lock(out: Path) -> Any:
    try:
        with FileLock(out / ".negbench.lock", timeout=0):
            yield
    except Timeout:
        raise UserError(
            f"Another command is at work in '{out}'; wait until it has finished, or choose another --out."
        ) from None
