"""Whether a page holds the weights it was made of."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import torch

from regard import Trace
from viewer_rivals.chromium import fresh_page


def difference_of_bertviz(html: str, trace: Trace) -> float:
    """The largest difference between what bertviz wrote and the weights."""
    found = re.search(r'"attention": (\[\{.*?\}\]), "', html)
    assert found is not None, "bertviz's page has no attention"
    kept = torch.tensor(json.loads(found.group(1))[0]["attn"])  # (layer, head, query, key)
    return float((kept - torch.cat(trace.attentions)).abs().max())


def difference_of_page(path: Path, trace: Trace, layer: int = 3, head: int = 1) -> float:
    """The largest difference between the numbers that our page exports and the weights."""
    with fresh_page() as page:
        page.goto(f"{path.as_uri()}#view=matrix&layer={layer}&head={head}")
        page.wait_for_selector("html[data-ready='1']")
        with page.expect_download() as download:
            page.keyboard.press("e")
            page.get_by_test_id("export-csv").click()
        text = Path(download.value.path()).read_text(encoding="utf-8")
    true = trace[layer].weights()[0, head]
    kept = [float(row["weight"]) for row in csv.DictReader(io.StringIO(text, newline=""))]
    return float((torch.tensor(kept).view_as(true) - true).abs().max())
