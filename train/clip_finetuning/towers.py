"""Wrap a CLIP-like model for training: forward pass and export, model card, losses, learning rate schedule.

A "dual" is such a model with its preprocessing, as evaluation loads it (`metrics.dual`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from nein import metrics
from nein.loading.errors import UserError
from nein.metrics.dual.openclip import CONFIG, WEIGHTS, OpenClipDual, save_tokenizer
from nein.metrics.encoders import ClipEncoder, HubDual, take_features
from nein.metrics.preprocess import map_images, normalize
from nein.models import references
from nein.nano.scenes import is_nano
from nein.train import loop
from nein.train.clip_finetuning.data import Corpus
from nein.train.clip_finetuning.options import ClipConfig
from nein.train.export import Facts, add_words, format_card

#: Modules of the vision side, by their names in transformers and in open_clip.
VISION = ("vision_model.", "visual_projection.", "visual.")
MAX_SCALE = 100.0  # largest logit scale (CLIP, arXiv:2103.00020, section 2.5)

Tensors = dict[str, Tensor]  # inputs of a tower by name, each (B, ...)
Inputs = Tensors | None  # None: the step has none


# --- model -----------------------------------------------------------------------------------------------
class TwoTowers(nn.Module):
    """A CLIP-like model as a module. `forward` takes all batches of a step, as DDP wraps no other method."""

    def __init__(self, dual: Any, reference: str) -> None:
        super().__init__()
        if not isinstance(dual, ClipEncoder | HubDual | OpenClipDual):
            raise UserError(
                f"'{reference}' cannot be trained; pass a CLIP or SigLIP of transformers or open_clip."
            )
        self.reference = reference
        self.model, self.dual = dual.model, dual

    def choose_weights(self, trainable: str) -> None:
        """Freeze the weights that `trainable` leaves out: "text" the vision tower, "all" none."""
        for name, parameter in self.model.named_parameters():
            is_frozen = trainable == "text" and name.startswith(VISION)
            # A sigmoid model's bias shifts all logits equally: the losses do not depend on it.
            parameter.requires_grad_(not is_frozen and not name.endswith("logit_bias"))

    def add_words(self, words: Sequence[str]) -> None:
        """Make each word a token. Raises UserError."""
        if not isinstance(self.dual, ClipEncoder):
            raise UserError("--words needs a CLIP of transformers; omit it for this model.")
        tokenizer = self.dual.tokenizer._tokenizer
        add_words(tokenizer, self.model.text_model, words)
        self.model.config.text_config.vocab_size = len(tokenizer)

    def parameter_groups(self, weight_decay: float) -> list[dict[str, object]]:
        """Parameters for AdamW: matrices with weight decay; gains, biases, logit scale without."""
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in trained if parameter.ndim >= 2]
        others = [parameter for parameter in trained if parameter.ndim < 2]
        return [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]

    @torch.no_grad()
    def clamp_scale(self) -> None:
        """Keep the logit scale in [1, 100], as CLIP and open_clip do after every step."""
        self.model.logit_scale.clamp_(0, math.log(MAX_SCALE))  # (), stored as its logarithm

    def preprocess(self, images: Sequence[np.ndarray]) -> Tensors:
        """Inputs of the vision tower for B images (H, W, 3) uint8, on the CPU."""
        dual = self.dual
        if isinstance(dual, ClipEncoder):
            crops = torch.from_numpy(np.stack(map_images(dual.preprocess, images)))  # (B, S, S, 3) uint8
            return {"pixel_values": normalize(crops, dual.preprocess.mean, dual.preprocess.std)}
        if isinstance(dual, HubDual):
            inputs = dual.processor(
                images=list(images), return_tensors="pt", input_data_format="channels_last"
            )
            return {key: value for key, value in inputs.items() if isinstance(value, Tensor)}
        from PIL import Image

        return {"image": torch.stack([dual.transform(Image.fromarray(image)) for image in images])}

    def tokenize(self, texts: Sequence[str]) -> Tensors:
        """Inputs of the text tower for B sentences, on the CPU; truncated at the model's limit."""
        dual = self.dual
        if isinstance(dual, OpenClipDual):
            return {"text": dual.tokenizer(list(texts))}
        inputs = dual.tokenize(texts)
        keys = ("input_ids", "attention_mask") if isinstance(dual, ClipEncoder) else inputs
        return {key: inputs[key].cpu() for key in keys}

    def encode_images(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Image features (B, D), not normalized; stored ones, under the key `features`, are returned."""
        if "features" in inputs:
            return inputs["features"]
        if isinstance(self.dual, OpenClipDual):
            return self.model.encode_image(inputs["image"])
        return take_features(self.model.get_image_features(**inputs))

    def encode_texts(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Text features (B, D), not normalized."""
        if isinstance(self.dual, OpenClipDual):
            return self.model.encode_text(inputs["text"])
        return take_features(self.model.get_text_features(**inputs))

    def forward(
        self, images: Inputs, captions: Inputs, question_images: Inputs, options: Inputs
    ) -> tuple[Any, ...]:
        """Features of the four inputs, each (rows, D) or None, and the logit scale (), not its logarithm."""
        return (
            None if images is None else self.encode_images(images),
            None if captions is None else self.encode_texts(captions),
            None if question_images is None else self.encode_images(question_images),
            None if options is None else self.encode_texts(options),
            self.model.logit_scale.exp(),
        )

    def save(self, folder: Path) -> None:
        """Write the model into an existing folder, in its library's layout."""
        if isinstance(self.dual, OpenClipDual):
            return self._save_open_clip(folder)
        from transformers import AutoImageProcessor, AutoTokenizer

        from nein.metrics.loading import hide_progress, load_pretrained

        source = self.dual.source
        with hide_progress(is_local=True):
            self.model.save_pretrained(folder, safe_serialization=True)
        loaders: list[Any] = [AutoImageProcessor]
        if isinstance(self.dual, ClipEncoder):
            self.dual.tokenizer._tokenizer.save_pretrained(folder)  # may have new words
        else:
            loaders.append(AutoTokenizer)
        for loader in loaders:
            load_pretrained(loader, source.reference, revision=source.revision).save_pretrained(folder)

    def _save_open_clip(self, folder: Path) -> None:
        """Write weights, configuration and tokenizer in open_clip's layout."""
        import open_clip
        from safetensors.torch import save_file

        source = Path(self.reference) if (Path(self.reference) / CONFIG).is_file() else None
        # Configuration: copied from a folder, or rebuilt for a model that open_clip downloaded.
        if source is not None:
            layout = json.loads((source / CONFIG).read_text(encoding="utf-8"))
        else:
            name = self.reference.removeprefix("open_clip:")  # NAME/TAG, or hf-hub:OWNER/NAME
            name = name if name.startswith("hf-hub:") else name.partition("/")[0]
            config = dict(open_clip.get_model_config(name))
            # Some weights of a name need this activation, which the name's configuration does not mention.
            if any(type(module).__name__ == "QuickGELU" for module in self.model.modules()):
                config["quick_gelu"] = True
            given: Any = getattr(self.model.visual, "preprocess_cfg", None) or {}  # dict or dataclass
            preprocess = dict(given) if isinstance(given, Mapping) else asdict(given)
            layout = {"model_cfg": config, "preprocess_cfg": preprocess}
        state = self.model.state_dict()
        # Cloned: safetensors refuses tensors that share memory.
        tensors = {key: value.detach().cpu().contiguous().clone() for key, value in state.items()}
        save_file(tensors, folder / WEIGHTS)
        (folder / CONFIG).write_text(json.dumps(layout, indent=2) + "\n", encoding="utf-8")
        save_tokenizer(layout["model_cfg"], folder, source)


def load(reference: str, device: str = "cpu") -> TwoTowers:
    """The model of a reference, in float32. Raises UserError if it cannot be trained."""
    resolved = reference if reference.startswith("open_clip:") else references.resolve(reference)
    dual = metrics.load_dual(resolved, device=device, dtype="float32", batch_size=64)
    return TwoTowers(dual, resolved)


# --- model card ------------------------------------------------------------------------------------------
def write_card(config: ClipConfig, facts: Facts) -> str:
    """Model card in Markdown."""
    data, alpha = facts["data"], config.alphas[0]
    paragraphs = [
        f"Started from `{facts['base']}` (weights {facts['base_weights_sha256'][:12]}). Trained with "
        f"NegBench's objective, {alpha:g} x contrastive loss over negated captions + {1 - alpha:g} x "
        "cross-entropy over multiple-choice options (Alhamoud et al., CVPR 2025).",
        f"{facts['steps']} steps of {config.batch_size} captions and {config.questions_per_step} questions, "
        f"from {data['rows_of_captions']} rows of captions ({data['captions']}) and "
        f"{data['number_of_questions']} questions ({data['questions']}), in {facts['seconds']} s on "
        f"{facts['processes']} process(es).",
    ]
    if is_nano(data["captions"]) or is_nano(data["questions"]):
        paragraphs.append(
            "It was trained on drawn scenes of 64x64 pixels only: its scores are measured, but not "
            "comparable with a paper's."
        )
    paragraphs.append("Evaluate: `nein negbench eval --model FOLDER`.")
    head, title = ["tags: [nein, negbench, clip, negation]"], "A CLIP fine-tuned on negation"
    return format_card(facts, ClipConfig(), head=head, title=title, paragraphs=paragraphs)


# --- losses ----------------------------------------------------------------------------------------------
def gather(features: Tensor) -> Tensor:
    """Features of all processes in order of rank: (B, D) -> (processes * B, D). Every loss depends on all of
    them: their gradients are summed here, and averaged by data-parallel training."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return features
    return torch.cat(all_gather(features.contiguous()))


def contrastive_loss(image: Tensor, text: Tensor, scale: Tensor) -> Tensor:
    """CLIP's loss (arXiv:2103.00020), () float32: symmetric cross-entropy over `scale` x cosine of the images
    and captions of all processes, mean over this process's rows.

    image, text  (B, D) of this process, not normalized; row i of one belongs to row i of the other.
    """
    image, text = F.normalize(image.float(), dim=-1), F.normalize(text.float(), dim=-1)
    all_images, all_texts = gather(image), gather(text)  # (B, D) => (processes * B, D)
    # Rows of this process in the gathered batch.
    first = dist.get_rank() * len(image) if len(all_images) > len(image) else 0
    target = torch.arange(first, first + len(image), device=image.device)
    by_image = F.cross_entropy(scale * image @ all_texts.T, target)  # logits: (B, processes * B)
    by_text = F.cross_entropy(scale * text @ all_images.T, target)
    return (by_image + by_text) / 2


def choice_loss(
    image: Tensor, options: Tensor, correct: Tensor, scale: Tensor, protocol: str = "fixed"
) -> Tensor:
    """Mean cross-entropy over the C options of a question: () float32.

    image (B, D), options (B, C, D), correct (B,) int64. Logits are `scale` times the cosine under "fixed", as
    in the paper, and times the dot product under "paper": the released code does not normalize
    (process_mcq_batch in train.py of github.com/m1k2zoo/negbench @ 2ac009b).
    """
    image, options = image.float(), options.float()
    if protocol == "fixed":
        image, options = F.normalize(image, dim=-1), F.normalize(options, dim=-1)
    return F.cross_entropy(scale * torch.einsum("bd,bcd->bc", image, options), correct)  # logits: (B, C)


# --- number of steps and learning rate schedule ----------------------------------------------------------
def count_steps(config: ClipConfig, corpus: Corpus) -> int:
    """Steps of the run: `--steps`, or `--epochs` times the steps of an epoch.

                    protocol "paper"                            protocol "fixed"
    steps per       35 % (`--epoch-share`) of the batches of    that fraction of the rows of the shorter file,
    epoch           the shorter file in use                     in batches
    rate decays     over all batches of the captions file:      over the steps of the run
    over            it ends at about three quarters of its
                    peak, after 35 % of a cosine
    warm-up         step k of N has (k + 1) / N of the peak     k / N
    next epoch      continues the order of the last one         begins with a new order

    Source of "paper": main.py, scheduler.py and train.py of github.com/m1k2zoo/negbench @ 2ac009b.
    """
    if config.steps is not None:
        return int(config.steps)
    return max(1, round(float(config.epochs or 1) * _count_epoch_steps(config, corpus)))


def count_decay_steps(config: ClipConfig, corpus: Corpus) -> int:
    """Steps over which the learning rate decays (see `count_steps`)."""
    steps = count_steps(config, corpus)
    if config.protocol == "fixed":
        return steps
    batches = len(corpus.captions.records) // config.batch_size
    return max(steps, round(steps / max(1, _count_epoch_steps(config, corpus)) * batches))


def make_schedule(config: ClipConfig, optimizer: Any, corpus: Corpus) -> Any:
    """Learning rate schedule: "fixed" that of diffusers, "paper" open_clip's (see `count_steps`)."""
    warmup, steps = int(config.warmup), count_decay_steps(config, corpus)
    if config.protocol == "fixed":
        return loop.make_schedule(config.schedule, warmup, optimizer, steps)

    def factor(step: int) -> float:
        """Learning rate of a step as a fraction of the peak."""
        if step < warmup:
            return (step + 1) / warmup
        if config.schedule == "constant":
            return 1.0
        return (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))) / 2

    return LambdaLR(optimizer, factor)


def _count_epoch_steps(config: ClipConfig, corpus: Corpus) -> int:
    fraction, alpha = float(config.epoch_share), config.alphas[0]
    captions, questions = len(corpus.captions.records), len(corpus.questions.records)
    if config.protocol == "fixed":
        by_captions = int(captions * fraction) // config.batch_size
        return min(by_captions, int(questions * fraction) // config.questions_per_step)
    batches = []  # number of batches of each file in use
    if alpha > 0:
        batches.append(captions // config.batch_size)
    if alpha < 1:
        batches.append(questions // config.questions_per_step)
    return int(min(batches) * fraction)
