"""`regard look`: the clearest heads of a word, in any model: a sentence, a table, a map, a page."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl

import torch
import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from regard.aggregate import Words
from regard.cli.comparison import RUNS, Comparison, ForbiddenPair
from regard.cli.models import EXAMPLES, FILES, PACKAGED, look_at, model_run, over_words
from regard.cli.packaged import LookResult
from regard.cli.packaged.studies import ANSWER_WORDS
from regard.cli.terminal import Ink, cut, heatmap, ink_of, label
from regard.cli.word_attention import (
    HeadChoice,
    RankedHead,
    WordAttention,
    pieces_of,
    words_of_positions,
)
from regard.errors import RegardError
from regard.plots import Heatmap, Spec
from regard.plots.specs import checked_path
from regard.viewer.document import checked_page_path
from regard.viewer.scene import Scene

_HEADS = 5  # clearest heads that the table shows
_ROWS = 40  # words that fit a terminal
_WIDEST_WORD = 18


def look(
    text: Annotated[
        str | None, typer.Argument(help="The text (default: an example that suits the model).")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(PACKAGED)}; a folder saved by transformers; or module:function, "
            "called with the text if it takes one, which returns a model, its inputs and, if it "
            "likes, the tokens. With --html also "
            f"{', '.join(FILES)}: the text is then the path of a file."
        ),
    ] = "minilm",
    layer: Annotated[int | None, typer.Option(help="Show all heads of this layer, from 0.")] = None,
    head: Annotated[
        int | None, typer.Option(help="Show the head of this number, from 0, in every layer.")
    ] = None,
    word: Annotated[
        str | None,
        typer.Option(
            help="The word that attends; it#2 is the second occurrence of it (default: a word "
            "that suits the text)."
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(help="Rank the heads by the attention from --word to this word."),
    ] = None,
    forbid: Annotated[
        list[str] | None,
        typer.Option(
            help="Two words, as it:animal: run again with the first forbidden to attend to the "
            "second, in every layer and head, and show before and after. May be repeated."
        ),
    ] = None,
    pieces: Annotated[bool, typer.Option("--pieces", help="Show tokens instead of words.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Save the map of the clearest head (png, svg or pdf; default: look.png, unless "
            "--html or --json is given)."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Save a page of every head (html); it opens at the chosen layer, head and word."
        ),
    ] = None,
    generate: Annotated[
        int,
        typer.Option(
            help="Number of tokens to generate; their attention is shown too (smollm2 only)."
        ),
    ] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the words, heads and map as JSON instead.")
    ] = False,
) -> None:
    """Find the heads in which a word attends most clearly, and show the map of the clearest one."""
    if forbid:
        _check_forbid(forbid[0], model, generate)
    if to is not None and word is None:
        raise RegardError(f"--to {to!r} needs --word, the word that attends to it")
    remark = ""
    if out is None and html is None and not as_json:
        out = Path("look.png")
        remark = " (the one before is gone; --out names another)" if out.exists() else ""
    if out is not None:
        checked_path(out)
    if html is not None:
        checked_page_path(html)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    if model in FILES and (html is None or as_json):
        raise RegardError(f"--model {model} is shown on a page only: add --html attention.html")
    console = Console(stderr=as_json)
    comparison = None
    with console.status(f"running {model}"):
        run = model_run(model, _utf8(text)) if forbid else None
        result = look_at(model, _utf8(text), generate) if run is None else run.look()
    choice = HeadChoice(layer, head)
    if model in FILES:
        start = _start_of_file(result, choice, word)
    else:
        words = _words(result, pieces)
        pairs = [ForbiddenPair.of(_utf8(pair) or "", words) for pair in forbid or []]
        if pairs and word is None:
            word, to = pairs[0].query, pairs[0].key
        elif word is None and not pieces and not generate:
            _, word, to = EXAMPLES.get(model, ("", None, None))
            if text is not None:
                word, to = ANSWER_WORDS.get(model), None
        attention = WordAttention.of(over_words(result), words, _utf8(word), _utf8(to), choice)
        start = _start(result, attention, pieces)
        if run is not None:
            comparison = Comparison.of(run, result, attention, pairs)
        if not as_json:
            _show(console, result, attention, comparison)
        if out is not None:
            _picture(result, attention, comparison).save(out)
            if not as_json:
                console.print(Text.assemble("map as a picture: ", (str(out), "bold"), remark))
    if html is not None:
        with console.status("making the page"):
            started = replace(result, start=start)
            page = started.page() if comparison is None else comparison.page(started)
            page.save(html)
        if not as_json:
            console.print(Text.assemble("page of every head: ", (str(html), "bold")))
    if as_json:  # the files that it names are there now
        print(json.dumps(_as_dict(result, attention, comparison, out, html), allow_nan=False))
    elif model not in FILES:
        _print_next(console, text, model, attention, html, generate, forbid or [])


def _check_forbid(pair: str, model: str, generate: int) -> None:
    """Refuse what cannot run twice over the same words."""
    if model in FILES:
        raise RegardError(f"--forbid {pair}: {model} has no words, expected a model of text")
    if generate:
        raise RegardError(
            f"--forbid {pair} with --generate {generate}: the model may write another text then, "
            "and two texts cannot be compared word by word; give the whole text without --generate"
        )


def _utf8(text: str | None) -> str | None:
    """An argument as the terminal sent it: a locale of ASCII leaves its bytes as surrogates."""
    return (
        None if text is None else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    )


def _words(result: LookResult, pieces: bool) -> Words:
    """The words of the layers over all of them."""
    records = over_words(result)
    if not records:
        raise RegardError(f"{result.title}: no attention over all words was captured")
    words = result.words[0] if result.words else words_of_positions(records[0].shape.keys)
    return pieces_of(words) if pieces else words


def _show(
    console: Console, result: LookResult, attention: WordAttention, comparison: Comparison | None
) -> None:
    """A sentence, the table of the word, and the map of the clearest head; with a comparison
    before and after."""
    ink = ink_of(console)
    if result.written is not None:
        console.print(Text.assemble("it went on: ", (label(result.written), "bold")))
    if result.end is not None:
        console.print(Text(f"it ended with {label(result.end)}, which was not fed: it has no row"))
    if result.answer is not None:
        console.print(_answer(result.answer, comparison, ink))
    if attention.ranking:  # a text of one word has no other
        console.print(Text(_in_ink(_sentence(attention.ranking[0], attention), ink), "bold"))
    if comparison is not None:
        console.print(Text(_in_ink(_headline(comparison), ink), "bold"))
    console.print(_table(attention, console.width, ink, comparison))
    for remark in _remarks(attention):
        console.print(Text(_in_ink(remark, ink), "dim"))
    layer, head = attention.shown
    console.print(
        Text(
            f"\n{result.title}, layer {layer}, head {head}: each row is what its word attends to, "
        )
        + Text(_in_ink(f"{_unit(attention)}{_renormalised(attention)}", ink)),
        style="italic",
    )
    names = attention.names
    if comparison is None:
        console.print(
            heatmap(
                *(attention.map, names, names),
                width=console.width,
                ink=ink,
                signed=attention.signed,
            )
        )
        return
    maps = [attention.map, comparison.shown.map]
    peak = max(float(values.abs().max()) for values in maps) or 1.0
    for run, values in zip(RUNS, maps):
        console.print(Text(run, "bold"))
        console.print(
            heatmap(
                *(values, names, names),
                width=console.width,
                ink=ink,
                peak=peak,
                signed=attention.signed,
            )
        )


def _answer(answer: str, comparison: Comparison | None, ink: Ink) -> Text:
    """What the model answers, before and after."""
    answers = [answer]
    if comparison is not None and comparison.result.answer is not None:
        answers.append(comparison.result.answer)
    return Text.assemble("the model answers: ", (_in_ink(" → ".join(answers), ink), "bold"))


def _headline(comparison: Comparison) -> str:
    """What was forbidden, with words that cannot disturb a terminal."""
    pairs = ", ".join(f"{label(query)} → {label(key)}" for query, key in comparison.names)
    return f"then without {pairs}, in every layer and head"


def _sentence(head: RankedHead, attention: WordAttention) -> str:
    """A head in a sentence, with words that cannot disturb a terminal."""
    return f"{_pair(head)} {_amount(head, attention)} in {head.name}"


def _amount(head: RankedHead, attention: WordAttention) -> str:
    """What a head gives: a share of the attention, or a weight where there are negative ones."""
    weight = head.match.weight
    return f"weight {weight:.2f}" if attention.signed else f"{100 * weight:.0f} %"


def _unit(attention: WordAttention) -> str:
    return "signed weights" if attention.signed else "in percent"


def _pair(head: RankedHead) -> str:
    return f"{label(head.match.query)} → {label(head.match.key)}"


def _remarks(attention: WordAttention) -> list[str]:
    """What the table leaves out."""
    remarks = []
    if attention.sink is not None:
        remarks.append(
            f"“{label(attention.sink)}”, the first word, counts as a special token: it is a sink"
        )
    habits = [
        f"layer {key[0]} head {key[1]} ({place})" for key, place in attention.habitual.items()
    ]
    if habits:
        listed = ", ".join(habits[:_HEADS]) + ", …" * (len(habits) > _HEADS)
        remarks.append(f"left out, since every word in it looks at the same distance: {listed}")
    return remarks


def _renormalised(attention: WordAttention) -> str:
    """Says what the map leaves out."""
    names = [label(name) for name in attention.set_aside]
    if not names:
        return ""
    listed = ", ".join(names[:4]) + ", ..." * (len(names) > 4)
    if attention.signed:
        return f"; {listed} set aside"
    empty = " (empty under 1 %)" if bool((attention.map.sum(-1) == 0).any()) else ""
    return f"; {listed} set aside, rows renormalised{empty}"


def _columns(attention: WordAttention) -> tuple[str, list[tuple[int, int, str]]]:
    """What the columns are; and of each the layer, the head and the name, the clearest first."""
    choice = attention.choice
    ranked = attention.ranking
    if choice.layer is not None and choice.head is not None:
        return f"in layer {choice.layer}, head {choice.head}", [
            (choice.layer, choice.head, f"h{choice.head}")
        ]
    if choice.layer is not None:
        return f"in the heads of layer {choice.layer}", [
            (head.layer, head.match.head, f"h{head.match.head}") for head in ranked
        ]
    if choice.head is not None:
        return f"in head {choice.head} of every layer", [
            (head.layer, head.match.head, f"L{head.layer}") for head in ranked
        ]
    title = "in its clearest heads"
    if attention.to is not None:
        title = f"in the heads that give “{label(attention.words.names[attention.to])}” most"
    return title, [
        (head.layer, head.match.head, f"L{head.layer} h{head.match.head}")
        for head in ranked[:_HEADS]
    ]


def _table(attention: WordAttention, width: int, ink: Ink, comparison: Comparison | None) -> Group:
    """A row per word: its share of the chosen word's attention, head by head, before and after."""
    heading, columns = _columns(attention)
    columns = columns or [(*attention.shown, f"h{attention.shown[1]}")]
    names = [cut(label(name), _WIDEST_WORD, ink) for name in attention.row_names]
    cell = len("-0.25" if attention.signed else "100")
    cell = cell if comparison is None else 2 * cell + len(" -> ")
    fitting = _fitting(names, [name for *_, name in columns], width, cell)
    shown = columns[:fitting]
    title = f"what “{label(attention.name)}” attends to {heading}, {_unit(attention)}"
    if comparison is not None:
        title += ", before → after"
    if fitting < len(columns):
        title += f"; the clearest {fitting} of {len(columns)} fit this terminal"
    if attention.choice.layer is not None or attention.choice.head is not None:
        shown = sorted(shown)
    rows = [attention.rows[layer][head] for layer, head, _ in shown]
    after = None
    if comparison is not None:
        after = [comparison.after.rows[layer][head] for layer, head, _ in shown]
    n_words = len(names) - bool(attention.set_aside)
    strength = torch.stack([*rows, *(after or [])]).abs().sum(0)[:n_words]
    order = strength.topk(min(_ROWS, n_words)).indices.tolist()
    if len(order) < n_words:
        title += f"; the {_ROWS} of {n_words} words that it attends to most"
    table = Table(box=box.ASCII if ink == "ascii" else box.HEAVY_HEAD)
    table.add_column("word", style="bold", no_wrap=True)
    for *_, name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for index in [*sorted(order), *range(n_words, len(names))]:
        cells = [_number(float(row[index]), attention) for row in rows]
        if after is not None:
            others = [_number(float(row[index]), attention) for row in after]
            cells = [_in_ink(f"{old} → {new}", ink) for old, new in zip(cells, others)]
        table.add_row(Text(names[index]), *cells)
    return Group(Text(_in_ink(title, ink), "italic"), table)


def _number(weight: float, attention: WordAttention) -> str:
    """A weight in a cell: whole percent, or with its sign."""
    return f"{weight:.2f}" if attention.signed else f"{100 * weight:.0f}"


def _fitting(names: list[str], columns: list[str], width: int, cell: int) -> int:
    """How many columns fit beside the words; the numbers of a cell take `cell` characters."""
    room = width - 4 - max(map(cell_len, names), default=0)
    for count, name in enumerate(columns):
        room -= 3 + max(cell, len(name))
        if room < 0:
            return max(1, count)
    return len(columns)


def _picture(result: LookResult, attention: WordAttention, comparison: Comparison | None) -> Spec:
    """The map of the clearest head, with the pair of the finding in its title; its cell has the
    number."""
    names = attention.names
    layer, head = attention.shown
    title = f"{result.title}, layer {layer} head {head}"
    if attention.ranking:
        title = f"{_pair(attention.ranking[0])}: {title}"
    shares = bool(attention.set_aside) and not attention.signed
    picture = Heatmap(
        *(attention.map, names, names, title + _renormalised(attention)),
        colour="diverging" if attention.signed else "linear",
        value_title="share of what is left" if shares else "weight",
    )
    return picture if comparison is None else comparison.picture(picture)


def _start(result: LookResult, attention: WordAttention, pieces: bool) -> str:
    """The state that the page opens in: the lines of the word in the clearest head."""
    scene = Scene.of(result.trace, **result.options())
    layer, head = attention.shown
    name = attention.records[layer].name
    part, place = next(
        (number, part.sites.index(site))
        for number, part in enumerate(scene.parts)
        for site in part.sites
        if scene.sites[site].record.name == name
    )
    unit = "words" if result.words and not pieces else "pieces"
    return (
        f"view=lines&part={part}&layer={place}&head={head}&unit={unit}"
        f"&selected={attention.word}&pinned=true"
    )


def _start_of_file(result: LookResult, choice: HeadChoice, word: str | None) -> str:
    """The state that the page of a sound or an image opens in."""
    fields = dict(parse_qsl(result.start))
    scene = Scene.of(result.trace, **result.options())
    part = scene.parts[int(fields.get("part", 0))]
    choice.checked([scene.sites[site].record for site in part.sites])
    if choice.layer is not None:
        fields["layer"] = str(choice.layer)
    if choice.head is not None:
        fields["head"] = str(choice.head)
    if word is not None:
        selected = result.words[0].index(word, "--word ")
        fields |= {"selected": str(selected), "pinned": "true"}
    return "&".join(f"{field}={value}" for field, value in fields.items())


def _as_dict(
    result: LookResult,
    attention: WordAttention,
    comparison: Comparison | None,
    out: Path | None,
    html: Path | None,
) -> dict[str, Any]:
    """All that the command found, and the files it writes."""
    files = {"picture": out, "page": html}
    return {
        "model": result.title,
        **attention.as_dict(),
        **({} if comparison is None else comparison.as_dict()),
        "written": result.written,
        "end": result.end,
        "answer": result.answer,
        **{kind: None if path is None else str(path) for kind, path in files.items()},
    }


def _print_next(
    console: Console,
    text: str | None,
    model: str,
    attention: WordAttention,
    html: Path | None,
    generate: int,
    forbid: list[str],
) -> None:
    """A command that leads on: the page of this word, or another sentence once there is one."""
    words = ["regard", "look"]
    if text is None and model == "minilm" and not forbid:
        words += ["see that girl run", "--word", "that"]
    else:
        words += [] if text is None else [text]
        words += [] if model == "minilm" else ["--model", model]
        words += ["--generate", str(generate)] if generate else []
        for pair in forbid:
            words += ["--forbid", pair]
        words += ["--word", attention.reference]
        words += ["--to", attention.ranking[0].match.key] if html and attention.ranking else []
        words += [] if html else ["--html", "look.html"]
    command = shlex.join(words)
    if command.isprintable():  # a terminal must be able to take it back
        console.print(Text.assemble("next: ", (command, "bold")), soft_wrap=True)


def _in_ink(text: str, ink: Ink) -> str:
    """Our own text, in ASCII if the output is."""
    if ink != "ascii":
        return text
    return text.replace("“", '"').replace("”", '"').replace("…", "...").replace("→", "->")
