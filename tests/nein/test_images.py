import io

import numpy as np
import pytest
from PIL import Image

from nein.engine import images
from nein.engine.images import ImageError
from nein.loading.digests import pixel_digest


def noise(seed, height, width):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(("name", "picture", "expected"), [
    ("grey.png", Image.fromarray(np.array([[0, 7, 255]], np.uint8)), [[0] * 3, [7] * 3, [255] * 3]),
    # Sixteen bits are divided, not clipped.
    ("grey16.png", Image.fromarray(np.array([[0, 255, 256, 0x8000, 0xFFFF]], np.uint16)),
     [[v] * 3 for v in (0, 0, 1, 128, 255)]),
    # Transparency is composed on white.
    ("rgba.png", Image.fromarray(np.array([[[200, 0, 0, 255], [200, 0, 0, 0]]], np.uint8)),
     [[200, 0, 0], [255, 255, 255]]),
    ("cmyk.tif", Image.new("CMYK", (1, 1), (0, 255, 255, 0)), [[255, 0, 0]]),
])  # fmt: skip
def test_every_kind_of_pixel_becomes_rgb(tmp_path, name, picture, expected):
    picture.save(tmp_path / name)
    assert images.decode(tmp_path / name).tolist() == [expected]


def test_files_that_cannot_be_read_are_named_and_never_handed_to_another_program(tmp_path):
    with pytest.raises(ImageError, match=r"no\.png: the file is missing"):
        images.decode(tmp_path / "no.png")
    cut, text, eps, floating = (tmp_path / name for name in ("t.png", "text.png", "eps.jpg", "f.tif"))
    images.write_png(cut, noise(1, 40, 40))
    cut.write_bytes(cut.read_bytes()[:900])
    assert images.read_size(cut) == (40, 40)  # its header is whole
    text.write_text("hello")
    # Pillow would start Ghostscript.
    eps.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n%%EOF\n")
    Image.fromarray(np.full((2, 2), 0.5, np.float32)).save(floating)  # not cut to black
    for path, said in {
        cut: r"t\.png: the image cannot be decoded", text: "not an image file", eps: "not an image file",
        floating: "floating-point numbers",
    }.items():  # fmt: skip
        with pytest.raises(ImageError, match=said):
            images.decode(path)
    with pytest.raises(ImageError, match="not an image file"):
        images.read_size(text)


def test_pixel_digest_depends_on_pixels_and_shape_only():
    picture = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    changed = picture.copy()
    changed[0, 0, 0] ^= 1
    strided = np.repeat(picture, 2, axis=1)[:, ::2]
    assert pixel_digest(strided) == pixel_digest(picture)
    assert len({pixel_digest(p) for p in (picture, picture.reshape(3, 2, 3), changed)}) == 3


@pytest.mark.parametrize("shape, dtype", [((2, 2, 3), float), ((2, 2), np.uint8), ((0, 2, 3), np.uint8)])
def test_arrays_that_are_no_pictures_are_refused(shape, dtype):
    with pytest.raises(ImageError, match="an image must"):
        images.check(np.zeros(shape, dtype))


@pytest.mark.parametrize(
    ("side", "most", "kind"), [(40, 128, "WEBP"), (300, 128, "WEBP"), (300, 256, "JPEG")]
)
def test_a_thumbnail_of_a_file_is_that_of_its_pixels(tmp_path, side, most, kind):
    picture, path = noise(3, side, side + 9), tmp_path / "a.png"
    images.write_png(path, picture)
    made = images.read_thumbnail(path, most)
    assert made == images.encode_thumbnail(picture, most)
    with Image.open(io.BytesIO(made)) as small:
        assert small.format == kind
        assert max(small.size) == min(side + 9, most)
        assert side > most or np.array_equal(np.array(small), picture)  # lossless
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(ImageError, match=r"a\.png: the image cannot be decoded"):
        images.read_thumbnail(path, 128)


def test_png_round_trip_keeps_every_pixel_and_more_than_allowed_are_not_decoded(tmp_path, monkeypatch):
    picture, path = noise(0, 30, 40), tmp_path / "a" / "b.png"
    images.write_png(path, picture)
    assert np.array_equal(images.decode(path), picture)
    assert [one.name for one in path.parent.iterdir()] == ["b.png"]  # no temporary file is left
    monkeypatch.setenv("NEIN_MAX_PIXELS", "1199")
    for read in (images.decode, images.read_size, lambda path: images.read_thumbnail(path, 8)):
        with pytest.raises(ImageError, match="40 x 30 pixels, more than 1,199; NEIN_MAX_PIXELS"):
            read(path)
    monkeypatch.setenv("NEIN_MAX_PIXELS", "1200")
    assert images.read_size(path) == (40, 30)
    images.write_png(path, noise(0, 256, 1))
    assert images.read_size(path) == (1, 256)
    images.write_png(path, noise(0, 257, 1))  # CLIP would make it 224 x 57,568
    with pytest.raises(ImageError, match="a strip of 1 x 257 pixels; the longer side may have at most 256"):
        images.decode(path)
