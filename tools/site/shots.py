"""The built site in the system's Chromium, for the stills of figures and the tests of pages."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import which

from playwright.sync_api import Browser, sync_playwright


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
        started = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            yield started
        finally:
            started.close()
