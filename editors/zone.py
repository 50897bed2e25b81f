"""ZONE (arXiv:2312.16794): InstructPix2Pix and MagicBrush together, confined to one segment of the image.

Steps: 0 image into its frame (`editors.resize`); 1 change, add or remove?, 2 fused denoising; 3, 4
cross-attention of the UNets (`editors.sampling`); 5 attention difference to rough mask, 6 small components
removed, 7 segments of SAM, 8 segment with the best Region-IoU, 9 dilation, 10 layer pasted by kind of action,
11 spectral edge smoother, 12 final blend.

Every function that `protocol` changes says how: "paper" does what the released code does
(github.com/lsl001006/ZONE @ 9788584), "fixed" what the paper means. Masks are (H, W) bool, true where the
edit goes; images (H, W, 3) uint8 RGB.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass
from scipy import ndimage
from torch import Tensor, nn
from transformers import SamImageProcessor, SamModel
from transformers.pipelines import MaskGenerationPipeline

from nein.editors.base import EditorError, EditRequest, EditResult
from nein.editors.checkpoint import content_hash, explained, load_pipeline, locate, place, quiet, whole
from nein.editors.instruct_pix2pix import CACHED_TEXTS, InstructPix2Pix, Item
from nein.editors.resize import zone_frame
from nein.editors.sampling import AttentionRecord, SampleNoise, dpm_solver, install
from nein.loading.digests import Json, json_digest
from nein.loading.references import expand_user
from nein.loading.weights import read_checkpoint

#: In the order of the classifier's outputs.
ACTIONS = ("CHANGE", "ADD", "REMOVE")
#: Weight of MagicBrush in the mixture for everything that is not removed; the released code overrides its
#: option.
OTHER_SHARE = 0.01
CONTRAST = 2

Count = Annotated[int, Field(ge=0, strict=True)]
Size = Annotated[int, Field(ge=1, strict=True)]
Level = Annotated[int, Field(ge=0, le=255, strict=True)]
Share = Annotated[float, Field(ge=0, le=1, strict=True)]
Amount = Annotated[float, Field(ge=0, strict=True)]


@dataclass(frozen=True)
class Settings:
    """The constants of the method; lengths in pixels.

    protocol  "paper": the released code with its quirks. "fixed": what the paper means; padding is cut off,
              the image scaled back, and an image without a segment stays as it was.
    branches  Guidance branches whose attention is read; None is "uncond" for "paper", whose code drops the
              instruction's branch, and "text" for "fixed".
    """

    protocol: Literal["paper", "fixed"] = "paper"
    blend_beta: Amount = 0.2  # weight of MagicBrush's latents when something is removed
    branches: Literal["text", "uncond"] | None = None
    map_stride: Size = 32  # pixels per cell of the attention maps
    against: Literal["last", "words"] = "last"  # step 5, `rival`
    floor: Literal["zero", "least"] = "zero"  # step 5, `stretch`
    mask_threshold: Level = 108  # on doubled differences; the released code has 108, the paper's text 128
    least_area: Count = 64  # step 6
    points_per_side: Size = 32  # step 7: SAM is asked at so many points squared; its segments have at least
    segment_quality: Share = 0.88  # this predicted IoU, and
    segment_stability: Share = 0.95  # this IoU with themselves at shifted cut-offs
    dilation: Size = 4  # step 9
    smooth_radius: Amount = 200.0  # step 11: frequencies kept, per image (the code calls it high-pass)
    smooth_threshold: Level = 30  # grey levels that count as a difference
    smooth_closing: Size = 21  # side of the square that closes gaps
    edge_alpha: Share = 0.6  # share of the edit in the edge, step 12


class Reading(NamedTuple):
    """An instruction's action, and its number of tokens read, with both end marks."""

    action: str
    tokens: int


class Zone(InstructPix2Pix):
    """ZONE (arXiv:2312.16794): training-free local editing with two instruction editors and SAM.

    checkpoint, steps, name   As in InstructPix2Pix, whose text encoder, VAE and UNet are used.
    magicbrush, sam, action   A second pipeline (its UNet is kept), a SamModel, and the action classifier.
    resolution                Longest side in pixels; longer images are scaled down.
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
        try:
            settings = Settings(**{key: options.pop(key) for key in known & options.keys()})
        except ValidationError as error:
            first = error.errors()[0]
            raise EditorError(f"{first['loc'][0]} is {first['input']!r}; {first['msg'].lower()}") from None
        if settings.branches is None:
            settings = replace(settings, branches="uncond" if settings.protocol == "paper" else "text")
        self.settings = settings
        # First, because it is the file that most often is not there.
        self._classifier = load_classifier(action)
        super().__init__(checkpoint, name=name, steps=steps, resize="zone", resolution=resolution, **options)
        other = load_pipeline(magicbrush)
        with quiet():
            self._other_unet = place(other.pipeline.unet, self._device, self._dtype)
            install(self._other_unet)
        self._segmenter = Segmenter(
            sam,
            self._device,
            points=settings.points_per_side,
            quality=settings.segment_quality,
            stability=settings.segment_stability,
        )
        weights = {key: tensor.tolist() for key, tensor in self._classifier.state_dict().items()}
        self._others = {
            "magicbrush": {"checkpoint": magicbrush, "sha256": other.weights_sha256},
            "sam": {"checkpoint": sam, "sha256": self._segmenter.sha256},
            "action": {"checkpoint": action, "sha256": json_digest(weights)},
        }
        self._classifier.to(self._device)
        self._read = functools.lru_cache(CACHED_TEXTS)(self._read_action)

    def describe(self) -> Json:
        return {**super().describe(), "models": self._others, **asdict(self.settings)}

    def _edit_batch(self, items: list[Item]) -> list[EditResult]:
        readings = [self._read(request.instruction) for request, _ in items]
        embeddings, conditions, notes = self._condition(items)
        height, width = (-(-side // self.settings.map_stride) for side in items[0][1].shape[:2])
        record = AttentionRecord(len(items), (height, width), str(self.settings.branches))
        weights = self._attention(items).get("cross_attention_kwargs", {})
        first: Json = {"cross_attention_kwargs": {**weights, "record": record}}
        second: Json = {"cross_attention_kwargs": dict(weights)}
        # After each step x becomes (x + b y) / (1 + b): y is MagicBrush's own latent, to which nothing flows
        # back. A sampler for one pass of one model each: it remembers its last outputs.
        wanted = [self.settings.blend_beta if r.action == "REMOVE" else OTHER_SHARE for r in readings]
        share = torch.tensor(wanted, dtype=torch.float32, device=self._device).view(-1, 1, 1, 1)
        sampler, other = (self._new_sampler(self._scheduler.config) for _ in "12")
        start = SampleNoise([r.seed for r, _ in items], tuple(conditions.shape[1:]), self._device).draw()
        x = y = start * float(sampler.init_noise_sigma)
        given = embeddings, conditions
        for t in sampler.timesteps:
            guided = self._predict(self._other_unet, other.scale_model_input(y, t), t, *given, **second)
            y = other.step(guided, t, y, return_dict=False)[0]
            guided = self._predict(self._unet, sampler.scale_model_input(x, t), t, *given, **first)
            x = sampler.step(guided, t, x, return_dict=False)[0]
            x = (x + share * y) / (1 + share)
        attention = record.mean().cpu().numpy()  # of InstructPix2Pix: B, h, w, tokens
        return [
            self._result(request, edit, note)
            if edit is None
            else self._compose(request, framed, edit, reading, seen, note)
            for (request, framed), edit, reading, seen, note in zip(
                items, self._develop(x), readings, attention, notes, strict=True
            )
        ]

    def _read_action(self, text: str) -> Reading:
        """Step 1. Alone per text, so that it does not depend on the batch."""
        encoded = self._tokens(text)
        mask = encoded["attention_mask"]
        states = self._text_encoder(encoded["input_ids"], attention_mask=mask)[0]
        logits, tokens = self._classifier(states[0].float()).cpu(), int(mask.sum())
        return Reading(decide(logits, tokens, self.settings.protocol), tokens)

    def _compose(
        self,
        request: EditRequest,
        framed: np.ndarray,
        edit: np.ndarray,
        reading: Reading,
        attention: np.ndarray,
        note: str,
    ) -> EditResult:
        """Steps 5 to 12 for one sample. attention: (h, w, T)."""
        settings, protocol = self.settings, self.settings.protocol
        fixed, removes = protocol == "fixed", reading.action == "REMOVE"
        other = rival(attention, reading.tokens, settings.against)
        apart = difference(attention[..., 0], other, settings.floor)
        rough = localise(apart, (framed.shape[1], framed.shape[0]), settings.mask_threshold)
        rough = drop_small(rough, settings.least_area, protocol)
        segments = self._segmenter(framed if removes else edit)
        number, overlap = best_segment(rough, segments)
        fine = np.zeros_like(rough) if number is None else segments[number]
        fine = drop_small(fine, settings.least_area, protocol)
        dilated = ndimage.binary_dilation(fine, np.ones((3, 3), bool), iterations=settings.dilation)
        where = dilated if removes else fine  # step 10
        smooth = smoother(framed, edit, dilated, settings)
        result = final(framed, edit, fine, where, smooth, alpha=settings.edge_alpha, protocol=protocol)
        if number is not None and fine.any():
            status = f"segment of {int(fine.sum())} pixels, Region-IoU {overlap:.2f}"
        elif not rough.any():
            status = "attention found no region"
        elif number is None:
            found = f"none of {len(segments)} segments overlaps with the region"
            status = found if segments else "SAM found no segment"
        else:
            status = "the segment is smaller than the least area"
        note = "; ".join(part for part in (note, f"{reading.action}, {status}") if part)
        if number is None and not fixed:
            reason = f"{status}; the released code of ZONE ends here, and protocol 'fixed' goes on"
            return EditResult(request.id, None, reason, note)
        if fixed:
            note += "" if fine.any() else ": the picture as it was"
            height, width = request.image.shape[:2]
            frame = zone_frame(width, height, self.resolution)
            left, top = frame.corner
            result = result[top : top + frame.scaled[1], left : left + frame.scaled[0]].copy()
            if frame.scaled != (width, height):
                result = np.array(Image.fromarray(result).resize((width, height), Image.Resampling.BICUBIC))
        return EditResult(request.id, result, note=note)


# --- step 1: what an instruction asks for ----------------------------------------------------------------


class ActionClassifier(nn.Module):
    """States (..., width) to logits (..., 3) over `ACTIONS`; two linear layers, as in the released file."""

    def __init__(self, width: int, hidden: int = 128) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, len(ACTIONS))

    def forward(self, states: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(states)))


def load_classifier(reference: str) -> ActionClassifier:
    """The classifier of a folder, a .safetensors file, or the released .pth file. Raises EditorError."""
    path = expand_user(reference)
    state, _ = read_checkpoint(path / "model.safetensors" if path.is_dir() else path)
    with explained(reference):
        classifier = ActionClassifier(*reversed(state["fc1.weight"].shape))
        classifier.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    return classifier.eval().requires_grad_(False)


def decide(logits: Tensor, tokens: int, protocol: str) -> str:
    """The action of an instruction. logits: (T, 3); tokens: how many of the positions are not padding.

    "fixed" takes the class with the largest logit at any real token. "paper" takes the class whose largest
    logit stands latest of all T positions (the first of equal ones): the released code keeps the indices that
    torch.max returns where the values were meant.
    """
    if protocol == "paper":
        # The first of equal positions, whatever the device.
        positions = [int((column == column.max()).nonzero()[0]) for column in logits.T]
        return ACTIONS[max(range(len(ACTIONS)), key=positions.__getitem__)]
    return ACTIONS[int(logits[:tokens].amax(0).argmax())]


# --- steps 5 to 8: from attention to one segment ---------------------------------------------------------


def difference(first: np.ndarray, other: np.ndarray, floor: str = "zero") -> np.ndarray:
    """Attention to the first token minus attention to another, each (h, w) float and stretched before; (h, w)
    uint8."""
    a, b = (stretch(attention, floor).astype(np.int16) for attention in (first, other))
    return np.clip(a - b, 0, 255).astype(np.uint8)


def stretch(attention: np.ndarray, floor: str = "zero") -> np.ndarray:
    """(h, w) float >= 0 to uint8, cut to integers: the largest value becomes 255; 0, or by floor "least" the
    smallest, becomes 0."""
    low = float(attention.min()) if floor == "least" else 0.0
    top = float(attention.max()) - low
    return (255 * ((attention - low) / top) if top > 0 else np.zeros_like(attention)).astype(np.uint8)


def rival(attention: np.ndarray, tokens: int, against: str) -> np.ndarray:
    """The map (h, w) that the first token's is compared with: that of the mark at the end of the sentence
    ("last"), or of everything between the marks together ("words").

    attention  (h, w, T) over all positions; the first `tokens` are the sentence with both marks.
    """
    if against == "last" or tokens < 3:
        return attention[..., tokens - 1]
    return attention[..., 1 : tokens - 1].sum(-1)


def localise(difference: np.ndarray, size: tuple[int, int], threshold: int) -> np.ndarray:
    """Rough mask (H, W) of the region to edit: where the first token does not prevail.

    difference: (h, w) uint8; size: (W, H) in pixels. Enlarged with PIL's bicubic on integers, doubled with
    saturation, and masked where that is at most `threshold`.
    """
    enlarged = np.asarray(Image.fromarray(difference).resize(size, Image.Resampling.BICUBIC)).astype(np.int16)
    return np.minimum(enlarged * CONTRAST, 255) <= threshold


def drop_small(mask: np.ndarray, least: int, protocol: str) -> np.ndarray:
    """The mask without components (4-connected) of an area below `least`.

    "fixed": the area is the number of pixels, and exactly the component is removed. "paper": the area is the
    number of pixels times the component's number in reading order, since the released code adds up labels,
    and the whole bounding box is cleared, with whatever else reaches into it.
    """
    labels = ndimage.label(mask)[0]
    cleaned = mask.copy()
    for number, region in enumerate(ndimage.find_objects(labels), 1):
        component = labels[region] == number
        area = int(component.sum()) * (number if protocol == "paper" else 1)
        if area < least:
            cleaned[region] = False if protocol == "paper" else cleaned[region] & ~component
    return cleaned


class Segmenter:
    """Every segment of an image, by SAM (arXiv:2304.02643) asked at a grid of `points` squared.

    quality, stability  Lowest IoU that a segment predicts, and has with itself at shifted cut-offs.

    The rest is as in SamAutomaticMaskGenerator of github.com/facebookresearch/segment-anything: cut-off shift
    1, boxes suppressed at an IoU of 0.7, no crops. Always float32.
    """

    def __init__(
        self, checkpoint: str, device: torch.device, *, points: int, quality: float, stability: float
    ) -> None:
        source, revision = locate(checkpoint)
        with explained(checkpoint):
            model: Any = whole(
                SamModel, checkpoint, source, revision, use_safetensors=True, dtype=torch.float32
            )
            processor = SamImageProcessor.from_pretrained(source, revision=revision or "main")
            self.sha256 = content_hash({"sam": model})
            model.eval().requires_grad_(False)
            self._generate = MaskGenerationPipeline(model=model, image_processor=processor, device=device)
        self._points, self._quality, self._stability = points, quality, stability

    def __call__(self, image: np.ndarray) -> list[np.ndarray]:
        """Segments (H, W) bool of an (H, W, 3) uint8 image, the surest first; often none of a plain one."""
        # Not `self._generate(image)`: that goes through a data loader, which draws from the global generator.
        result = self._generate.run_single(
            Image.fromarray(image),
            {"points_per_crop": self._points, "points_per_batch": 64},
            {"pred_iou_thresh": self._quality, "stability_score_thresh": self._stability},
            {"crops_nms_thresh": 0.7},
        )
        return [np.asarray(mask, dtype=bool) for mask in result["masks"]]


def best_segment(rough: np.ndarray, segments: Sequence[np.ndarray]) -> tuple[int | None, float]:
    """(number of the segment with the highest IoU with `rough`, that IoU); (None, 0.0) when none overlaps."""
    overlaps = [float((rough & one).sum() / max((rough | one).sum(), 1)) for one in segments]
    best = int(np.argmax(overlaps)) if overlaps else 0  # the first of equals
    return (best, overlaps[best]) if any(overlaps) else (None, 0.0)


# --- steps 11 and 12: the segment is pasted as a layer with a smooth edge --------------------------------


def smoother(source: np.ndarray, edited: np.ndarray, dilated: np.ndarray, settings: Settings) -> np.ndarray:
    """The edge smoother's mask M: where edit and source differ coarsely within the dilated segment.

    "paper" weighs grey as if RGB were BGR, lets values above 255 wrap around, and puts the centre of the disk
    of frequencies at row W // 2 and column H // 2, because the released code gives OpenCV the two the other
    way round; "fixed" does none of that.
    """
    greys, paper = [], settings.protocol == "paper"
    for image in (edited, source):
        inside = np.where(dilated[..., None], image, 0).astype(np.uint8)
        if paper:
            inside = inside[..., ::-1]
        greys.append(np.asarray(Image.fromarray(np.ascontiguousarray(inside)).convert("L"), np.float64))
    height, width = dilated.shape
    row, column = (width // 2, height // 2) if paper else (height // 2, width // 2)
    y, x = np.ogrid[:height, :width]
    keep = (y - row) ** 2 + (x - column) ** 2 <= settings.smooth_radius**2
    one, other = (np.fft.fftshift(np.fft.fft2(grey)) * keep for grey in greys)
    apart = np.abs(np.fft.ifft2(np.fft.ifftshift(one - other))).astype(np.int64)
    apart = apart % 256 if paper else np.minimum(apart, 255)
    different = (apart > settings.smooth_threshold).astype(np.uint8)
    # Beyond the border nothing counts, neither for growing nor for shrinking.
    closing = settings.smooth_closing
    grown = ndimage.maximum_filter(different, size=closing, mode="constant", cval=0)
    closed = ndimage.minimum_filter(grown, size=closing, mode="constant", cval=1)
    return ndimage.binary_fill_holes(closed)


def final(
    source: np.ndarray,
    edited: np.ndarray,
    fine: np.ndarray,
    where: np.ndarray,
    smooth: np.ndarray,
    *,
    alpha: float,
    protocol: str,
) -> np.ndarray:
    """The result: the layer with its edge mixed as alpha * edited + (1 - alpha) * source, cut to integers.
    fine: the segment; where: the layer; smooth: M of `smoother`.

    "paper" starts from the source, pastes the edit on M, and mixes wherever exactly one of M and the segment
    is true: it subtracts the masks as bytes, and 0 - 255 wraps to 1. The layer of step 10 has no part in it.
    "fixed" starts from the layer and mixes on the rest of M only, which is the edge around the layer.
    """
    mixed = (alpha * edited.astype(np.float64) + (1 - alpha) * source.astype(np.float64)).astype(np.uint8)
    pasted, edge = (smooth, smooth ^ fine) if protocol == "paper" else (where, smooth & ~where)
    return np.where(edge[..., None], mixed, np.where(pasted[..., None], edited, source))
