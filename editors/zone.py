"""Edits images with ZONE (arXiv:2312.16794): InstructPix2Pix and MagicBrush together edit the whole image,
and one segment of the edit, found by attention and SAM, is pasted into the source.

The class `Zone` loads the models and denoises (steps 0, 2, 3, 4); the functions of the other steps follow:

    0      resize into a frame (`editors.resize`)        7   segment the image with SAM
    1      classify the instruction (`ACTIONS`)          8   choose the segment with the best Region-IoU
    2      denoise with both models                      9   dilate the segment
    3, 4   record cross-attention (`editors.attention`)  10  choose the layer to paste
    5      attention difference -> rough mask            11  find the smooth edge by low frequencies
    6      drop small components of masks                12  paste the layer, mix its edge

`protocol` "paper" follows the released code (github.com/lsl001006/ZONE @ 9788584), "fixed" the paper's text;
each function says what differs. Masks are (H, W) bool, true in the edited region; images (H, W, 3) uint8 RGB.
"""

from __future__ import annotations

import functools
import math
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

from nein.editors.attention import AttentionRecord, install_processors
from nein.editors.base import EditorError, EditResult
from nein.editors.checkpoint import (
    content_hash,
    explain_errors,
    load_complete,
    load_pipeline,
    locate,
    place_module,
)
from nein.editors.instruct_pix2pix import CACHED_TEXTS, InstructPix2Pix, Item
from nein.editors.resize import zone_frame
from nein.editors.sampling import SampleNoise, dpm_solver
from nein.loading.digests import Json, json_digest
from nein.loading.references import expand_user
from nein.loading.weights import read_checkpoint

Array = np.ndarray
#: Actions of an instruction, in the order of the classifier's outputs.
ACTIONS = ("CHANGE", "ADD", "REMOVE")

# --- settings --------------------------------------------------------------------------------------------

Count = Annotated[int, Field(ge=0, strict=True)]
Positive = Annotated[int, Field(ge=1, strict=True)]
Level = Annotated[int, Field(ge=0, le=255, strict=True)]  # of gray
Share = Annotated[float, Field(ge=0, le=1, strict=True)]
Amount = Annotated[float, Field(ge=0, strict=True)]


@dataclass(frozen=True)
class Settings:
    """Constants of the method; lengths in pixels.

    protocol  "paper": the released code with its quirks. "fixed": the paper's text; padding is cropped, the
              image scaled back, and an image without a segment stays unedited.
    branches  Guidance branches whose attention is read. None: "text" for "fixed", "uncond" for "paper", whose
              code drops the instruction's branch.
    """

    protocol: Literal["paper", "fixed"] = "paper"
    blend_beta: Amount = 0.2  # step 2: weight of MagicBrush's latents for REMOVE; else `OTHER_BLEND`
    branches: Literal["text", "uncond"] | None = None
    map_stride: Positive = 32  # step 3: pixels per cell of the attention maps
    against: Literal["last", "words"] = "last"  # step 5, `choose_rival`
    floor: Literal["zero", "least"] = "zero"  # step 5, `stretch`
    mask_threshold: Level = 108  # step 5, on doubled differences; released code: 108, paper's text: 128
    least_area: Count = 64  # step 6: pixels of a component
    points_per_side: Positive = 32  # step 7: SAM's grid of query points
    segment_quality: Share = 0.88  # least predicted IoU of a segment
    segment_stability: Share = 0.95  # least IoU with itself at shifted cut-offs
    dilation: Positive = 4  # step 9: the segment grows by it
    smooth_radius: Amount = 200.0  # step 11: frequencies kept, per image (the code calls it high-pass)
    smooth_threshold: Level = 30  # grey levels that count as a difference
    smooth_closing: Positive = 21  # side of the square that closes gaps
    edge_alpha: Share = 0.6  # step 12: weight of the edit in the edge


# --- the editor ------------------------------------------------------------------------------------------

#: Weight of MagicBrush's latents for other actions than REMOVE; the released code overrides its option.
OTHER_BLEND = 0.01


class ParsedInstruction(NamedTuple):
    """What step 1 finds in an instruction."""

    action: str  # of `ACTIONS`
    tokens: int  # number, with both end marks


class Zone(InstructPix2Pix):
    """ZONE: local editing by two instruction editors and SAM, without training. A result's note has the
    action and the segment, or the step that found none.

    checkpoint, steps, name   As in InstructPix2Pix, whose text encoder, VAE and UNet are used.
    magicbrush, sam, action   A second pipeline (its UNet is kept), a SamModel, and the action classifier.
    resolution                Longest side in pixels; longer images are scaled down.
    options                   Fields of `Settings`, and further options of InstructPix2Pix.
    """

    _SCHEDULER = staticmethod(dpm_solver)  # in place of the Euler-ancestral one of InstructPix2Pix

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
        given = {field.name: options.pop(field.name) for field in fields(Settings) if field.name in options}
        try:
            settings = Settings(**given)
        except ValidationError as error:
            first = error.errors()[0]
            raise EditorError(f"{first['loc'][0]} is {first['input']!r}; {first['msg'].lower()}") from None
        if settings.branches is None:
            settings = replace(settings, branches="uncond" if settings.protocol == "paper" else "text")
        self.settings = settings
        # Loaded first, since this file is missing most often.
        self._classifier = load_classifier(action)
        super().__init__(checkpoint, name=name, steps=steps, resize="zone", resolution=resolution, **options)
        loaded = load_pipeline(magicbrush)
        self._magicbrush_unet = place_module(loaded.pipeline.unet, self._device, self._dtype)
        install_processors(self._magicbrush_unet)
        self._segmenter = Segmenter(sam, self._device, settings)
        weights = {key: tensor.tolist() for key, tensor in self._classifier.state_dict().items()}
        self._other_models = {  # for `describe`
            "magicbrush": {"checkpoint": magicbrush, "sha256": loaded.weights_sha256},
            "sam": {"checkpoint": sam, "sha256": self._segmenter.sha256},
            "action": {"checkpoint": action, "sha256": json_digest(weights)},
        }
        self._classifier.to(self._device)
        self._classify = functools.lru_cache(CACHED_TEXTS)(self._classify_new)

    def describe(self) -> Json:
        return {**super().describe(), "models": self._other_models, **asdict(self.settings)}

    def _edit_batch(self, items: list[Item]) -> list[EditResult]:
        """Edit a batch of images of one size. B: batch size, K: guidance branches."""
        parsed = [self._classify(request.instruction) for request, _ in items]  # step 1
        texts, conditions, notes = self._encode_items(items)  # (K * B, tokens, width), (K * B, 4, h, w)

        # Steps 3 and 4: only the attention of InstructPix2Pix is recorded.
        rows, columns = (math.ceil(side / self.settings.map_stride) for side in items[0][1].shape[:2])
        record = AttentionRecord(len(items), (rows, columns), str(self.settings.branches))
        arguments = self._make_attention_arguments(items)
        recording = {**arguments, "record": record}

        # Step 2: x, the latents of InstructPix2Pix, become (x + b y) / (1 + b) after each step; y, those of
        # MagicBrush, do not depend on x. A scheduler stores its last outputs: one per model and batch.
        x_scheduler = self._make_scheduler(self._scheduler.config)
        y_scheduler = self._make_scheduler(self._scheduler.config)
        betas = [self.settings.blend_beta if p.action == "REMOVE" else OTHER_BLEND for p in parsed]
        b = torch.tensor(betas, dtype=torch.float32, device=self._device).view(-1, 1, 1, 1)  # (B, 1, 1, 1)
        noise = SampleNoise([request.seed for request, _ in items], tuple(conditions.shape[1:]), self._device)
        x = y = noise.draw() * float(x_scheduler.init_noise_sigma)  # (B, 4, h, w)
        for t in x_scheduler.timesteps:
            scaled = y_scheduler.scale_model_input(y, t)
            guided = self._predict(self._magicbrush_unet, scaled, t, texts, conditions, arguments)
            y = y_scheduler.step(guided, t, y, return_dict=False)[0]
            scaled = x_scheduler.scale_model_input(x, t)
            guided = self._predict(self._unet, scaled, t, texts, conditions, recording)
            x = x_scheduler.step(guided, t, x, return_dict=False)[0]
            x = (x + b * y) / (1 + b)

        # Steps 5 to 12, sample by sample
        maps = record.mean().cpu().numpy()  # (B, rows, columns, T)
        results = []
        for index, edit in enumerate(self._decode_images(x)):
            item, note = items[index], notes[index]
            if edit is None:
                results.append(self._make_result(item[0], None, note))
            else:
                results.append(self._compose(item, edit, parsed[index], maps[index], note))
        return results

    def _classify_new(self, text: str) -> ParsedInstruction:
        """Step 1. One text per call, so that the result does not depend on the batch."""
        encoded = self._tokenize(text)
        mask = encoded["attention_mask"]
        states = self._text_encoder(encoded["input_ids"], attention_mask=mask)[0]  # (1, T, width)
        logits = self._classifier(states[0].float()).cpu()  # (T, 3)
        tokens = int(mask.sum())
        return ParsedInstruction(decide_action(logits, tokens, self.settings.protocol), tokens)

    def _compose(
        self, item: Item, edit: Array, parsed: ParsedInstruction, attention: Array, note: str
    ) -> EditResult:
        """Steps 5 to 12 for one sample. edit: of the whole frame; attention: (h, w, T)."""
        request, framed = item
        settings = self.settings
        protocol = settings.protocol
        removes = parsed.action == "REMOVE"

        # Steps 5 and 6: rough mask
        rival = choose_rival(attention, parsed.tokens, settings.against)
        apart = subtract_maps(attention[..., 0], rival, settings.floor)  # (h, w) uint8
        rough = make_rough_mask(apart, (framed.shape[1], framed.shape[0]), settings.mask_threshold)
        rough = drop_small(rough, settings.least_area, protocol)

        # Steps 7 to 10: a removed object is segmented in the source, an added or changed one in the edit.
        segments = self._segmenter(framed if removes else edit)
        number, overlap = best_segment(rough, segments)
        fine = np.zeros_like(rough) if number is None else segments[number]
        fine = drop_small(fine, settings.least_area, protocol)
        dilated = ndimage.binary_dilation(fine, np.ones((3, 3), bool), iterations=settings.dilation)
        layer = dilated if removes else fine

        # Steps 11 and 12
        smooth = find_smooth_edge(framed, edit, dilated, settings)
        result = blend_layer(framed, edit, fine, layer, smooth, settings)

        # Note of what was found
        if number is not None and fine.any():
            status = f"segment of {int(fine.sum())} pixels, Region-IoU {overlap:.2f}"
        elif not rough.any():
            status = "attention found no region"
        elif not segments:
            status = "SAM found no segment"
        elif number is None:
            status = f"none of {len(segments)} segments overlaps with the region"
        else:
            status = "the segment is smaller than the least area"
        note = "; ".join(part for part in (note, f"{parsed.action}, {status}") if part)
        if number is None and protocol == "paper":
            reason = f"{status}; the released code of ZONE ends here, and protocol 'fixed' goes on"
            return EditResult(request.id, None, reason, note)

        # Only "fixed" undoes step 0: crop the padding, scale back.
        if protocol == "fixed":
            note += "" if fine.any() else ": the picture as it was"
            height, width = request.image.shape[:2]
            frame = zone_frame(width, height, self.resolution)
            left, top = frame.corner
            result = result[top : top + frame.scaled[1], left : left + frame.scaled[0]].copy()
            if frame.scaled != (width, height):
                result = np.array(Image.fromarray(result).resize((width, height), Image.Resampling.BICUBIC))
        return EditResult(request.id, result, note=note)


# --- step 1: action of an instruction --------------------------------------------------------------------


class ActionClassifier(nn.Module):
    """States (..., width) -> logits (..., 3) over `ACTIONS`; layers and names of the released file."""

    def __init__(self, width: int, hidden: int = 128) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, len(ACTIONS))

    def forward(self, states: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(states)))


def load_classifier(reference: str) -> ActionClassifier:
    """Load the classifier: a folder, a .safetensors file, or the released .pth. Raises EditorError."""
    path = expand_user(reference)
    state, _ = read_checkpoint(path / "model.safetensors" if path.is_dir() else path)
    with explain_errors(reference):
        hidden, width = state["fc1.weight"].shape
        classifier = ActionClassifier(width, hidden)
        classifier.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    return classifier.eval().requires_grad_(False)


def decide_action(logits: Tensor, tokens: int, protocol: str) -> str:
    """Action of an instruction. logits: (T, 3); tokens: number of positions that are not padding. "fixed":
    the class with the largest logit at any real token. "paper": the class whose largest logit has the latest
    position of all T (the first of equal ones), since the released code uses the indices of torch.max
    instead of its values."""
    if protocol == "paper":
        # `argmax` does not return the first of equal positions on every device.
        positions = [int((column == column.max()).nonzero()[0]) for column in logits.T]  # of each action
        return ACTIONS[positions.index(max(positions))]
    return ACTIONS[int(logits[:tokens].amax(0).argmax())]


# --- steps 5 to 8: from attention to one segment ---------------------------------------------------------


def choose_rival(attention: Array, tokens: int, against: str) -> Array:
    """Attention map (h, w) that the first token's is compared with: the end mark's ("last"), or the sum over
    all words ("words"). attention: (h, w, T); its first `tokens` are the sentence with both end marks."""
    if against == "last" or tokens < 3:
        return attention[..., tokens - 1]
    return attention[..., 1 : tokens - 1].sum(-1)


def stretch(attention: Array, floor: str = "zero") -> Array:
    """(h, w) float >= 0 -> uint8, truncated. The maximum becomes 255; 0 stays 0, or with floor "least" the
    minimum becomes 0."""
    low = float(attention.min()) if floor == "least" else 0.0
    span = float(attention.max()) - low
    return (255 * ((attention - low) / span) if span > 0 else np.zeros_like(attention)).astype(np.uint8)


def subtract_maps(first: Array, rival: Array, floor: str = "zero") -> Array:
    """Stretched attention (h, w) to the first token minus that to its rival, cut at 0: (h, w) uint8."""
    difference = stretch(first, floor).astype(np.int16) - stretch(rival, floor).astype(np.int16)
    return np.clip(difference, 0, 255).astype(np.uint8)


def make_rough_mask(difference: Array, size: tuple[int, int], threshold: int) -> Array:
    """Rough mask (H, W) bool of the region to edit: pixels in which the first token does not dominate.
    difference: (h, w) uint8, enlarged to `size` (W, H) with PIL's bicubic on integers, and doubled with
    saturation; threshold: highest level inside the region."""
    enlarged = np.asarray(Image.fromarray(difference).resize(size, Image.Resampling.BICUBIC)).astype(np.int16)
    return np.minimum(enlarged * 2, 255) <= threshold


def drop_small(mask: Array, least: int, protocol: str) -> Array:
    """Mask without (4-connected) components of an area below `least`. "fixed": the area is the number of
    pixels, and the component is removed. "paper": the area is the number of pixels times the component's
    number in reading order, since the released code sums labels; its bounding box is cleared."""
    labels = ndimage.label(mask)[0]
    cleaned = mask.copy()
    for number, region in enumerate(ndimage.find_objects(labels), 1):
        component = labels[region] == number
        area = int(component.sum()) * (number if protocol == "paper" else 1)
        if area < least:
            cleaned[region] = False if protocol == "paper" else cleaned[region] & ~component
    return cleaned


class Segmenter:
    """Segments of an image by SAM (arXiv:2304.02643), queried at a grid of points. Always float32. Fixed
    settings are those of SamAutomaticMaskGenerator of github.com/facebookresearch/segment-anything: cut-off
    shift 1, boxes suppressed at an IoU of 0.7, no crops."""

    def __init__(self, checkpoint: str, device: torch.device, settings: Settings) -> None:
        source, revision = locate(checkpoint)
        with explain_errors(checkpoint):
            options: dict[str, Any] = {"use_safetensors": True, "dtype": torch.float32}
            model: Any = load_complete(SamModel, checkpoint, source, revision, **options)
            processor = SamImageProcessor.from_pretrained(source, revision=revision or "main")
            self.sha256 = content_hash({"sam": model})
            model.eval().requires_grad_(False)
            self._generate = MaskGenerationPipeline(model=model, image_processor=processor, device=device)
        self._settings = settings

    def __call__(self, image: Array) -> list[Array]:
        """Segments (H, W) bool of an image (H, W, 3) uint8, by falling confidence; may be none."""
        settings = self._settings
        points = {"points_per_crop": settings.points_per_side, "points_per_batch": 64}
        quality, stability = settings.segment_quality, settings.segment_stability
        limits = {"pred_iou_thresh": quality, "stability_score_thresh": stability}
        # Not `self._generate(image)`, whose data loader draws from the global generator. Its parameters are
        # those of preprocessing, of the model, and of postprocessing.
        result = self._generate.run_single(Image.fromarray(image), points, limits, {"crops_nms_thresh": 0.7})
        return [np.asarray(mask, dtype=bool) for mask in result["masks"]]


def best_segment(rough: Array, segments: Sequence[Array]) -> tuple[int | None, float]:
    """(index of the segment with the highest IoU with `rough`, that IoU); (None, 0.0) if none overlaps."""
    overlaps = [float((rough & segment).sum() / max((rough | segment).sum(), 1)) for segment in segments]
    if not any(overlaps):
        return None, 0.0
    best = int(np.argmax(overlaps))  # the first of equals
    return best, overlaps[best]


# --- steps 11 and 12: paste the layer with a smooth edge -------------------------------------------------


def find_smooth_edge(source: Array, edited: Array, dilated: Array, settings: Settings) -> Array:
    """Mask M of the edge smoother, (H, W) bool: low frequencies of edit and source differ in the dilated
    segment. "paper" weighs gray as if RGB were BGR, wraps values above 255, and centers the disk of
    frequencies at row W // 2 and column H // 2, since the released code swaps the two for OpenCV."""
    is_paper = settings.protocol == "paper"
    grays = []  # (H, W) float64, of the edit and of the source
    for image in (edited, source):
        inside = np.where(dilated[..., None], image, 0).astype(np.uint8)
        if is_paper:
            inside = inside[..., ::-1]  # RGB -> BGR
        grays.append(np.asarray(Image.fromarray(np.ascontiguousarray(inside)).convert("L"), np.float64))

    # Difference of the low frequencies, in gray levels
    height, width = dilated.shape
    row, column = (width // 2, height // 2) if is_paper else (height // 2, width // 2)
    y, x = np.ogrid[:height, :width]
    low_pass = (y - row) ** 2 + (x - column) ** 2 <= settings.smooth_radius**2
    spectrum_edited, spectrum_source = (np.fft.fftshift(np.fft.fft2(gray)) * low_pass for gray in grays)
    apart = np.abs(np.fft.ifft2(np.fft.ifftshift(spectrum_edited - spectrum_source))).astype(np.int64)
    apart = apart % 256 if is_paper else np.minimum(apart, 255)

    different = (apart > settings.smooth_threshold).astype(np.uint8)
    # Closing; pixels beyond the border neither grow nor shrink the mask.
    closing = settings.smooth_closing
    grown = ndimage.maximum_filter(different, size=closing, mode="constant", cval=0)
    closed = ndimage.minimum_filter(grown, size=closing, mode="constant", cval=1)
    return ndimage.binary_fill_holes(closed)


def blend_layer(
    source: Array, edited: Array, fine: Array, layer: Array, smooth: Array, settings: Settings
) -> Array:
    """Result (H, W, 3) uint8: the pasted layer, its edge mixed as alpha * edited + (1 - alpha) * source,
    truncated. fine: the segment; layer: of step 10; smooth: M of `find_smooth_edge`. "paper" pastes the edit
    on M and mixes wherever exactly one of M and the segment is true: it subtracts the masks as bytes, and
    0 - 255 wraps to 1; the layer is unused. "fixed" pastes the layer and mixes on the rest of M, which is the
    edge around the layer."""
    alpha = settings.edge_alpha
    mixed = (alpha * edited.astype(np.float64) + (1 - alpha) * source.astype(np.float64)).astype(np.uint8)
    is_paper = settings.protocol == "paper"
    pasted, edge = (smooth, smooth ^ fine) if is_paper else (layer, smooth & ~layer)
    return np.where(edge[..., None], mixed, np.where(pasted[..., None], edited, source))
