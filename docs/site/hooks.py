"""What the build does beyond mkdocs: pages and tables of `pages.py`, and README.md as the home page.

The navigation of mkdocs.yml names lists of pages that are written ("Commands: COMMANDS").
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pages
import sources
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

WRITTEN = pages.written()


def home(readme: str) -> str:
    """README.md as a page of docs/: what it links to there lies here."""
    return "---\nhide: [navigation]\n---\n" + re.sub(r"\]\(docs/", "](", readme)


def on_startup(**_: Any) -> None:
    sources.link()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = _listed(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    readme = Path(config.config_file_path).with_name("README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=home(readme)))
    for page in (page for part in WRITTEN.values() for page in part):
        files.append(File.generated(config, page.path, content=page.text))
    return files


def _listed(nav: Any) -> Any:
    """The navigation with lists in the place of their names."""
    if isinstance(nav, dict):
        return {title: _listed(part) for title, part in nav.items()}
    if isinstance(nav, list):
        return [_listed(part) for part in nav]
    return [{page.title: page.path} for page in WRITTEN[nav]] if nav in WRITTEN else nav
