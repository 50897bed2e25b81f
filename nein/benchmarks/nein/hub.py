"""Results for the hub: evaluation-results YAML and run summaries, pushed when the user is logged in.

Format: https://huggingface.co/docs/hub/eval-results (`.eval_results/*.yaml` of a model's repository).
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metrics import METRICS
from nein.benchmarks.nein import report
from nein.benchmarks.nein.reporting.collect import Run
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.reporting import figures as frames
from nein.reporting.page import without_folders

FOLDER = ".eval_results"


def publish(loaded: Sequence[Run], repository: str, out: Path, *, dataset: str, push: bool) -> str:
    """Writes the files below `out` and, if asked and logged in, uploads them to `repository`.

    Returns one sentence saying what was done. One model repository holds the results of one editor: with
    several editors in the report that is a UserError.
    """
    names = list(dict.fromkeys(run.name for run in loaded))
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise UserError(f"--hub is '{repository}'; it must be OWNER/NAME of a model repository.")
    if len(names) > 1:
        raise UserError(
            f"--hub writes the results of one editor into its repository, but {len(names)} are reported "
            f"({', '.join(names)}); name the runs of one."
        )
    files = write(loaded, out, dataset)
    listing = ", ".join(str(path) for path in files.values())
    if not push:
        return f"{listing} (not pushed)"
    import huggingface_hub

    token = huggingface_hub.get_token()
    if token is None:
        return f"{listing} (not pushed: nobody is logged in; hf auth login)"
    api = huggingface_hub.HfApi(token=token)
    try:
        for place, path in files.items():
            api.upload_file(path_or_fileobj=path, path_in_repo=place, repo_id=repository, repo_type="model",
                            commit_message=f"Add results of {names[0]} on NeIn")  # fmt: skip
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


def write(loaded: Sequence[Run], out: Path, dataset: str) -> dict[str, Path]:
    """Place in the repository -> file written: the YAML entries, and a summary per run."""
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries = [EvalResultEntry(**entry) for run in loaded for entry in results(run, dataset)]
    target = out / FOLDER / "nein.yaml"
    text = yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True)
    atomic.write_text(target, text)
    files = {f"{FOLDER}/nein.yaml": target}
    for run in loaded:
        place = f"nein/{run.directory.editor}-{run.track}.json"
        facts = {
            "editor": run.directory.editor,
            "track": run.track,
            "preset": report.preset(run.manifest),
            "figures": frames.records(run.figures),
            "manifest": without_folders(_public(run.manifest)),
        }
        atomic.write_text(out / place, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
        files[place] = out / place
    return files


def results(run: Run, dataset: str) -> list[dict[str, Any]]:
    """The fields of one `EvalResultEntry` per metric with a value, in the units of the paper's table.

    task_id is `<track>/<metric>`. A miniature run says in every note that it is one.
    """
    config, when = run.manifest.get("config", {}), _date(run)
    nano = "; nano: a miniature of drawn scenes, not the benchmark" if config.get("preset") == "nano" else ""
    entries = []
    for entry in frames.records(frames.select(run.figures, task="results")):
        metric = entry["metric"]
        if entry["value"] is None:
            continue
        info = METRICS[metric]
        low, high = (None if entry[e] is None else round(entry[e] * info.scale, 4) for e in ("low", "high"))
        entries.append(
            {
                "dataset_id": dataset,
                "task_id": f"{run.track}/{metric}",
                "value": round(entry["value"] * info.scale, 4),
                "date": when,
                "notes": f"protocol {config.get('protocol')}, n {entry['n']}, unscored "
                f"{entry['unscored']}, "
                f"95 % interval [{low}, {high}]{nano}",
            }
        )
    return entries


def _date(run: Run) -> str:
    started = [item.get("started") for item in run.manifest.get("invocations", []) if item.get("started")]
    return (
        started[-1] if started else datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    )


def _public(manifest: Any) -> dict[str, Any]:
    """The manifest without command lines, which may hold more than the configuration does."""
    shown = {key: value for key, value in manifest.items() if key != "invocations"}
    shown["invocations"] = [
        {key: value for key, value in item.items() if key != "command"}
        for item in manifest.get("invocations", [])
    ]
    return shown
