"""Encoders of transformers and of image metrics: CLIP and other two-tower models, DINO's ViT, clean-fid's
Inception, LPIPS, sentence transformers.

Axes: N images or sentences, S x S pixels, L tokens, T image tokens, D features.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from nein.loading.digests import DTYPES, Json, file_sha256, folder_digest, tensor_digest, torch_dtype
from nein.loading.errors import choose, first_line
from nein.loading.references import Need, parse_reference
from nein.loading.weights import check_tokenizer
from nein.metrics import loading
from nein.metrics.base import Described, Images, MetricError, check_image, group_by, split_chunks
from nein.metrics.preprocess import CleanResize, ResizeCrop, map_images, normalize


class TwoTowers(Described):
    """A model with an encoder of images and one of sentences: see `metrics.dual`."""

    model: Any
    batch_size: int

    def measure(self) -> None:
        """Sets what follows from the model, at the end of `__init__`."""
        with loading.exact():
            self.width = self.text_features(["."]).shape[1]
        self.scale = _read_scale(self.model)
        bias = getattr(self.model, "logit_bias", None)
        self.bias = 0.0 if bias is None else float(bias)
        self.quick_gelu = _has_quick_gelu(self.model)

    def text_features(self, texts: Sequence[str]) -> torch.Tensor:
        """(N, width) of sentences in one pass, on the device and in the model's dtype."""
        raise NotImplementedError

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        """Sentences, cut at the model's limit -> (N, width) float32, not normalised."""
        return join_features(map(self.text_features, split_chunks(texts, self.batch_size)), self.width)


def _has_quick_gelu(model: Any) -> bool:
    return any(type(layer).__name__.startswith("QuickGELU") for layer in model.modules())


def _read_scale(model: Any) -> float:
    """The factor of the cosine in a model's own score: exp(logit_scale) of CLIP and SigLIP, 1 / temperature
    of ALIGN and TIPSv2, 1 of any other."""
    if hasattr(model, "logit_scale"):
        return float(model.logit_scale.detach().exp())
    return 1.0 / float(getattr(model, "temperature", 1.0))


#: Sentences are padded to the full length, without a mask, and in lower case: SigLIP and SigLIP 2 saw no
#: other kind, and not every tokenizer sees to it. Sources: transformers, docs/model_doc/siglip2 (padded to 64
#: tokens) and its Siglip2Tokenizer ("training default: lowercase normalization").
FULL_LENGTH = ("siglip", "siglip2")


class HubTowers(TwoTowers):
    """A model of transformers, whose sentences a tokenizer reads."""

    def set_tokenizer(self, tokenizer: Any) -> None:
        self.tokenizer, config = loading.SharedTokenizer(tokenizer), self.model.config
        self.full = config.model_type in FULL_LENGTH
        accepted = {*inspect.signature(self.model.get_text_features).parameters}
        self._names = accepted - ({"attention_mask"} if self.full else set())
        self.limit = int(config.text_config.max_position_embeddings)
        self.measure()

    def overlong(self, texts: Sequence[str]) -> list[bool]:
        """(N,) whether a sentence is longer than the `limit` tokens that the model reads."""
        return [len(ids) > self.limit for ids in self.tokenizer(list(texts), verbose=False)["input_ids"]]

    def tokens(self, texts: Sequence[str], **changes: Any) -> dict[str, torch.Tensor]:
        """Ids, and what else the text tower takes, cut at the model's limit."""
        how = {"padding": "max_length" if self.full else True, "truncation": True, "max_length": self.limit}
        read = [text.lower() for text in texts] if self.full else list(texts)
        tokens = self.tokenizer(read, return_tensors="pt", **{**how, **changes})  # N L each
        return {key: tokens[key] for key in tokens if key in self._names}

    def text_features(self, texts: Sequence[str]) -> torch.Tensor:
        inputs = loading.move_inputs(self.model, self.tokens(texts))
        return take_features(self.model.get_text_features(**inputs))  # N L -> N D


class PixelEncoder(Described):
    """Features of images behind one of our transforms. batch_size: images per forward pass."""

    model: Any
    width: int
    preprocess: ResizeCrop | CleanResize
    batch_size: int

    def encode(self, images: Images) -> np.ndarray:
        """N images, (H, W, 3) uint8 -> (N, width) float32, not normalised."""
        device, crops = next(self.model.parameters()).device, map_images(self.preprocess, images)
        parts = (torch.from_numpy(np.stack(part)).to(device) for part in split_chunks(crops, self.batch_size))
        return join_features(map(self.features, parts), self.width)  # N S S 3 -> N D

    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        """(N, S, S, 3), 0 to 255 -> (N, width)."""
        raise NotImplementedError


class ClipEncoder(PixelEncoder, HubTowers):
    """A `transformers.CLIPModel` behind the transform that OpenAI published for it.

    The checkpoint's own image processor gives its numbers only: its crop can sit one pixel off.
    """

    preprocess: ResizeCrop

    def __init__(self, model: Any, source: loading.Source, batch_size: int) -> None:
        from transformers import AutoImageProcessor, AutoTokenizer

        self.model, self.source, self.batch_size = model, source, batch_size
        size, *numbers = _read_numbers(
            source.load_part(AutoImageProcessor), model.config.vision_config.image_size
        )
        self.preprocess = ResizeCrop(size, size, *numbers)
        self.set_tokenizer(source.load_part(AutoTokenizer))

    def describe(self) -> Json:
        return {
            **loading.model_fields("clip", self.model, self.source),
            "preprocess": self.preprocess.name,
            "text": f"truncated at {self.limit} tokens",
        }

    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        x = normalize(pixels, self.preprocess.mean, self.preprocess.std).to(self.model.dtype)  # N 3 S S
        return take_features(self.model.get_image_features(pixel_values=x))  # N D


def take_features(features: Any) -> torch.Tensor:
    """The (N, D) features: transformers 5 wraps them in an object whose `pooler_output` is the projection."""
    return features if isinstance(features, torch.Tensor) else features.pooler_output


def join_features(features: Iterable[torch.Tensor], width: int) -> np.ndarray:
    """Computes the parts, (n, width) each, and joins them to one (N, width) float32 on the CPU."""
    with loading.exact():
        parts = [torch.empty(0, width), *(part.to("cpu", torch.float32) for part in features)]
    return torch.cat(parts).numpy()


def _read_numbers(processor: Any, fallback: int) -> tuple[int, Any, Any]:
    """(size, mean, std) from a checkpoint's image processor, whichever way it spells the size."""
    size = getattr(processor, "crop_size", None) or getattr(processor, "size", None) or {}
    side = size if isinstance(size, int) else size.get("height", size.get("shortest_edge"))
    return int(side or fallback), tuple(processor.image_mean), tuple(processor.image_std)


def load_clip(path_or_id: str, *, batch_size: int = 32, **how: Any) -> ClipEncoder:
    """Load a CLIP; how: `device` and `dtype`, as `loading.load_model` takes them."""
    from transformers import CLIPModel

    model, source = loading.load_model(CLIPModel, path_or_id, "clip", **how)
    return ClipEncoder(model, source, batch_size)


class HubDual(HubTowers):
    """Any other model than CLIP, behind its own image processor and tokenizer."""

    def __init__(
        self, model: Any, processor: Any, tokenizer: Any, source: loading.Source, batch_size: int = 32
    ) -> None:
        self.model, self.processor, self.source, self.batch_size = model, processor, source, batch_size
        self.set_tokenizer(tokenizer)

    def describe(self) -> Json:
        padding, case = ("max_length", ", lower case") if self.full else (True, "")
        return {
            **loading.model_fields("dual", self.model, self.source),
            "preprocess": f"{type(self.processor).__name__}, {loading.library()}",
            "text": f"padding {padding}, at most {self.limit} tokens{case}",
        }

    def encode(self, images: Images) -> np.ndarray:
        checked = [check_image(image) for image in images]
        return join_features(map(self._features, split_chunks(checked, self.batch_size)), self.width)

    def _features(self, images: list[np.ndarray]) -> torch.Tensor:
        inputs = self.processor(images=images, return_tensors="pt", input_data_format="channels_last")
        inputs = loading.move_inputs(self.model, inputs)  # pixel_values: N 3 S S; of SigLIP 2 patches
        return take_features(self.model.get_image_features(**inputs))  # N D


def load_towers(path_or_id: str, *, batch_size: int = 32, **how: Any) -> TwoTowers:
    """Load any class of transformers with `get_image_features` and `get_text_features` (CLIP, SigLIP, ALIGN,
    TIPSv2). Raises MetricError for any other."""
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    if loading.read_model_type(path_or_id) == "clip":
        return load_clip(path_or_id, batch_size=batch_size, **how)
    model, source = loading.load_model(AutoModel, path_or_id, **how)
    needed = ("get_image_features", "get_text_features")
    if missing := [part for part in needed if not hasattr(model, part)]:
        raise MetricError(
            f"'{path_or_id}' is a '{model.config.model_type}' checkpoint, which has no {missing[0]}; "
            "give a two-tower model such as CLIP or SigLIP."
        )
    processor, tokenizer = (
        source.load_part(AutoImageProcessor, backend="pil"),
        source.load_part(AutoTokenizer),
    )
    return HubDual(model, processor, tokenizer, source, batch_size)


class ViTEncoder(PixelEncoder):
    """The class token of a `transformers.ViTModel` after its last LayerNorm.

    kind  "dino": behind the transform of facebookresearch/dino (hubconf.py, eval_knn.py): Resize 256, centre
          crop 224, or their ratio. "fid": behind clean-fid's resize; not comparable with published FID.
    """

    def __init__(self, kind: str, model: Any, source: loading.Source, batch_size: int) -> None:
        from transformers import AutoImageProcessor

        self.kind, self.model, self.source, self.batch_size = kind, model, source, batch_size
        self.width, size = model.config.hidden_size, int(model.config.image_size)
        _, self.mean, self.std = _read_numbers(source.load_part(AutoImageProcessor), 224)
        crop = ResizeCrop(round(size * 256 / 224), size, self.mean, self.std)
        self.preprocess = crop if kind == "dino" else CleanResize(size)

    def describe(self) -> Json:
        name = self.preprocess.name
        return {
            **loading.model_fields(self.kind, self.model, self.source),
            "preprocess": name if self.kind == "dino" else f"{name}/mean-{self.mean}/std-{self.std}",
            "feature": "class token of last_hidden_state",
        }

    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        x = normalize(pixels, self.mean, self.std).to(self.model.dtype)  # N 3 S S
        return self.model(pixel_values=x).last_hidden_state[:, 0]  # N T D => N D


def load_vit(path_or_id: str, *, batch_size: int = 32, kind: str = "dino", **how: Any) -> ViTEncoder:
    from transformers import ViTModel

    model, source = loading.load_model(ViTModel, path_or_id, "vit", add_pooling_layer=False, **how)
    return ViTEncoder(kind, model, source, batch_size)


INCEPTION_FILE = "inception-2015-12-05.pt"
#: The file is TorchScript, that is a program, and clean-fid downloads and runs it unchecked. The digest is
#: the one k-diffusion checks against for the same address (crowsonkb/k-diffusion, k_diffusion/evaluation.py).
INCEPTION_SHA256 = "f58cb9b6ec323ed63459aa4fb441fe750cfe39fafad6da5cb504a16f19e958f4"


class InceptionEncoder(PixelEncoder):
    """Clean-FID's Inception (mode "clean", inception_v3; github.com/GaParmar/clean-fid) on its resize."""

    def __init__(self, model: Any, source: loading.Source, batch_size: int = 32) -> None:
        self.model, self.source, self.batch_size = model, source, batch_size
        self.preprocess, self.width = CleanResize(299), 2048

    def describe(self) -> Json:
        return {
            **loading.model_fields("fid", self.model, self.source),
            "class": "cleanfid.InceptionV3W",
            "preprocess": self.preprocess.name,
            "feature": "pool3, 2048",
        }

    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model(pixels.permute(0, 3, 1, 2).contiguous())  # N 3 299 299 -> N 2048


def load_fid(
    path_or_id: str, *, device: str, dtype: str, batch_size: int = 32
) -> InceptionEncoder | ViTEncoder:
    """clean-fid's network by "inception" (torch's cache, downloaded there if need be) or by its file;
    a ViT by folder or hub id. A file that is not the published one is not run. Raises MetricError."""
    path = Path(path_or_id)
    if path_or_id != "inception" and not path.is_file():
        return load_vit(path_or_id, device=device, dtype=dtype, batch_size=batch_size, kind="fid")
    from cleanfid.downloads_helper import inception_url
    from cleanfid.inception_torchscript import InceptionV3W

    if dtype != "float32":
        raise MetricError(f"The Inception network runs in float32 only, not '{dtype}'.")
    if not path.is_file():
        path = Path(torch.hub.get_dir(), "checkpoints", INCEPTION_FILE)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if not path.is_file():
                torch.hub.download_url_to_file(inception_url, str(path), hash_prefix=INCEPTION_SHA256)
        except (OSError, RuntimeError) as error:
            raise MetricError(
                f"The Inception network of FID could not be fetched from {inception_url} ({error}); "
                f"put the file at '{path}', or leave out the metric 'fid'."
            ) from error
    digest = file_sha256(path)
    if digest != INCEPTION_SHA256 or path.name != INCEPTION_FILE:
        raise MetricError(
            f"'{path}' is not the published Inception network ({INCEPTION_FILE}, SHA-256 "
            f"{INCEPTION_SHA256[:12]}..., not {digest[:12]}...); delete it and run again."
        )
    model = InceptionV3W(str(path.parent), download=False, resize_inside=False).to(device).eval()
    return InceptionEncoder(model, loading.Source("inception", "2015-12-05", digest), batch_size)


def fid_origins(path_or_id: str) -> list[Need] | None:
    """clean-fid's network; None for a ViT."""
    if path_or_id != "inception":
        return None
    from cleanfid.downloads_helper import inception_url

    return [Need(inception_url, INCEPTION_SHA256, "url")]


NETS = ("alex", "vgg", "squeeze")


class LpipsNetwork(Described):
    """An `lpips.LPIPS` module (arXiv:1801.03924), part by part; `distances` equals `module(a, b)` on images
    in [-1, 1], but the trunk sees a shared target once."""

    def __init__(self, module: Any, source: loading.Source, batch_size: int = 16) -> None:
        self.module, self.source, self.batch_size = module, source, batch_size
        self._parameter = next(module.parameters())

    def describe(self) -> Json:
        return {
            **loading.model_fields("lpips", self.module, self.source),
            "class": "lpips.LPIPS",
            "net": self.module.pnet_type,
            "linear_layers": bool(self.module.lpips),
            "version": self.module.version,
            "preprocess": "pixels / 127.5 - 1, at the target's size",
        }

    def distances(self, images: Images, targets: Images) -> np.ndarray:
        """(N,) float64, >= 0, from every image to its target of the same size."""
        for image, target in zip(images, targets, strict=True):
            if image.shape != target.shape:
                raise MetricError(f"LPIPS needs equal sizes, not {image.shape} and {target.shape}.")
        first = {id(target): row for row, target in reversed([*enumerate(targets)])}
        rows = sorted(range(len(images)), key=lambda row: first[id(targets[row])])  # by target
        result = np.full(len(images), np.nan)
        with loading.exact():
            for chunk in group_by(rows, lambda row: images[row].shape, self.batch_size):
                owned = list(dict.fromkeys(first[id(targets[row])] for row in chunk))
                owners = [owned.index(first[id(targets[row])]) for row in chunk]
                stacked = [
                    *(targets[row] for row in owned),
                    *(images[row] for row in chunk),
                ]  # (H, W, 3) each
                pixels = np.stack(stacked)
                result[chunk] = self._compare(torch.from_numpy(pixels), owners)
        return result

    def _compare(self, pixels: torch.Tensor, owners: list[int]) -> np.ndarray:
        """(len(owners),) float64: distances of the last images to the first, their targets, by `owners`."""
        import lpips

        count = len(pixels) - len(owners)  # of targets
        x = pixels.to(self._parameter.device).permute(0, 3, 1, 2)  # N H W 3 -> N 3 H W
        x = self.module.scaling_layer(x.to(self._parameter.dtype) / 127.5 - 1)
        total: Any = 0
        for level, features in enumerate(self.module.net(x)):
            unit = lpips.normalize_tensor(features)  # N C h w, of length 1 along C
            squared = (unit[count:] - unit[:count][owners]) ** 2  # (len(owners), C, h, w)
            weighted = self.module.lins[level](squared) if self.module.lpips else squared
            total = total + weighted.sum(1).mean((1, 2)).double()  # (len(owners),)
        return total.cpu().numpy()


def build_lpips(net: str, *, pretrained: bool, linear: bool = True) -> Any:
    """`pretrained` takes trunk and linear layers from their packages."""
    import lpips

    # Weights are drawn before they are loaded; nobody else's random numbers should change by that.
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        # lpips 0.1.4 still calls torchvision with the argument it had before 0.13.
        warnings.filterwarnings("ignore", message=".*pretrained.*|.*weight enum.*", category=UserWarning)
        how = {"pretrained": pretrained, "pnet_rand": not pretrained, "verbose": False}
        module = lpips.LPIPS(net=net, lpips=linear, **how)
    return module.eval().requires_grad_(False)


def load_lpips(path_or_id: str, *, device: str, dtype: str, batch_size: int = 16) -> LpipsNetwork:
    """ "alex", "vgg" or "squeeze" with the library's own weights, or a folder with model.safetensors and
    config.json, which has "net" and "lpips" (whether there are linear layers)."""
    choose("dtype", dtype, DTYPES)
    if path_or_id in NETS:
        try:
            module = build_lpips(path_or_id, pretrained=True)
        except (OSError, RuntimeError) as error:
            raise MetricError(
                f"The weights of LPIPS '{path_or_id}' could not be fetched ({error}); "
                "give a local folder or leave out the metric 'lpips'."
            ) from error
        source = loading.Source(path_or_id, "0.1", tensor_digest(module.state_dict()))
    else:
        folder = Path(loading.check_folder(path_or_id)[0])
        try:
            config = json.loads((folder / "config.json").read_bytes())
            net = choose("LPIPS network", config["net"], NETS)
            module = build_lpips(net, pretrained=False, linear=config["lpips"])
            state = load_file(folder / "model.safetensors")
            module.load_state_dict({key: tensor.float() for key, tensor in state.items()})
        except (*loading.UNREADABLE, TypeError) as error:
            raise MetricError(f"Cannot load LPIPS from '{folder}': {first_line(error)}") from error
        source = loading.Source(path_or_id, None, folder_digest(folder))
    return LpipsNetwork(module.to(device, torch_dtype(dtype)), source, batch_size)


def lpips_origins(path_or_id: str) -> list[Need]:
    """The trunk, which torchvision publishes; the rest ships with the library."""
    if path_or_id not in NETS:
        return []
    from torchvision import models

    trunks = {"alex": "AlexNet_Weights", "vgg": "VGG16_Weights", "squeeze": "SqueezeNet1_1_Weights"}
    url = getattr(models, trunks[path_or_id]).IMAGENET1K_V1.url
    # torchvision's files carry the beginning of their digest: alexnet-owt-7be5be79.pth.
    return [Need(url, url.rpartition("-")[2].partition(".")[0], "url")]


class SentenceEncoder(Described):
    """A `sentence_transformers.SentenceTransformer`, without its prompts; features are not normalised.

    One whose `modalities` have "image" is a dual encoder, whose score is the cosine.
    """

    scale, bias = 1.0, 0.0

    def __init__(self, model: Any, source: loading.Source, batch_size: int = 32) -> None:
        self.model, self.source, self.batch_size = model, source, batch_size
        self.modalities, self.quick_gelu = model.modalities, _has_quick_gelu(model)
        self.width = self.encode_text(["."]).shape[1]

    def describe(self) -> Json:
        from importlib.metadata import version

        library = f"sentence-transformers {version('sentence-transformers')}"
        return {**loading.model_fields("sentence", self.model, self.source), "library": library}

    def encode(self, images: Images) -> np.ndarray:
        """N images, (H, W, 3) uint8 -> (N, width) float32."""
        from PIL import Image

        return self._encode([Image.fromarray(check_image(image)) for image in images])

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        """Sentences -> (N, width) float32."""
        return self._encode(list(texts))

    def _encode(self, inputs: list[Any]) -> np.ndarray:
        with loading.exact():
            features = self.model.encode(
                inputs, batch_size=self.batch_size, show_progress_bar=False, convert_to_numpy=True
            )
        return np.asarray(features, dtype=np.float32)


def load_sentences(path_or_id: str, *, device: str, dtype: str, batch_size: int = 32) -> SentenceEncoder:
    """Load "sentence:FOLDER_OR_ID" (safetensors only). Raises MetricError, one sentence."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise MetricError(
            "Sentence transformers need one more package: pip install -e '.[analysis]'."
        ) from None
    reference = parse_reference(path_or_id.removeprefix("sentence:"))
    name, local = reference.name, Path(reference.name).is_dir()
    how: dict[str, Any] = {"use_safetensors": True, "dtype": dtype}
    try:
        with loading.hide_progress(local):
            model = SentenceTransformer(name, device=device, revision=reference.revision, model_kwargs=how)
    except loading.UNREADABLE as error:
        why = f"({first_line(error)}); give a folder or a hub id"
        raise MetricError(f"Cannot load a sentence transformer from '{name}' {why}.") from error
    if hasattr(model.tokenizer, "get_vocab"):
        first: Any = model[0]
        check_tokenizer(model.tokenizer, first.auto_model.config, name)
    model.eval()
    source = (None, folder_digest(Path(name))) if local else (reference.revision, name)
    return SentenceEncoder(model, loading.Source(path_or_id, *source), batch_size)
