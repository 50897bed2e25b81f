"""What `module:attribute` or `file.py:attribute` names."""

from __future__ import annotations

import hashlib
import importlib.util
import pkgutil
import sys
from pathlib import Path
from typing import Any

from nein.loading.errors import UserError, near_match
from nein.loading.references import expanded


def load_attribute(reference: str) -> Any:
    """Raises UserError where it is not there, or its module fails."""
    home, _, name = reference.rpartition(":")
    try:
        if not home.endswith(".py"):
            return pkgutil.resolve_name(reference)
        module = _module_of(expanded(home))
        if not hasattr(module, name):
            near = near_match(name, vars(module))
            guess = f"; did you mean '{near}'?" if near else ""
            raise AttributeError(f"'{home}' has no '{name}'{guess}")
        return getattr(module, name)
    except (ImportError, AttributeError, OSError, SyntaxError) as error:
        raise UserError(f"'{reference}' cannot be imported: {error}") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a file of the user runs
        raise UserError(f"'{reference}' raises {type(error).__name__} when imported: {error}") from None


def _module_of(file: Path) -> Any:
    """The module in a file, run once; it can import files beside it."""
    name = f"_file_{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    if not file.is_file():
        raise FileNotFoundError(f"there is no file '{file}'")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None  # every name that ends in .py has one, and a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.append(str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(file.resolve().parent))
    return module
