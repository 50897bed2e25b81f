from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nein.engine import images
from nein.engine.images import ImageError


def save(path: Path, picture: Image.Image, **options: object) -> Path:
    picture.save(path, **options)
    return path


def test_png_round_trip_keeps_every_pixel(tmp_path):
    picture = np.random.default_rng(0).integers(0, 256, (17, 23, 3), dtype=np.uint8)
    images.write_png(tmp_path / "a" / "b.png", picture)
    assert np.array_equal(images.decode(tmp_path / "a" / "b.png"), picture)
    assert images.probe(tmp_path / "a" / "b.png") == (23, 17)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.png"]  # no temporary file is left


def test_grey_is_repeated_in_three_channels(tmp_path):
    path = save(tmp_path / "g.png", Image.fromarray(np.array([[0, 7], [128, 255]], dtype=np.uint8)))
    assert images.decode(path).tolist() == [[[0] * 3, [7] * 3], [[128] * 3, [255] * 3]]


def test_sixteen_bit_grey_is_divided_not_clipped(tmp_path):
    values = np.array([[0, 255, 256, 0x8000, 0xFFFF]], dtype=np.uint16)
    path = save(tmp_path / "g16.png", Image.fromarray(values))
    assert images.decode(path)[0, :, 0].tolist() == [0, 0, 1, 128, 255]


def test_floating_point_pixels_are_refused_and_not_cut_to_black(tmp_path):
    path = save(tmp_path / "f.tif", Image.fromarray(np.full((2, 2), 0.5, np.float32)))
    with pytest.raises(ImageError, match="floating-point numbers"):
        images.decode(path)


def test_transparency_is_composed_on_white(tmp_path):
    pixels = np.array([[[200, 0, 0, 255], [200, 0, 0, 0]]], dtype=np.uint8)
    path = save(tmp_path / "rgba.png", Image.fromarray(pixels))
    assert images.decode(path).tolist() == [[[200, 0, 0], [255, 255, 255]]]


def test_cmyk_is_converted(tmp_path):
    path = save(tmp_path / "c.tif", Image.new("CMYK", (2, 2), (0, 255, 255, 0)))
    assert images.decode(path)[0, 0].tolist() == [255, 0, 0]


def test_exif_orientation_is_ignored(tmp_path):
    picture = Image.new("RGB", (4, 2))
    exif = picture.getexif()
    exif[0x0112] = 6  # rotated by 90 degrees
    path = save(tmp_path / "e.jpg", picture, exif=exif)
    assert images.decode(path).shape == (2, 4, 3)


def test_truncated_file_has_a_readable_header_but_does_not_decode(tmp_path):
    path = tmp_path / "t.png"
    images.write_png(path, np.random.default_rng(1).integers(0, 256, (40, 40, 3), dtype=np.uint8))
    path.write_bytes(path.read_bytes()[:900])
    assert images.probe(path) == (40, 40)
    with pytest.raises(ImageError, match=r"t\.png: the image cannot be decoded"):
        images.decode(path)


def test_missing_and_foreign_files_are_named(tmp_path):
    with pytest.raises(ImageError, match=r"no\.png: the file is missing"):
        images.decode(tmp_path / "no.png")
    (tmp_path / "text.png").write_text("hello")
    with pytest.raises(ImageError, match="not an image file"):
        images.probe(tmp_path / "text.png")


def test_pixel_hash_depends_on_pixels_and_shape_only():
    picture = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    turned = picture.reshape(3, 2, 3)
    changed = picture.copy()
    changed[0, 0, 0] ^= 1
    strided = np.repeat(picture, 2, axis=1)[:, ::2]
    assert images.pixel_hash(strided) == images.pixel_hash(picture)
    assert len({images.pixel_hash(p) for p in (picture, turned, changed)}) == 3


@pytest.mark.parametrize(
    "bad", [np.zeros((2, 2, 3)), np.zeros((2, 2), np.uint8), np.zeros((0, 2, 3), np.uint8)]
)
def test_arrays_that_are_no_pictures_are_refused(bad):
    with pytest.raises(ImageError, match="an image must"):
        images.encode_png(bad)


def drawn(side: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (side, side + 9, 3), dtype=np.uint8)


@pytest.mark.parametrize("side", [40, 300])
def test_a_thumbnail_of_a_file_is_that_of_its_pixels(tmp_path, side):
    picture, path = drawn(side), tmp_path / "a.png"
    images.write_png(path, picture)
    made = images.thumbnail_of(path, 128)
    assert made == images.thumbnail(picture, 128)
    with Image.open(io.BytesIO(made)) as small:
        assert small.format == "JPEG"
        assert max(small.size) == min(side + 9, 128)
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(ImageError, match=r"a\.png: the image cannot be decoded"):
        images.thumbnail_of(path, 128)


def test_a_file_is_what_it_decodes_to_by_a_known_format_whatever_its_name(tmp_path):
    path = tmp_path / "eps.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n%%EOF\n")
    with pytest.raises(ImageError, match="not an image file"):
        images.decode(path)  # Pillow would start Ghostscript


def test_a_picture_with_more_pixels_than_allowed_is_not_decoded(tmp_path, monkeypatch):
    images.write_png(tmp_path / "a.png", np.zeros((30, 40, 3), np.uint8))
    monkeypatch.setenv("NEIN_MAX_PIXELS", "1199")
    for read in (images.decode, images.probe, lambda path: images.thumbnail_of(path, 8)):
        with pytest.raises(ImageError, match="40 x 30 pixels, more than 1,199; NEIN_MAX_PIXELS"):
            read(tmp_path / "a.png")
    monkeypatch.setenv("NEIN_MAX_PIXELS", "1200")
    assert images.probe(tmp_path / "a.png") == (40, 30)
