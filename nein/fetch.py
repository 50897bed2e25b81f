"""`nein fetch`: the models and data of runs, beforehand, into a folder that machines without internet read.

nein fetch --preset paper --editor ip2p,magicbrush --out models      of a preset's evaluations
nein fetch eval --preset paper --data hub:OWNER/NAME --models-from models ...    of the command that follows
nein fetch --check --out models
nein eval --models-from models ...
"""

from __future__ import annotations

import pkgutil
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nein.benchmarks import registry
from nein.config import options
from nein.config.options import Names, Options, option
from nein.engine import atomic, store
from nein.engine.errors import UserError, chosen
from nein.engine.store import Need
from nein.loading.references import expanded

if TYPE_CHECKING:
    from nein.models.fetching import Set

#: Further commands whose presets say what they need -> their options.
GENERATE = {
    "generate": "nein.generate.nein.config:BuildConfig",
    "negbench-generate": "nein.generate.negbench.config:BuildConfig",
    "negvqa-generate": "nein.generate.negvqa.config:ConversionConfig",
}
OUT = "models"
NOTHING = "Nothing to fetch: everything this needs ships with nein."


def names() -> list[str]:
    return [*registry.names(), *GENERATE]


def options_of(name: str) -> Any:
    """The options of a benchmark's command, or of one that generates data."""
    return pkgutil.resolve_name(GENERATE[name]) if name in GENERATE else registry.get(name).config


@dataclass(kw_only=True)
class FetchConfig(Options):
    """What is fetched, and where to."""

    epilog = (
        "Or: nein fetch COMMAND OPTIONS, for what this command needs, with --models-from FOLDER as there. "
        "Then: nein COMMAND OPTIONS --models-from FOLDER."
    )

    preset: Literal["nano", "paper"] = option("paper", "fetch the models of this preset", "Main")
    benchmarks: Names = option(
        [], f"{', '.join(names())} (default: the first three; with --editor nein)", "Main"
    )
    editor: Names = option([], "editors (default: the preset's), or all", "Main")
    data: Names = option([], "also fetch data sets: hub:OWNER/NAME[@REVISION]", "Main")
    out: Path = option(Path(OUT), "folder to fill or to check", "Output")
    only_check: bool = option(False, "verify the folder; download nothing", "Output", typed="check")

    def check(self) -> None:
        if self.out.is_file():
            raise UserError(f"'{self.out}' is a file; --out takes a folder.")
        given = self.benchmarks or (["nein"] if self.editor else registry.OURS)
        self.benchmarks = [chosen("benchmark", name, names()) for name in given]
        for name in self.data:
            if not name.startswith("hub:"):
                raise UserError(f"--data is '{name}'; only hub:OWNER/NAME can be fetched.")

    def needs(self) -> list[Need]:
        from nein.models import needs

        words = [f"--preset={self.preset}"]
        found: list[Need] = []
        for name in self.benchmarks:
            kind = options_of(name)
            more = [f"--editor={','.join(self.editor)}"] if self.editor and name == "nein" else []
            config, _ = options.read(kind, [*words, *more], prog=f"nein {name}", to_fetch=True)
            found += config.needs()
        return found + [need for data in self.data for need in needs.of_data(data)]


def announced(config: FetchConfig) -> list[str]:
    return [] if config.only_check else planned(config.needs(), config.out)


def run(config: FetchConfig) -> int | str:
    if config.only_check:
        return check(config.out)
    return fetch(config.needs(), config.out)


def of_command(name: str, configuration: Any, words: Sequence[str]) -> int | str:
    """`nein fetch NAME WORDS`: what this command needs, into the folder of its `--models-from`."""
    config, dry_run = options.read(configuration, words, prog=f"nein fetch {name}", to_fetch=True)
    needs, folder = config.needs(), Path(config.models_from or OUT)
    return "".join(f"{line}\n" for line in planned(needs, folder)) if dry_run else fetch(needs, folder)


def planned(needs: Sequence[Need], folder: Path) -> list[str]:
    """What `--dry-run` prints: a line per need with its files and bytes, and the total against the free disk.
    Without the hub, repositories and folders alone."""
    from nein.models import fetching

    wanted, packages = _parted(needs)
    last = [f"{need.reference}: pip installs it with nein" for need in packages]
    if not wanted:
        return [NOTHING, *last]
    root = expanded(folder).absolute()
    try:
        with tempfile.TemporaryDirectory() as cache:
            found, refused = fetching.ask(wanted, Path(cache))
    except UserError as error:
        lines = [f"{need} -> {fetching.place(need, folder)}" for need in wanted]
        return [*lines, *last, f"Sizes need the hub: {error}"]
    lines = [
        f"{item.need}: {len(item.files)} files, {gigabytes(item.size)} -> {fetching.place(item.need, folder)}"
        for item in found
    ]
    return [*lines, *last, *(f"Refused: {sentence}" for sentence in refused), _sizes(found, root)[2]]


def _parted(needs: Sequence[Need]) -> tuple[list[Need], list[Need]]:
    """(what is downloaded, Python packages), each need once."""
    wanted = dict.fromkeys(needs)
    return [n for n in wanted if n.layout != "package"], [n for n in wanted if n.layout == "package"]


def _sizes(found: Sequence[Set], root: Path) -> tuple[int, int, str]:
    """Bytes to download, bytes free on the disk of `root` (which may not exist yet), and a sentence."""
    from nein.models import fetching

    left = fetching.left(found, _manifest(root), root)
    free = shutil.disk_usage(next(path for path in (root, *root.parents) if path.exists())).free
    files, size = sum(len(item.files) for item in found), gigabytes(sum(item.size for item in found))
    summary = f"{len(found)} models and data sets, {files} files, {size}"
    return left, free, f"{summary}; {gigabytes(left)} to download, {gigabytes(free)} free on the disk."


def _manifest(root: Path) -> dict[str, Any]:
    return store.read_manifest(root) if (root / store.MANIFEST).is_file() else {}


def fetch(needs: Sequence[Need], folder: Path) -> int | str:
    """Downloads what the folder does not have yet; what to type next, or exit code 1 where something was
    refused.

    Raises UserError where the hub does not answer, the disk is full, or HF_HUB_OFFLINE is set.
    """
    wanted, packages = _parted(needs)
    if not wanted:
        return f"{NOTHING}\n"
    from nein.models import fetching

    atomic.make_folder(folder)
    root = expanded(folder).absolute()
    sets = _manifest(root)
    found, refused = fetching.ask(wanted, root)
    left, free, sentence = _sizes(found, root)
    say(sentence)
    if free < left:
        raise UserError(
            f"'{root}' has room for {gigabytes(free)} and {gigabytes(left)} are to be downloaded; choose a "
            "folder on another disk with --out, or fewer models with --benchmarks and --editor."
        )
    for item in found:
        try:
            sets[item.need.key] = fetching.download(item, root)
        except fetching.Refused as error:
            refused.append(str(error))
        else:
            store.write_manifest(root, sets)
    _say_notes(root, sets)
    for need in packages:
        say(f"Not in the folder: {need.reference}, which pip installs with nein.")
    for sentence in refused:
        say(f"Not fetched: {sentence}")
    if refused:
        return 1
    return f"{folder} is complete: nein COMMAND ... --models-from {folder}\n"


def check(folder: Path) -> int | str:
    """Reads every file; what is missing or altered, with exit code 1, or that all is well."""
    from tqdm import tqdm

    root = expanded(folder).absolute()
    sets = store.read_manifest(root)
    with tqdm(total=store.total(sets), unit="B", unit_scale=True, desc="check", disable=None) as progress:
        faults = list(store.faults(root, sets, progress.update))
    _say_notes(root, sets)
    for fault in faults:
        print(fault)
    if faults:
        say(
            f"{len(faults)} files of '{folder}' are missing or altered; remove the altered ones and fetch "
            f"again."
        )
        return 1
    return (
        f"{folder} is as it was fetched: {len(sets)} models and data sets, {gigabytes(store.total(sets))}.\n"
    )


def _say_notes(root: Path, sets: dict[str, Any]) -> None:
    """What is to be known of the models in a folder before figures are believed."""
    from nein.models import lineage

    for line in lineage.notes(lineage.of_store(root, sets)):
        say(line)


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
