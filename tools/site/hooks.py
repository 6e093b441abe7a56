"""Hooks of MkDocs, for a site that does not know its address, nor that of the repository."""

import re
import shutil
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

from tools.site.codealong import COPIES, linked
from tools.site.source import ROOT, read


def on_pre_build(config: MkDocsConfig) -> None:
    linked.clear()
    read.cache_clear()


def on_post_page(output: str, page: Page, **_: object) -> str:
    """The other language of a home page is "/" or "/en/", which is wrong below a path."""
    root = "../" * page.url.count("/") or "./"
    return re.sub(r'href="/((?:en/)?)" hreflang', rf'href="{root}\1" hreflang', output)


def on_post_build(config: MkDocsConfig) -> None:
    """Copies of the files that pages show and link to."""
    for path in linked:
        target = Path(config.site_dir, COPIES, f"{path}.txt")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)
