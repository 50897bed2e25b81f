import functools

import numpy as np
import pytest
import torch
from diffusers import DPMSolverMultistepScheduler, StableDiffusionInstructPix2PixPipeline
from transformers import CLIPTextModel, CLIPTokenizer

from nein import editors
from nein.editors import EditorError, EditRequest, zone
from nein.editors.zone import ActionClassifier, Segmenter, Settings, load_classifier

STEPS = 3


@pytest.fixture
def decided(monkeypatch):
    """Makes an editor read these actions in the instructions, by number."""

    def decide(editor, requests, *actions):
        read = editor._classify
        chosen = dict(zip((request.instruction for request in requests), actions, strict=True))
        monkeypatch.setattr(editor, "_classify", lambda text: read(text)._replace(action=chosen[text]))

    return decide


@pytest.fixture
def segmented(monkeypatch):
    """Makes SAM find exactly `segments`; gives the pictures it was shown."""

    def segment(editor, *segments):
        shown = []
        monkeypatch.setattr(editor, "_segmenter", lambda image: shown.append(image) or list(segments))
        return shown

    return segment


def box(top, left, bottom, right, shape=(64, 64)):
    mask = np.zeros(shape, bool)
    mask[top:bottom, left:right] = True
    return mask


@functools.cache
def stock(folder):
    return StableDiffusionInstructPix2PixPipeline.from_pretrained(
        folder, safety_checker=None, requires_safety_checker=False
    )


@torch.no_grad()
def edit_by_hand(models, request, beta):
    """The whole edit before anything is pasted, by two stock pipelines and two stock samplers."""
    first, second = (stock(models[role]) for role in ("checkpoint", "magicbrush"))
    samplers = []
    for _ in range(2):
        sampler = DPMSolverMultistepScheduler.from_config(
            first.scheduler.config, final_sigmas_type="sigma_min"
        )
        sampler.set_timesteps(STEPS)
        samplers.append(sampler)
    hidden = {}
    for text in (request.instruction, ""):
        ids = first.tokenizer(text, padding="max_length", max_length=77, truncation=True, return_tensors="pt")
        hidden[text] = first.text_encoder(ids.input_ids).last_hidden_state
    pixels = torch.from_numpy(request.image / 127.5 - 1).float().permute(2, 0, 1)[None]
    source = first.vae.encode(pixels).latent_dist.mode()
    x = y = torch.randn(source.shape, generator=torch.Generator().manual_seed(request.seed))

    def guided(unet, z, t):
        def ask(text, image):
            return unet(torch.cat([z, image], 1), t, hidden[text]).sample

        text, image = ask(request.instruction, source), ask("", source)
        none = ask("", torch.zeros_like(source))
        return none + 7.5 * (text - image) + 1.5 * (image - none)

    for t in samplers[0].timesteps:
        y = samplers[1].step(guided(second.unet, y, t), t, y).prev_sample
        x = samplers[0].step(guided(first.unet, x, t), t, x).prev_sample
        x = (x + beta * y) / (1 + beta)
    picture = first.vae.decode(x / first.vae.config.scaling_factor).sample[0]
    return ((picture / 2 + 0.5).clamp(0, 1) * 255).round().permute(1, 2, 0).numpy()


@pytest.fixture
def finals(monkeypatch):
    """The arguments of every call of `zone.blend_layer`."""
    calls, final = [], zone.blend_layer
    monkeypatch.setattr(
        zone, "blend_layer", lambda *arguments: calls.append(arguments[:-1]) or final(*arguments)
    )
    return calls


def test_the_edit_is_that_of_two_stock_pipelines_mixed_step_by_step(
    zone_editor, zone_models, requests_of, decided, finals
):
    editor, requests = zone_editor(), requests_of(2)
    decided(editor, requests, "REMOVE", "ADD")
    editor.edit(requests)
    for request, (_, edit, *_), beta in zip(requests, finals, (0.2, 0.01), strict=True):
        np.testing.assert_allclose(edit, edit_by_hand(zone_models, request, beta), atol=1)
    assert np.abs(edit - edit_by_hand(zone_models, request, 0.2)).mean() > 1


@pytest.mark.parametrize("action, shown_first", [("REMOVE", True), ("ADD", False), ("CHANGE", False)])
@pytest.mark.parametrize("protocol", ["paper", "fixed"])
def test_the_result_follows_from_the_masks_by_hand(
    protocol, action, shown_first, zone_editor, requests_of, decided, segmented, finals
):
    editor, requests = zone_editor(protocol=protocol, mask_threshold=255), requests_of(1)
    decided(editor, requests, action)
    shown = segmented(editor, box(20, 8, 44, 50))
    result = editor.edit(requests)[0]
    assert result.note == f"{action}, segment of 1008 pixels, Region-IoU 0.25"
    [(source, edit, fine, _, smooth)] = finals
    np.testing.assert_array_equal(source, requests[0].image)
    np.testing.assert_array_equal(fine, box(20, 8, 44, 50))
    np.testing.assert_array_equal(shown[0], source if shown_first else edit)
    source, edit = source.astype(float), edit.astype(float)
    pasted = box(19, 7, 45, 51) if action == "REMOVE" else fine  # dilated by one pixel
    mixed = np.floor(0.6 * edit + 0.4 * source)
    expected = source.copy()
    if protocol == "paper":
        expected[smooth] = edit[smooth]
        expected[smooth != fine] = mixed[smooth != fine]
    else:
        expected[smooth & ~pasted] = mixed[smooth & ~pasted]
        expected[pasted] = edit[pasted]
    assert (smooth != fine).any()
    np.testing.assert_allclose(result.image, expected, atol=1)  # float sums may fall just below an integer


@pytest.mark.parametrize(
    "segments, options, reason",
    [
        ((), {}, "SAM found no segment"),
        ((box(0, 0, 5, 5),), {"mask_threshold": 0}, "region"),
        ((box(30, 30, 31, 31),), {"mask_threshold": 255}, "the segment is smaller than the least area"),
    ],
    ids=["no segment", "no overlap", "a speck"],
)
def test_fixed_returns_the_picture_and_a_status_when_there_is_nothing_to_paste(
    segments, options, reason, zone_editor, requests_of, segmented, monkeypatch
):
    request = requests_of(1)[0]
    editor = zone_editor(**options)
    if reason == "region":
        monkeypatch.setattr(editor, "_predict", record_of_one_cell)
    segmented(editor, *segments)
    result = editor.edit([request])[0]
    assert result.error is None
    assert reason in result.note
    assert result.note.endswith(": the picture as it was")
    np.testing.assert_array_equal(result.image, request.image)


def record_of_one_cell(unet, x, t, embeddings, conditions, attention):
    """A prediction whose region is the lower right corner: elsewhere the first token prevails."""
    first, last = torch.ones(8, 8), torch.zeros(8, 8)
    first[7, 7], last[7, 7] = 0.0, 1.0
    if (record := attention.get("record")) is None:
        return torch.zeros_like(x)
    maps = torch.zeros(8, 8, embeddings.shape[1])
    maps[..., 0], maps[..., 1:] = first, last[..., None]
    record.add(maps.flatten(0, 1).expand(3 * record.batch, -1, -1), heads=1)
    return torch.zeros_like(x)


@pytest.mark.parametrize("segments", [(), (box(0, 0, 5, 5),)], ids=["no segment", "no overlap"])
def test_paper_ends_with_an_error_where_the_released_code_does(
    segments, zone_editor, requests_of, segmented, monkeypatch
):
    editor = zone_editor(protocol="paper")
    monkeypatch.setattr(editor, "_predict", record_of_one_cell)
    segmented(editor, *segments)
    [result] = editor.edit(requests_of(1))
    assert result.image is None
    assert "released code of ZONE ends here, and protocol 'fixed' goes on" in result.error


@pytest.mark.parametrize("width, height", [(33, 64), (200, 3)])
def test_a_picture_of_any_shape_comes_back_in_its_own_size_in_fixed_and_padded_in_paper(
    width, height, zone_editor, picture
):
    request = EditRequest("a", picture(1, height, width), "Remove the cat.", 3)
    fixed, paper = (zone_editor(protocol=protocol).edit([request])[0] for protocol in ("fixed", "paper"))
    assert fixed.error is None
    assert fixed.image.shape == (height, width, 3)
    if paper.error is None:
        assert paper.image.shape == editors.resize.zone(request.image, 64).shape
    else:
        assert "released code" in paper.error


def test_branches_follow_protocols(zone_editor):
    branches = [zone_editor(protocol=name).describe()["branches"] for name in ("fixed", "paper")]
    assert branches == ["text", "uncond"]


@pytest.mark.parametrize(
    "option, expected",
    [
        ({"protocol": "papers"}, "protocol is 'papers'; input should be 'paper' or 'fixed'"),
        ({"edge_alpha": 2}, "edge_alpha is 2; .*less than or equal to 1"),
        ({"map_stride": "8"}, "map_stride is '8'"),
        ({"action": "nowhere.pth"}, "cannot read 'nowhere.pth'"),
        ({"sam": "no/such folder/x"}, "neither an existing folder nor a hub id"),
        ({"magicbrush": "./nowhere"}, "neither an existing folder nor a hub id"),
    ],
)
def test_impossible_settings_are_refused_in_a_sentence(option, expected, zone_editor):
    with pytest.raises(EditorError, match=expected):
        zone_editor(**option)


def test_a_folder_that_is_no_sam_is_refused(checkpoint):
    with pytest.raises(EditorError, match=r"cannot load|lacks \d+ of the weights of its SamModel"):
        Segmenter(f"{checkpoint}/text_encoder", torch.device("cpu"), Settings())


def test_the_released_classifier_file_is_read_as_tensors_and_nothing_else(tmp_path):
    torch.manual_seed(0)
    made = ActionClassifier(768)
    torch.save(made.state_dict(), tmp_path / "action_classifier.pth")
    assert 390_000 < (tmp_path / "action_classifier.pth").stat().st_size < 400_000  # 396,767 in the original
    states = torch.randn(77, 768)
    torch.testing.assert_close(load_classifier(str(tmp_path / "action_classifier.pth"))(states), made(states))
    torch.save({"state": made}, tmp_path / "whole.pth")
    with pytest.raises(EditorError, match=r"whole\.pth"):
        load_classifier(str(tmp_path / "whole.pth"))
    torch.save({"fc1.weight": torch.zeros(2, 2)}, tmp_path / "part.pth")
    with pytest.raises(EditorError, match=r"cannot load .*part\.pth"):
        load_classifier(str(tmp_path / "part.pth"))


def test_the_classifier_reads_the_text_encoders_states_of_each_text(zone_editor, zone_models):
    editor = zone_editor()
    encoder = CLIPTextModel.from_pretrained(zone_models["checkpoint"] + "/text_encoder")
    tokenizer = CLIPTokenizer.from_pretrained(zone_models["checkpoint"] + "/tokenizer")
    classifier = load_classifier(zone_models["action"])
    found = set()
    for text in ("Remove the cat.", "Add a dog.", "qq", "The image has no x."):
        # Alone and without padding: later tokens never reach earlier ones in this encoder.
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            logits = classifier(encoder(ids).last_hidden_state[0])
        reading = editor._classify(text)
        assert reading.tokens == ids.shape[1]
        assert reading.action == ("CHANGE", "ADD", "REMOVE")[int(logits.amax(0).argmax())]
        found.add(reading.action)
    assert len(found) > 1
