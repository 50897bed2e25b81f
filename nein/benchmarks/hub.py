"""Results for the hub: evaluation-results YAML and run summaries, pushed when the user is logged in.

Format: https://huggingface.co/docs/hub/eval-results (`.eval_results/*.yaml` of a model's repository).
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nein.datasets.hub import PUBLISHED
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.reporting.interchange import Exported
from nein.reporting.page import without_folders

FOLDER = ".eval_results"


def publish(runs: Sequence[Exported], repository: str, out: Path, *, dataset: str | None = None) -> str:
    """Writes the files below `out` and, if logged in, uploads them to `repository`.

    Returns one sentence saying what was done. One model repository holds the results of one model: with
    several among the runs that is a UserError.
    """
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise UserError(f"--push is '{repository}'; it must be OWNER/NAME of a model repository.")
    names = list(dict.fromkeys(run.name for run in runs))
    if len(names) > 1:
        raise UserError(
            f"--push writes the results of one model into its repository, but {len(names)} are exported "
            f"({', '.join(names)}); name the runs of one."
        )
    files = write(runs, out, dataset=dataset)
    listing = ", ".join(str(path) for path in files.values())
    import huggingface_hub

    token = huggingface_hub.get_token()
    if token is None:
        return f"{listing} (not pushed: nobody is logged in; hf auth login)"
    api = huggingface_hub.HfApi(token=token)
    try:
        for place, path in files.items():
            api.upload_file(path_or_fileobj=path, path_in_repo=place, repo_id=repository, repo_type="model",
                            commit_message=f"Add results of {names[0]} on {runs[0].title}")  # fmt: skip
    except (
        huggingface_hub.errors.HfHubHTTPError,
        huggingface_hub.errors.OfflineModeIsEnabled,
        OSError,
    ) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"The results could not be pushed to '{repository}': {first} The files are written."
        ) from None
    return f"{listing} (pushed to {repository})"


def write(runs: Sequence[Exported], out: Path, *, dataset: str | None = None) -> dict[str, Path]:
    """Place in the repository -> file written: the YAML entries of a benchmark, and a summary per run.

    dataset  The benchmark data set on the hub the results belong to, if not the run's own.
    """
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    files: dict[str, Path] = {}
    for benchmark in dict.fromkeys(run.benchmark for run in runs):
        ours = [run for run in runs if run.benchmark == benchmark]
        entries = [EvalResultEntry(**entry) for run in ours for entry in results(run, dataset)]
        place = f"{FOLDER}/{benchmark}.yaml"
        text = yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True)
        atomic.write_text(out / place, text)
        files[place] = out / place
    for run in runs:
        place = f"{run.benchmark}/{run.name}{f'-{run.part}' if run.part else ''}.json".replace(":", "-")
        facts = {
            "model": run.name,
            "part": run.part,
            "preset": run.preset,
            "figures": results(run, dataset),
            "manifest": without_folders(run.manifest),
        }
        atomic.write_text(out / place, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
        files[place] = out / place
    return files


def results(run: Exported, dataset: str | None) -> list[dict[str, Any]]:
    """The fields of one `EvalResultEntry` per figure, in the units of the papers' tables.

    A miniature run says in every note that it is one.
    """
    when = run.when or datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    nano = "; nano: a miniature of drawn scenes, not the benchmark" if run.nano else ""
    entries = []
    for one in run.results:
        low, high = (None if end is None else round(end * one.scale, 4) for end in (one.low, one.high))
        entries.append(
            {
                "dataset_id": _data(run, dataset),
                "task_id": one.key,
                "value": round(one.value * one.scale, 4),
                "date": when,
                "notes": f"protocol {run.protocol}, n {one.n}, unscored {one.unscored}, "
                f"95 % interval [{low}, {high}]{nano}",
            }
        )
    return entries


def _data(run: Exported, dataset: str | None) -> str:
    """Raises UserError where no data set is known, and for miniature results on a published one."""
    name = dataset or run.repository
    if name is None:
        on = "miniature data" if run.nano else f"'{run.dataset.get('name')}'"
        raise UserError(
            f"The results of {run.name} are on {on}, not on a data set of the hub; say --dataset OWNER/NAME."
        )
    if run.nano and name in PUBLISHED.values():
        raise UserError(
            f"The results of {run.name} are of miniature models or data, and do not belong to '{name}'; say "
            "--dataset OWNER/NAME."
        )
    return name
