"""nein evaluates how well image editors and vision-language models understand what is *not* there.

    >>> import nein
    >>> result = nein.evaluate(my_edit, limit=48)    # my_edit(image: PIL.Image.Image, instruction: str)
    >>> print(result)  # its tables; also .table(), .gap(), .samples(), .grid(), .report("page.html")

The commands are in `nein.cli`, the functions in `nein.api`, which is imported at its first use.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nein.api import evaluate, judge, negbench, negvqa, run
    from nein.editors.base import Refused

_HERE = Path(__file__).resolve().parent
if not (_HERE / "editors").is_dir():  # a checkout: editors, metrics and train lie beside this package
    __path__.append(str(_HERE.parent))

__all__ = ["Refused", "evaluate", "judge", "negbench", "negvqa", "run"]


def __getattr__(name: str) -> Any:
    if name == "Refused":
        from nein.editors import base

        return base.Refused
    if name in __all__:
        import nein.api

        return getattr(nein.api, name)
    if name == "__version__":
        from importlib import metadata

        return metadata.version("nein")
    raise AttributeError(f"module 'nein' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
