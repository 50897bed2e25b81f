"""Networks that turn images or sentences into feature vectors, each with the function that loads it.

`metrics.models` picks the loader. In this order: two-tower models (CLIP, SigLIP, ...), DINO's ViT, the
Inception network of FID, LPIPS (which gives distances instead), sentence transformers.

Axes: N images or texts, S x S pixels, L tokens of a text, T tokens of an image, D features (`width`).
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
from PIL import Image
from safetensors.torch import load_file

from nein.loading.digests import Json, file_sha256, folder_digest, tensor_digest
from nein.loading.errors import choose, first_line
from nein.loading.references import Need, parse_reference
from nein.loading.weights import DTYPES, check_tokenizer, torch_dtype
from nein.metrics import loading
from nein.metrics.base import Described, Images, MetricError, check_image, group_by, split_chunks
from nein.metrics.preprocess import CleanResize, ResizeCrop, map_images, normalize


# --- two-tower models ----------------------------------------------------------------------
class TwoTowers(Described):
    """Base of models with one encoder for images and one for texts (a "dual": see `metrics.dual`)."""

    model: Any
    batch_size: int

    def set_properties(self) -> None:
        """Set width, scale, bias and quick_gelu from the model; called at the end of `__init__`."""
        with loading.exact():
            self.width = self.text_features(["."]).shape[1]  # D; any text has it
        # Factor of the cosine in the model's own score: exp(logit_scale) for CLIP and SigLIP, 1 / temperature
        # for ALIGN and TIPSv2, 1 for any other.
        self.scale = 1.0 / float(getattr(self.model, "temperature", 1.0))
        if hasattr(self.model, "logit_scale"):
            self.scale = float(self.model.logit_scale.detach().exp())
        bias = getattr(self.model, "logit_bias", None)  # SigLIP's
        self.bias = 0.0 if bias is None else float(bias)
        self.quick_gelu = _has_quick_gelu(self.model)

    def text_features(self, texts: Sequence[str]) -> torch.Tensor:
        """Encode texts in one forward pass: (N, width), on the model's device and in its dtype."""
        raise NotImplementedError

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        """Encode texts, truncated to the model's limit: (N, width) float32, not normalized."""
        return join_features(map(self.text_features, split_chunks(texts, self.batch_size)), self.width)


def _has_quick_gelu(model: Any) -> bool:
    return any(type(layer).__name__.startswith("QuickGELU") for layer in model.modules())


#: Model types trained on lower-case texts that were padded to the full length, without an attention mask.
#: Their tokenizers do not always do this. Sources: transformers, docs/model_doc/siglip2 (padded to 64 tokens)
#: and Siglip2Tokenizer ("training default: lowercase normalization").
FULL_LENGTH = ("siglip", "siglip2")


class HubTowers(TwoTowers):
    """Base of two-tower models of transformers; it has their text tower."""

    def set_tokenizer(self, tokenizer: Any) -> None:
        """Set the tokenizer and all that depends on it; called at the end of `__init__`."""
        self.tokenizer = loading.SharedTokenizer(tokenizer)
        self.pads_fully = self.model.config.model_type in FULL_LENGTH
        self._input_names = {*inspect.signature(self.model.get_text_features).parameters}
        if self.pads_fully:
            self._input_names.discard("attention_mask")
        self.limit = int(self.model.config.text_config.max_position_embeddings)  # tokens of a text
        self.set_properties()

    def overlong(self, texts: Sequence[str]) -> list[bool]:
        """Tell for each text whether it has more tokens than the model reads."""
        return [len(ids) > self.limit for ids in self.tokenizer(list(texts), verbose=False)["input_ids"]]

    def tokenize(self, texts: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return the inputs of the text tower by name, (N, L) each, truncated to the model's limit."""
        inputs = [text.lower() for text in texts] if self.pads_fully else list(texts)
        padding = "max_length" if self.pads_fully else True
        options = {"truncation": True, "max_length": self.limit, "return_tensors": "pt"}
        tokens = self.tokenizer(inputs, padding=padding, **options)
        return {name: tokens[name] for name in tokens if name in self._input_names}

    def text_features(self, texts: Sequence[str]) -> torch.Tensor:
        inputs = loading.move_inputs(self.model, self.tokenize(texts))  # N L each
        return take_features(self.model.get_text_features(**inputs))  # N D


class PixelEncoder(Described):
    """Base of image encoders that use a transform of `metrics.preprocess`, `batch_size` images per pass."""

    model: Any
    width: int
    preprocess: ResizeCrop | CleanResize
    batch_size: int

    def encode(self, images: Images) -> np.ndarray:
        """Encode N images, (H, W, 3) uint8: (N, width) float32, not normalized."""
        device = next(self.model.parameters()).device
        batches = split_chunks(map_images(self.preprocess, images), self.batch_size)
        pixels = (torch.from_numpy(np.stack(batch)).to(device) for batch in batches)  # N S S 3 each
        return join_features(map(self.features, pixels), self.width)

    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Encode preprocessed images of one batch, (N, S, S, 3), 0 to 255: (N, width)."""
        raise NotImplementedError


class ClipEncoder(PixelEncoder, HubTowers):
    """A `transformers.CLIPModel` with the image transform that OpenAI published for it. Only size, mean and
    std come from the checkpoint's image processor, whose crop can be one pixel off."""

    preprocess: ResizeCrop  # which has the mean and std that `features` reads

    def __init__(self, model: Any, source: loading.Source, batch_size: int) -> None:
        from transformers import AutoImageProcessor, AutoTokenizer

        self.model, self.source, self.batch_size = model, source, batch_size
        processor = source.load_part(AutoImageProcessor)
        size, mean, std = _read_preprocessing(processor, model.config.vision_config.image_size)
        self.preprocess = ResizeCrop(size, size, mean, std)
        self.set_tokenizer(source.load_part(AutoTokenizer))

    def describe(self) -> Json:
        about = {"preprocess": self.preprocess.name, "text": f"truncated at {self.limit} tokens"}
        return loading.describe_model("clip", self.model, self.source, **about)

    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        x = normalize(pixels, self.preprocess.mean, self.preprocess.std).to(self.model.dtype)  # N 3 S S
        return take_features(self.model.get_image_features(pixel_values=x))  # N D


def take_features(features: Any) -> torch.Tensor:
    """Unwrap features (N, D): transformers 5 returns an object whose `pooler_output` is the projection."""
    return features if isinstance(features, torch.Tensor) else features.pooler_output


def join_features(features: Iterable[torch.Tensor], width: int) -> np.ndarray:
    """Run a generator of batches, (n, width) each, and join them: (N, width) float32 on the CPU."""
    with loading.exact():
        parts = [torch.empty(0, width), *(part.to("cpu", torch.float32) for part in features)]
    return torch.cat(parts).numpy()


def _read_preprocessing(processor: Any, fallback: int) -> tuple[int, Any, Any]:
    """Read (size, mean, std) from a checkpoint's image processor; `fallback` is the size if it has none."""
    # A number, {"height": S, "width": S} or {"shortest_edge": S}; {}: it has no size.
    size = getattr(processor, "crop_size", None) or getattr(processor, "size", None) or {}
    side = size if isinstance(size, int) else size.get("height", size.get("shortest_edge"))
    return int(side or fallback), tuple(processor.image_mean), tuple(processor.image_std)


def load_clip(path_or_id: str, *, batch_size: int = 32, **placement: Any) -> ClipEncoder:
    """Load a CLIP. placement: `device` and `dtype`, as `loading.load_model` takes them."""
    from transformers import CLIPModel

    model, source = loading.load_model(CLIPModel, path_or_id, "clip", **placement)
    return ClipEncoder(model, source, batch_size)


class HubDual(HubTowers):
    """A two-tower model of transformers other than CLIP, with its own image processor and tokenizer."""

    def __init__(
        self, model: Any, processor: Any, tokenizer: Any, source: loading.Source, batch_size: int = 32
    ) -> None:
        self.model, self.processor, self.source, self.batch_size = model, processor, source, batch_size
        self.set_tokenizer(tokenizer)

    def describe(self) -> Json:
        preprocess = f"{type(self.processor).__name__}, {loading.library_version()}"
        text = f"padding True, at most {self.limit} tokens"
        if self.pads_fully:
            text = f"padding max_length, at most {self.limit} tokens, lower case"
        return loading.describe_model("dual", self.model, self.source, preprocess=preprocess, text=text)

    def encode(self, images: Images) -> np.ndarray:
        checked = [check_image(image) for image in images]
        return join_features(map(self._features, split_chunks(checked, self.batch_size)), self.width)

    def _features(self, images: list[np.ndarray]) -> torch.Tensor:
        inputs = self.processor(images=images, return_tensors="pt", input_data_format="channels_last")
        inputs = loading.move_inputs(self.model, inputs)  # pixel_values: N 3 S S, or patches (SigLIP 2)
        return take_features(self.model.get_image_features(**inputs))  # N D


def load_towers(path_or_id: str, *, batch_size: int = 32, **placement: Any) -> TwoTowers:
    """Load a two-tower model of transformers, such as CLIP, SigLIP, ALIGN and TIPSv2: one that has
    `get_image_features` and `get_text_features`. Raises MetricError for any other."""
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    if loading.read_model_type(path_or_id) == "clip":
        return load_clip(path_or_id, batch_size=batch_size, **placement)
    model, source = loading.load_model(AutoModel, path_or_id, **placement)
    methods = ("get_image_features", "get_text_features")
    if missing := [method for method in methods if not hasattr(model, method)]:
        raise MetricError(
            f"'{path_or_id}' is a '{model.config.model_type}' checkpoint, which has no {missing[0]}; "
            "give a two-tower model such as CLIP or SigLIP."
        )
    processor = source.load_part(AutoImageProcessor, backend="pil")
    return HubDual(model, processor, source.load_part(AutoTokenizer), source, batch_size)


# --- ViT, for DINO or in place of Inception ------------------------------------------------
class ViTEncoder(PixelEncoder):
    """A `transformers.ViTModel`; the feature is the class token after the last LayerNorm.

    kind  "dino": the transform of facebookresearch/dino (hubconf.py, eval_knn.py): resize to 256, crop the
          center to 224, or their ratio. "fid": clean-fid's resize; not comparable with published FID."""

    def __init__(self, kind: str, model: Any, source: loading.Source, batch_size: int) -> None:
        from transformers import AutoImageProcessor

        self.kind, self.model, self.source, self.batch_size = kind, model, source, batch_size
        self.width = model.config.hidden_size
        size = int(model.config.image_size)
        _, self.mean, self.std = _read_preprocessing(source.load_part(AutoImageProcessor), 224)
        if kind == "dino":
            self.preprocess = ResizeCrop(round(size * 256 / 224), size, self.mean, self.std)
        else:
            self.preprocess = CleanResize(size)

    def describe(self) -> Json:
        preprocess = self.preprocess.name
        if self.kind != "dino":  # DINO's transform has mean and std in its name
            preprocess += f"/mean-{self.mean}/std-{self.std}"
        about = {"preprocess": preprocess, "feature": "class token of last_hidden_state"}
        return loading.describe_model(self.kind, self.model, self.source, **about)

    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        x = normalize(pixels, self.mean, self.std).to(self.model.dtype)  # N 3 S S
        return self.model(pixel_values=x).last_hidden_state[:, 0]  # N T D => N D


def load_vit(path_or_id: str, *, batch_size: int = 32, kind: str = "dino", **placement: Any) -> ViTEncoder:
    """Load a ViT for DINO, or with kind "fid" in place of Inception; placement: as for `load_clip`."""
    from transformers import ViTModel

    model, source = loading.load_model(ViTModel, path_or_id, "vit", add_pooling_layer=False, **placement)
    return ViTEncoder(kind, model, source, batch_size)


# --- Inception, for FID --------------------------------------------------------------------
INCEPTION_FILE = "inception-2015-12-05.pt"
#: The file is TorchScript, a program, which clean-fid downloads and runs unchecked. k-diffusion checks the
#: same address against this digest (crowsonkb/k-diffusion, k_diffusion/evaluation.py).
INCEPTION_SHA256 = "f58cb9b6ec323ed63459aa4fb441fe750cfe39fafad6da5cb504a16f19e958f4"


class InceptionEncoder(PixelEncoder):
    """Clean-FID's Inception network with its resize (mode "clean"; github.com/GaParmar/clean-fid)."""

    def __init__(self, model: Any, source: loading.Source, batch_size: int = 32) -> None:
        self.model, self.source, self.batch_size = model, source, batch_size
        self.preprocess, self.width = CleanResize(299), 2048

    def describe(self) -> Json:
        about = {"class": "cleanfid.InceptionV3W", "preprocess": self.preprocess.name}
        return loading.describe_model("fid", self.model, self.source, **about, feature="pool3, 2048")

    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model(pixels.permute(0, 3, 1, 2).contiguous())  # N 3 299 299 -> N 2048


def load_fid(path_or_id: str, *, device: str, dtype: str, batch_size: int = 32) -> PixelEncoder:
    """Load clean-fid's network: "inception" (in torch's cache, downloaded if missing), or its file. A folder
    or hub id loads a ViT. Raises MetricError, also for any other file."""
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
            f"{INCEPTION_SHA256[:12]}..., not {digest[:12]}...); delete it and rerun the command."
        )
    model = InceptionV3W(str(path.parent), download=False, resize_inside=False).to(device).eval()
    return InceptionEncoder(model, loading.Source("inception", "2015-12-05", digest), batch_size)


def fid_origins(path_or_id: str) -> list[Need] | None:
    """List the download of clean-fid's network; None for a ViT."""
    if path_or_id != "inception":
        return None
    from cleanfid.downloads_helper import inception_url

    return [Need(inception_url, INCEPTION_SHA256, "url")]


# --- LPIPS ---------------------------------------------------------------------------------
#: Convolutional networks ("trunks") whose features are compared; lpips has published weights for them.
NETS = ("alex", "vgg", "squeeze")


class LpipsNetwork(Described):
    """An `lpips.LPIPS` module (arXiv:1801.03924). `distances` equals `module(a, b)` on images in [-1, 1], but
    runs the trunk only once per batch for a target that several images share."""

    def __init__(self, module: Any, source: loading.Source, batch_size: int = 16) -> None:
        self.module, self.source, self.batch_size = module, source, batch_size
        self._parameter = next(module.parameters())

    def describe(self) -> Json:
        about: Json = {"class": "lpips.LPIPS", "net": self.module.pnet_type}
        about |= {"linear_layers": bool(self.module.lpips), "version": self.module.version}
        about["preprocess"] = "pixels / 127.5 - 1, at the target's size"
        return loading.describe_model("lpips", self.module, self.source, **about)

    def distances(self, images: Images, targets: Images) -> np.ndarray:
        """Distance of every image from its target, which has the same size: (N,) float64, >= 0."""
        for image, target in zip(images, targets, strict=True):
            if image.shape != target.shape:
                raise MetricError(f"LPIPS needs equal sizes, not {image.shape} and {target.shape}.")
        # A target is known by its first row, since several rows can hold the same array.
        first_rows: dict[int, int] = {}  # id of a target -> its first row
        target_rows = [first_rows.setdefault(id(target), row) for row, target in enumerate(targets)]
        rows = sorted(range(len(images)), key=lambda row: target_rows[row])  # equal targets side by side
        distances = np.full(len(images), np.nan)  # (N,)
        with loading.exact():
            for batch in group_by(rows, lambda row: images[row].shape, self.batch_size):
                distinct = list(dict.fromkeys(target_rows[row] for row in batch))
                target_of = [distinct.index(target_rows[row]) for row in batch]
                stacked = [*(targets[row] for row in distinct), *(images[row] for row in batch)]
                pixels = torch.from_numpy(np.stack(stacked))  # (len(distinct) + len(batch), H, W, 3) uint8
                distances[batch] = self._compare(pixels, target_of)
        return distances

    def _compare(self, pixels: torch.Tensor, target_of: list[int]) -> np.ndarray:
        """Distance of n images, (n,) float64. pixels: targets, then images; target_of: image -> target."""
        import lpips

        targets = len(pixels) - len(target_of)  # number of targets
        x = pixels.to(self._parameter.device).permute(0, 3, 1, 2)  # N H W 3 -> N 3 H W
        x = self.module.scaling_layer(x.to(self._parameter.dtype) / 127.5 - 1)  # N 3 H W
        total: Any = 0
        for level, features in enumerate(self.module.net(x)):
            unit = lpips.normalize_tensor(features)  # N C h w, of length 1 along the channels C
            squared = (unit[targets:] - unit[:targets][target_of]) ** 2  # n C h w
            weighted = self.module.lins[level](squared) if self.module.lpips else squared
            total = total + weighted.sum(1).mean((1, 2)).double()  # (n,)
        return total.cpu().numpy()


def build_lpips(net: str, *, pretrained: bool, linear: bool = True) -> Any:
    """Build an `lpips.LPIPS`. pretrained: with the published weights of trunk (torchvision) and linear layers
    (lpips); otherwise random. linear: whether there are linear layers."""
    import lpips

    # The module draws random weights first; the caller's random state must not change.
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        # lpips 0.1.4 calls torchvision with an argument from before version 0.13.
        warnings.filterwarnings("ignore", message=".*pretrained.*|.*weight enum.*", category=UserWarning)
        weights: dict[str, Any] = {"pretrained": pretrained, "pnet_rand": not pretrained}
        module = lpips.LPIPS(net=net, lpips=linear, verbose=False, **weights)
    return module.eval().requires_grad_(False)


def load_lpips(path_or_id: str, *, device: str, dtype: str, batch_size: int = 16) -> LpipsNetwork:
    """Load "alex", "vgg" or "squeeze" with the published weights, or a folder with model.safetensors and a
    config.json of "net" and "lpips" (whether there are linear layers). Raises MetricError."""
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
    """List the download of the trunk, which torchvision publishes; the linear layers ship with lpips."""
    if path_or_id not in NETS:
        return []
    from torchvision import models

    trunks = {"alex": "AlexNet_Weights", "vgg": "VGG16_Weights", "squeeze": "SqueezeNet1_1_Weights"}
    url = getattr(models, trunks[path_or_id]).IMAGENET1K_V1.url
    # The file name ends with the first digits of the file's digest: alexnet-owt-7be5be79.pth.
    return [Need(url, url.rpartition("-")[2].partition(".")[0], "url")]


# --- sentence transformers -----------------------------------------------------------------
class SentenceEncoder(Described):
    """A `sentence_transformers.SentenceTransformer`, without its prompts; features are not normalized. With
    "image" among its `modalities` it is a dual (`metrics.dual`)."""

    scale, bias = 1.0, 0.0  # its own score of a pair is the cosine

    def __init__(self, model: Any, source: loading.Source, batch_size: int = 32) -> None:
        self.model, self.source, self.batch_size = model, source, batch_size
        self.modalities = model.modalities  # "text", "image", ...
        self.quick_gelu = _has_quick_gelu(model)
        self.width = self.encode_text(["."]).shape[1]

    def describe(self) -> Json:
        library = loading.library_version("sentence-transformers")
        return loading.describe_model("sentence", self.model, self.source, library=library)

    def encode(self, images: Images) -> np.ndarray:
        """Encode N images, (H, W, 3) uint8: (N, width) float32."""
        return self._encode([Image.fromarray(check_image(image)) for image in images])

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        """Encode texts: (N, width) float32."""
        return self._encode(list(texts))

    def _encode(self, inputs: list[Any]) -> np.ndarray:
        options = {"show_progress_bar": False, "convert_to_numpy": True}
        with loading.exact():
            features = self.model.encode(inputs, batch_size=self.batch_size, **options)
        return np.asarray(features, dtype=np.float32)  # N D


def load_sentences(path_or_id: str, *, device: str, dtype: str, batch_size: int = 32) -> SentenceEncoder:
    """Load "sentence:FOLDER_OR_ID" (safetensors only). Raises MetricError."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise MetricError("sentence-transformers is missing: pip install -e '.[analysis]'.") from None
    reference = parse_reference(path_or_id.removeprefix("sentence:"))
    name, revision = reference.name, reference.revision
    is_folder = Path(name).is_dir()
    options: dict[str, Any] = {"use_safetensors": True, "dtype": dtype}
    try:
        with loading.hide_progress(is_folder):
            model = SentenceTransformer(name, device=device, revision=revision, model_kwargs=options)
    except loading.UNREADABLE as error:
        raise MetricError(
            f"Cannot load a sentence transformer from '{name}' ({first_line(error)}); "
            "give a folder or a hub id."
        ) from error
    if hasattr(model.tokenizer, "get_vocab"):
        network: Any = model[0]  # the later modules pool and project
        check_tokenizer(model.tokenizer, network.auto_model.config, name)
    model.eval()
    digest = folder_digest(Path(name)) if is_folder else name
    source = loading.Source(path_or_id, None if is_folder else revision, digest)
    return SentenceEncoder(model, source, batch_size)
