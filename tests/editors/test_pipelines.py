import functools
import importlib
import importlib.util
import inspect
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from nein import editors
from nein.editors import PRESETS, EditorError, EditRequest, get_editor, supports
from nein.editors.pipelines import RECIPES, DiffusersPipeline
from nein.editors.resize import kontext
from tests.editors import tiny_pipelines
from tests.editors.tiny_pipelines import SIDE
from tests.helpers import plain

MODULAR = [name for name in RECIPES if name.endswith("ModularPipeline")]


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """Class name -> folder of a tiny pipeline, built once; of a class that none is built of, its index."""

    @functools.cache
    def folder(name):
        place = tmp_path_factory.mktemp(name)
        if name in tiny_pipelines.BUILDERS:
            return tiny_pipelines.save(name, place)
        (place / "model_index.json").write_text(json.dumps({"_class_name": name}))
        return place

    return folder


@pytest.fixture
def build(folder_of):
    def make(name, **options):
        size = {"resolution": SIDE} if RECIPES[name].size or RECIPES[name].resolution else {}
        return get_editor(str(folder_of(name)), **{"steps": 2, **size, **options})

    return make


@pytest.fixture
def request_of(picture):
    def make(index=0, **changes):
        request = EditRequest(str(index), picture(index, 64, 96), "The image has no cat.", 100 + index)
        return replace(request, **changes)

    return make


def image_of(editor, request):
    (result,) = editor.edit([request])
    assert result.error is None, result.error
    return result.image


def cropped(picture):
    """The 96 x 64 picture of the tests as rule r64 at resolution 64 leaves it."""
    return picture.resize((64, 64), Image.Resampling.LANCZOS, box=(16, 0, 80, 64))


def arguments(name, picture, text):
    """Those of class `name` besides generator and steps, for a picture of 96 x 64 and resolution 64."""
    plain = {"image": picture, "prompt": text}
    avoiding = {**plain, "negative_prompt": ""}
    joy = {"prompt": text, "negative_prompt": "", "guidance_scale": 4.0}
    flux2 = {**plain, "guidance_scale": 4.0}
    qwen = {"prompt": text, "true_cfg_scale": 4.0, "negative_prompt": " "}
    calls = {
        "FluxKontextPipeline": {
            **plain, "guidance_scale": 3.5, "height": 48, "width": 80, "max_area": 48 * 80,
            "_auto_resize": False,
        },
        "QwenImageEditPipeline": {"image": picture, **qwen},
        "QwenImageEditPlusPipeline": {"image": [picture], **qwen},
        "QwenImage21Pipeline": {**plain, "true_cfg_scale": 1.0, "output_resolution": 64},
        "StableDiffusionXLInstructPix2PixPipeline": {
            "image": cropped(picture), "prompt": text, "height": 64, "width": 64, "guidance_scale": 3.0,
            "image_guidance_scale": 1.5,
        },
        "OmniGenPipeline": {
            "input_images": [picture], "prompt": f"<img><|image_1|></img> {text}", "guidance_scale": 2.0,
            "img_guidance_scale": 1.6, "use_input_image_size_as_output": True, "max_input_image_size": 64,
        },
        "Flux2Pipeline": flux2,
        "Flux2KleinPipeline": flux2,
        "Flux2KleinKVPipeline": plain,
        **{kind: {**plain, "output": ["images", "prompt"]} for kind in MODULAR},
        "LongCatImageEditPipeline": {**avoiding, "guidance_scale": 4.5},
        "ChronoEditPipeline": {**avoiding, "guidance_scale": 5.0, "num_frames": 5, "width": 64, "height": 48},
        "JoyImageEditPipeline": {"image": picture, **joy},
        "JoyImageEditPlusPipeline": {"images": [[picture]], **joy},
        "DreamLitePipeline": {
            **avoiding, "guidance_scale": 3.5, "image_guidance_scale": 1.5, "width": 64, "height": 64,
        },
        "DreamLiteMobilePipeline": {**plain, "width": 64, "height": 64},
        "Kandinsky5I2IPipeline": {**avoiding, "guidance_scale": 3.5},
        "BriaFiboEditPipeline": {
            **avoiding, "prompt": json.dumps({"edit_instruction": text}), "guidance_scale": 5.0,
        },
        "BriaFibo2Pipeline": {**plain, "guidance_scale": 5.0},
        "GlmImagePipeline": {**plain, "image": [picture], "guidance_scale": 1.5, "width": 64, "height": 64},
    }  # fmt: skip
    return calls[name]


def direct_call(folder, name, request):
    """The edit by the pipeline itself, every argument written out here; (H, W, 3) uint8."""
    pipeline = getattr(diffusers, name).from_pretrained(folder)
    if name in MODULAR:
        pipeline.load_components()
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(request.seed)
    torch.manual_seed(request.seed)
    given = arguments(name, Image.fromarray(request.image), request.instruction)
    given |= {"generator": generator, "num_inference_steps": 2}
    edited = pipeline(**given)
    return np.asarray(edited["images"][0] if name in MODULAR else edited.images[0])


@pytest.mark.parametrize("name", tiny_pipelines.BUILDERS)
def test_an_edit_is_what_the_pipeline_gives_by_hand_and_a_negative_prompt_acts(
    name, build, folder_of, request_of
):
    request, editor = request_of(), build(name)
    with torch.random.fork_rng():
        expected = direct_call(folder_of(name), name, request)
    found = image_of(editor, request)
    assert found.dtype == np.uint8
    assert found.std() > 0
    np.testing.assert_allclose(found.astype(int), expected.astype(int), atol=1)
    if supports(editor.name, "negative_prompt"):
        assert (image_of(editor, replace(request, negative_prompt="a big yellow dog")) != found).any()


@pytest.mark.parametrize("name", ["Flux2Pipeline", "Flux3ModularPipeline", "Flux3DistilledModularPipeline"])
def test_the_rewriter_of_a_vendor_is_a_switch_and_what_it_wrote_is_what_is_painted(
    name, build, folder_of, request_of, capfd
):
    if name not in tiny_pipelines.BUILDERS:
        pytest.skip(f"diffusers {diffusers.__version__} has no {name}")
    request, verbatim, rewriting = request_of(), build(name, rewriter=False), build(name, rewriter=True)
    [plain], [rewritten] = verbatim.edit([request]), rewriting.edit([request])
    assert plain.rewritten is None
    assert rewritten.rewritten not in ("", None, request.instruction)
    assert (plain.image != rewritten.image).any()
    [told] = verbatim.edit([replace(request, instruction=rewritten.rewritten)])
    np.testing.assert_array_equal(told.image, rewritten.image)
    assert rewriting.describe()["rewriter"] == RECIPES[name].rewriter
    assert rewriting.fingerprint != verbatim.fingerprint
    if name in MODULAR:  # the model that rewrites is not even loaded
        assert "prompt_upsampler" not in verbatim._pipeline.components
        assert "0/2" not in capfd.readouterr().err  # no bar of the steps of any block
    else:
        pipeline = diffusers.Flux2Pipeline.from_pretrained(folder_of(name))
        picture = Image.fromarray(request.image)
        given = {**arguments(name, picture, request.instruction), "image": [picture]}
        with torch.random.fork_rng():
            torch.manual_seed(request.seed)
            generator = torch.Generator().manual_seed(request.seed)
            how = {"generator": generator, "num_inference_steps": 2, "caption_upsample_temperature": 0.15}
            byhand = np.asarray(pipeline(**given, **how).images[0])
        np.testing.assert_allclose(rewritten.image.astype(int), byhand.astype(int), atol=1)


def shell_of(name, calls):
    """An object with the name and the signatures of a class of diffusers, without its parts: what its methods
    are called with has to fit and is kept, and the edit is grey."""
    kind = getattr(diffusers, name)
    inputs = {entry.name for entry in kind().blocks.inputs} | {"output"} if name in MODULAR else None
    grey = np.full((64, 96, 3), 0.5)

    signature = inspect.signature(kind.__call__)

    def call(self, **given):
        signature.bind(self, **given)
        assert inputs is None or given.keys() <= inputs
        calls.append(given)
        recipe = RECIPES[name]
        pictures = [[grey * 0, grey]] if recipe.result == "frames" else [grey]
        found = {recipe.result: pictures, "prompt": given.get("prompt")}
        return found if inputs else SimpleNamespace(**found)

    call.__signature__ = signature
    ignored = {one: lambda self, *args, **how: None for one in ("to", "set_progress_bar_config")}
    facts = {"components": {}, "scheduler": SimpleNamespace(config={}), "is_cosxl_edit": False}
    if name in MODULAR:  # a kind of its class, whose block that rewrites is in the real call's test
        facts["__init__"] = lambda self: None
    return type(
        name, (diffusers.ModularPipeline,) if inputs else (), {"__call__": call, **ignored, **facts}
    )()


@pytest.mark.parametrize("name", RECIPES)
def test_a_class_is_called_with_arguments_that_it_has_and_sentences_go_in_verbatim(name, request_of):
    recipe, calls = RECIPES[name], []
    row = next(row for row in PRESETS.values() if row.pipeline == name)
    small = {"resolution": SIDE} if recipe.size or recipe.resolution else {}
    options = {**row.options(), "steps": 2, **small}
    editor = DiffusersPipeline(
        shell_of(name, calls), **{key: options[key] for key in options if key not in ("pipeline", "cosxl")}
    )
    if not small:
        with pytest.raises(EditorError, match="chooses sizes itself; omit resolution=512"):
            DiffusersPipeline(shell_of(name, calls), resolution=512)
    request = request_of()
    np.testing.assert_array_equal(image_of(editor, request), np.full((64, 96, 3), 128, np.uint8))
    picture = Image.fromarray(request.image)
    expected = arguments(name, picture, request.instruction)
    given = calls[-1]
    generator, steps = given.pop("generator", None), given.pop("num_inference_steps", None)
    assert given == {**expected, "output_type": "np"}
    assert (generator.initial_seed(), steps) == (request.seed, 2)
    avoiding = replace(request, negative_prompt="a big yellow dog")
    assert not supports(row.name, "guided")
    refused = editor.edit([replace(avoiding, guided="nag")])[0].error
    assert refused == f"the attention of {name} cannot be guided"
    assert supports(row.name, "negative_prompt") == (recipe.negative_guidance is not None)
    if recipe.negative_guidance is None:
        assert editor.edit([avoiding])[0].error == f"{name} takes no negative prompt"
    else:
        image_of(editor, avoiding)
        assert calls[-1]["negative_prompt"] == "a big yellow dog"
        assert all(calls[-1][argument] > 1 for argument in recipe.negative_guidance)


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in MODULAR])
def test_a_recipe_names_the_parts_and_the_result_of_its_class(name):
    recipe, kind = RECIPES[name], getattr(diffusers, name)
    assert {*recipe.float32} <= inspect.signature(kind.__init__).parameters.keys()
    returned = re.findall(r"return \w+Output\((\w+)=", inspect.getsource(kind.__call__))
    assert set(returned) == {recipe.result}
    parameter = inspect.signature(kind.__call__).parameters[recipe.image]
    assert str(parameter.annotation).count("list[") >= recipe.nested
    assert "Image" in str(parameter.annotation)


def test_where_several_pictures_share_a_call_each_is_as_alone(build, request_of, monkeypatch):
    name = "FluxKontextPipeline"
    editor, calls = build(name, batch_size=3), []
    kind = type(editor._pipeline)
    original = kind.__call__
    monkeypatch.setattr(kind, "__call__", lambda self, **how: calls.append(how) or original(self, **how))
    requests = [request_of(i, instruction=f"No {word}.") for i, word in enumerate(("cat", "dog", "old car"))]
    if RECIPES[name].negative_guidance is not None:  # a call of its own
        requests.insert(1, request_of(3, negative_prompt="cat"))
    together = editor.edit(requests)
    assert max(len(call["prompt"]) for call in calls if isinstance(call["prompt"], list)) == 3
    for request, result in zip(requests, together, strict=True):
        assert np.abs(image_of(editor, request).astype(int) - result.image).max() <= 1


def test_kontext_sizes_are_the_librarys():
    module = importlib.import_module("diffusers.pipelines.flux.pipeline_flux_kontext")
    for width, height in module.PREFERRED_KONTEXT_RESOLUTIONS:
        assert kontext((width, height), 1024) == (width, height)


def test_the_class_the_checkpoint_declares_decides_unless_a_row_overrules_it(folder_of, tmp_path):
    folder = folder_of("OmniGenPipeline")
    assert editors.find_preset_row(str(folder), "nano").pipeline == "OmniGenPipeline"
    editor, longer = (get_editor(str(folder), steps=steps, resolution=64) for steps in (2, 3))
    assert editor.describe()["guidance"] == {"guidance_scale": 2.0, "img_guidance_scale": 1.6}
    assert editor.fingerprint != longer.fingerprint

    folder = Path(shutil.copytree(folder_of("OmniGenPipeline"), tmp_path / "copy"))
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps({**index, "_class_name": "WanImageToVideoPipeline"}))
    editor = get_editor("omnigen", checkpoint=str(folder), steps=2)
    assert editor.describe()["pipeline"] == "OmniGenPipeline"
    assert editor.describe()["published"]["class"] == "WanImageToVideoPipeline"
    with pytest.raises(EditorError, match=r"Unknown pipeline class 'WanImageToVideoPipeline'"):
        get_editor("omnigen", checkpoint=str(folder), pipeline=None)


def test_cosxl_gets_its_own_noise_schedule(folder_of, tmp_path, monkeypatch):
    seen = {}

    def from_single_file(path, **options):
        folder = folder_of("StableDiffusionXLInstructPix2PixPipeline")
        seen.update(options, path=path, folder=str(folder))
        return diffusers.StableDiffusionXLInstructPix2PixPipeline.from_pretrained(folder)

    kind = diffusers.StableDiffusionXLInstructPix2PixPipeline
    monkeypatch.setattr(kind, "from_single_file", from_single_file)
    save_file({"a": torch.zeros(1)}, tmp_path / "cosxl_edit.safetensors")
    editor = get_editor(
        "cosxl-edit", checkpoint=str(tmp_path / "cosxl_edit.safetensors"), steps=2, resolution=64
    )
    assert seen["config"] == "diffusers/sdxl-instructpix2pix-768"
    assert editor._pipeline.is_cosxl_edit is True
    plain = get_editor("cosxl-edit", checkpoint=seen["folder"], steps=2, resolution=64)  # a folder as well
    assert plain._pipeline.is_cosxl_edit is True
    assert plain.describe()["scheduler"] == editor.describe()["scheduler"]
    scheduler = editor.describe()["scheduler"]
    assert scheduler["class"] == "EDMEulerScheduler"
    assert (scheduler["sigma_max"], scheduler["prediction_type"]) == (120.0, "v_prediction")
    with pytest.raises(EditorError, match="'owner/name' is not in "):
        get_editor("cosxl-edit", checkpoint="owner/name:file.safetensors")


@pytest.mark.parametrize("part", ["transformer", "text_encoder_2"])
@pytest.mark.parametrize(
    "damage, sentence",
    [
        (lambda f, part: plain.rob(f / part), r"lacks \d of the weights of its {kind}, first '.*weight'"),
        (lambda folder, part: shutil.rmtree(folder / part), "lacks the folder {part}"),
    ],
)
def test_a_pipeline_that_lacks_weights_is_refused(part, damage, sentence, folder_of, tmp_path):
    folder = Path(shutil.copytree(folder_of("FluxKontextPipeline"), tmp_path / "copy"))
    kind = json.loads((folder / "model_index.json").read_text())[part][1]
    damage(folder, part)
    with pytest.raises(EditorError, match=sentence.format(kind=kind, part=part)):
        get_editor("flux-kontext", checkpoint=str(folder))


def test_what_the_installed_class_leaves_out_is_a_warning(folder_of, tmp_path, caplog):
    folder = Path(shutil.copytree(folder_of("FluxKontextPipeline"), tmp_path / "copy"))
    file = folder / "transformer" / "config.json"
    later = {"zero_cond_t": True, "_diffusers_version": "9.1.0"}
    file.write_text(json.dumps({**json.loads(file.read_text()), **later}))
    weights = folder / "vae" / "diffusion_pytorch_model.safetensors"
    save_file({**load_file(weights), "more": torch.zeros(1)}, weights, metadata={"format": "pt"})
    get_editor("flux-kontext", checkpoint=str(folder))
    installed = f"FluxTransformer2DModel of diffusers {diffusers.__version__} ignores zero_cond_t"
    assert f"{installed} of its configuration" in caplog.text
    assert "1 weights that its AutoencoderKL does not read, first 'more'" in caplog.text


@pytest.mark.parametrize(
    "name, option, expected",
    [
        ("OmniGenPipeline", {"steps": 0}, "steps is 0"),
        ("OmniGenPipeline", {"resolution": 0}, "resolution is 0"),
        ("OmniGenPipeline", {"offload": "model"}, "needs a GPU"),
        ("OmniGenPipeline", {"resize": "r64"}, "Unknown option 'resize'"),
        ("FluxKontextPipeline", {"image_guidance_scale": 2.0}, "has no image_guidance_scale"),
        ("FluxKontextPipeline", {"rewriter": True}, "has no rewriter of its own; omit rewriter"),
    ],
)
def test_impossible_settings_are_refused_in_a_sentence(name, option, expected, build):
    with pytest.raises(EditorError, match=expected):
        build(name, **option)


@pytest.mark.device
@pytest.mark.parametrize("options", [{"offload": "model"}, {"offload": "sequential"}])
def test_offloading_on_a_gpu_gives_the_same_pictures(options, cuda, build, request_of):
    plain = build("FluxKontextPipeline", device=cuda)
    other = build("FluxKontextPipeline", device=cuda, **options)
    difference = image_of(plain, request_of()).astype(int) - image_of(other, request_of())
    assert np.abs(difference).max() <= 1
    assert plain.fingerprint == other.fingerprint
