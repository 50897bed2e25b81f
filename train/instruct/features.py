"""What an editor learns from, encoded once: VAE posteriors of every picture, text states of every sentence.

    FEATURES/<key>/pictures-*.safetensors    input_mean, input_logvar, target_mean, target_logvar
    FEATURES/<key>/texts-*.safetensors       states

Means and log-variances are kept, not samples, so that training still draws from the posterior. The key hashes
VAE, text encoder and tokenizer (their weights, not their names), the geometry, the number type, and the
records of the data.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from nein.benchmarks.nein.runs import identity_hash
from nein.engine import user_cache
from nein.engine.errors import Problems, UserError
from nein.engine.processes import Processes
from train.features import FeatureFiles
from train.instruct.encoder import Encoder
from train.instruct.options import TuneConfig
from train.instruct.pairs import Pairs, Pictures, prepare

FORMAT = 2
TEXT_BLOCK = 512
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class PreparedPairs:
    """Some pairs of pictures, as the model learns them."""

    def __init__(self, config: TuneConfig, pictures: Pictures, chosen: Sequence[int]) -> None:
        self._config, self._pictures, self._chosen = config, pictures, chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def name(self, index: int) -> str:
        return self._pictures.name(self._chosen[index])

    def signature(self, index: int) -> str:
        return self._pictures.signature(self._chosen[index])

    def content(self, index: int) -> str:
        return self._pictures.content(self._chosen[index])

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        config = self._config
        return prepare(
            *self._pictures.read(self._chosen[index]),
            resolution=config.resolution,
            align=config.target_align,
            align_resolution=config.align_resolution,
        )


class Sentences(list[str]):
    """Sentences, which are all that there is to know of them."""

    def name(self, index: int) -> str:
        return self[index]

    signature = content = read = name


class Features:
    """The stored features of a configuration: makes what is missing, reads what is there.

    frozen  Hash of VAE, text encoder and tokenizer (`encoder.frozen_hash`).
    """

    def __init__(self, config: TuneConfig, pairs: Pairs, frozen: str) -> None:
        self._config, self._pairs = config, pairs
        chosen = sorted({example.pair for example in (*pairs.negative, *pairs.affirmative)})
        texts = Sentences(pairs.sentences())
        self._rows = {pair: row for row, pair in enumerate(chosen)}
        self._text_rows = {text: row for row, text in enumerate(texts)}
        self._orientations = 2 if config.flip else 1
        facts = {
            "format": FORMAT,
            "frozen": frozen,
            "geometry": [config.resolution, config.target_align, config.align_resolution],
            "orientations": self._orientations,
            "dtype": config.feature_dtype,
            "records": pairs.facts["records_sha256"],
            "affirmative": pairs.facts.get("affirmative"),
            "origin": pairs.facts["origin"]["kind"],
        }
        root = Path(config.features) if config.features else user_cache.root() / "features"
        self.folder = root / identity_hash(facts)
        self._pictures = FeatureFiles(
            self.folder, "pictures", PreparedPairs(config, pairs.pictures, chosen), config.feature_block
        )
        self._texts = FeatureFiles(self.folder, "texts", texts, TEXT_BLOCK)
        self._sentence = functools.lru_cache(maxsize=8192)(self._read_sentence)

    def make(self, encoder: Encoder, processes: Processes) -> None:
        """Makes this process's share of what is missing, and waits for the others."""
        dtype = DTYPES[self._config.feature_dtype]

        def pictures(pairs: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, torch.Tensor]:
            return {name: tensor.to(dtype) for name, tensor in self._encode(pairs, encoder).items()}

        def sentences(texts: list[str]) -> dict[str, torch.Tensor]:
            return {"states": torch.stack([encoder.sentence(text).cpu() for text in texts]).to(dtype)}

        self._pictures.make(pictures, processes, ahead=self._config.workers)
        self._texts.make(sentences, processes)

    def _encode(
        self, pairs: list[tuple[np.ndarray, np.ndarray]], encoder: Encoder
    ) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        for place, role in enumerate(("input", "target")):
            upright = torch.from_numpy(np.stack([pair[place] for pair in pairs]))  # NHWC, uint8
            views = [upright, upright.flip(2)][: self._orientations]
            means, logvars = zip(*(encoder.pictures(view) for view in views), strict=True)
            tensors[f"{role}_mean"] = torch.stack(means, 1).cpu()  # N, views, C, h, w
            tensors[f"{role}_logvar"] = torch.stack(logvars, 1).cpu()
        return tensors

    def unreadable(self) -> list[str]:
        """ "name: reason" of every pair that has no features, over all blocks."""
        names = list(self._rows)
        reasons = self._pictures.unreadable
        return [f"{self._pairs.pictures.name(names[row])}: {reason}" for row, reason in reasons.items()]

    def pair(self, pair: int, *, swapped: bool, flip: bool) -> dict[str, torch.Tensor]:
        """`condition`, `mean`, `logvar` of one example, each (C, h, w) float32 on the CPU.

        Raises ImageError for a pair that had no readable pictures.
        """
        row, view = self._rows[pair], int(flip)
        first, second = ("target", "input") if swapped else ("input", "target")
        return {
            "condition": self._pictures.row(row, f"{first}_mean", view).float(),
            "mean": self._pictures.row(row, f"{second}_mean", view).float(),
            "logvar": self._pictures.row(row, f"{second}_logvar", view).float(),
        }

    def sentence(self, text: str) -> torch.Tensor:
        """Hidden states (tokens, width) float32 on the CPU."""
        return self._sentence(self._text_rows[text])

    def _read_sentence(self, row: int) -> torch.Tensor:
        return self._texts.row(row, "states").float()


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
