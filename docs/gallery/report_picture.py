"""The picture of a report in docs/collect.md: MiniLM over the English side of the example pairs.

python docs/gallery/report_picture.py
"""

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import sync_playwright

os.environ["HF_HUB_OFFLINE"] = "1"

import regard
from regard.cli.corpus_models import corpus_model
from regard.cli.packaged import quietly
from regard.viewer.corpus_report import CorpusRun, corpus_report

ROOT = Path(__file__).parents[2]
PAIRS = ROOT / "examples/translate/pairs.tsv"
PICTURE = ROOT / "docs/images/corpus-report.png"
SHOWN = "by=figures.previous&at=1.9"


def main() -> None:
    lines = PAIRS.read_text(encoding="utf-8").splitlines()
    texts = list(dict.fromkeys(line.split("\t")[0] for line in lines))[:200]
    with quietly():
        model = corpus_model("minilm")
    collection = regard.collect(model.model, texts, tokenizer=model.tokenizer)
    attention = model.attention_of({"column": "text", "max_length": None})
    run = CorpusRun(collection, "example sentences", model.title, model.look, attention)
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = corpus_report(run).save(Path(folder) / "report.html")
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("REGARD_CHROMIUM") or shutil.which("chromium"),
            args=["--no-sandbox"],
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
        page.goto(f"{path.as_uri()}#{SHOWN}")
        page.wait_for_selector("html[data-ready='1']")
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
