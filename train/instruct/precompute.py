"""Features stored once: VAE posteriors of every picture, text states of every sentence.

    FEATURES/<key>/pictures-000000.safetensors    input_mean, input_logvar, target_mean, target_logvar
    FEATURES/<key>/texts-000000.safetensors       states; the sentences stand in the file's metadata

Means and log-variances are kept, not samples, so that training still draws from the posterior. The key hashes
VAE, text encoder and tokenizer (their weights, not their names), the geometry, the number type, and the
records of the data. A file of pictures also carries a hash of each picture's file: where size or date of
one changed, the hash is compared, and the block is made again if it differs. Blocks are shared out among the
processes and written atomically, so the pass can be stopped and started at any time.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from tqdm import tqdm

from nein.benchmarks.nein.runs import identity_hash
from nein.datasets.nein.samples import Problems
from nein.engine import atomic, user_cache
from nein.engine.errors import UserError
from nein.engine.executors import read_ahead, share
from nein.engine.images import ImageError
from nein.engine.world import World
from train.instruct.encoder import Encoder
from train.instruct.options import TuneConfig
from train.instruct.pairs import Pairs, prepare

FORMAT = 1
TEXT_BLOCK = 512
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Features:
    """The stored features of a configuration: makes what is missing, reads what is there.

    frozen  Hash of VAE, text encoder and tokenizer (`encoder.frozen_hash`).
    """

    def __init__(self, config: TuneConfig, pairs: Pairs, frozen: str) -> None:
        self._config, self._pairs = config, pairs
        used = sorted({example.pair for example in (*pairs.negative, *pairs.affirmative)})
        self._used = used
        self._row = {pair: row for row, pair in enumerate(used)}
        self._size = config.feature_block
        self._texts = pairs.sentences()
        self._text_row = {text: row for row, text in enumerate(self._texts)}
        self._orientations = 2 if config.flip else 1
        facts = {
            "format": FORMAT,
            "frozen": frozen,
            "geometry": [config.resolution, config.target_align, config.align_resolution],
            "orientations": self._orientations,
            "dtype": config.feature_dtype,
            "block": self._size,
            "records": pairs.about["records_sha256"],
            "affirmative": pairs.about.get("affirmative"),
            "origin": pairs.about["origin"]["kind"],
            "pairs": hashlib.sha256(json.dumps(used).encode()).hexdigest(),
            "texts": hashlib.sha256(json.dumps(self._texts).encode()).hexdigest(),
        }
        root = Path(config.features) if config.features else user_cache.root() / "features"
        self.folder = root / identity_hash(facts)
        self._lock = threading.Lock()

    # --- making ------------------------------------------------------------------------------

    def make(self, encoder: Encoder, world: World) -> list[str]:
        """Makes this process's share of what is missing; returns "name: reason" of unreadable pairs in it."""
        if world.is_main:
            atomic.check_writable(self.folder)
        world.barrier()
        blocks = [
            number for number in range(-(-len(self._used) // self._size)) if not self._is_current(number)
        ]
        world.barrier()  # all have looked before one of them writes
        faults: list[str] = []
        mine = share(blocks, world.rank, world.size)
        with tqdm(
            total=len(mine) * self._size, desc="features", unit="pair", disable=not (world.is_main and mine)
        ) as bar:
            for number, (pictures, metadata) in read_ahead(self._read, mine, self._config.workers):
                tensors = self._encode(pictures, encoder)
                faults += [f"{name}: {reason}" for name, reason in metadata["unreadable"].items()]
                _write(self._picture_file(number), tensors, metadata)
                bar.update(self._size)
        starts = range(0, len(self._texts), TEXT_BLOCK)
        todo = [n for n in range(len(starts)) if not self._text_file(n).exists()]
        world.barrier()
        for number in share(todo, world.rank, world.size):
            texts = self._texts[number * TEXT_BLOCK : (number + 1) * TEXT_BLOCK]
            states = torch.stack([encoder.sentence(text).cpu() for text in texts])
            kept = states.to(DTYPES[self._config.feature_dtype])
            _write(self._text_file(number), {"states": kept}, {"texts": texts})
        world.barrier()
        return faults

    def unreadable(self) -> list[str]:
        """ "name: reason" of every pair that has no features, over all blocks."""
        found = []
        for number in range(-(-len(self._used) // self._size)):
            faults = self._metadata(number)["unreadable"]
            found += [f"{name}: {reason}" for name, reason in faults.items()]
        return found

    def _picture_file(self, number: int) -> Path:
        return self.folder / f"pictures-{number:06d}.safetensors"

    def _text_file(self, number: int) -> Path:
        return self.folder / f"texts-{number:06d}.safetensors"

    def _members(self, number: int) -> list[int]:
        return self._used[number * self._size : (number + 1) * self._size]

    def _metadata(self, number: int) -> dict[str, Any]:
        with safetensors.safe_open(self._picture_file(number), framework="pt") as file:
            return json.loads((file.metadata() or {})["about"])

    def _is_current(self, number: int) -> bool:
        if not self._picture_file(number).exists():
            return False
        about, pictures = self._metadata(number), self._pairs.pictures
        if about["unreadable"]:
            return False  # it may have been mended
        members = self._members(number)
        changed = [i for i, s in zip(members, about["signatures"], strict=True) if pictures.signature(i) != s]
        known = dict(zip(members, about["contents"], strict=True))
        return all(pictures.content(index) == known[index] for index in changed)

    def _read(self, number: int) -> tuple[list[tuple[Any, Any] | None], dict[str, Any]]:
        config, pictures = self._config, self._pairs.pictures
        found: list[tuple[Any, Any] | None] = []
        about: dict[str, Any] = {"signatures": [], "contents": [], "unreadable": {}}
        for index in self._members(number):
            about["signatures"].append(pictures.signature(index))
            try:
                about["contents"].append(pictures.content(index))
                first, second = pictures.read(index)
            except (ImageError, FileNotFoundError) as error:
                about["contents"] += [""] * (len(about["signatures"]) - len(about["contents"]))
                about["unreadable"][pictures.name(index)] = str(error)
                found.append(None)
                continue
            found.append(
                prepare(
                    first,
                    second,
                    resolution=config.resolution,
                    align=config.target_align,
                    align_resolution=config.align_resolution,
                )
            )
        return found, about

    def _encode(
        self, pictures: Sequence[tuple[Any, Any] | None], encoder: Encoder
    ) -> dict[str, torch.Tensor]:
        side = self._config.resolution
        blank = torch.zeros((side, side, 3), dtype=torch.uint8)
        tensors: dict[str, torch.Tensor] = {}
        for place, role in enumerate(("input", "target")):
            upright = torch.stack([blank if p is None else torch.from_numpy(p[place]) for p in pictures])
            views = [upright, upright.flip(2)][: self._orientations]
            encoded = [encoder.pictures(view) for view in views]
            for kind, name in enumerate(("mean", "logvar")):
                stacked = torch.stack([found[kind] for found in encoded], 1).cpu()
                tensors[f"{role}_{name}"] = stacked.to(DTYPES[self._config.feature_dtype])
        return tensors

    # --- reading -----------------------------------------------------------------------------

    def pair(self, pair: int, *, swapped: bool, flip: bool) -> dict[str, torch.Tensor]:
        """`condition`, `mean`, `logvar` of one example, each (C, h, w) float32 on the CPU.

        Raises ImageError for a pair that had no readable pictures.
        """
        row = self._row[pair]
        number, inner = divmod(row, self._size)
        handle, unreadable = self._open(number)
        name = self._pairs.pictures.name(pair)
        if name in unreadable:
            raise ImageError(unreadable[name])
        view = int(flip)
        first, second = ("target", "input") if swapped else ("input", "target")
        with self._lock:
            found = {
                "condition": handle.get_slice(f"{first}_mean")[inner, view],
                "mean": handle.get_slice(f"{second}_mean")[inner, view],
                "logvar": handle.get_slice(f"{second}_logvar")[inner, view],
            }
        return {key: value.float() for key, value in found.items()}

    def sentence(self, text: str) -> torch.Tensor:
        """Hidden states (tokens, width) float32 on the CPU."""
        return self._sentence(self._text_row[text])

    @functools.lru_cache(maxsize=8192)  # noqa: B019 - one object lives as long as the run
    def _sentence(self, row: int) -> torch.Tensor:
        number, inner = divmod(row, TEXT_BLOCK)
        with safetensors.safe_open(self._text_file(number), framework="pt") as handle:
            return handle.get_slice("states")[inner].float()

    @functools.cache  # noqa: B019 - mapped files cost no memory of their own
    def _open(self, number: int) -> tuple[Any, dict[str, str]]:
        handle: Any = safetensors.safe_open(self._picture_file(number), framework="pt")
        return handle, json.loads((handle.metadata() or {})["about"])["unreadable"]


def _write(file: Path, tensors: dict[str, torch.Tensor], about: dict[str, Any]) -> None:
    content = safetensors.torch.save(
        {key: value.contiguous() for key, value in tensors.items()}, {"about": json.dumps(about)}
    )
    atomic.write_bytes(file, content)


def complain(faults: Sequence[str], where: str) -> None:
    """Raises a UserError naming every unreadable pair at once; nothing for no faults."""
    problems = Problems()
    for fault in faults:
        problems.add("unreadable pair", fault)
    try:
        problems.raise_if_any(where)
    except UserError as error:
        hint = "leave them out with --exclude ID,ID, or say --unreadable skip."
        raise UserError(f"{error}\n{hint[0].upper()}{hint[1:]}") from None
