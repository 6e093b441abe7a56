"""Hooks of MkDocs: files beside the pages, and links of a site that does not know its address."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.site.codealong import COPIES, linked
from tools.site.plain import plain
from tools.site.source import ROOT, read

# What the site is told of pages; in a page GitHub would show it as a table. Wide ones need the room
# of the menu, or have their contents in the text: <!-- toc -->.
META = {
    "chapters/": {"hide": ["navigation", "toc"]},
    "compare.md": {"hide": ["navigation", "toc"]},
    "convert.md": {"hide": ["navigation", "toc"], "search": {"boost": 2}},
    "handbook/api.md": {"hide": ["toc"]},
    "index.md": {"hide": ["navigation", "toc"]},
    "migration.md": {"hide": ["navigation", "toc"]},
    "recipes.md": {"hide": ["navigation"]},
}
listed: dict[str, str] = {}  # plain Markdown: its place in the site -> a line of llms.txt


def on_pre_build(config: MkDocsConfig) -> None:
    linked.clear()
    read.cache_clear()


@event_priority(-200)  # after i18n, which would look for it in docs/
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The doctor in one file, to be downloaded."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "doctor.pyz")
        make = ["make", "-s", "-C", ROOT, made.name, f"PYTHON={sys.executable}", f"PYZ={made}"]
        subprocess.run(make, check=True)
        files.append(File.generated(config, made.name, content=made.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> None:
    _, _, name = page.file.src_uri.partition("/")
    for start, meta in META.items():
        if name.startswith(start):
            page.meta |= meta


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    write_plain(page, config)
    # What the doctor prints in capitals, in the colour of a mistake.
    output = re.sub(
        r"(?m)(^|<code>)(WRONG RESULT|HANG AHEAD)(?=  \w)", r'\1<b class="wrong">\2</b>', output
    )
    # The other language of a home page is "/" or "/en/", which is wrong below a path.
    root = "../" * page.url.count("/") or "./"
    return re.sub(r'href="/((?:en/)?)" hreflang', rf'href="{root}\1" hreflang', output)


def write_plain(page: Page, config: MkDocsConfig) -> None:
    """convert.md beside convert/: for those who read without a browser."""
    place = page.file.src_uri.removeprefix("zh/")
    source = Path(page.file.abs_src_path).read_text(encoding="utf-8")
    target = Path(config.site_dir, place)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(plain(source, page.file.src_uri, config.repo_url or ""), encoding="utf-8")
    about = page.meta.get("description", "")
    listed[place] = f"- [{page.title}]({config.site_url or ''}{place})" + f": {about}" * bool(about)


def on_post_build(config: MkDocsConfig) -> None:
    """llms.txt (llmstxt.org), and copies of the files that pages show and link to. Called once for
    each language: the last time all pages are known."""
    english = [line for place, line in listed.items() if place.startswith("en/")]
    chinese = [line for place, line in listed.items() if not place.startswith("en/")]
    about = "Training on many GPUs with PyTorch: each page as plain Markdown, with its code"
    parts = ["# PyTorch multi-GPU cookbook", "", f"> {about}", ""]
    parts += ["## English", "", *english, "", "## 中文", "", *chinese, ""]
    Path(config.site_dir, "llms.txt").write_text("\n".join(parts), encoding="utf-8")
    for path in linked:
        target = Path(config.site_dir, COPIES, f"{path}.txt")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)
