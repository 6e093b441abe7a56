"""The built site: links, resources, and how it looks and behaves in Chromium. One build and one
browser for all of it, so all of it on one worker."""

import html
import itertools
import json
import re
import struct
import sys
from pathlib import Path

import pytest
from harness import ROOT, run

pytest.importorskip("playwright", reason="needs requirements-dev.txt")
pytest.importorskip("mkdocs", reason="needs requirements-dev.txt")
from playwright.sync_api import Browser, Page, Route
from tiers import table

pytestmark = pytest.mark.xdist_group("site")

DOCS = ROOT / "docs"
NAMES = sorted(str(p.relative_to(DOCS / "zh"))[:-3] for p in (DOCS / "zh").rglob("*.md"))
ADDRESSES = [f"{n}/".removesuffix("index/") for n in NAMES]
SCREENS = {390: "light", 820: "light", 1440: "dark"}  # phone, tablet, laptop
WALKED = "chapters/03_multiprocessing/"


# Forms of the pages' source that the build has not replaced, outside of code.
RAW = re.compile(r"\[!|\]\(|```|(?<!\*)\*\*(?!\*)|\{ ?[#.]|///")


def test_every_page_is_built_in_both_languages(site: Path) -> None:
    """And nothing raw stands in it."""
    assert len(NAMES) >= 19
    for address in ADDRESSES:
        for language, prefix in (("zh", ""), ("en", "en/")):
            page = (site / prefix / address / "index.html").read_text()
            assert f'<html lang="{language}"' in page
            code = r"<(head|script|style|figure|pre|code)\b.*?</\1>"
            shown = re.sub(r"<[^>]+>", "", re.sub(code, "", page, flags=re.S))
            assert not RAW.search(html.unescape(shown)) and 'class="tabs"' not in page, address
    assert not list(site.rglob("WRITING/*")) and not (site / "examples").exists()


def test_the_course_has_one_next(site: Path) -> None:
    """Above the title and at the end, and no other one in a footer."""
    course = ["getting-started", "concepts", "convert", "chapters/02_distributed", "doctor"]
    for prefix in ("", "en/"):
        for name, after in itertools.pairwise(course):
            here = site / prefix / name
            page = (here / "index.html").read_text("utf-8")
            above = re.findall(r'</strong> → <a href="(.+?)"', page)
            below = re.findall(r'<p><strong>(?:Step|第) \d.*?href="(.+?)"', page)
            assert len(above) == len(below) == 1, here
            for link in (*above, *below):
                assert (here / link).resolve() == (site / prefix / after).resolve(), here
            assert re.search("md-footer__inner[^>]* hidden>", page), here


def test_code_is_not_in_the_search_index(site: Path) -> None:
    """All chapters share most lines: prose would drown in them."""
    assert "log_file" in (site / "chapters/02_distributed/index.html").read_text()
    for language in ("zh", "en"):
        docs = json.loads((site / f"search/{language}.json").read_text())["docs"]
        assert len(docs) > len(NAMES)
        assert {doc["location"].startswith("en/") for doc in docs} == {language == "en"}
        assert not [doc["location"] for doc in docs if "log_file" in doc["text"]]


# A block of code: what opens it, what it is of, and the code.
FENCED = re.compile(r"^((?:> )? *`{3,})(\w*).*\n((?:.*\n)*?)\1$", re.M)


def leads_nowhere(path: Path, target: str) -> bool:
    """A link of a page's Markdown, to a file of the site or to a place in one."""
    file, _, place = target.partition("#")
    to = path.parent / file if file else path
    if target.startswith("http") or not to.is_file():
        return not target.startswith("http")
    return bool(place) and not re.search(rf'\{{#{place}\}}|id="{place}"', to.read_text())


@pytest.mark.parametrize("language", ["zh", "en"])
def test_every_page_has_its_markdown(site: Path, language: str) -> None:
    """Its head names it, its code is whole, no link in it leads nowhere, and llms.txt lists it."""
    folder = site / "en" if language == "en" else site
    listed = (folder / "llms.txt").read_text()
    assert set(re.findall(r"\]\((\S+)\): .", listed)) == {f"{name}.md" for name in NAMES}
    assert len(listed) < 20_000  # it is read at once
    above = listed[: listed.index("\n## ")]  # what to read first
    first = re.findall(r"\]\((\S+?)(?:#\w+)?\)", above)
    needed = "convert.md single.py multi.py recipes.md tasks.md doctor.pyz doctor.md"
    assert [Path(to).name.removesuffix(".txt") for to in first[1:8]] == needed.split()
    assert [target for target in first if not (folder / target).is_file()] == []

    for name, address in zip(NAMES, ADDRESSES, strict=True):
        path = folder / f"{name}.md"
        text = path.read_text()
        source = (DOCS / language / f"{name}.md").read_text()
        assert [b[1:] for b in FENCED.findall(text)] == [b[1:] for b in FENCED.findall(source)]
        prose = FENCED.sub("", text)
        assert not re.search("<!--|<div|<picture", prose), path
        links = re.findall(r"\]\(([^)\s]*)\)", prose)
        assert [target for target in links if leads_nowhere(path, target)] == [], path

        html = folder / address / "index.html"
        form = r'<link rel="(\w+) ?" type="text/markdown" href="(.+?)">'
        named = {kind: html.parent / link for kind, link in re.findall(form, html.read_text())}
        assert named["alternate"].resolve() == path.resolve()
        assert named["describedby"].samefile(folder / "llms.txt")

    shown = (folder / "chapters/02_distributed.md").read_text()
    code = (ROOT / "02_distributed/main.py").read_text()
    needed = re.findall(r"^ *(.+?) *# \[dist\]", code, re.M)
    assert len(needed) > 20 and not [line for line in needed if line not in shown]


# --- in a browser ---------------------------------------------------------------------------------


AXE = Path(sys.prefix, "axe.min.js")
FOUND = """async () => (await axe.run()).violations
    .flatMap((found) => found.nodes.map((node) => `${found.id}: ${node.html.slice(0, 100)}`))"""


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([""], id="home"),
        pytest.param(
            [f"{p}{a}" for a in ADDRESSES for p in ("", "en/")], marks=pytest.mark.proof, id="all"
        ),
    ],
)
def test_pages_fit_and_can_be_read(page: Page, address: str, names: list[str]) -> None:
    """On all screens, with no finding of axe-core: of contrast, of names that are read aloud."""
    if not AXE.is_file():
        pytest.skip("needs axe.min.js: make test fetches it")
    wrong = []
    for name in names:
        for width, scheme in SCREENS.items():
            page.set_viewport_size({"width": width, "height": 844})
            page.emulate_media(color_scheme=scheme)
            page.goto(address + name)
            fits = f"document.documentElement.scrollWidth <= {width}"
            wrong += [(name, width)] * (not page.evaluate(fits))
            for cut in (LABELS, CUT) if width == 390 else ():
                wrong += [(name, width, found) for found in page.evaluate(cut)]
            page.add_script_tag(path=AXE)
            wrong += [(name, width, found) for found in page.evaluate(FOUND)]
    assert wrong == []


# Notes that lie over the next one.
OVER = """() => [...document.querySelectorAll(".walk-text + .walk-code + .walk-text")]
    .filter((next) => next.getBoundingClientRect().top <
        next.previousElementSibling.previousElementSibling.getBoundingClientRect().bottom)
    .map((next) => next.textContent)"""


def test_a_chapter(page: Page, address: str) -> None:
    """Notes beside their code on a laptop, where no line is cut, and above it on a phone; diagrams
    that are drawn; a button that copies the code alone."""

    def box(part: str) -> dict[str, float]:
        return page.locator(f".walk-{part}").first.bounding_box()

    page.goto(address + WALKED)
    assert box("code")["x"] >= box("text")["x"] + box("text")["width"]
    assert box("code")["y"] < box("text")["y"] + box("text")["height"]
    pairs = page.eval_on_selector_all(
        ".walk-code pre > code", "a => a.map(e => [e.scrollWidth, e.clientWidth])"
    )
    assert pairs and all(scroll <= client for scroll, client in pairs)
    wide, narrow = (page.locator(f".diagram{kind}").first for kind in ("", ".narrow"))
    assert wide.bounding_box()["height"] > 100 and not narrow.is_visible()

    page.locator(".walk-text + .walk-code + .walk-text").first.evaluate(
        "e => scrollTo(0, scrollY + e.getBoundingClientRect().top - 200)"
    )
    assert page.evaluate("scrollY") > 300 and page.evaluate(OVER) == []

    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    figure = page.locator(".walk-code figure.cb").first
    figure.hover()
    figure.locator("button[data-clipboard-target], button.md-clipboard").first.click()
    shown = figure.locator(".ln").all_text_contents()
    copied = page.evaluate("navigator.clipboard.readText()").rstrip().splitlines()
    source = (ROOT / WALKED.removeprefix("chapters/") / "main.py").read_text().splitlines()
    assert copied == shown and {line.strip() for line in copied} <= {s.strip() for s in source}

    page.set_viewport_size({"width": 390, "height": 844})
    assert narrow.is_visible() and not wide.is_visible()
    assert page.locator(".walk .tag:visible").count() == 0 < page.locator(".walk .tag").count()
    assert box("code")["x"] < box("text")["x"] + box("text")["width"]
    assert box("code")["y"] >= box("text")["y"] + box("text")["height"]


def test_copying_a_difference(page: Page, address: str) -> None:
    """It gives the new code, without signs and without what was removed."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])

    def copied(button: str) -> list[str]:
        page.locator(f"{button}:visible").first.hover()
        page.locator(f"{button} [data-md-type=copy]:visible").first.click()
        return page.evaluate("navigator.clipboard.readText()").splitlines()

    page.goto(f"{address}en/convert/")
    new = (ROOT / "docs/examples/convert/multi.py").read_text().splitlines()
    shown = copied("figure.cd")
    assert len(shown) > 5 and set(shown) <= set(new)
    page.goto(f"{address}en/cases/")
    old = page.locator(".language-diff code").first.text_content().splitlines()
    kept = [line[1:] for line in old if not line.startswith("-")]
    assert copied(".language-diff") == kept and len(kept) < len(old)


SQUEEZED = """() => [...document.querySelectorAll("article :is(td, .nb, h1, h2)")]
    .filter((e) => e.matches(".nb") ? e.getClientRects().length > 1
        : e.matches("td") ? e.textContent.length > 20 && e.clientWidth < 150
        : [...e.childNodes].at(-1).getBoundingClientRect?.().width > 0)
    .map((e) => e.textContent)"""
COVERED = """() => [...document.querySelectorAll("pre > .md-code__nav")].filter((nav) => {
    const parts = [nav, nav.parentElement.querySelector("code")];
    const [a, b] = parts.map((part) => part.getBoundingClientRect());
    return a.left < b.right - 1 && a.bottom > b.top + 1;
}).length"""
CUT = """() => [...document.querySelectorAll("article :is(td, pre, code, .cd-body)")]
    .filter((e) => e.clientWidth && e.scrollWidth > e.clientWidth + 1)
    .map((e) => e.textContent.slice(0, 80))"""
# Of cells that are lower than the name of their column, which stands beside them.
LABELS = """() => [...document.querySelectorAll("td[data-th]:not(:first-child, :empty)")]
    .filter((td) => parseFloat(getComputedStyle(td, "::before").height) > td.clientHeight)
    .map((td) => td.dataset.th)"""


def test_on_a_phone(page: Page, address: str) -> None:
    """Rows of tables are cards, in which no word is torn or lies over another; buttons beside the
    code; no line of a heading is empty."""
    page.set_viewport_size({"width": 390, "height": 844})
    for name in ("concepts/", "en/launching/", "en/performance/", "en/cases/", "handbook/elastic/"):
        page.goto(address + name)
        page.locator(".md-code__nav").first.wait_for(state="attached")
        assert page.evaluate(SQUEEZED) == [], name
        assert page.evaluate(COVERED) == 0, name
        assert page.evaluate(LABELS) == [], name
        assert page.evaluate(CUT) == [], name


def test_on_paper(page: Page, address: str) -> None:
    """Each line is whole, without what one would click, and dark on white for who reads the site
    white on dark."""
    page.set_viewport_size({"width": 680, "height": 900})  # of A4 with Chromium's margins
    page.emulate_media(media="print")
    for name in ("en/convert/", "en/chapters/02_distributed/", "doctor/", "recipes/"):
        page.goto(address + name)
        page.locator("pre > .md-code__nav").first.wait_for(state="attached")
        page.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true })")
        assert page.evaluate(CUT) == [], name
        for part in (".toc", ".md-code__nav", ".cd-copy", ".headerlink", ".md-footer"):
            assert page.locator(part).filter(visible=True).count() == 0, (name, part)
    colours = [
        page.evaluate("""(scheme) => {
            document.body.setAttribute("data-md-color-scheme", scheme);
            return getComputedStyle(document.querySelector("article p")).color }""", scheme)
        for scheme in ("default", "slate")
    ]  # fmt: skip
    assert colours[0] == colours[1]


def test_contents_of_a_long_page(page: Page, address: str) -> None:
    """They stay in sight, and mark what is being read; of convert the steps, too, beside the page
    where it is wide enough."""
    reads = "place => document.querySelector('.toc [aria-current]')?.hash === place"
    page.goto(f"{address}en/{WALKED}#errors")
    page.wait_for_function(reads, arg="#errors")
    heading, contents = (page.locator(part).bounding_box() for part in ("#errors", ".toc"))
    assert 0 < contents["y"] + contents["height"] <= heading["y"]
    page.goto(f"{address}en/convert/#step-5")
    beside = page.locator(".md-sidebar--secondary [href$='#step-5']")
    row = page.locator(".toc [href$='#step-5']")
    assert beside.is_visible() and not row.is_visible()
    page.set_viewport_size({"width": 1280, "height": 720})
    page.reload()
    assert row.is_visible() and not beside.is_visible()
    page.wait_for_function(reads, arg="#step-5")


PLACE = f"{WALKED}?a=1#how"


@pytest.mark.parametrize("name", table(["", PLACE], [PLACE]))
def test_other_language(page: Page, address: str, name: str) -> None:
    """A link leads there and back, to the same place of the same page."""
    page.goto(address + name)
    for language, there in (("en", f"en/{name}"), ("zh", name)):
        page.hover(".md-select")
        page.click(f".md-select__link[hreflang={language}]")
        page.wait_for_url(address + there)


def test_not_found(chromium: Browser, carried: Path) -> None:
    """The page that a server shows for an address of whatever depth leads to both home pages, and
    its search finds pages of the language that was asked for, or else of the reader's own."""
    root = "https://example.org/book/"

    def answer(route: Route) -> None:
        path = carried / route.request.url.removeprefix(root)
        found = path if path.is_file() else carried / "404.html"
        route.fulfill(status=200 if path.is_file() else 404, path=found)

    for locale, place, language in (
        ("zh-CN", "gone", "zh"),
        ("en-US", "gone", "en"),
        ("zh-CN", "en/gone/deep/", "en"),
    ):
        opened = chromium.new_page(locale=locale)
        opened.route(f"{root}**", answer)
        opened.goto(root + place)
        links = opened.locator("article p a").evaluate_all("all => all.map(a => a.href)")
        assert links == [root, f"{root}en/"]
        opened.locator(".md-search__input").fill("set_epoch")
        result = opened.locator(".md-search-result__item a").first
        href = result.evaluate("a => a.href")
        assert href.startswith(root) and ("/en/" in href) == (language == "en")
        opened.close()


def test_links_to_files(site: Path) -> None:
    """Without an address of the repository they lead to copies, which are the files."""
    page = (site / "en/chapters/03_multiprocessing/index.html").read_text()
    (link,) = set(re.findall(r'href="([^"]*03_multiprocessing/main.py[^"]*)"', page))
    copy = site / "en/chapters/03_multiprocessing" / link
    assert copy.read_text() == (ROOT / "03_multiprocessing/main.py").read_text()
    for path in site.rglob("*.html"):
        for link in re.findall(r'href="((?:\.\.?/)+source/[^"]+)"', path.read_text()):
            assert (path.parent / link).is_file(), (path, link)


def test_home_is_light(site: Path) -> None:
    """What it loads before anybody clicks is not more than before it had a switch, and nothing of
    the figures, which are on other pages."""
    for prefix, most in (("", 434_658), ("en/", 433_908)):
        page = site / prefix / "index.html"
        loads = r'<link[^>]* rel="(?:stylesheet|icon)"[^>]*>|<(?:script|img)[^>]* src=[^>]*>'
        tags = re.findall(loads, page.read_text())
        found = {page.parent / re.search('(?:href|src)="(.+?)"', tag)[1] for tag in tags}
        assert len(found) > 5 and not [path for path in found if "figures" in path.as_posix()]
        found |= {page, *site.glob("assets/javascripts/workers/search.*.js")}
        assert sum(path.stat().st_size for path in found) <= most
    assert "/figures.css" in (site / "concepts/index.html").read_text()


def test_doctor_to_download(site: Path, tmp_path: Path) -> None:
    """Home and the doctor's page lead to the file, and it runs."""
    for page in (site, site / "en", site / "doctor", site / "en/doctor"):
        (link,) = set(re.findall(r'href="([^"]+\.pyz)"', (page / "index.html").read_text()))
        assert (page / link).resolve() == site.resolve() / "doctor.pyz"
    said = run([sys.executable, site / "doctor.pyz", "--explain", "no_sync"], tmp_path)
    assert said.returncode == 0 and "no_sync" in said.stdout, said.output


@pytest.mark.parametrize(
    ("home", "query", "found"),
    table(
        [("index.html", "显存不够", "#oom"), ("en/index.html", "deadlock", "#hang")],
        [("en/index.html", "deadlock", "#hang")],
    ),
)
def test_from_disk(chromium: Browser, carried: Path, home: str, query: str, found: str) -> None:
    """The first link, the other language and the search lead to files, and ask nobody else."""
    opened = chromium.new_page()
    wrong: list[str] = []
    opened.on("request", lambda r: wrong.extend([] if r.url.startswith("file:") else [r.url]))
    aborted = "net::ERR_ABORTED"  # by the next page
    opened.on("requestfailed", lambda r: wrong.extend([r.url] * (r.failure != aborted)))
    opened.on("pageerror", lambda e: wrong.append(str(e)))
    opened.goto((carried / home).as_uri())
    opened.locator("article a[href*='.html']").first.click()
    opened.wait_for_function(f"!location.href.endsWith('site/{home}')")
    assert Path(opened.url.removeprefix("file://").partition("#")[0]).is_file()
    other = "zh" if home.startswith("en/") else "en"
    opened.hover(".md-select")
    opened.click(f".md-select__link[hreflang={other}]")
    opened.wait_for_function(f"document.documentElement.lang === '{other}'")
    opened.goto((carried / home).as_uri())
    opened.locator(".md-search__input").fill(query)
    page = (carried / home).with_name("troubleshooting.html").as_uri()
    opened.locator(f".md-search-result__item a[href^='{page}'][href$='{found}']").click()
    opened.wait_for_url(f"{page}?*{found}")
    opened.close()
    assert wrong == []


def test_what_a_chat_shows(carried: Path) -> None:
    """Beside a link: what the page is called, the home page like the site; a picture that is small
    enough, in the shape that all of them show."""
    for name, title in (
        ("index.html", "PyTorch 多卡训练手册"),
        ("en/index.html", "PyTorch multi-GPU cookbook"),
        ("en/convert.html", "Convert your script"),
    ):
        page = (carried / name).read_text("utf-8")
        assert f'<meta property="og:title" content="{title}">' in page
        assert re.search(rf"<title>{title}( - PyTorch multi-GPU cookbook)?</title>", page)
        (card,) = re.findall('"og:image" content="https://example.org/book/(.+)"', page)
        picture = (carried / card).read_bytes()
        assert struct.unpack(">II", picture[16:24]) == (1200, 630) and len(picture) < 100_000


# What people type, and the section that answers it.
QUERIES = {
    "": {"梯度累积": "recipes/#accumulation", "加权采样": "recipes/#weighted",
         "只有0号卡显存占用高": "troubleshooting/#oom",
         "显存不够": "troubleshooting/#oom", "死锁": "troubleshooting/#hang",
         "nccl 超时": "troubleshooting/#error-watchdog", "学习率怎么设": "concepts/#learning-rate",
         "准确率不一样": "troubleshooting/#accuracy", "多机训练": "launching/",
         "断点续训": "recipes/#resume", "端口被占用": "troubleshooting/#error-port",
         "双卡 4090 慢": "troubleshooting/#speedup",
         # From public threads: questions, and error lines with their colons, paths and numbers.
         "nohup 训练 ssh 断开就停了": "troubleshooting/#nohup",
         "多卡训练完模型怎么在单卡上加载": "troubleshooting/#error-module",
         "训练到一半卡住不动": "troubleshooting/#hang",
         "双卡训练会出现nccl超时的问题": "troubleshooting/#error-watchdog",
         "增加gpu后准确率成倍减小，是为什么呢": "troubleshooting/#accuracy",
         "多卡显存占用不均衡": "troubleshooting/#oom",
         "断点续训，更改卡数或者批次数后，再次训练起点步数不对": "recipes/#mid-epoch",
         "多机多卡的情况下，微调会被卡住": "troubleshooting/#hang",
         "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -11) local_rank: 0 "
         "(pid: 2977223) of binary: /home/yingjie/miniconda3/envs/point_uv_diff/bin/python":
             "troubleshooting/#error-signal",
         "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal "
         "SIGKILL": "troubleshooting/#oom-host",
         "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by "
         "peer [127.0.0.1]:10895这是什么错误，该如何解决": "troubleshooting/#error-closed",
         "[rank3]: RuntimeError: Expected to mark a variable ready only once. This error is caused "
         "by one of the following reasons: 1) Use of a module parameter outside the `forward` "
         "function. Please make sure model parameters are not shared across multiple concurrent "
         "forward-backward passes.": "troubleshooting/#error-ready-once"},
    "en/": {"Expected to have finished reduction in the prior iteration":
                "troubleshooting/#error-unused",
            "stuck": "troubleshooting/#hang", "deadlock": "troubleshooting/#hang",
            "NCCL timeout": "troubleshooting/#error-watchdog",
            "accuracy differs": "troubleshooting/#accuracy", "set_epoch": "convert/#step-5",
            "out of memory": "troubleshooting/#oom", "learning rate": "concepts/#learning-rate",
            "apex O1 to torch.amp": "migration/#apex-amp",
            "WeightedRandomSampler": "recipes/#weighted", "jupyter": "convert/#alone",
            "llama training": "tasks/#language-model",  # what is said for llama
            # Lines that were pasted into public threads.
            "unhandled system error": "troubleshooting/#error-nccl-system",
            "ncclUnhandledCudaError: Call to CUDA function failed.": "troubleshooting/#error-nccl",
            "ncclInvalidUsage": "troubleshooting/#error-nccl-usage",
            "Duplicate GPU detected": "troubleshooting/#error-nccl-usage",
            "Segmentation fault": "troubleshooting/#error-signal",
            "makeDeviceForHostname(): unsupported gloo device": "troubleshooting/#error-libuv",
            "ncclRemoteError": "troubleshooting/#error-nccl-remote",
            "two 4090 no faster than one": "troubleshooting/#speedup",
            "Some NCCL operations have failed or timed out": "troubleshooting/#error-watchdog",
            "Expected to mark a variable ready only once": "troubleshooting/#error-ready-once",
            "Signal 11 (SIGSEGV) received by PID": "troubleshooting/#error-signal",
            "use_libuv was requested but PyTorch was build without libuv support":
                "troubleshooting/#error-libuv",
            "device used by this process is currently unknown":
                "troubleshooting/#error-device-unknown",
            "retrieving ncclUniqueId from [0]": "troubleshooting/#error-unique-id",
            "The connection to the C10d store has failed": "troubleshooting/#error-rendezvous",
            "No backend type associated with device type cpu": "troubleshooting/#error-backend",
            "received 0 items of ancdata": "launching/#containers",
            # With their colons, paths and numbers.
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:":
                "troubleshooting/#error-child-failed",
            "E0325 20:57:27.620000 2606 site-packages/torch/distributed/elastic/multiprocessing/"
            "api.py:869] failed (exitcode: -9) local_rank: 5 (pid: 2630) of binary: "
            "/root/miniconda3/bin/python": "troubleshooting/#oom-host",
            "RuntimeError: NCCL error in: /opt/conda/conda-bld/pytorch_1607370128159/work/torch/"
            "lib/c10d/ProcessGroupNCCL.cpp:784, unhandled system error, NCCL version 2.7.8":
                "troubleshooting/#error-nccl-system",
            "RuntimeError: NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:32, "
            "unhandled cuda error, NCCL version 2.4.8": "troubleshooting/#error-nccl",
            "RuntimeError: DataLoader worker (pid 13772) is killed by signal: Killed.":
                "troubleshooting/#oom-host",
            "torch.distributed.DistBackendError: [3] is setting up NCCL communicator and "
            "retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but "
            "store->get('0') got error: Socket Timeout": "troubleshooting/#error-unique-id",
            "main.py: error: unrecognized arguments: --local-rank=0":
                "troubleshooting/#error-local-rank",
            "AttributeError: 'DistributedDataParallel' object has no attribute 'enc_p'":
                "troubleshooting/#error-attribute",
            "TimeoutError: The client socket has timed out after 1800s while trying to connect to "
            "(127.0.0.1, 48391).": "troubleshooting/#error-rendezvous",
            "RuntimeError: CUDA out of memory. Tried to allocate 2.87 GiB (GPU 0; 14.76 GiB total "
            "capacity; 8.77 GiB already allocated; 19.75 MiB free; 13.71 GiB reserved in total by "
            "PyTorch)": "troubleshooting/#oom-gpu",
            "batch size per gpu or total": "concepts/#batch",
            "how do I know if my ddp is actually working": "doctor/#wrong",
            "FSDP vs DDP which one should I use": "tools/",
            "has been modified by an inplace operation: [torch.cuda.FloatTensor [2048]] is at "
            "version 4; expected version 3 instead": "troubleshooting/#error-inplace",
            "The server socket has failed to bind to [::]:29400 (errno: 98 - Address already in "
            "use)": "troubleshooting/#error-port",
            "torchrun job dies when I close the ssh terminal": "troubleshooting/#nohup",
            "huggingface generate with multiple gpus bleu score": "recipes/#transformers"},
}  # fmt: skip


# What people ask in words of their own, 20 a language, and the sections that answer it, written
# down before the search knew any of it.
TYPED = json.loads((ROOT / "tests/site/typed.json").read_text("utf-8"))
FIRST, AMONG_THREE = 15, 18
# With words that carry no question, and without.
SAME = {
    "": ("请问怎么样才能只在主进程保存模型呢？", "主进程保存模型"),
    "en/": ("how can I make use of tensorboard, please", "tensorboard"),
}
# Of each page that is found, what is shown unfolded: the page, and the section that fits best.
SHOWN = """items => items.map((item) => [...item.querySelectorAll(":scope > a")]
    .map((a) => a.href.split("?")[0] + a.hash))"""


@pytest.mark.parametrize("prefix", QUERIES)
def test_search(page: Page, address: str, prefix: str) -> None:
    """Pasted text, with which no key goes up, finds Chinese and English words in pages of this
    language, the right section first, and nothing for no word; so do nearly all questions in words
    that no page has, and words that carry no question change nothing. The index, of this language
    alone, is fetched for who goes to the field."""
    fetched: list[str] = []
    page.on("request", lambda r: fetched.append(r.url) if "/search/" in r.url else None)
    results = page.locator(".md-search-result__list > .md-search-result__item")
    page.goto(address + prefix)
    page.wait_for_load_state("networkidle")
    assert fetched == []
    field = page.locator(".md-search__input")
    field.click()

    def search(query: str) -> list[list[str]]:
        results.evaluate_all("all => all.forEach((result) => result.remove())")
        field.select_text()
        page.keyboard.insert_text(query)
        results.first.wait_for(state="visible")
        assert field.input_value() == query
        return results.evaluate_all(SHOWN)

    for query, place in QUERIES[prefix].items():
        search(query)
        links = results.locator("> a").evaluate_all("all => all.map(a => a.pathname)")
        assert {"/en/" in link for link in links} == {prefix == "en/"}
        # Of a page, the section that fits best stands first, or the page itself above it.
        first = results.first.locator("a:has(.md-search-result__article)").evaluate_all(
            "all => all.map(a => a.href.split('?')[0] + a.hash)"
        )
        assert f"{address}{prefix}{place}" in first[:2], (query, first)
    long, short = map(search, SAME[prefix])
    assert long == short
    ranks = []
    for query, places in TYPED[prefix.strip("/") or "zh"].items():
        wanted = {f"{address}{prefix}{place}" for place in places}
        found = [bool(wanted & set(shown)) for shown in search(query)[:3]]
        ranks.append(found.index(True) if any(found) else 3)
    assert len(ranks) == 20
    assert ranks.count(0) >= FIRST and 20 - ranks.count(3) >= AMONG_THREE, ranks
    field.select_text()
    page.keyboard.insert_text("zzqqxxyy")
    results.first.wait_for(state="hidden")
    assert fetched == [f"{address}search/{prefix.strip('/') or 'zh'}.json"]
