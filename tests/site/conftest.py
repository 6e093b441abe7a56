"""One build of the site and one browser for all of its tests, which stay on one worker."""

import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from harness import PATIENCE, ROOT, run

pytest.importorskip("playwright", reason="needs requirements-dev.txt")
from playwright.sync_api import Browser, Page

from tools.site import draw


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def build(folder: Path, **settings: str) -> Path:
    """Without what requirements-docs.txt does not name: a translator has no torch, no browser."""
    for package in ("torch", "playwright", "numpy", "matplotlib", "PIL", "cmarkgfm"):
        (folder / f"{package}.py").write_text("raise ImportError('it is needed for the site')")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", folder / "site"]
    env = {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(folder), **settings}
    # Its own patience: tests of patches have little, and on a busy machine a build takes minutes.
    result = run(command, ROOT, timeout=900, env=env)
    assert result.returncode == 0, result.output
    return folder / "site"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="session")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To be opened from disk, as `make offline` builds it; and it knows the site's address."""
    settings = {"DIRECTORY_URLS": "false", "SITE_URL": "https://example.org/book/"}
    return build(tmp_path_factory.mktemp("carried"), **settings)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if not draw.chromium():
        pytest.skip("needs Chromium: sudo apt install chromium fonts-noto-cjk")
    with draw.browser() as started:
        yield started


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """Below a path, as it is where it is published without a domain of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site.parent)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/{site.name}/"
    server.shutdown()


@pytest.fixture
def page(chromium: Browser, address: str) -> Iterator[Page]:
    """A page in which nothing may go wrong: requests that leave this machine (the site works
    without a network), answers that say no, errors of scripts."""
    opened = chromium.new_page(viewport={"width": 1440, "height": 900})
    opened.set_default_timeout(500 * PATIENCE)  # ms; half of what a test may take
    wrong: list[str] = []

    ours = (address, "data:", "blob:")
    opened.on("request", lambda r: wrong.extend([] if r.url.startswith(ours) else [r.url]))
    opened.on("response", lambda r: wrong.extend([r.url] if r.status >= 400 else []))
    opened.on("pageerror", lambda e: wrong.append(str(e)))
    yield opened
    opened.close()
    assert wrong == []
