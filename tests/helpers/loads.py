"""Models that tests load from the same files again and again: read once or twice, and copied from then on."""

from __future__ import annotations

import copy
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

#: "module:Class" of the libraries whose `from_pretrained` is remembered, where a test has imported them.
CLASSES = (
    ("transformers.modeling_utils", "PreTrainedModel"),
    ("diffusers.models.modeling_utils", "ModelMixin"),
)
#: What an argument is made of that can be compared; a configuration as an object may change behind us.
PLAIN = (str, bool, int, float, type(None), os.PathLike)


def remember(patch: pytest.MonkeyPatch) -> None:
    """A model of the same class, files and arguments as two before it is a copy of the second."""
    for module, name in CLASSES:
        if module in sys.modules:
            base = getattr(sys.modules[module], name)
            patch.setattr(base, "from_pretrained", classmethod(_seldom(base.from_pretrained.__func__)))


def _seldom(load: Callable[..., Any]) -> Callable[..., Any]:
    loaded: dict[Any, Any] = {}

    @functools.wraps(load)
    def from_pretrained(cls: type, place: Any, *args: Any, **options: Any) -> Any:
        made_of = _made_of(cls, place, args, options)
        if made_of in loaded and loaded[made_of] is not None:
            return copy.deepcopy(loaded[made_of])
        result = load(cls, place, *args, **options)
        if made_of in loaded:  # the second time: most are loaded only once
            loaded[made_of] = copy.deepcopy(result)
        elif made_of is not None:
            loaded[made_of] = None
        return result

    return from_pretrained


def _made_of(cls: type, place: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Equal where the loaded models are; None where nobody can tell."""
    folder = Path(str(place), options.get("subfolder") or "")
    plain = all(isinstance(value, PLAIN) or type(value).__name__ == "dtype" for value in options.values())
    if args or not plain or not folder.is_dir():
        return None
    files = [(entry.name, entry.stat()) for entry in os.scandir(folder)]
    state = sorted((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in files)
    return cls, str(folder.resolve()), tuple(state), repr(sorted(options.items(), key=lambda item: item[0]))
