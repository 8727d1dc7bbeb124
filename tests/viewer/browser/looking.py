"""A page that is looked at: what tests click, and what the browser noticed meanwhile."""

from __future__ import annotations

import csv
import io
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import BrowserContext, Locator, Request, expect

INSIDE = ("file:", "data:", "blob:", "about:")
SVG = "{http://www.w3.org/2000/svg}"
#: Letters of a label, a little less high than their line.
BOXES = """
() => [...document.querySelectorAll("text")].map(node => {
  const box = node.getBoundingClientRect();
  const trim = Math.min(box.width, box.height) * 0.2;
  const turned = box.height > box.width && node.hasAttribute("transform");
  return turned ? [box.left + trim, box.top, box.right - trim, box.bottom]
    : [box.left, box.top + trim, box.right, box.bottom - trim];
})
"""
FOCUSED = """
() => {
  const node = document.activeElement, style = getComputedStyle(node);
  const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  return [node.dataset?.testid ?? null, ring || style.boxShadow !== "none"];
}
"""
COLOURS = """
() => {
  const canvas = document.querySelector("canvas.matrix-layer");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size;
}
"""
#: Resolves after what the page does by itself once it has drawn: timers of one thread keep their
#: order, however slow the machine is.
RESTED = """
pause => new Promise(resolve =>
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(resolve, pause))))
"""
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


class Looking:
    """One page in a browser context of its own."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.context, self.address = context, address
        self.page = context.new_page()
        self.page.set_default_timeout(10_000)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self._labels: tuple[list[float], list[float]] | None = None
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.errors.append(f"page error: {error}"))
        self.page.on("dialog", self._asked)
        context.on("request", self._requested)

    def open(self, fragment: str = "", wait: bool = True) -> None:
        self.page.goto(f"{self.address}#{fragment}" if fragment else self.address)
        if wait:
            self.page.wait_for_selector("html[data-ready='1']")

    def problems(self) -> list[str]:
        """What must not have happened, in any test."""
        own = urlsplit(self.address)
        server = f"{own.scheme}://{own.netloc}/" if own.netloc else "file:"
        outside = [
            f"a request to {address:.200}"
            for address in self.requests
            if not address.startswith((*INSIDE, server))
        ]
        return self.errors + outside + [f"a dialog: {text}" for text in self.dialogs]

    # -- controls

    def by(self, name: str) -> Locator:
        return self.page.get_by_test_id(name)

    def view(self, name: str) -> None:
        self.by(f"view-tab-{name}").click()
        expect(self.by(f"view-tab-{name}")).to_have_attribute("aria-selected", "true")

    def choose(self, select: str, label: str | re.Pattern[str]) -> None:
        """Choose an option by its label, or by a part of it."""
        options = self.by(select).locator("option")
        found = [text for text in options.all_inner_texts() if re.search(label, text)]
        assert found, f"{select} has no option {label!r}: {options.all_inner_texts()}"
        self.by(select).select_option(label=found[0])

    def reach(self, control: str) -> None:
        """Have a control on screen; on a narrow one some are in a drawer."""
        if not self.by(control).is_visible():
            self.by("controls-more").click()
        self.by(control).scroll_into_view_if_needed()
        expect(self.by(control)).to_be_in_viewport()

    def hash(self) -> dict[str, str]:
        """The state as the address tells it; what is as at the start is not there."""
        self.page.evaluate(RESTED, 300)  # written after a pause
        fragment = urlsplit(self.page.url).fragment
        return {name: values[0] for name, values in parse_qs(fragment).items()}

    def zoom(self) -> list[float] | None:
        """Rows and columns in sight, as the address tells them once the matrix rests."""
        self.page.evaluate(RESTED, 200)
        edges = self.hash().get("zoom")
        return None if edges is None else [float(edge) for edge in edges.split(",")]

    # -- what it says

    def tooltip(self) -> str:
        expect(self.by("tooltip")).to_be_visible()
        return self.by("tooltip").inner_text()

    def hovered_weight(self) -> str:
        """The number of the tooltip, as it is written."""
        self.tooltip()
        line = self.by("tooltip").locator(".tooltip-number")
        found = NUMBER.search(line.inner_text() if line.count() else self.tooltip().splitlines()[1])
        assert found, self.tooltip()
        return found[0]

    def is_approximate(self) -> bool:
        return "≈" in self.tooltip()

    def stated_error(self) -> float:
        """How far weights may be from the exact ones by the page's own words."""
        note = self.by("status").text_content()
        found = re.search(r"within ([\d.e-]+) of the exact ones", note)
        assert found, f"the page does not say how exact it is: {note}"
        return float(found[1])

    def colours(self) -> int:
        """How many colours the matrix has: an empty one has a few."""
        count: int = self.page.evaluate(COLOURS)
        return count

    def hovered_cell(self) -> tuple[int, int]:
        """Row and column that the tooltip of the matrix is about."""
        found = re.search(r"query (\d+) · key (\d+)", self.tooltip())
        assert found, self.tooltip()
        return int(found[1]), int(found[2])

    def side_weight(self, token: str) -> str:
        """The weight beside a token of the lines."""
        return self.by(token).locator(".lines-weight").inner_text()

    def background(self, name: str) -> float:
        """How light the ground of an element is, from 0 to 255."""
        colour = self.by(name).evaluate("node => getComputedStyle(node).backgroundColor")
        red, green, blue = map(float, re.findall(r"[\d.]+", colour)[:3])
        return 0.299 * red + 0.587 * green + 0.114 * blue

    def focused(self) -> tuple[str | None, bool]:
        """Test id of the element with the keyboard, and whether one can see that it has it."""
        return tuple(self.page.evaluate(FOCUSED))

    def copied_link(self) -> str:
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page.bring_to_front()
        self.by("copy-link").click()
        self.page.wait_for_timeout(100)
        link: str = self.page.evaluate("navigator.clipboard.readText()")
        return link

    def until(self, expression: str) -> None:
        """Wait for an expression of JavaScript; Playwright's own way breaks the page's policy."""
        for _ in range(100):
            if self.page.evaluate(expression):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"{expression} did not become true")

    # -- places

    def hover_cell(self, row: int, column: int, first: tuple[int, int] = (0, 0)) -> None:
        """Move the mouse over a cell of the matrix, by the places of its labels.

        `first` is the first row and column with a label, where it is not (0, 0). The places are
        asked for once: what is in sight must not change meanwhile.
        """
        if self._labels is None:
            self._labels = self.label_places(self.downloaded("export-svg"))
        rows, columns = self._labels
        box = self.by("matrix-canvas").bounding_box()
        x, y = columns[column - first[1]], rows[row - first[0]]
        self.page.mouse.move(box["x"] + x - 2, box["y"] + y)
        self.page.mouse.move(box["x"] + x, box["y"] + y)
        self.page.evaluate(RESTED, 0)

    def hover_patch(self, row: int, column: int, rows: int, columns: int) -> None:
        box = self.by("image-canvas").bounding_box()
        x, y = (column + 0.5) / columns * box["width"], (row + 0.5) / rows * box["height"]
        self.page.mouse.move(box["x"] + x - 1, box["y"] + y)
        self.page.mouse.move(box["x"] + x, box["y"] + y)
        self.page.evaluate(RESTED, 0)

    def label_places(self, svg: Path) -> tuple[list[float], list[float]]:
        """Heights of the row labels and places across of the column labels, in pixels."""
        rows, columns = [], []
        for node in ElementTree.parse(svg).getroot().iter(f"{SVG}text"):
            turned = re.match(r"translate\(([\d.]+)", node.get("transform", ""))
            if turned:
                columns.append(float(turned[1]))
            elif node.get("text-anchor") == "middle":
                columns.append(float(node.get("x")))
            else:
                rows.append(float(node.get("y")))
        return rows, columns

    def label_boxes(self, svg: Path) -> list[tuple[float, float, float, float]]:
        """What each label of a picture covers: left, top, right, bottom."""
        other = self.context.new_page()
        other.goto(svg.as_uri() if svg.suffix == ".svg" else _as_svg(svg).as_uri())
        boxes = other.evaluate(BOXES)
        other.close()
        return [tuple(box) for box in boxes]

    # -- files

    def downloaded(self, button: str) -> Path:
        self.reach(button)
        with self.page.expect_download() as download:
            self.by(button).click()
        return Path(download.value.path())

    def table(self) -> list[dict[str, str]]:
        """The rows of the exported numbers."""
        text = self.downloaded("export-csv").read_text(encoding="utf-8")
        return list(csv.DictReader(io.StringIO(text, newline="")))

    def picture(self) -> bytes:
        """A screenshot once nothing moves any more."""
        self.page.mouse.move(1, 1)
        self.page.wait_for_timeout(250)
        return self.page.screenshot(animations="disabled", caret="hide")

    # -- listeners

    def _heard(self, message) -> None:
        if message.type == "error":
            self.errors.append(f"console: {message.text}")

    def _asked(self, dialog) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def _requested(self, request: Request) -> None:
        self.requests.append(request.url)


def _as_svg(path: Path) -> Path:
    """A download with the name that makes a browser show it."""
    return Path(shutil.copy(path, path.with_name(f"{path.name}.svg")))


def agrees(shown: str, value: float) -> bool:
    """Whether a number on the page is this value, rounded to the digits that are shown.

    A short form may say "<0.001" of what is smaller.
    """
    if shown.startswith("<"):
        return 0 < value < float(shown[1:])
    mantissa, _, exponent = shown.lower().partition("e")
    places = len(mantissa.partition(".")[2]) - int(exponent or 0)
    return abs(float(shown) - value) <= 0.5000001 * 10.0**-places + 2e-7


def digits(shown: str) -> int:
    """How many significant digits a number has."""
    return len(shown.lower().partition("e")[0].replace(".", "").lstrip("-0"))
