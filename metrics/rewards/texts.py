"""Texts in a Python file of the authors of a judge, read without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from metrics.base import MetricError


def constants(folder: Path, names: Iterable[str], source: str) -> dict[str, str]:
    """The texts that the Python files in `folder` assign to `names` at their top.

    source  Where the files come from, for the message. Raises MetricError for a file that is none, and for
            a name that no file has.
    """
    texts: dict[str, str] = {}
    for path in sorted(folder.glob("*.py")):
        try:
            body = ast.parse(path.read_bytes()).body
        except (SyntaxError, ValueError) as error:
            raise MetricError(f"'{path}' is no Python file ({error}); copy it again from {source}.") from None
        for line in body:
            if (
                isinstance(line, ast.Assign)
                and isinstance(line.value, ast.Constant)
                and isinstance(line.value.value, str)
            ):
                texts |= {one.id: line.value.value for one in line.targets if isinstance(one, ast.Name)}
    wanted = list(names)
    if lacking := [name for name in wanted if name not in texts]:
        raise MetricError(
            f"No Python file in '{folder}' has the text {lacking[0]}; the judge was trained with its "
            f"authors' words: copy {source} into the folder. It is read, not run."
        )
    return {name: texts[name] for name in wanted}
