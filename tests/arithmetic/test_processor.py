"""What is known of a processor: only what decides between two ways of the same operation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from arithmetic import processor


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    def forget() -> None:
        for asked in (processor.has_matrix_unit, processor.has_narrow_mkl):
            asked.cache_clear()

    forget()
    yield
    forget()


@pytest.mark.parametrize(
    "machine, lines, system, name, narrow",
    [
        ("x86_64", "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t: avx", "Linux", "", False),
        ("x86_64", "processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t: avx", "Linux", "", True),
        ("AMD64", None, "Windows", "Intel64 Family 6 Model 143 Stepping 8, GenuineIntel", False),
        ("AMD64", None, "Windows", "AMD64 Family 26 Model 2 Stepping 1, AuthenticAMD", True),
        ("x86_64", None, "Darwin", "i386", False),
        ("aarch64", "processor\t: 0\nCPU implementer\t: 0x41", "Linux", "", False),
        ("arm64", None, "Darwin", "arm", False),
    ],
)
def test_mkl_is_slow_on_processors_of_its_makers_rivals(
    machine: str, lines: str | None, system: str, name: str, narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path, **how: str) -> str:
        if lines is None:
            raise FileNotFoundError(path)
        return lines

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(processor.platform, "machine", lambda: machine)
    monkeypatch.setattr(processor.platform, "system", lambda: system)
    monkeypatch.setattr(processor.platform, "processor", lambda: name)
    assert processor.has_narrow_mkl() is narrow


def test_a_pytorch_that_cannot_say_has_no_matrix_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(processor.has_matrix_unit(), bool)
    processor.has_matrix_unit.cache_clear()
    monkeypatch.delattr(processor.torch.cpu, "_is_amx_tile_supported", raising=False)
    assert processor.has_matrix_unit() is False
