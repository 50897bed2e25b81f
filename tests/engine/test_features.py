"""Features on disk: bit for bit, by space and block, and made again where a file is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nein.engine.features import FeatureCache, scope_of


def test_features_come_back_bit_for_bit_and_only_in_their_space_and_block(tmp_path: Path) -> None:
    value = np.random.default_rng(0).normal(size=7).astype(np.float32)
    cache = FeatureCache(tmp_path, scope_of(["a", "b"]))
    cache.put("clip@1", "key", value)
    assert np.array_equal(cache.get("clip@1", "key"), value)  # type: ignore[arg-type]
    assert FeatureCache(tmp_path, scope_of(["a", "b"])).get("clip@1", "key") is None  # not flushed
    cache.flush()
    again = FeatureCache(tmp_path, scope_of(["a", "b"]))
    found = again.get("clip@1", "key")
    assert found is not None
    assert found.dtype == np.float32
    assert np.array_equal(found, value)
    assert again.get("clip@2", "key") is None
    assert again.get("clip@1", "other") is None
    assert FeatureCache(tmp_path, scope_of(["b", "a"])).get("clip@1", "key") is None


def test_a_damaged_cache_file_is_made_again_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def keep() -> None:
        cache = FeatureCache(tmp_path, "block")
        cache.put("space", "key", np.ones(3))
        cache.flush()

    keep()
    [file] = [path for path in tmp_path.rglob("*") if path.is_file()]
    file.write_bytes(file.read_bytes()[:-3])
    assert FeatureCache(tmp_path, "block").get("space", "key") is None
    assert "is damaged and is made again" in caplog.text
    keep()
    assert FeatureCache(tmp_path, "block").get("space", "key") is not None
