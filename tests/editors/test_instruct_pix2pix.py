from dataclasses import replace

import numpy as np
import pytest
import torch
from diffusers import EulerAncestralDiscreteScheduler, StableDiffusionInstructPix2PixPipeline
from PIL import Image, ImageOps

from nein.editors import EditorError, EditRequest
from nein.editors.attention import weigh_tokens

STEPS = 6


@pytest.fixture(scope="module")
def stock(checkpoint):
    pipeline = StableDiffusionInstructPix2PixPipeline.from_pretrained(
        checkpoint, safety_checker=None, requires_safety_checker=False
    )
    pipeline.scheduler = EulerAncestralDiscreteScheduler.from_config(
        pipeline.scheduler.config, timestep_spacing="linspace"
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def run_stock(stock, requests, **options):
    """(B, H, W, 3) float in [0, 1] from diffusers' pipeline, the noise drawn from the samples' seeds."""
    return stock(
        prompt=[request.instruction for request in requests],
        image=[Image.fromarray(request.image) for request in requests],
        generator=[torch.Generator().manual_seed(request.seed) for request in requests],
        num_inference_steps=STEPS,
        output_type="np",
        **options,
    ).images


def float_pictures(editor, requests, monkeypatch):
    """What `edit` computes before it rounds: (B, H, W, 3) float in [0, 1]."""
    seen = []
    decode = editor._decode
    monkeypatch.setattr(editor, "_decode", lambda latents: seen.append(decode(latents)) or seen[-1])
    results = editor.edit(requests)
    pictures = (torch.cat(seen) / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose([result.image for result in results], pictures * 255, atol=1)
    return pictures


def test_it_equals_diffusers_pipeline_for_the_same_noise(stock, tiny_editor, requests_of, monkeypatch):
    requests = requests_of(4)
    expected = run_stock(stock, requests, guidance_scale=5.0, image_guidance_scale=1.25)
    editor = tiny_editor(steps=STEPS, guidance_scale=5.0, image_guidance_scale=1.25)
    np.testing.assert_allclose(float_pictures(editor, requests, monkeypatch), expected, atol=1e-4)


def test_a_model_that_loads_in_another_thread_changes_no_bit(tiny_editor, requests_of, half_as_default):
    editor, requests = tiny_editor(steps=STEPS), requests_of(2)
    plain, beside = editor.edit(requests), half_as_default(editor.edit, requests)
    assert all((one.image == other.image).all() for one, other in zip(plain, beside, strict=True))


def test_a_negative_prompt_is_that_of_diffusers(stock, tiny_editor, requests_of, monkeypatch):
    plain, other = requests_of(2)
    requests = [replace(plain, negative_prompt="a cup"), other]
    expected = run_stock(stock, requests, negative_prompt=["a cup", ""])
    edited = float_pictures(tiny_editor(steps=STEPS), requests, monkeypatch)
    np.testing.assert_allclose(edited, expected, atol=1e-4)
    without = float_pictures(tiny_editor(steps=STEPS), requests_of(1), monkeypatch)
    assert np.abs(edited[0] - without[0]).max() > 0.01
    [bare, guided] = tiny_editor(steps=STEPS).edit([replace(r, instruction="") for r in (other, requests[0])])
    assert "expected a sentence" in bare.error
    assert guided.image is not None


@pytest.mark.parametrize("text_scale, image_scale", [(5.0, 1.25), (6.0, 0.5), (1.0, 1.0)])
def test_instructdiffusions_guidance_is_the_published_sum(text_scale, image_scale, tiny_editor, requests_of):
    scales = {"guidance_scale": text_scale, "image_guidance_scale": image_scale}
    editor, [request] = tiny_editor(guidance="instructdiffusion", **scales), requests_of(1)
    values = {(True, True): 7.0, (False, True): 2.0, (True, False): 4.0}  # told the text, shown the picture
    null = editor._encode_text("")[0][0]

    def unet(inputs, timestep, encoder_hidden_states, **_):
        kinds = [
            (not torch.equal(hidden, null), bool(shown.any()))
            for hidden, shown in zip(encoder_hidden_states, inputs[:, 4:], strict=True)
        ]
        return (torch.tensor([values[kind] for kind in kinds])[:, None, None, None],)

    embeddings, conditions, _ = editor._encode_items([(request, request.image)])
    found = editor._predict(unet, conditions[:1], torch.tensor(5), embeddings, conditions, {})
    expected = 0.5 * (2 + 4) + text_scale * (7 - 2) + image_scale * (7 - 4)
    assert found.item() == pytest.approx(expected)


@pytest.mark.parametrize("height, width", [(90, 100), (60, 128)])
def test_the_picture_comes_back_at_its_own_size_on_request(height, width, tiny_editor, picture):
    request = EditRequest("a", picture(3, height, width), "Remove the cat.", 0)
    fitted, plain = (tiny_editor(output=name).edit([request])[0].image for name in ("input", "resized"))
    assert plain.shape[0] % 64 == plain.shape[1] % 64 == 0
    expected = ImageOps.fit(Image.fromarray(plain), (width, height), method=Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(fitted, np.asarray(expected))


def test_weights_of_one_change_nothing_others_only_their_sample_and_unknown_words_are_its_error(
    tiny_editor, requests_of
):
    editor = tiny_editor(steps=STEPS)
    plain, other = requests_of(2)
    word = plain.instruction.split()[-1].strip(".")
    untouched, beside = editor.edit([plain, other])
    for factor, same in ((1.0, True), (-2.0, False)):
        weighted, still = editor.edit([replace(plain, weights={word.upper(): factor}), other])
        assert (weighted.image == untouched.image).all() == same
        np.testing.assert_allclose(still.image.astype(int), beside.image, atol=1)  # written out, not fused
    failed, edited = editor.edit([replace(plain, weights={"zeppelin": 0.0}), other])
    assert "'zeppelin' is not in the instruction" in failed.error
    assert edited.image is not None


def test_a_weight_is_for_the_word_and_for_parts_of_others_only_where_it_is_not_there(tiny_editor):
    tokenizer = tiny_editor(steps=STEPS)._tokenizer

    def weighted(text):
        offsets = tokenizer(text, padding="max_length", truncation=True, return_offsets_mapping=True)
        weights = weigh_tokens(tokenizer, text, {"car": -2.0}).tolist()
        spans = zip(weights, offsets["offset_mapping"], strict=True)
        return "".join(text[start:end] for weight, (start, end) in spans if weight != 1)

    assert weighted("a cartoon, no car") == "car"
    assert weighted("there are no cars").startswith("car")


def test_truncation_is_half_a_level_darker_and_named(tiny_editor, requests_of):
    requests = requests_of(3)
    rounded, truncated = tiny_editor(rounding="round"), tiny_editor(rounding="truncate")
    a = np.stack([result.image for result in rounded.edit(requests)]).astype(int)
    b = np.stack([result.image for result in truncated.edit(requests)]).astype(int)
    assert set(np.unique(a - b)) == {0, 1}
    # Pixels clipped at 0 and 255 do not move, all others by 0.5 on average.
    inside = (a > 0) & (a < 255)
    assert (a - b)[inside].mean() == pytest.approx(0.5, abs=0.05)
    settings = {"rounding": "truncate", "guidance_scale": 20.0}
    for option, value in settings.items():
        other = tiny_editor(**{option: value})
        assert other.describe()[option] == value
        assert other.fingerprint != rounded.fingerprint


def test_a_picture_the_model_cannot_take_is_one_error(tiny_editor, picture, requests_of):
    requests = [*requests_of(1), EditRequest("odd", picture(0, 98, 98), "Remove the cat.", 0)]
    good, odd = tiny_editor(resolution=64).edit(requests)
    assert good.error is None
    assert odd.image is None
    assert "is 98 x 98, which rule r64 rounds to 0 x 0 at resolution 64" in odd.error


def fail_on(editor, monkeypatch, picked, error):
    """Make the VAE fail whenever the picture `picked` is in its batch."""
    encode = editor._encode_images

    def broken(images):
        if any((image == picked).all() for image in images):
            raise error
        return encode(images)

    monkeypatch.setattr(editor, "_encode_images", broken)


def test_a_failing_batch_is_retried_and_only_the_culprit_has_an_error(tiny_editor, requests_of, monkeypatch):
    requests, editor = requests_of(3), tiny_editor()
    expected = editor.edit(requests)
    for error in (RuntimeError("bad shape"), TypeError("bad type"), IndexError("none")):
        with monkeypatch.context() as patch:
            fail_on(editor, patch, requests[1].image, error)
            first, bad, last = editor.edit(requests)
        assert bad.error.startswith(f"{type(error).__name__}: {error}")
        for found, usual in ((first, expected[0]), (last, expected[2])):
            assert np.abs(found.image.astype(int) - usual.image).max() <= 1
    for error in (NameError("typo"), torch.OutOfMemoryError("full")):  # not the sample's fault
        fail_on(editor, monkeypatch, requests[1].image, error)
        with pytest.raises(type(error), match=str(error)):
            editor.edit(requests)


@pytest.mark.parametrize("stage", ["_sample", "_decode"])
def test_values_that_are_not_finite_are_an_error_of_their_sample_only(
    stage, tiny_editor, requests_of, monkeypatch
):
    editor = tiny_editor()
    original = getattr(editor, stage)

    def poisoned(*arguments):
        output = original(*arguments).clone()
        output[1, 0, 0, 0] = float("nan") if stage == "_sample" else float("inf")
        return output

    monkeypatch.setattr(editor, stage, poisoned)
    results = editor.edit(requests_of(3))
    assert [result.image is None for result in results] == [False, True, False]
    assert "not finite in float32" in results[1].error


def test_a_long_instruction_is_read_in_part_and_noted(tiny_editor, requests_of):
    short = requests_of(1)[0]
    # The tiny tokenizer has a token per letter; 77 hold 75 letters and the two ends.
    text = "a" * 75
    fits, long, longer = (replace(short, instruction=t) for t in (text, text + "b", text + "cd"))
    results = tiny_editor().edit([fits, long, longer])
    assert results[0].note == ""
    assert results[1].note == "the instruction has 78 tokens, the text encoder read 77"
    assert "79 tokens" in results[2].note
    np.testing.assert_array_equal(results[1].image, results[2].image)


@pytest.mark.parametrize(
    "option, expected",
    [
        ({"image_guidance_scale": 0.9}, "image_guidance_scale is 0.9.*>= 1"),
        ({"guidance_scale": 1.0}, "guidance_scale is 1.0"),
        ({"guidance": "instructdiffusion", "image_guidance_scale": -1.0}, r"image_guidance_scale is -1\.0"),
        ({"guidance_scale": float("nan")}, "guidance_scale is nan"),
        ({"steps": 1}, "steps is 1; expected a whole number of at least 2"),
        ({"steps": "4"}, "steps is '4'; expected a whole number"),
        ({"guidance_scale": "7.5"}, "guidance_scale is '7.5'"),
        ({"rounding": "floor"}, "Unknown rounding 'floor'. Allowed: round, truncate"),
        ({"resize": "fit"}, "Unknown resize rule 'fit'. Allowed: r64, squash, zone"),
        ({"resize": "squash", "resolution": 61}, "resolution is 61; expected a multiple of"),
        ({"resolution": 0}, "resolution is 0"),
        ({"dtype": "fp16"}, "Unknown dtype 'fp16'.* Allowed: float32, bfloat16, float16"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"guidance": "cfg"}, "Unknown guidance 'cfg'. Allowed: ip2p, instructdiffusion"),
        ({"output": "target"}, "Unknown output 'target'. Allowed: resized, input"),
    ],
)
def test_impossible_settings_are_refused_in_a_sentence(option, expected, tiny_editor):
    with pytest.raises(EditorError, match=expected):
        tiny_editor(**option)
