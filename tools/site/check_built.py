"""What the built site promises: its links lead somewhere, and nothing is fetched from elsewhere.

.venv/bin/python tools/site/check_built.py [SITE]     (after `make site`)
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
# What a browser fetches by itself; <a href> it does not. alternate and canonical are only read.
FETCHED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("use", "href")}
FETCHED_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "manifest"}


@dataclass
class Html(HTMLParser):
    """Ids, links and what is fetched, of one page."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given["id"]} if "id" in given else set()
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.fetched += [value for name, value in given.items() if (tag, name) in FETCHED]
        if tag == "link" and set(given.get("rel", "").split()) & FETCHED_LINKS:
            self.fetched.append(given.get("href", ""))
        self.fetched += re.findall(r"url\(([^)]+)\)", given.get("style", ""))


def problems(site: Path) -> list[str]:
    """Everything that is wrong in the built pages and style sheets, one line each."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = Html()
        pages[path].feed(path.read_text(encoding="utf-8"))
    found = [] if pages else [f"{site}: no pages"]
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name}: fetches {url}" for url in page.fetched if re.match(r"(\w+:)?//", url)]
        if path.name == "404.html":  # its links begin at the root of the real address
            continue
        for link in page.links + page.fetched:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            base = site if parts.path.startswith("/") else path.parent
            where = unquote(parts.path).lstrip("/")
            target = (base / where).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{name}: {link} leads nowhere")
            elif parts.fragment and target in pages:
                if unquote(parts.fragment) not in pages[target].ids:
                    found.append(f"{name}: {link} has no such place")
    for path in sorted(site.rglob("*.css")):
        for url in re.findall(
            r"(?:url\(|@import\s+)[\"']?((?:\w+:)?//[^\"')]+)", path.read_text("utf-8")
        ):
            found.append(f"{path.relative_to(site)}: fetches {url}")
    return found


def main(site: str = str(ROOT / "site")) -> None:
    found = problems(Path(site).resolve())
    print("\n".join(found) or "all links lead somewhere, nothing is fetched from elsewhere")
    sys.exit(bool(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
