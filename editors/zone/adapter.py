"""ZONE as an editor; the steps themselves are in the modules beside this one."""

from __future__ import annotations

import functools
import re
from dataclasses import asdict, fields, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from PIL import Image, ImageEnhance
from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from nein.editors.base import EditorError, EditRequest, EditResult
from nein.editors.checkpoint import load_pipeline, quiet
from nein.editors.instruct_pix2pix import CACHED_TEXTS, InstructPix2Pix, Item
from nein.editors.resize import zone_frame
from nein.editors.sampling import AttentionRecord, SampleNoise, dpm_solver, install
from nein.editors.zone import masks
from nein.editors.zone.models import OTHER_SHARE, Reading, Segmenter, decide, fuse, load_classifier
from nein.loading.digests import json_digest
from nein.loading.errors import unknown

Count = Annotated[int, Field(ge=0, strict=True)]
Size = Annotated[int, Field(ge=1, strict=True)]
Level = Annotated[int, Field(ge=0, le=255, strict=True)]
Share = Annotated[float, Field(ge=0, le=1, strict=True)]
Amount = Annotated[float, Field(ge=0, strict=True)]


@dataclass(frozen=True)
class Settings:
    """The constants of the method; lengths in pixels.

    protocol  "paper": the released code with its quirks. "fixed": what the paper means; padding is cut off,
              the picture scaled back, and a picture without a segment is the `fallback`.
    branches  Guidance branches whose attention is read; None is "uncond" for "paper", whose code drops the
              instruction's branch, and "text" for "fixed".
    """

    protocol: Literal["paper", "fixed"] = "paper"
    blend_beta: Amount = 0.2  # weight of MagicBrush's latents when something is removed
    branches: Literal["text", "uncond", "all"] | None = None
    map_stride: Size = 32  # pixels per cell of the attention maps
    against: Literal["last", "words"] = "last"  # step 5, `masks.rival`
    floor: Literal["zero", "least"] = "zero"  # step 5, `masks.stretch`
    mask_threshold: Level = 108  # on doubled differences; the released code has 108, the paper's text 128
    least_area: Count = 64  # step 6
    points_per_side: Size = 32  # step 7: SAM is asked at so many points squared; its segments have at least
    segment_quality: Share = 0.88  # this predicted IoU, and
    segment_stability: Share = 0.95  # this IoU with themselves at shifted cut-offs
    dilation: Count = 4  # step 9
    brightness: Amount = 1.0  # factor on the edit before it is pasted
    smooth_radius: Amount = 200.0  # step 11: frequencies kept, per picture (the code calls it high-pass)
    smooth_threshold: Level = 30  # grey levels that count as a difference
    smooth_closing: Size = 21  # side of the square that closes gaps, odd
    edge_alpha: Share = 0.6  # share of the edit in the edge, step 12
    fallback: Literal["input", "edit"] = "input"  # nothing is pasted, or the whole edit

    @classmethod
    def of(cls, values: dict[str, Any]) -> Settings:
        """Raises EditorError with the first thing that is wrong."""
        try:
            settings = cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name, value = first["loc"][0], first["input"]
            if first["type"] == "literal_error":
                raise unknown(str(name), value, re.findall(r"'(\w+)'", first["ctx"]["expected"])) from None
            raise EditorError(f"{name} is {value!r}; {first['msg'].lower()}") from None
        if settings.smooth_closing % 2 == 0:
            raise EditorError(f"smooth_closing is {settings.smooth_closing}; expected an odd number")
        if settings.branches is None:
            return replace(settings, branches="uncond" if settings.protocol == "paper" else "text")
        return settings


class Zone(InstructPix2Pix):
    """ZONE (arXiv:2312.16794): training-free local editing with two instruction editors and SAM.

    checkpoint, steps, name   As in InstructPix2Pix, whose text encoder, VAE and UNet are used.
    magicbrush, sam, action   A second pipeline (its UNet is kept), a SamModel, and the action classifier.
    resolution                Longest side in pixels; longer pictures are scaled down.
    options                   Fields of `Settings`, and further options of InstructPix2Pix.

    The note of a result tells the action and how far the work went.
    """

    _SAMPLER = staticmethod(dpm_solver)

    def __init__(
        self,
        checkpoint: str,
        *,
        magicbrush: str,
        sam: str,
        action: str,
        name: str = "zone",
        steps: int = 20,
        resolution: int = 512,
        **options: Any,
    ) -> None:
        known = {item.name for item in fields(Settings)}
        self.settings = Settings.of({key: options.pop(key) for key in known & options.keys()})
        # First, because it is the file that most often is not there.
        self._classifier = load_classifier(action)
        super().__init__(checkpoint, name=name, steps=steps, resize="zone", resolution=resolution, **options)
        width, wanted = self._text_encoder.config.hidden_size, self._classifier.config["width"]
        if width != wanted:
            raise EditorError(
                f"the action classifier {action!r} reads text vectors of {wanted} numbers, but the text "
                f"encoder of {checkpoint!r} gives {width}; it belongs to another model"
            )
        other = load_pipeline(magicbrush)
        if other.pipeline.unet.config.cross_attention_dim != width:
            raise EditorError(f"{magicbrush!r} does not fit {checkpoint!r}: it reads another text encoder")
        with quiet():
            self._other_unet = self._machine.place(other.pipeline.unet)
            install(self._other_unet)
        self._segmenter = Segmenter(
            sam,
            self._device,
            points=self.settings.points_per_side,
            quality=self.settings.segment_quality,
            stability=self.settings.segment_stability,
        )
        weights = {key: tensor.tolist() for key, tensor in self._classifier.state_dict().items()}
        self._others = {
            "magicbrush": {"checkpoint": magicbrush, "sha256": other.weights_sha256},
            "sam": {"checkpoint": sam, "sha256": self._segmenter.sha256},
            "action": {"checkpoint": action, "sha256": json_digest(weights)},
        }
        self._classifier.to(self._device)
        self._read = functools.lru_cache(CACHED_TEXTS)(self._read_action)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "models": self._others, **asdict(self.settings)}

    def _edit_batch(self, items: list[Item]) -> list[EditResult]:
        readings = [self._read(request.instruction) for request, _ in items]
        embeddings, conditions, notes = self._condition(items)
        start = SampleNoise([r.seed for r, _ in items], tuple(conditions.shape[1:]), self._device).draw()
        cells = [-(-side // self.settings.map_stride) for side in items[0][1].shape[:2]]
        records = [
            AttentionRecord(len(items), (cells[0], cells[1]), str(self.settings.branches)) for _ in range(2)
        ]
        weights = self._attention(items).get("cross_attention_kwargs", {})

        def predictor(unet: Any, record: AttentionRecord) -> Any:
            options = {"cross_attention_kwargs": {"record": record, **weights}}
            return lambda x, t: self._predict(unet, x, t, embeddings, conditions, **options)

        wanted = [self.settings.blend_beta if r.action == "REMOVE" else OTHER_SHARE for r in readings]
        share = torch.tensor(wanted, dtype=torch.float32)
        # A sampler for one pass of one model each: it remembers its last outputs.
        samplers = [self._new_sampler(self._scheduler.config) for _ in range(2)]
        with self._machine.using(self._unet), self._machine.using(self._other_unet):
            first, second = predictor(self._unet, records[0]), predictor(self._other_unet, records[1])
            latents = fuse(start, share, (samplers[0], first), (samplers[1], second))
        attention = zip(*(record.mean().cpu().numpy() for record in records), strict=True)  # h, w, tokens
        return [
            self._result(request, edit, note)
            if edit is None
            else self._compose(request, framed, edit, reading, seen, note)
            for (request, framed), edit, reading, seen, note in zip(
                items, self._develop(latents), readings, attention, notes, strict=True
            )
        ]

    def _read_action(self, text: str) -> Reading:
        """Step 1. Alone per text, so that it does not depend on the batch."""
        encoded = self._tokens(text)
        mask = encoded["attention_mask"]
        with self._machine.using(self._text_encoder):
            states = self._text_encoder(encoded["input_ids"], attention_mask=mask)[0]
        logits, tokens = self._classifier(states[0].float()).cpu(), int(mask.sum())
        return Reading(decide(logits, tokens, self.settings.protocol), tokens)

    def _compose(
        self,
        request: EditRequest,
        framed: np.ndarray,
        edit: np.ndarray,
        reading: Reading,
        attention: tuple[np.ndarray, ...],
        note: str,
    ) -> EditResult:
        """Steps 5 to 12 for one sample. attention: (h, w, T) of InstructPix2Pix and of MagicBrush."""
        settings, protocol = self.settings, self.settings.protocol
        fixed = protocol == "fixed"
        (first, other), magicbrush = [
            (maps[..., 0], masks.rival(maps, reading.tokens, settings.against)) for maps in attention
        ]
        difference = masks.difference(first, other, settings.floor)
        rough = masks.localise(difference, (framed.shape[1], framed.shape[0]), settings.mask_threshold)
        rough = masks.drop_small(rough, settings.least_area, protocol)
        if settings.brightness != 1:
            edit = np.array(ImageEnhance.Brightness(Image.fromarray(edit)).enhance(settings.brightness))
        segments = self._segmenter(framed if reading.action == "REMOVE" else edit)
        number, overlap = masks.best_segment(rough, segments)
        fine = np.zeros_like(rough) if number is None else segments[number]
        fine = masks.drop_small(fine, settings.least_area, protocol)
        dilated = masks.dilate(fine, settings.dilation)
        where = dilated if reading.action == "REMOVE" else fine  # step 10
        layered = masks.composite(framed, edit, where)
        smooth = masks.smoother(
            framed, edit, dilated, radius=settings.smooth_radius, threshold=settings.smooth_threshold,
            closing=settings.smooth_closing, protocol=protocol,
        )  # fmt: skip
        result = masks.final(framed, edit, fine, where, smooth, alpha=settings.edge_alpha, protocol=protocol)
        status, nothing = _status(rough, segments, number, overlap, fine)
        if nothing and fixed and settings.fallback == "edit":
            result = edit
        maps: dict[str, np.ndarray] = {}
        if request.maps:
            maps = {
                "source": framed,
                "first token": masks.stretch(first, settings.floor),
                "last token" if settings.against == "last" else "words": masks.stretch(other, settings.floor),
                "difference": difference,
                "MagicBrush": masks.difference(*magicbrush, settings.floor),
                "rough mask": masks.grey(rough),
                "edit": edit,
                "segments": masks.paint(segments, framed.shape[:2]),
                "fine mask": masks.grey(fine),
                "dilated": masks.grey(dilated),
                "smoother": masks.grey(smooth),
                "layer": layered,
                "result": result,
            }
        note = "; ".join(part for part in (note, f"{reading.action}, {status}") if part)
        if number is None and not fixed:
            reason = f"{status}; the released code of ZONE ends here, and protocol 'fixed' goes on"
            return EditResult(request.id, None, reason, note, maps)
        if nothing and fixed:
            note += f": the {'picture as it was' if settings.fallback == 'input' else 'whole edit'}"
        if fixed:
            height, width = request.image.shape[:2]
            frame = zone_frame(width, height, self.resolution)
            left, top = frame.corner
            result = result[top : top + frame.scaled[1], left : left + frame.scaled[0]].copy()
            if frame.scaled != (width, height):
                result = np.array(Image.fromarray(result).resize((width, height), Image.Resampling.BICUBIC))
        return EditResult(request.id, result, note=note, maps=maps)


def _status(
    rough: np.ndarray, segments: list[np.ndarray], number: int | None, overlap: float, fine: np.ndarray
) -> tuple[str, bool]:
    """How far the work went, and whether there was nothing to paste."""
    if number is not None and fine.any():
        return f"segment of {int(fine.sum())} pixels, Region-IoU {overlap:.2f}", False
    if not rough.any():
        return "attention found no region", True
    if not segments:
        return "SAM found no segment", True
    if number is None:
        return f"none of {len(segments)} segments overlaps with the region", True
    return "the segment is smaller than the least area", True
