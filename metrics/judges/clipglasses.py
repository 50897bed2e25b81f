"""CLIPGlasses: what a caption denies, read from CLIP's text encoder: its likeness to a picture taken off.

Source: "Not Just What's There: Enabling CLIP to Comprehend Negated Visual Descriptions Without Fine-tuning"
(AAAI 2026), github.com/Codecode-X/CLIPGlasses (MIT), exp/exp5_glasses/{Lens,Frame,NegDetector,Glasses}.py and
exp/get_model.py at 0eac676. The authors give out the code; no weights were public on 22 November 2026.

A detector says whether a caption h denies something. If it does, the lens reads from h, and from the state at
its end after each of the first three layers, what is denied, n; the frame looks at caption and picture i and
says by how much that repels, r:

    score(i, h) = s cos(i, h) - max(0, r s cos(i, n))        s = exp(CLIP's logit scale)

Pictures are cropped as CLIP's and brought to [0, 1], and not standardised by CLIP's mean and deviation: the
heads learned from such features. In the lens two sigmoids follow each other. Both belong to the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from nein.loading.errors import choose
from nein.metrics.base import MetricError
from nein.metrics.encoders.clip import ClipEncoder, pooled
from nein.metrics.judges.heads import Method
from nein.metrics.loading import state_dict

#: Of the released configuration: layers that the lens reads, heads of attention, the detector's threshold,
#: the factor of the repulsion, and captions in a batch.
LAYERS, HEADS, GATE_HEADS, DEPTH, THRESHOLD, FACTOR, BATCH = 3, 8, 4, 3, 0.5, 1.0, 64
PROTOCOLS = ("fixed", "paper")


def _projection(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width, bias=False), nn.GELU(), nn.LayerNorm(width))


class Lens(nn.Module):
    """What a caption denies. width: of CLIP's features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.res_gate = nn.Sequential(nn.Linear(width, 1), nn.Sigmoid())
        self.syntax_proj = nn.ModuleList(_projection(width) for _ in range(LAYERS))
        self.semantic_k_proj = _projection(width)
        self.semantic_v_proj = nn.ModuleList(_projection(width) for _ in range(LAYERS))
        self.attention_log_scale = nn.Parameter(torch.zeros(LAYERS))
        self.ffn = nn.Sequential(
            nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.GELU(), nn.Dropout(0.1),
            nn.Linear(2 * width, width), nn.LayerNorm(width),
        )  # fmt: skip

    def forward(self, captions: torch.Tensor, states: torch.Tensor, together: bool) -> torch.Tensor:
        """(N, D) features and (N, 3, D) states -> (N, D).

        together  As released, a softmax over all N captions weighs each reading; else 1 / BATCH, its mean.
        """
        keys = self.semantic_k_proj(captions)
        denied = torch.zeros_like(captions)
        for k in range(LAYERS):
            weight: Any = 1 / BATCH
            if together:
                likeness = (self.syntax_proj[k](states[:, k]) * keys).sum(-1, keepdim=True)
                scaled = likeness / math.sqrt(captions.shape[-1]) * self.attention_log_scale[k]
                weight = scaled.softmax(0)
            denied = denied + weight * self.semantic_v_proj[k](captions)
        gate = self.res_gate(denied).sigmoid()
        return self.ffn(gate * denied + (1 - gate) * captions)


class Frame(nn.Module):
    """By how much what is denied repels a picture. hidden: of the transformer's layers."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.logit_scale: torch.Tensor
        self.register_buffer("logit_scale", torch.zeros(()))
        layer = nn.TransformerEncoderLayer(
            width, HEADS, hidden, dropout=0.3, activation="gelu", batch_first=True, layer_norm_eps=1e-6
        )
        self.cross_transformer = nn.TransformerEncoder(layer, DEPTH)
        self.lambda_generator = nn.ModuleDict(
            {
                "cross_attn": nn.MultiheadAttention(width, GATE_HEADS, dropout=0.2, batch_first=True),
                "gate_controller": nn.Sequential(nn.Linear(2 * width, 1), nn.Sigmoid()),
            }
        )
        self.alpha = nn.Parameter(torch.zeros(1))

    def forward(
        self, images: torch.Tensor, captions: torch.Tensor, denied: torch.Tensor, denies: torch.Tensor
    ) -> torch.Tensor:
        """(N, D) three times and (N,) bool -> (N,), pair by pair."""
        image, caption = F.normalize(images, dim=-1), F.normalize(captions, dim=-1)
        negative = F.normalize(denied, dim=-1) + 1e-8
        mixed = self.cross_transformer(torch.stack([caption, image], 1))
        looking = self.alpha * caption + mixed[:, 0]
        seen, _ = self.lambda_generator["cross_attn"](looking[:, None], negative[:, None], negative[:, None])
        repulsion = self.lambda_generator["gate_controller"](torch.cat([looking, seen[:, 0]], -1))[:, 0]
        scale = self.logit_scale.exp()
        plain = scale * (caption * image).sum(-1)
        taken = F.gelu(FACTOR * repulsion) * scale * (negative * image).sum(-1)
        return torch.where(denies, plain - taken.clamp(min=0), plain)


class Heads(nn.Module):
    """Lens, frame, and the detector of captions that deny something, under the released names."""

    def __init__(self, width: int, hidden: int, detector: int) -> None:
        super().__init__()
        self.lens, self.frame = Lens(width), Frame(width, hidden)
        classifier = nn.Sequential(
            nn.Linear(width, detector), nn.LayerNorm(detector), nn.GELU(), nn.Dropout(0.2),
            nn.Linear(detector, 1),
        )  # fmt: skip
        self.negDetector = nn.ModuleDict({"classifier": classifier})

    def forward(
        self, images: torch.Tensor, captions: torch.Tensor, states: torch.Tensor, together: bool
    ) -> torch.Tensor:
        """(N, D), (N, D) and (N, 3, D) -> (N,) scores, pair by pair."""
        denies = self.negDetector["classifier"](captions)[:, 0].sigmoid() > THRESHOLD
        return self.frame(images, captions, self.lens(captions, states, together), denies)


class ClipGlasses(Method):
    """protocol  "fixed": a score depends on its picture and caption alone. "paper": as released, the captions
    of up
              to 64 pictures at one place of their lists weigh upon each other (`Lens`). (On GPUs the released
              code compares in float16, which is not done here.)"""

    BASE = "openai/clip-vit-base-patch32"

    def __init__(self, base: ClipEncoder, head: nn.Module, config: Mapping[str, Any], digest: str) -> None:
        choose("protocol", config.get("protocol", "fixed"), PROTOCOLS)
        super().__init__(base, head, {"protocol": "fixed", **config}, digest)

    @classmethod
    def read(cls, file: Path, base: ClipEncoder) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        tensors = state_dict(file)
        scale, own = tensors.get("frame.logit_scale"), base.model.logit_scale
        if scale is not None and not torch.allclose(scale.float().cpu(), own.float().cpu(), atol=1e-3):
            raise MetricError(
                f"'{file}' was made over a CLIP with the logit scale {float(scale):.4f}, not one with "
                f"{float(own):.4f}; name that CLIP with --base."
            )
        return tensors, {}

    @classmethod
    def build(cls, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
        width = len(tensors["lens.semantic_k_proj.0.weight"])
        hidden = len(tensors["frame.cross_transformer.layers.0.linear1.weight"])
        return Heads(width, hidden, len(tensors["negDetector.classifier.0.weight"]))

    def scores(self, pixels: torch.Tensor, texts: Sequence[Sequence[str]]) -> list[torch.Tensor]:
        model = self.base.model
        unit = pixels.permute(0, 3, 1, 2).to(model.dtype) / 255
        images = pooled(model.get_image_features(pixel_values=unit)).float()
        captions = {text: self._read(text) for text in dict.fromkeys(text for row in texts for text in row)}
        together = self.config["protocol"] == "paper"
        rows: list[list[torch.Tensor]] = [[] for _ in texts]
        for start in range(0, len(texts), BATCH):
            part = range(start, min(start + BATCH, len(texts)))
            for place in range(max((len(texts[i]) for i in part), default=0)):
                asked = [i for i in part if place < len(texts[i])]
                read = [captions[texts[i][place]] for i in asked]
                features, states = (torch.stack(each) for each in zip(*read, strict=True))
                for i, score in zip(asked, self.head(images[asked], features, states, together), strict=True):
                    rows[i].append(score)
        return [torch.stack(row) if row else torch.zeros(0) for row in rows]

    def _read(self, text: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The (D,) feature of a caption, and the (3, D) states at its end after the first layers, projected.
        One at a time, so that no padding can change one."""
        model = self.base.model
        tokens = self.base.tokens([text])
        output = model.text_model(
            input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"], output_hidden_states=True
        )
        layers = torch.stack(output.hidden_states[1 : LAYERS + 1])[:, 0, -1]  # the sentence ends with its end
        states = model.text_projection(model.text_model.final_layer_norm(layers))
        return model.text_projection(output.pooler_output)[0].float(), states.float()
