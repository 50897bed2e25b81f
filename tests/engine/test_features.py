"""Features on disk: bit for bit, by space and block, and made again where a file is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nein.engine.features import FeatureCache, scope_of


def test_features_come_back_bit_for_bit_and_only_in_their_space_and_block(tmp_path: Path) -> None:
    value = np.random.default_rng(0).normal(size=7).astype(np.float32)
    cache = FeatureCache(tmp_path)
    cache.open(scope_of(["a", "b"]))
    cache.put("clip@1", "key", value)
    assert np.array_equal(cache.get("clip@1", "key"), value)  # type: ignore[arg-type]
    cache.flush()
    again = FeatureCache(tmp_path)
    again.open(scope_of(["a", "b"]))
    found = again.get("clip@1", "key")
    assert found is not None
    assert found.dtype == np.float32
    assert np.array_equal(found, value)
    assert again.get("clip@2", "key") is None
    assert again.get("clip@1", "other") is None
    again.open(scope_of(["b", "a"]))
    assert again.get("clip@1", "key") is None


def test_what_was_not_flushed_is_not_kept(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path)
    cache.open("one")
    cache.put("clip", "key", np.ones(3))
    cache.open("two")
    cache.flush()
    cache.open("one")
    assert cache.get("clip", "key") is None


def test_a_damaged_cache_file_is_made_again_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = FeatureCache(tmp_path)
    cache.open("block")
    cache.put("space", "key", np.ones(3))
    cache.flush()
    [file] = [path for path in cache.root.rglob("*") if path.is_file()]
    file.write_bytes(file.read_bytes()[:-3])
    cache.open("block")
    assert cache.get("space", "key") is None
    assert "is damaged and is made again" in caplog.text
    cache.put("space", "key", np.ones(3))
    cache.flush()
    cache.open("block")
    assert cache.get("space", "key") is not None


def test_two_writers_of_a_cache_leave_a_whole_file(tmp_path: Path) -> None:
    one, two = FeatureCache(tmp_path), FeatureCache(tmp_path)
    for cache, value in ((one, 1.0), (two, 2.0)):
        cache.open("block")
        cache.put("clip", "key", np.full(3, value))
    one.flush()
    two.flush()
    one.open("block")
    assert np.array_equal(one.get("clip", "key"), np.full(3, 2.0, np.float32))  # type: ignore[arg-type]
    assert len(list(tmp_path.rglob("*.safetensors"))) == 1
