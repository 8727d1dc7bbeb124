"""The page beside bertviz's head view and model view, on the same weights in the same browser.

File size, time to build it, time from opening it until the picture is there, the most memory that
the browser took; then frames while a matrix of 2048 and of 4096 tokens is dragged, beside a canvas
on which nothing is drawn; the text view of 4096 words; and processor time of one thread to save the
attention of a language model of 30 layers. All other times are wall times, as people wait. bertviz
is the real package; the scripts it would load from the network lie on disk. Its pages get two
minutes and 8 GiB each.

    python benchmarks/viewer.py [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers: nothing here is downloaded

import torch
from timing import table
from viewer_rivals import bertviz_page, chromium
from viewer_rivals.answers import difference_of_bertviz, difference_of_page

import regard
from regard.viewer import page

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from cpu_probe import restart_where_needed

TEXT = (Path(__file__).parents[1] / "LICENSE").read_text()
BARS = {512: "10 MB, 3 s, 1.5 s", 2048: "25 MB"}
HEAD = [
    "tokens",
    "way",
    "MB",
    "build s",
    "picture s",
    "browser GiB",
    "× MB",
    "× build",
    "× picture",
]
#: A canvas that follows the mouse and draws next to nothing: what the browser itself can do.
EMPTY = """<!doctype html><title>empty</title><style>body{margin:0}</style>
<canvas id=c width=1280 height=800></canvas><script>
const drawing = document.getElementById("c").getContext("2d");
let place = [0, 0], due = false;
addEventListener("pointermove", event => {
  place = [event.clientX, event.clientY];
  if (!due) { due = true; requestAnimationFrame(() => {
    due = false;
    drawing.clearRect(0, 0, 1280, 800);
    drawing.fillRect(place[0], place[1], 1, 1);
  }); }
});
</script>"""


#: Milliseconds from the press of the tab until every word has a colour.
TO_TEXT = """
length => new Promise(resolve => {
  const start = performance.now();
  document.querySelector("[data-testid=view-tab-text]").click();
  const look = () => {
    const last = document.querySelector(`[data-testid=text-word-${length - 1}]`);
    if (last?.style.backgroundColor) resolve(performance.now() - start);
    else requestAnimationFrame(look);
  };
  look();
})
"""


def minilm_trace(length: int) -> regard.Trace:
    """MiniLM, 6 layers of 12 heads, on so many tokens of a licence."""
    from regard.cli import packaged

    with packaged.quietly():
        loaded = packaged.minilm()
        given = loaded.tokenizer(TEXT, return_tensors="pt", truncation=True, max_length=length)
    tokens = loaded.tokenizer.convert_ids_to_tokens(given["input_ids"][0])
    return regard.trace(loaded.model, **given).with_tokens(tokens)


def long_trace(length: int, layers: int = 6) -> regard.Trace:
    """An encoder of the same shape without a limit of 512, with random weights."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=384,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=length,
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    tokens = (TEXT.split() * 9)[:length]
    return regard.trace(model, torch.randint(0, 30_000, (1, length))).with_tokens(tokens)


def decoder_trace(length: int, layers: int) -> regard.Trace:
    """A causal model of the shape of SmolLM2, 9 heads that share 3 keys, with random weights."""
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=576,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        max_position_embeddings=length,
    )
    tokens = (TEXT.split() * 9)[:length]
    numbers = torch.randint(0, 1000, (1, length))
    return regard.trace(LlamaModel(config).eval(), numbers).with_tokens(tokens)


def smollm2_trace(length: int, layers: int) -> regard.Trace:
    """The first layers of SmolLM2, with its weights: most of its heads have a sink."""
    from regard.cli import packaged

    with packaged.quietly():
        loaded = packaged.smollm2()
        tokens = loaded.tokenizer(TEXT * 3, return_tensors="pt")["input_ids"][:, :length]
    model = loaded.model.model
    model.layers = model.layers[:layers]
    return regard.trace(model, tokens).with_tokens(
        loaded.tokenizer.convert_ids_to_tokens(tokens[0])
    )


def timed(call: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    """What a call returns, and the median of its seconds."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        taken.append(time.perf_counter() - start)
    return result, statistics.median(taken)


def ours(trace: regard.Trace, path: Path, repeats: int) -> dict[str, Any]:
    page(trace).save(path)  # warm-up
    _, build = timed(lambda: page(trace).save(path), repeats)
    openings = [chromium.opened(path, chromium.OURS) for _ in range(repeats)]
    return _figures(path, build, openings)


def theirs(name: str, trace: regard.Trace, path: Path, repeats: int) -> dict[str, Any]:
    attentions, tokens = trace.attentions, list(trace[0].query_tokens)
    bertviz_page.scripts()

    def write() -> None:
        bertviz_page.write(bertviz_page.view(name, attentions, tokens), path)

    write()  # warm-up
    _, build = timed(write, repeats)
    heads = sum(record.shape.heads for record in trace)
    drawn = {"head_view": chromium.HEAD_VIEW, "model_view": chromium.MODEL_VIEW}[name]
    drawn = drawn.replace("HEADS", str(heads))
    return _figures(path, build, [chromium.opened(path, drawn) for _ in range(repeats)])


def _figures(path: Path, build: float, openings: list[chromium.Opened]) -> dict[str, Any]:
    drawn = [opening.seconds for opening in openings if opening.seconds is not None]
    return {
        "megabytes": path.stat().st_size / 1e6,
        "build": build,
        "picture": statistics.median(drawn) if drawn else None,
        "memory": max(opening.gibibytes for opening in openings),
        "stopped": openings[0].stopped,
    }


def compared(folder: Path, lengths: dict[int, list[str]], repeats: int) -> None:
    """Each length with the views of bertviz that are tried on it."""
    rows = []
    for length, views in lengths.items():
        trace = minilm_trace(length) if length <= 512 else long_trace(length)
        path = folder / "page.html"
        mine = ours(trace, path, repeats)
        rows.append(_row(length, "regard", mine, None))
        for name in views:
            other = theirs(name, trace, path, 1 if length > 64 else repeats)
            rows.append(_row(length, f"bertviz {name}", other, mine))
        path.unlink()
    table("pages of 6 layers × 12 heads; × is over regard's", HEAD, rows)
    for length, bar in BARS.items():
        if length in lengths:
            print(f"bar at {length} tokens: {bar}")


def _row(length: int, way: str, got: dict[str, Any], mine: dict[str, Any] | None) -> list[str]:
    picture = got["stopped"] if got["picture"] is None else f"{got['picture']:.2f}"
    row = [str(length), way, f"{got['megabytes']:.1f}", f"{got['build']:.2f}", picture]
    row.append(f"{got['memory']:.1f}")
    if mine is None:
        return [*row, "", "", ""]
    keys = ("megabytes", "build", "picture")
    return [*row, *("" if got[key] is None else f"{got[key] / mine[key]:.1f}" for key in keys)]


def same_answers(folder: Path) -> None:
    """Both pages hold the weights of the trace, before anything is timed."""
    trace = minilm_trace(64)
    html = bertviz_page.view("head_view", trace.attentions, list(trace[0].query_tokens))
    path = page(trace).save(folder / "page.html")
    print(
        f"largest difference from the trace's weights at 64 tokens: bertviz's page "
        f"{difference_of_bertviz(html, trace):.0e}, regard's {difference_of_page(path, trace):.0e}"
    )


def panning(folder: Path, length: int, moves: int) -> None:
    """Frames while the mouse drags a matrix, and while it moves over an empty canvas."""
    path = page(decoder_trace(length, layers=4), budget=3_000_000).save(folder / "page.html")
    empty = folder / "empty.html"
    empty.write_text(EMPTY)
    rows = []
    for way in ("512 × 512 in sight", "64 × 64 in sight", "empty canvas"):
        with chromium.fresh_page() as opened:
            if way == "empty canvas":
                opened.goto(empty.as_uri())
                place = (640.0, 400.0)
            else:
                place = _matrix(opened, path, int(way.split()[0]))
                assert chromium.moves(opened, place), "the mouse does not drag the matrix"
            times, busy = chromium.frame_times(opened, place, moves)
        rows.append([way, *chromium.summary(times), f"{busy:.1f}"])
    head = [
        "what is dragged",
        "median ms",
        "95 % ms",
        "frames a second",
        "frames",
        "thread ms a move",
    ]
    table(f"a matrix of {length} × {length} under the mouse", head, rows)
    print("bar: 50 frames a second, or what the empty canvas has")


def words(folder: Path, length: int, repeats: int) -> None:
    """The text view of a long text, from the press of a key until its words are coloured."""
    path = page(decoder_trace(length, layers=1)).save(folder / "page.html")
    taken = []
    with chromium.fresh_page() as opened:
        opened.goto(f"{path.as_uri()}#view=matrix")
        opened.wait_for_selector("html[data-ready='1']", timeout=60_000)
        for _ in range(repeats):
            taken.append(opened.evaluate(TO_TEXT, length))
            opened.get_by_test_id("view-tab-matrix").click()
            opened.wait_for_selector(".matrix-view")
    print(f"text view of {length} words: {statistics.median(taken):.0f} ms until it is coloured")


def saving(length: int, layers: int) -> None:
    """Processor time of one thread to save the attention of SmolLM2 on a licence."""
    trace, threads = smollm2_trace(length, layers), torch.get_num_threads()
    torch.set_num_threads(1)
    start = time.process_time()
    saved = page(trace)
    seconds = time.process_time() - start
    torch.set_num_threads(threads)
    print(
        f"{length} tokens of {layers} layers × 9 heads: saved in {seconds:.1f} s of one thread, "
        f"{len(saved.html) / 1e6:.1f} MB"
    )


def _matrix(opened: Any, path: Path, edge: int) -> tuple[float, float]:
    """Open the matrix of one head, with so many rows and columns of it on screen."""
    opened.goto(
        f"{path.as_uri()}#view=matrix&layer=0&head=3&zoom=512,512,{512 + edge},{512 + edge}"
    )
    opened.wait_for_selector("html[data-ready='1']", timeout=60_000)
    box = opened.get_by_test_id("matrix-canvas").bounding_box()
    opened.wait_for_timeout(1500)
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, under a minute")
    quick = parser.parse_args().quick
    restart_where_needed()
    both = ["head_view", "model_view"]
    lengths = {64: both, 512: []} if quick else {64: both, 256: both, 512: both, 2048: []}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {chromium.version()}")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        same_answers(folder)
        compared(folder, lengths, 1 if quick else 3)
        for length in (2048,) if quick else (2048, 4096):
            panning(folder, length, 60 if quick else 300)
        words(folder, 4096, 1 if quick else 5)
    saving(*((1024, 4) if quick else (4096, 30)))


if __name__ == "__main__":
    main()
