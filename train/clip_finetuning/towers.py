"""A two-tower model that learns: features, losses, learning rate, what moves, the folder that comes out.

What loads and what preprocesses is `metrics.dual`: training sees what evaluation will see.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from nein import metrics
from nein.loading.errors import UserError
from nein.metrics.dual.openclip import CONFIG, WEIGHTS, OpenClipDual, save_tokenizer
from nein.metrics.encoders import ClipEncoder, HubDual, pooled
from nein.metrics.preprocess import map_images, normalised
from nein.models import references
from nein.nano.scenes import is_nano
from nein.train import loop
from nein.train.clip_finetuning.data import Corpus
from nein.train.clip_finetuning.options import ContrastConfig
from nein.train.export import Facts, card, teach

#: Modules of the vision side, by their names in transformers and in open_clip.
VISION = ("vision_model.", "visual_projection.", "visual.")
MAX_SCALE = 100.0  # of CLIP (arXiv:2103.00020, section 2.5)

Tensors = dict[str, torch.Tensor]


class Tower(nn.Module):
    """One module for both kinds of batch, so that data-parallel training sees a single forward."""

    def __init__(self, dual: Any, reference: str) -> None:
        super().__init__()
        if not isinstance(dual, ClipEncoder | HubDual | OpenClipDual):
            raise UserError(
                f"'{reference}' cannot be fine-tuned; give a CLIP or SigLIP of transformers or open_clip."
            )
        self.reference = reference
        self.model, self.dual = dual.model, dual

    def learn(self, trainable: str) -> None:
        for name, parameter in self.model.named_parameters():
            frozen = trainable == "text" and name.startswith(VISION)
            # A sigmoid model's bias shifts all logits alike: the losses do not depend on it.
            parameter.requires_grad_(not frozen and not name.endswith("logit_bias"))

    def teach(self, words: Sequence[str]) -> None:
        """Words become tokens of their own. Raises UserError."""
        if not isinstance(self.dual, ClipEncoder):
            raise UserError("--words needs a CLIP of transformers; leave it out for this model.")
        tokenizer = self.dual.tokenizer._tokenizer
        teach(tokenizer, self.model.text_model, words)
        self.model.config.text_config.vocab_size = len(tokenizer)

    def groups(self, weight_decay: float) -> list[dict[str, object]]:
        """Parameters for AdamW: matrices with weight decay; gains, biases and the logit scale without."""
        moving = [p for p in self.parameters() if p.requires_grad]
        return [
            {"params": [p for p in moving if p.ndim >= 2], "weight_decay": weight_decay},
            {"params": [p for p in moving if p.ndim < 2], "weight_decay": 0.0},
        ]

    @torch.no_grad()
    def clamp(self) -> None:
        """Keeps the logit scale in [1, 100], as CLIP and open_clip do after every step."""
        self.model.logit_scale.clamp_(0, math.log(MAX_SCALE))

    def pixels(self, pictures: Sequence[np.ndarray]) -> Tensors:
        """(H, W, 3) uint8 pictures as the vision tower takes them, on the CPU."""
        dual = self.dual
        if isinstance(dual, ClipEncoder):
            crops = torch.from_numpy(np.stack(map_images(dual.preprocess, pictures)))
            return {"pixel_values": normalised(crops, dual.preprocess.mean, dual.preprocess.std)}
        if isinstance(dual, HubDual):
            inputs = dual.processor(
                images=list(pictures), return_tensors="pt", input_data_format="channels_last"
            )
            return {key: value for key, value in inputs.items() if isinstance(value, torch.Tensor)}
        from PIL import Image

        return {"image": torch.stack([dual.transform(Image.fromarray(picture)) for picture in pictures])}

    def tokens(self, texts: Sequence[str]) -> Tensors:
        """Sentences as the text tower takes them, on the CPU; cut at the model's limit."""
        dual = self.dual
        if isinstance(dual, OpenClipDual):
            return {"text": dual.tokenizer(list(texts))}
        inputs = dual.tokens(texts)
        wanted = ("input_ids", "attention_mask") if isinstance(dual, ClipEncoder) else inputs
        return {key: inputs[key].cpu() for key in wanted}

    def image(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """(B, D), not normalised. Inputs with a key `features` are features already."""
        if "features" in inputs:
            return inputs["features"]
        if isinstance(self.dual, OpenClipDual):
            return self.model.encode_image(inputs["image"])
        return pooled(self.model.get_image_features(**inputs))

    def text(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """(B, D), not normalised."""
        if isinstance(self.dual, OpenClipDual):
            return self.model.encode_text(inputs["text"])
        return pooled(self.model.get_text_features(**inputs))

    def forward(
        self,
        pictures: Tensors | None,
        captions: Tensors | None,
        asked: Tensors | None,
        options: Tensors | None,
    ) -> tuple[Any, ...]:
        """Features of the four inputs, None where there is none, and the logit scale, not its logarithm."""
        towers = ((self.image, pictures), (self.text, captions), (self.image, asked), (self.text, options))
        features = (None if inputs is None else tower(inputs) for tower, inputs in towers)
        return *features, self.model.logit_scale.exp()

    def save(self, folder: Path) -> None:
        """Writes the model into an existing folder, in the layout of its library."""
        if isinstance(self.dual, OpenClipDual):
            return self._save_open_clip(folder)
        from transformers import AutoImageProcessor, AutoTokenizer

        from nein.metrics.loading import from_pretrained, no_bar

        source = self.dual.source
        with no_bar(local=True):
            self.model.save_pretrained(folder, safe_serialization=True)
        clip = isinstance(self.dual, ClipEncoder)
        for part in [AutoImageProcessor] if clip else [AutoImageProcessor, AutoTokenizer]:
            from_pretrained(part, source.reference, revision=source.revision).save_pretrained(folder)
        if clip:
            self.dual.tokenizer._tokenizer.save_pretrained(folder)  # it may have learned words

    def _save_open_clip(self, folder: Path) -> None:
        import open_clip
        from safetensors.torch import save_file

        name = self.reference.removeprefix("open_clip:")
        source = Path(self.reference) if (Path(self.reference) / CONFIG).is_file() else None
        if source is not None:
            layout = json.loads((source / CONFIG).read_text(encoding="utf-8"))
        else:
            name = name if name.startswith("hf-hub:") else name.partition("/")[0]
            config = dict(open_clip.get_model_config(name))
            if any(type(module).__name__ == "QuickGELU" for module in self.model.modules()):
                config["quick_gelu"] = True
            preprocess: Any = getattr(self.model.visual, "preprocess_cfg", None) or {}
            known = is_dataclass(preprocess) and not isinstance(preprocess, type)
            preprocess = asdict(preprocess) if known else dict(preprocess)
            layout = {"model_cfg": config, "preprocess_cfg": preprocess}
        state = {k: v.detach().cpu().contiguous().clone() for k, v in self.model.state_dict().items()}
        save_file(state, folder / WEIGHTS)
        (folder / CONFIG).write_text(json.dumps(layout, indent=2) + "\n", encoding="utf-8")
        save_tokenizer(layout["model_cfg"], folder, source)


def load(reference: str, device: str = "cpu") -> Tower:
    where = reference if reference.startswith("open_clip:") else references.resolve(reference)
    dual = metrics.load_dual(where, device=device, dtype="float32", batch_size=64)
    return Tower(dual, where)


#: Options that a card states also where they have their defaults.
ALWAYS = ("alpha", "trainable", "batch_size", "questions_per_step", "learning_rate", "weight_decay")
NANO = (
    "Drawn scenes of 64x64 pixels are all it has learned: its figures are real measurements of a miniature "
    "model and not comparable with a paper's."
)


def describe(config: ContrastConfig, facts: Facts) -> str:
    data, alpha = facts["data"], config.alphas[0]
    words = [
        f"Started from `{facts['base']}` (weights {facts['base_weights_sha256'][:12]}). Trained with "
        f"NegBench's objective, {alpha:g} x contrastive loss over negated captions + {1 - alpha:g} x "
        "cross-entropy over multiple-choice options (Alhamoud et al., CVPR 2025).",
        f"{facts['steps']} steps of {config.batch_size} captions and {config.questions_per_step} questions, "
        f"from {data['rows_of_captions']} rows of captions ({data['captions']}) and "
        f"{data['number_of_questions']} questions ({data['questions']}), in {facts['seconds']} s on "
        f"{facts['processes']} process(es).",
        NANO if any(is_nano(data[key]) for key in ("captions", "questions")) else "",
        "Evaluate: `nein negbench eval --model FOLDER`.",
    ]
    tags = ["tags: [nein, negbench, clip, negation]"]
    return card(facts, tags, "A CLIP fine-tuned on negation", words, ContrastConfig().identity(), ALWAYS)


def gather(features: torch.Tensor) -> torch.Tensor:
    """(B, D) of this process -> (B x processes, D) of all, in order of rank. Every process's loss depends on
    it: its gradient is summed over them, and averaged afterwards, as data-parallel training does."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return features
    return torch.cat(all_gather(features.contiguous()))


def contrastive_loss(image: torch.Tensor, text: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Symmetric cross-entropy over cosine x `scale` of the pictures and captions of all processes (CLIP,
    arXiv:2103.00020), the mean over this process's rows.

    image, text  (B, D) of this process, normalised here; row i of one belongs to row i of the other.
    """
    image, text = F.normalize(image.float(), dim=-1), F.normalize(text.float(), dim=-1)
    all_images, all_texts = gather(image), gather(text)  # B, D => B x processes, D
    first = dist.get_rank() * len(image) if len(all_images) > len(image) else 0
    target = torch.arange(first, first + len(image), device=image.device)
    by_image = F.cross_entropy(scale * image @ all_texts.T, target)
    by_text = F.cross_entropy(scale * text @ all_images.T, target)
    return (by_image + by_text) / 2


def choice_loss(
    image: torch.Tensor,
    options: torch.Tensor,
    correct: torch.Tensor,
    scale: torch.Tensor,
    protocol: str = "fixed",
) -> torch.Tensor:
    """Cross-entropy over C options of each question. image (B, D), options (B, C, D), correct (B,) int64.

    "fixed" takes cosine x `scale` as logits, as the paper says. "paper" takes dot product x `scale`, since
    the released code calls encode_image and encode_text without `normalize=True` (process_mcq_batch in
    train.py of github.com/m1k2zoo/negbench @ 2ac009b).
    """
    image, options = image.float(), options.float()
    if protocol == "fixed":
        image, options = F.normalize(image, dim=-1), F.normalize(options, dim=-1)
    return F.cross_entropy(scale * torch.einsum("bd,bcd->bc", image, options), correct)  # logits: B, C


def steps(config: ContrastConfig, corpus: Corpus) -> int:
    """Steps of the run: `--steps`, or so many that the shorter file is passed `epochs` times.

                    protocol "paper"                            protocol "fixed"
    steps a pass    35 % (`--epoch-share`) of the batches of    that share of the rows of the shorter file,
                    the shorter loader that is in use           in batches
    rate falls      over all batches of the captions' file:     over the steps that are taken
    over            it ends at about three quarters of its
                    peak, after 35 % of a cosine
    warm-up         step k of N has (k + 1) / N of the peak     k / N
    next pass       goes on in the order of the last one        begins with a new order

    Source of "paper": main.py, scheduler.py and train.py of github.com/m1k2zoo/negbench @ 2ac009b.
    """
    if config.steps is not None:
        return int(config.steps)
    return max(1, round(float(config.epochs or 1) * _per_pass(config, corpus)))


def span(config: ContrastConfig, corpus: Corpus) -> int:
    """Steps over which the rate falls (see `steps`)."""
    taken = steps(config, corpus)
    if config.protocol == "fixed":
        return taken
    batches = len(corpus.captions.records) // config.batch_size
    return max(taken, round(taken / max(1, _per_pass(config, corpus)) * batches))


def make_schedule(config: ContrastConfig, optimizer: Any, corpus: Corpus) -> Any:
    """By paper it is open_clip's own."""
    if config.protocol == "fixed":
        return loop.make_schedule(config.schedule, config.warmup, optimizer, steps(config, corpus))
    warmup, whole = int(config.warmup), span(config, corpus)

    def share(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if config.schedule == "constant":
            return 1.0
        return (1 + math.cos(math.pi * (step - warmup) / max(1, whole - warmup))) / 2

    return LambdaLR(optimizer, share)


def _per_pass(config: ContrastConfig, corpus: Corpus) -> int:
    share, alpha = float(config.epoch_share), config.alphas[0]
    files = (
        (len(corpus.captions.records), config.batch_size),
        (len(corpus.questions.records), config.questions_per_step),
    )
    if config.protocol == "fixed":
        return min(int(rows * share) // size for rows, size in files)
    used = [
        rows // size for (rows, size), weight in zip(files, (alpha, 1 - alpha), strict=True) if weight > 0
    ]
    return int(min(used) * share)
