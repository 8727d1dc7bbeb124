"""What a page shows: sequences of tokens, sites of attention over them, the stacks they form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

from torch import Tensor

from regard.aggregate import Words
from regard.aggregate.sources import layer_of, layers_of, several_passes
from regard.aggregate.statistics.head_statistics import layer_numbers
from regard.aggregate.statistics.token_positions import is_special
from regard.errors import RegardError, UnavailableError
from regard.record import Record, Trace, forms
from regard.record.site import Site as RecordSite
from regard.record.stored_attention import StoredRecipe
from regard.tracing import stitch
from regard.types import Kind
from regard.viewer.opening import opening, opening_of_picture
from regard.viewer.picture import Picture
from regard.viewer.runs import differences

_MARKS = {"##": "wordpiece", "▁": "sentencepiece", "Ġ": "byte_level"}
_LABELS = {"self": "self-attention", "cross": "cross-attention"}
_FIELDS = (
    *("view", "part", "layer", "mode", "head", "unit", "special", "colour", "theme"),
    *("selected", "pinned", "hidden", "direction", "limit", "step", "zoom"),
    *("sort", "type", "pair", "heads", "measure"),
)


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """What a page is told besides the attention; `regard.viewer.page` documents each field."""

    title: str | Sequence[str] | None = None
    words: Words | Sequence[Words] | None = None
    example: int = 0
    prompt: int | None = None
    image: Tensor | None = None
    patches: tuple[int, int] | None = None
    names: tuple[str, str] | None = None
    runs: tuple[str, str] | None = None
    start: str = ""
    axes: str | None = None
    kind: Kind = "distribution"


@dataclass(frozen=True)
class Line:
    """A sequence of tokens, the words they make up if known, and which are special."""

    tokens: list[str]
    words: Words | None
    special: list[bool]
    name: str | None = None  #: what the text is called, such as "Source"


@dataclass(frozen=True)
class Site:
    """One attention of the page: a record, and the sequences its queries and keys stand for."""

    record: Record
    layer: int  #: as its path says, or its place in the stack where paths do not tell
    queries: int  #: number of the sequence
    keys: int
    label: str | None = None  #: its name, where it is no layer: "read" of a memory


@dataclass(frozen=True)
class Part:
    """Sites that follow each other: a stack of layers."""

    name: str
    label: str
    sites: list[int]


@dataclass(frozen=True)
class Scene:
    """One example of a trace, ready to be packed into a page."""

    title: str
    example: int
    lines: list[Line]
    sites: list[Site]
    parts: list[Part]
    prompt: int | None = None  #: tokens of a generation that were given
    grows: int | None = None  #: number of the sequence that was generated
    picture: Picture | None = None
    start: str = ""  #: what is shown first, as a link has it behind its "#"

    @classmethod
    def of(cls, attention: Any, **options: Any) -> Scene:
        """The scene of a trace, a record or tensors; arguments are those of `page`."""
        return scenes_of([attention], PageOptions(**options))[0]


def scenes_of(attentions: Sequence[Any], options: PageOptions) -> list[Scene]:
    """The scenes of several traces; words may be of any of them."""
    words, example = options.words, options.example
    all_words = [words] if isinstance(words, Words) else list(words or [])
    if not all(isinstance(each, Words) for each in all_words):
        raise RegardError(f"page: words={words!r:.60}, expected Words, or a list of them")
    _check_start(options.start)
    groups = _grouped(attentions, options.runs)
    titles = _titles(options.title, len(groups))
    scenes, unused = [], set(range(len(all_words)))
    for group, title in zip(groups, titles):
        traces = [_trace(attention, options.axes, options.kind) for attention in group]
        prompt = traces[0][1]
        records = list(traces[0][0])
        _check_example(example, records)
        line_numbers = _Lines(example, all_words)
        parts: list[Part] = []
        sites: list[Site] = []
        for run, name, label, members in _parts_of_runs([t for t, _ in traces], options.runs):
            first = len(sites)
            numbers, _ = layer_numbers([layer_of(record) for record in members])
            sites += [
                Site(record, number, *line_numbers.of(record, name), label)
                for record, number, label in zip(members, numbers, _labels(members))
            ]
            parts.append(Part(f"{name} {run}".strip(), label, list(range(first, len(sites)))))
        lines, used = line_numbers.finished()
        if options.names is not None:
            lines = _named_lines(lines, sites, options.names)
        unused -= used
        prompt = prompt if options.prompt is None else options.prompt
        grows = None if prompt is None else _growing(sites, parts, prompt)
        picture = None
        if options.image is not None:
            sizes = _image_sizes(sites, line_numbers.sizes)
            picture = Picture.of(options.image, options.patches, sizes, _grids(sites))
        title = f"attention of {_sites_title(sites)}" if title is None else title
        batch = max(record.shape.batch for record in records)
        if batch > 1:
            title = f"{title} (example {example} of {batch})"
        stacks = [(part.name, [sites[number].record for number in part.sites]) for part in parts]
        if picture is None:
            place = opening(stacks, example, options.start)
        else:
            asking = [
                (number, records)
                for number, (part, (_, records)) in enumerate(zip(parts, stacks))
                if all(
                    sites[site].keys == picture.line != sites[site].queries for site in part.sites
                )
            ]
            place = opening_of_picture(asking, example, options.start)
        start = "&".join(filter(None, [place, options.start]))
        scenes.append(Scene(title, example, lines, sites, parts, prompt, grows, picture, start))
    _check_words([all_words[number] for number in sorted(unused)], scenes)
    return scenes


def _grouped(attentions: Sequence[Any], runs: tuple[str, str] | None) -> list[tuple[Any, ...]]:
    """What each scene shows: one trace, or two runs of a model."""
    if runs is None:
        return [(attention,) for attention in attentions]
    if len(runs) != 2 or not all(isinstance(run, str) for run in runs):
        raise RegardError(f"page: runs={runs!r:.60}, expected two names, as ('before', 'after')")
    if len(attentions) != 2:
        raise RegardError(f"page: runs={runs!r}, but one trace, expected a list of two traces")
    return [tuple(attentions)]


def _parts_of_runs(
    runs: Sequence[Trace], names: tuple[str, str] | None
) -> Iterator[tuple[str, str, str, list[Record]]]:
    """The parts of a trace; of two runs those of each, and of the difference, after their names."""
    if names is None:
        yield from (("", *part) for part in _parts(list(runs[0])))
        return
    first, second = map(list, runs)
    for run, records in zip([*names, "difference"], [first, second, [*differences(first, second)]]):
        parts = list(_parts(records))
        for name, label, members in parts:
            yield run, name, run if len(parts) == 1 else f"{label}, {run}", members


def _grids(sites: Sequence[Site]) -> dict[int, tuple[int, int]]:
    """Rows and columns of the sequences that are positions of an image, as recipes know them."""
    grids = {site.keys: site.record.recipe.grid for site in sites}
    return {line: grid for line, grid in grids.items() if grid is not None}


def _image_sizes(sites: Sequence[Site], sizes: Sequence[int]) -> list[int]:
    """The sizes of sequences, 0 for those that are channels, which have no place in an image."""
    channels = {site.keys for site in sites if _of_channels(site.record)}
    positions = [0 if line in channels else size for line, size in enumerate(sizes)]
    if max(positions) <= 1:
        raise RegardError(
            "page: image=, but the trace has gates of channels alone, which have no place in it"
        )
    return positions


def _of_channels(record: Record) -> bool:
    return record.kind == "gate" and record.recipe.grid is None


class _Lines:
    """Sequences as they are met: the same tokens on the same side of a model are one."""

    def __init__(self, example: int, words: Sequence[Words]) -> None:
        self._example, self._words = example, words
        self._numbers: dict[tuple[str, tuple[str, ...]], int] = {}

    @property
    def sizes(self) -> list[int]:
        return [len(tokens) for _, tokens in self._numbers]

    def of(self, record: Record, part: str) -> tuple[int, int]:
        """Numbers of the sequences of a record's queries and keys."""
        crosses = part.startswith("cross")
        sides = ("decoder", "encoder") if crosses else (part, part)
        query, key = self._tokens(record, "query"), self._tokens(record, "key")
        if not crosses and record.shape.queries == record.shape.keys:
            query = key = query if record.query_tokens else key
        return self._number(sides[0], query), self._number(sides[1], key)

    def finished(self) -> tuple[list[Line], set[int]]:
        """The sequences with their words; and which of the given words are among them."""
        texts = [list(tokens) for _, tokens in self._numbers]
        numbers = [self._words_of(tokens, texts) for tokens in texts]
        lines = [
            _line(tokens, _marked(tokens) if number is None else self._words[number])
            for tokens, number in zip(texts, numbers)
        ]
        used = {number for number in numbers if number is not None}
        # of two texts of the same tokens, such as a name and its translation, both words are used
        used |= {number for number, words in enumerate(self._words) if words.tokens in texts}
        return lines, used

    def _words_of(self, tokens: list[str], texts: list[list[str]]) -> int | None:
        """Given words of these tokens; else of as many, if they are not those of another text."""
        for number, words in enumerate(self._words):
            if words.tokens == tokens:
                return number
        for number, words in enumerate(self._words):
            if len(words.pieces) == len(tokens) and words.tokens not in texts:
                return number
        return None

    def _tokens(self, record: Record, side: str) -> tuple[str, ...]:
        tokens = getattr(record, f"{side}_tokens")
        if record.kind == "gate" and record.shape.queries == 1 and not tokens:
            if side == "query":
                return ("gate",)
            if _of_channels(record):
                return tuple(f"channel {index}" for index in range(record.shape.keys))
        if not tokens:
            size = record.shape.queries if side == "query" else record.shape.keys
            fits = [words for words in self._words if len(words.pieces) == size]
            return tuple(fits[0].tokens) if fits else tuple(str(index) for index in range(size))
        return tuple(tokens if isinstance(tokens[0], str) else tokens[self._example])

    def _number(self, side: str, tokens: tuple[str, ...]) -> int:
        return self._numbers.setdefault((side, tokens), len(self._numbers))


def _line(tokens: list[str], words: Words | None) -> Line:
    special = [is_special(token) for token in tokens]
    if words is not None and words.special:
        special = [word in words.special for word in words.pieces]
    return Line(tokens, words, special)


def _titles(title: str | Sequence[str] | None, count: int) -> list[str | None]:
    if title is None or isinstance(title, str):
        return [title] * count
    if len(title) != count:
        raise RegardError(f"page: {len(title)} titles, expected {count}: one for each trace")
    return list(title)


def _check_words(unused: Sequence[Words], scenes: Sequence[Scene]) -> None:
    sizes = sorted({len(line.tokens) for scene in scenes for line in scene.lines})
    for words in unused:
        raise RegardError(
            f"page: words of {len(words.pieces)} pieces fit no attention; there are "
            f"sequences of {', '.join(map(str, sizes))}"
        )


def _named_lines(lines: list[Line], sites: Sequence[Site], names: tuple[str, str]) -> list[Line]:
    """The texts of queries and keys with their names, where they are different texts."""
    if len(names) != 2 or not all(isinstance(name, str) for name in names):
        raise RegardError(f"page: names={names!r:.60}, expected two: of queries and of keys")
    crossing = [site for site in sites if site.queries != site.keys]
    if not crossing:
        raise RegardError(f"page: names={names!r:.60}, but queries and keys are of one text")
    names_by_line = {site.queries: names[0] for site in crossing}
    names_by_line |= {site.keys: names[1] for site in crossing}
    return [replace(line, name=names_by_line.get(number)) for number, line in enumerate(lines)]


def _check_start(start: str) -> None:
    for field, _ in parse_qsl(start, keep_blank_values=True):
        if field not in _FIELDS:
            raise RegardError(
                f"page: start={start!r:.60}: there is no field {field!r}, expected "
                f"{', '.join(_FIELDS)}"
            )


def _growing(sites: Sequence[Site], parts: Sequence[Part], prompt: int) -> int:
    """The sequence that was generated: of a decoder, or of a model that is nothing else."""
    names = [part.name.split()[0] for part in parts]
    chosen = next(n for n in ("decoder", "self", "cross") if n in names)
    first = sites[parts[names.index(chosen)].sites[0]]
    least, longest = int(chosen != "cross"), first.record.shape.queries
    if isinstance(prompt, bool) or not isinstance(prompt, int) or not least <= prompt <= longest:
        raise RegardError(
            f"page: prompt={prompt!r}, expected a number of tokens from {least} to {longest}"
        )
    return first.queries


def _trace(attention: Any, axes: str | None, kind: Kind) -> tuple[Trace, int | None]:
    """One pass of a model, and how many tokens it was given if it went on from there."""
    if isinstance(attention, Record):
        attention = Trace([attention])
    if not isinstance(attention, Trace):
        layers = layers_of(attention, axes=axes, kind=kind)
        return Trace([_as_record(n, layer.recipe) for n, layer in enumerate(layers)]), None
    if not len(attention):
        raise UnavailableError("page: the trace is empty: trace.notes says why")
    for record in attention:
        layer_of(record)  # an error says why nothing is held
    steps = attention.steps
    if len(steps) < 2:
        return attention, None
    again = {record.site.base for record in steps[1]}  # an encoder runs once
    decoder_records = [record for record in steps[0] if record.site.base in again]
    try:
        stitched = stitch(attention)
    except RegardError as error:
        raise RegardError(f"page: {several_passes(len(steps))}") from error
    return stitched, max(record.shape.queries for record in decoder_records)


def _as_record(number: int, recipe: Any) -> Record:
    square = recipe.shape.queries == recipe.shape.keys
    site = RecordSite(
        f"layer.{number}", "Tensor", "", "given", attends="self" if square else "cross"
    )
    return Record(
        site, StoredRecipe(recipe), shape=recipe.shape, kind=recipe.kind, dtype=recipe.dtype
    )


def _parts(records: Sequence[Record]) -> Iterator[tuple[str, str, list[Record]]]:
    """Name, label and records of each stack: by side of the model, then by size; gates last."""
    gates = [record for record in records if record.kind == "gate"]
    if gates and len(gates) < len(records):
        yield from _parts([record for record in records if record.kind != "gate"])
        yield from _parts(gates)
        return
    if gates:
        yield from _gate_parts(gates)
        return
    crosses = {record.attends == "cross" for record in records}
    if len(crosses) > 1:
        named = {name: choose(records) for name, choose in forms.PARTS.items()}
    else:
        named = {"cross" if True in crosses else "self": list(records)}
    for name, members in named.items():
        sizes: dict[tuple[int, int], list[Record]] = {}
        for record in members:
            sizes.setdefault(record.shape[2:], []).append(record)
        for (queries, keys), alike in sizes.items():
            label = _LABELS.get(name, f"{name} self-attention")
            if len(sizes) > 1:
                label = f"{label}, {queries} × {keys}"
            yield (name if len(sizes) == 1 else f"{name} {queries} × {keys}"), label, alike


def _gate_parts(gates: Sequence[Record]) -> Iterator[tuple[str, str, list[Record]]]:
    """The same of gates: by what they are of, and how many."""
    kinds: dict[str, list[Record]] = {}
    for record in gates:
        rows, columns = record.recipe.grid or (0, 0)
        size = f"{rows} × {columns} positions" if rows else f"{record.shape.keys} channels"
        kinds.setdefault(f"gates of {size}", []).append(record)
    for name, members in kinds.items():
        yield name, name, members


def _marked(tokens: list[str]) -> Words | None:
    """Words by the marks that tokenizers leave on pieces, where there are any."""
    special = [is_special(token) for token in tokens]
    if {"[CLS]", "[SEP]"} & set(tokens):  # of a tokenizer that marks only what goes on
        return Words.from_marks(tokens, "wordpiece", special)
    for mark, name in _MARKS.items():
        if any(token.startswith(mark) and token != mark for token in tokens):
            return Words.from_marks(tokens, name, special)  # type: ignore[arg-type]
    return None


def _labels(members: Sequence[Record]) -> list[str | None]:
    """Names of sites that are no layers: told apart by one word each, as those of a memory."""
    paths = [record.site.path for record in members]
    words = {path for path in paths if path.isidentifier()}
    return [*paths] if len(words) == len(paths) else [None] * len(paths)


def _sites_title(sites: Sequence[Site]) -> str:
    labels = [site.label for site in sites if site.label is not None]
    if len(labels) == len(sites) > 1:
        return ", ".join(labels)
    return f"{len(sites)} layer{'s' * (len(sites) != 1)}"


def _check_example(example: int, records: Sequence[Record]) -> None:
    batch = min(record.shape.batch for record in records)
    if isinstance(example, bool) or not isinstance(example, int) or not 0 <= example < batch:
        raise RegardError(f"page: example={example!r}, expected from 0 to {batch - 1}")
