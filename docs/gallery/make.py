"""Makes the pages of the gallery: the Python on each of its Markdown pages is run, and saves one.

    python docs/gallery/make.py [--screenshots] [--all]

A page that is newer than what it is made from is left alone, unless --all is given. Screenshots for
the docs are taken with Chromium, by playwright, and are kept in docs/images.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NAMES = ("encoder", "llama", "speech", "vision", "atoms")
#: Pages of studies whose trained model comes with regard.
STUDIES = tuple(
    f"studies/{path.stem}"
    for path in sorted((HERE / "studies").glob("*.md"))
    if "```python" in path.read_text(encoding="utf-8")
)
#: Reports of collected corpora.
REPORTS = ("heads_of_two_models",)
#: What changes a page besides its own Markdown.
SOURCES = ("src/regard/viewer", "src/regard/cli/packaged", "docs/gallery/make.py")


def run(name: str, folder: Path) -> dict[str, Any]:
    """Run the Python of a Markdown page in a folder, where it saves its page; what it defined."""
    from regard.cli import packaged

    given = {"__name__": f"gallery_{name}"}
    with contextlib.chdir(folder), packaged.quietly():
        exec(compile(code(name), str(HERE / f"{name}.md"), "exec"), given)
    return given


def code(name: str) -> str:
    """The Python of a Markdown page, on the lines that it has there."""
    text = (HERE / f"{name}.md").read_text(encoding="utf-8")
    (block,) = re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return "\n" * text.count("\n", 0, block.start(1)) + block[1]


def fragment(name: str) -> str:
    """The view that a Markdown page opens its page at."""
    text = (HERE / f"{name}.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf'<iframe src="\.\./{Path(name).name}\.html#([^"]*)"', text)
    return found.replace("&amp;", "&")


def stale(name: str) -> bool:
    """Whether a page is missing, or older than something it is made from."""
    page = HERE / f"{name}.html"
    if not page.exists():
        return True
    made = page.stat().st_mtime
    inputs = [HERE / f"{name}.md"]
    for source in SOURCES:
        place = ROOT / source
        inputs += [place] if place.is_file() else place.rglob("*")
    files = (path for path in inputs if path.is_file() and "__pycache__" not in path.parts)
    return any(path.stat().st_mtime > made for path in files)


def make(everything: bool) -> None:
    for name in (*NAMES, *STUDIES, *REPORTS):
        if everything or stale(name):
            start = time.perf_counter()
            run(name, (HERE / name).parent)
            size = (HERE / f"{name}.html").stat().st_size
            print(f"{name}.html: {size / 1e6:.2f} MB in {time.perf_counter() - start:.1f} s")


# -- screenshots: name of the picture, page, view (None: that of the gallery), size in pixels, theme

FOUND = "view=map&unit=words&special=hidden&sort=pair&pair=10,2"  # what "it" gives "animal"
LINES = "view=lines&layer=3&head=1&unit=words&selected=8&pinned=true"
PICTURES = [
    ("viewer-map", "encoder", "view=map&unit=words", (1280, 740), "light"),
    ("viewer-find", "encoder", FOUND, (1280, 560), "light"),
    ("viewer-lines", "encoder", LINES, (1100, 760), "light"),
    ("viewer-matrix", "speech", None, (1100, 600), "light"),
    ("viewer-image", "vision", None, (1100, 720), "dark"),
]
#: The page of a translation, which is no page of the gallery: its sentence, and the picture.
SENTENCE = "She has a black cat."
TRANSLATION = ("translation", "view=lines&limit=threshold:0.1", (1100, 560), "light")
LARGEST = 200_000  # bytes of a picture that keeps all its colours
THUMBNAIL = (480, 760), 300  # size of the page, and width of the picture of what its view shows
HIDDEN = ".matrix-zoom, .image-panel { visibility: hidden }"  # in thumbnails


def screenshots() -> None:
    from playwright.sync_api import sync_playwright

    with (
        served() as address,
        tempfile.TemporaryDirectory() as folder,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium())
        for picture, name, view, size, theme in PICTURES:
            shown = f"{address}/{name}.html#{view or fragment(name)}"
            photograph(browser, shown, picture, size, theme)
        size, width = THUMBNAIL
        for name in NAMES:
            address_of_view = f"{address}/{name}.html#{fragment(name)}"
            photograph(browser, address_of_view, f"gallery-{name}", size, "light", width)
        picture, shown, size, theme = TRANSLATION
        page = translation(Path(folder))
        photograph(browser, f"{page.as_uri()}#{shown}", picture, size, theme)
        browser.close()


def translation(folder: Path) -> Path:
    """The page of a sentence, translated by the model that comes with regard."""
    from regard.translate import Translator

    return Path(Translator.load()(SENTENCE).save(folder / "translation.html"))


def photograph(
    browser: Any,
    address: str,
    picture: str,
    size: tuple[int, int],
    theme: str,
    narrowed: int | None = None,
) -> None:
    """A picture of a page; if a width is given, one of its view alone, scaled to that."""
    width, height = size
    viewport = {"width": width, "height": height}
    screen = browser.new_page(viewport=viewport, color_scheme=theme, bypass_csp=True)
    screen.goto(address)
    screen.wait_for_selector("html[data-ready='1']")
    screen.wait_for_timeout(500)
    path = ROOT / "docs/images" / f"{picture}.png"
    if narrowed is None:
        screen.screenshot(path=path)
    else:
        screen.get_by_role("tabpanel").screenshot(path=path, style=HIDDEN)
    shrink(path, narrowed)
    screen.close()
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:.0f} kB")


def chromium() -> str:
    found = os.environ.get("REGARD_CHROMIUM") or shutil.which("chromium")
    if not found:
        raise SystemExit("no Chromium was found; set REGARD_CHROMIUM to one")
    return found


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address of this folder over HTTP, on this machine alone."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(HERE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def shrink(path: Path, width: int | None) -> None:
    """A smaller file of the same picture; one that is still large gets 256 colours. If a width is
    given, without the empty ground around what is shown, and scaled to that."""
    from PIL import Image, ImageChops

    with Image.open(path) as opened:
        image = opened.convert("RGB")
    if width is not None:
        ground = Image.new("RGB", image.size, image.getpixel((0, 0)))
        left, top, right, bottom = ImageChops.difference(image, ground).getbbox()
        image = image.crop((left, top, right, bottom))
        image = image.resize((width, round(image.height * width / image.width)))
    image.save(path, optimize=True)
    if path.stat().st_size > LARGEST:
        image.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--screenshots", action="store_true", help="take those of the docs, too")
    parser.add_argument("--all", action="store_true", help="make every page anew")
    given = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded, nor looked for
    make(given.all)
    if given.screenshots:
        screenshots()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tools"))
    from cpu_probe import restart_where_needed

    restart_where_needed()
    main()
