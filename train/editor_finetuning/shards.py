"""Training data as tar shards in WebDataset's format (github.com/webdataset/webdataset), read by shard.

python -m nein.train.editor_finetuning.shards DATA OUT --split train --per-shard 1000

OUT/shard-000000.tar ...   per sample `<id>.sample.<ext>`, `<id>.source.<ext>` as they are, `<id>.json`
OUT/records.json           NeIn's five fields of every sample, in the order of the shards
OUT/index.json             name, samples, bytes and SHA-256 of every shard; written last
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import io
import itertools
import json
import re
import tarfile
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nein.config.commands import Command
from nein.config.launch import launch
from nein.datasets.nein import loading
from nein.datasets.nein.samples import FIELDS, Sample, validate_images
from nein.engine import atomic, images, shapes
from nein.engine.errors import UserError, exit_with
from nein.train.editor_finetuning.options import ShardsConfig
from nein.wording import families

COMMAND = Command(
    "write a data set of NeIn as tar shards",
    "nein.train.editor_finetuning.options:ShardsConfig",
    "nein.train.editor_finetuning.shards:run",
)
FORMAT = 1
#: What index.json holds, as far as it is read back.
_INDEX = {"format": int, "shards": [{"name": str, "samples": int, "sha256": str}]}
#: The name of a shard: a plain file beside index.json.
_NAME = re.compile(r"\w[\w.-]*\.tar")
IN_MEMORY = 4  # shards held at once: two per stream of examples


def write(dataset: loading.Dataset, out: Path, per_shard: int = 1000) -> int:
    """Writes shards, atomically one by one; returns their number. Those that are there are not made again."""
    atomic.make_folder(out)
    samples = dataset.samples
    entries = []
    for number, start in enumerate(range(0, len(samples), per_shard)):
        part = samples[start : start + per_shard]
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for sample in part:
                files = {f"sample{sample.sample_path.suffix}": sample.sample_path.read_bytes()}
                files[f"source{sample.source_path.suffix}"] = sample.source_path.read_bytes()
                files["json"] = json.dumps(_record(sample)).encode()
                for suffix, content in sorted(files.items()):
                    member = tarfile.TarInfo(f"{_key(sample)}.{suffix}")
                    member.size, member.mode = len(content), 0o444
                    tar.addfile(member, io.BytesIO(content))
        content = buffer.getvalue()
        digest = hashlib.sha256(content).hexdigest()
        file = out / f"shard-{number:06d}.tar"
        if not file.exists() or hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            atomic.write_bytes(file, content)
        entries.append({"name": file.name, "samples": len(part), "bytes": len(content), "sha256": digest})
    atomic.write_json(out / "records.json", [_record(sample) for sample in samples])
    atomic.write_json(out / "index.json", {"format": FORMAT, "shards": entries})
    return len(entries)


def _record(sample: Sample) -> dict[str, str]:
    values = (sample.source_id, sample.caption, sample.negative, sample.generated, sample.id)
    return dict(zip(FIELDS, values, strict=True))


def _key(sample: Sample) -> str:
    """The name of a sample's members, up to the first dot."""
    return sample.id.replace(".", "_")


class Shards:
    """The pairs of a folder or URL of shards, and their samples (which have no paths)."""

    def __init__(self, where: str) -> None:
        self._where = where.rstrip("/")
        index = self._read_json("index.json")
        if shapes.fault(index, _INDEX) or index["format"] != FORMAT or not index["shards"]:
            raise UserError(
                f"'{where}/index.json' is no index of shards; make it with "
                "`python -m nein.train.editor_finetuning.shards`."
            )
        self._shards = index["shards"]
        if odd := [entry["name"] for entry in self._shards if not _NAME.fullmatch(entry["name"])]:
            raise UserError(
                f"'{where}/index.json' names a shard '{odd[0]}'; a shard is a file beside it, NAME.tar."
            )
        self.sizes = [int(entry["samples"]) for entry in self._shards]
        records = self._read_json("records.json")
        if shapes.fault(records, [dict.fromkeys(FIELDS, str)]) or len(records) != sum(self.sizes):
            raise UserError(
                f"'{where}/records.json' does not hold the {sum(self.sizes)} samples that index.json counts."
            )
        try:
            self.samples = [_sample(*(record[name] for name in FIELDS)) for record in records]
        except ValueError as error:
            raise UserError(f"'{where}/records.json' has an unusable record: {error}.") from None
        self._starts = list(itertools.accumulate(self.sizes[:-1], initial=0))
        self._lock = threading.Lock()
        self._read_shard = functools.lru_cache(IN_MEMORY)(self._load_shard)

    def pairs(self) -> Iterator[ShardPair]:
        for shard, (start, size) in enumerate(zip(self._starts, self.sizes, strict=True)):
            for inner in range(size):
                yield ShardPair(self, shard, inner, self.samples[start + inner].id)

    def content(self, shard: int, inner: int) -> tuple[bytes, bytes]:
        """Both files of a pair."""
        with self._lock:  # one thread reads a shard, the others wait for it
            return self._read_shard(shard)[inner]

    def sha256(self, shard: int) -> str:
        return str(self._shards[shard]["sha256"])

    def _load_shard(self, shard: int) -> list[tuple[bytes, bytes]]:
        entry = self._shards[shard]
        content = self._read(entry["name"])
        url = f"{self._where}/{entry['name']}"
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise UserError(f"The shard '{url}' is not the file that index.json describes (SHA-256 differs).")
        found: dict[str, dict[str, bytes]] = {}
        try:
            with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
                for member in tar:
                    key, _, suffix = member.name.partition(".")
                    file = tar.extractfile(member) if member.isreg() else None
                    found.setdefault(key, {})[suffix.partition(".")[0]] = file.read() if file else b""
        except tarfile.TarError as error:
            raise UserError(f"The shard '{url}' cannot be read: {error}.") from None
        first = self._starts[shard]
        wanted = [_key(sample) for sample in self.samples[first : first + entry["samples"]]]
        if list(found) != wanted:
            raise UserError(f"The shard '{url}' does not hold the samples that records.json lists for it.")
        return [(found[key].get("sample", b""), found[key].get("source", b"")) for key in wanted]

    def _read_json(self, name: str) -> Any:
        if "://" not in self._where:
            return atomic.read_json(Path(self._where) / name)
        try:
            return json.loads(self._read(name))
        except ValueError as error:
            raise UserError(f"'{self._where}/{name}' is not valid JSON: {error}.") from None

    def _read(self, name: str) -> bytes:
        """A file of the folder, or of the http(s) address. Raises UserError."""
        where = f"{self._where}/{name}"
        if "://" in where and not where.startswith(("https://", "http://")):
            raise UserError(f"'{where}' is neither a folder nor an address of http or https.")
        try:
            if "://" not in where:
                return Path(where).read_bytes()
            with urllib.request.urlopen(where, timeout=60) as reply:
                return bytes(reply.read())
        except (OSError, http.client.HTTPException) as error:
            raise UserError(f"'{where}' cannot be read: {' '.join(str(error).split())}.") from None


@dataclass(frozen=True, slots=True)
class ShardPair:
    shards: Shards
    shard: int
    inner: int
    name: str

    def key(self) -> str:
        return f"{self.shards.sha256(self.shard)}/{self.inner}"

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        sample, source = self.shards.content(self.shard, self.inner)
        return (
            images.decode(io.BytesIO(sample), f"{self.name}, the sample, in the shards"),
            images.decode(io.BytesIO(source), f"{self.name}, the source, in the shards"),
        )


def _sample(coco: str, caption: str, negative: str, generated: str, nein: str) -> Sample:
    noun = families.object_of(generated, negative)
    number = families.template_of(negative, noun)
    return Sample(nein, coco, caption, negative, generated, noun, number, Path(), Path())


def run(config: ShardsConfig) -> str:
    """Writes the shards of a data set; what to say of them. Raises UserError."""
    dataset = loading.load(config.data, split=config.split)
    validate_images(dataset.samples, f"The data set '{config.data}'")
    count = write(dataset, config.out, config.per_shard)
    return f"{len(dataset.samples)} samples in {count} shards: --data shards:{config.out}\n"


def main(argv: Sequence[str] | None = None) -> int:
    return launch("python -m nein.train.editor_finetuning.shards", COMMAND, argv)


if __name__ == "__main__":
    exit_with(main)
