"""What Material does otherwise here: changes to its scripts, by text, in the built site.

A text that is not there once ends the build, so that no change is lost with a new version.
"""

import re
from importlib.metadata import version
from pathlib import Path

import material
import yaml

from .source import ROOT, SiteError

SCRIPTS = Path(material.__file__).parent / "templates/assets/javascripts"
WORDS = ROOT / "docs/assets/javascripts/search.js"
SEARCHED = ROOT / "tools/site/searched.yml"
CHANGES = {
    "bundle.*.min.js": {
        # The index, two thirds of a page's weight, waits until somebody goes to the field, or has
        # followed a result, whose words are then marked. hooks.py makes one for each language.
        'ze(new URL("search/search_index.json",Or.base))': (
            'L(Je("search"),$(we().searchParams.has("h"))).pipe(Re(o=>o),b(()=>'
            "ze(new URL(`search/${document.documentElement.lang}.json`,Or.base))),Z(1))"
        ),
        # A landmark of its own, without a name, for each block of code.
        'x("nav",{class:"md-code__nav"})': 'x("div",{class:"md-code__nav"})',
    },
    "workers/search.*.min.js": {
        # A pasted line would be read as lunr's operators, and of Chinese nothing be looked up after
        # the first word that the index does not have: by WORDS instead.
        r'e=e.replace(new RegExp("\\p{sc=Han}+","gu"),s=>[...fe(s,this.index.invertedIndex)]'
        '.join("* "))': "e=words(e,this.index.invertedIndex)",
        # The lists come with the index, which waits, and not with each page.
        "let i=Oe(this.table=new Map);": "lists(e.words);let i=Oe(this.table=new Map);",
        # A page stood before the section that answers, for nothing but that it is a page.
        "let g=+!c.parent+": "let g=.4*!c.parent+",
    },
}


def changed(text: str, changes: dict[str, str], name: str) -> str:
    for old, new in changes.items():
        if text.count(old) != 1:
            theme = f"mkdocs-material {version('mkdocs-material')}"
            raise SiteError(
                f"{theme}: {name} has {old!r} {text.count(old)} times instead of once: "
                "look at what became of it, then at CHANGES in tools/site/theme.py"
            )
        text = text.replace(old, new)
    return text


def searched_words() -> dict[str, dict]:
    """What people type, and what is done with it."""
    return yaml.safe_load(SEARCHED.read_text(encoding="utf-8"))


def words_script() -> str:
    """search.js without what only its readers need: each page loads it."""
    code = WORDS.read_text(encoding="utf-8")
    return re.sub(r"(?m)^ *(?://.*\n|/\*.*\*/\n)?", "", code)


def change_scripts(site: Path, scripts: Path = SCRIPTS) -> None:
    """Writes the changed ones into the site, in place of the theme's."""
    for pattern, changes in CHANGES.items():
        [path] = scripts.glob(pattern)
        place = path.relative_to(scripts)
        text = changed(path.read_text(encoding="utf-8"), changes, str(place))
        if place.parent.name == "workers":
            text = words_script() + text
        (site / "assets/javascripts" / place).write_text(text, encoding="utf-8")
