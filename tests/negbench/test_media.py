from pathlib import Path

import numpy as np
import pytest

from nein.datasets.negbench import loading, media
from nein.datasets.negbench.media import Files, make_region
from nein.engine.images import ImageError, write_png
from nein.loading.errors import UserError
from tests.metrics import tiny


def write_video(path, length, rate=10, **options):
    """A video whose n-th frame is grey of level 5 n (modulo 255)."""
    import av

    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(length):
            grey = np.full((48, 64, 3), 5 * number % 255, dtype=np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def test_a_picture_is_found_by_its_file_name_whatever_folder_the_file_names(pictures):
    files = Files(pictures)
    for reference in ("/cluster/coco/val2017/003.png", "deep/003.png", "003.png", r"D:\coco\003.png"):
        (found,) = files.frames(reference)
        assert (found == tiny.picture(3)).all()


def test_a_longer_tail_of_the_path_decides_between_equal_names(tmp_path):
    for k, name in enumerate(("a", "b")):
        write_png(tmp_path / name / "x.png", tiny.picture(k))
    files = Files(tmp_path)
    assert (files.frames("/data/b/x.png")[0] == tiny.picture(1)).all()
    with pytest.raises(ImageError, match=r"2 files below .* have this name"):
        files.frames("/data/x.png")


def test_one_file_has_one_reference_in_a_data_set(tmp_path):
    write_png(tmp_path / "a" / "x.png", tiny.picture(0))
    (tmp_path / "retrieval.csv").write_text(
        "filepath,captions\na/x.png,\"['A dog.', 'A cat.']\"\n./a/x.png,\"['It runs.']\"\n"
    )
    [data] = loading.load(str(tmp_path))
    with pytest.raises(UserError, match=r"names one image as both 'a/x\.png' and '\./a/x\.png'"):
        loading.check_images(data)


def test_what_is_not_below_the_folder_is_not_found(pictures):
    for name in ("/data/999.png", f"../../{pictures.name}/nothing.png"):
        with pytest.raises(ImageError, match=r"(999|nothing).png: 0 files below"):
            Files(pictures / "deep").frames(name)
    with pytest.raises(UserError, match="There is no folder 'nowhere'"):
        Files(Path("nowhere"))


def test_the_frames_of_a_video_are_the_ones_asked_for(tmp_path):
    write_video(tmp_path / "v.mp4", 40)
    found = Files(tmp_path).frames("elsewhere/v.mp4")
    assert [frame.shape for frame in found] == [(48, 64, 3)] * 4
    levels = [float(frame.mean()) / 5 for frame in found]
    assert levels == pytest.approx(media.choose_frames(40), abs=1.0)
    # Released sampler: min(4, length) intervals; more would weigh the first frame twice in the mean.
    found = {length: media.choose_frames(length) for length in (1, 2, 3, 5, 100, 301)}
    assert found == {1: [0], 2: [0, 0], 3: [0, 0, 2], 5: [0, 2, 2, 4], 100: [12, 36, 62, 86],
                     301: [38, 112, 188, 262]}  # fmt: skip
    assert len(media.read_video(write_video(tmp_path / "short.mp4", 2))) == 2


@pytest.mark.parametrize("kept", [0.5, 0.97, 1.0])
def test_an_mp4_file_with_its_index_first_is_read_only_if_it_is_whole(tmp_path, kept):
    whole = write_video(tmp_path / "v.mp4", 120, movflags="faststart").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: int(kept * len(whole))])
    if kept == 1.0:
        assert len(media.read_video(tmp_path / "cut.mp4")) == 4
        return
    (tmp_path / "x.mp4").write_bytes(b"no video at all")
    for name, said in {"cut": r"short; \d+ of its 120", "x": "cannot be decoded", "y": "missing"}.items():
        with pytest.raises(ImageError, match=said):
            media.read_video(tmp_path / f"{name}.mp4")


def test_a_clip_cut_out_of_a_video_is_whole_though_it_holds_more_than_it_shows(tmp_path):
    import av

    write_video(tmp_path / "v.mp4", 120)
    with av.open(str(tmp_path / "v.mp4")) as source, av.open(str(tmp_path / "clip.mp4"), "w") as target:
        own = source.streams.video[0]
        stream = target.add_stream_from_template(own)
        tick = own.duration // 120
        packets = [p for p in source.demux(own) if p.dts is not None]
        first = next(i for i, p in enumerate(packets) if p.is_keyframe and p.dts >= 30 * tick)
        begin = packets[first].dts + 5 * tick  # from a key frame on, of which the first five are not shown
        for packet in packets[first:]:
            packet.dts, packet.pts, packet.stream = packet.dts - begin, packet.pts - begin, stream
            target.mux(packet)
    with av.open(str(tmp_path / "clip.mp4")) as container:
        held = container.streams.video[0].frames
        shown = sum(1 for _ in container.decode(video=0))
    assert shown < held
    assert len(media.read_video(tmp_path / "clip.mp4")) == 4


def test_a_region_is_cut_out_at_rounded_borders_and_black_outside(tmp_path):
    picture = np.arange(10 * 8 * 3, dtype=np.uint8).reshape(10, 8, 3)
    write_png(tmp_path / "a.png", picture)
    files = Files(tmp_path)
    assert (files.frames(make_region("a.png", (1.4, 2.6, 3, 4)))[0] == picture[3:7, 1:4]).all()
    assert not files.frames(make_region("a.png", (6, 0, 4, 2)))[0][:, 2:].any()
    assert (files.frames(make_region("/data/a.png", (0, 0, 2, 3)))[0] == picture[:3, :2]).all()
    assert files.find_path(make_region("a.png", (0, 0, 2, 3)))
    assert not files.find_path(make_region("b.png", (0, 0, 2, 3)))
