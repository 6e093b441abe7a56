"""Pictures of the built site, to be looked at: phone, tablet and laptop, light and dark.

.venv/bin/python tools/site/shots.py FOLDER [PAGE ...]     (PAGE as in the address: en/chapters/...)
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import which

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = (390, 1024, 1440)
PAGES = ("", "chapters/03_multiprocessing/", "compare/", "en/chapters/03_multiprocessing/")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder on a free port of this machine; gives the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()


def chromium() -> str | None:
    """The system's browser: the one that Playwright would download is not needed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(which, names)), None)


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # No sandbox: tests run as root in containers, and only see pages that we made.
        options = {"executable_path": chromium(), "args": ["--no-sandbox"]}
        started = playwright.chromium.launch(**options)
        try:
            yield started
        finally:
            started.close()


def settle(page: Page) -> None:
    """Wait until the diagrams are drawn: Material puts a div in the place of each pre."""
    page.wait_for_function("!document.querySelector('pre.mermaid')", timeout=30_000)


def main(folder: str, *pages: str) -> None:
    if not chromium():
        sys.exit("there is no Chromium: apt install chromium fonts-noto-cjk")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    with served(ROOT / "site") as address, browser() as started:
        for scheme in ("light", "dark"):
            for width in WIDTHS:
                size = {"width": width, "height": 900}
                page = started.new_page(viewport=size, color_scheme=scheme, device_scale_factor=1)
                for name in pages or PAGES:
                    if not page.goto(address + name).ok:
                        sys.exit(f"site/ has no page {name!r}: make site")
                    settle(page)
                    short = name.strip("/").replace("/", "-") or "home"
                    file = target / f"{short}-{width}-{scheme}.png"
                    page.screenshot(path=file, full_page=True)
                    print(file)
                page.close()


if __name__ == "__main__":
    main(*(sys.argv[1:] or sys.exit(__doc__)))
