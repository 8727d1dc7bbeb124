"""The heads of a memory in a real browser: by their names, as they are no layers."""

import re

from playwright.sync_api import expect
from viewer_traces import machine


def test_read_and_write_heads_have_their_names(open_page):
    looking = open_page(machine(), "view=map")
    assert looking.page.locator(".heads-map .heads-layer").all_text_contents() == ["read", "write"]
    expect(looking.by("thumb-0-1")).to_have_attribute("aria-label", re.compile("^read, head 1"))
    expect(looking.by("status")).to_contain_text("2 sites · 3 heads")
    looking.by("thumb-1-0").click()
    expect(looking.by("status")).to_contain_text("write · head 0")
    options = looking.by("layer-select").locator("option").all_text_contents()
    assert options == ["All sites", "read", "write"]
    with looking.page.expect_download() as download:
        looking.by("export-csv").click()
    assert "write-head0" in download.value.suggested_filename
