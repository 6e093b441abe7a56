"""The pictures are those that the script draws, and the pages of both languages show each."""

import re

import pytest

from tools.site import draw

DOCS = draw.IMAGES.parents[1]
PICTURES = draw.pictures()


@pytest.mark.parametrize("name", PICTURES)
def test_the_file_is_what_the_script_draws(name):
    assert (draw.IMAGES / name).read_text(encoding="utf-8") == PICTURES[name], (
        "python tools/site/draw.py"
    )


@pytest.mark.parametrize("language", ["zh", "en"])
def test_pages_of_each_language_show_every_picture(language):
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / language).rglob("*.md"))
    shown = set(re.findall(r"!\[[^\]]+\]\((?:\.\./)+assets/images/([\w.-]+\.svg)\)", pages))
    other = {"zh": ".en.", "en": ".zh."}[language]
    assert {name for name in PICTURES if other not in name} <= shown
