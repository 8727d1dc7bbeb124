"""`regard serve`: the page, with models that run on request."""

from __future__ import annotations

import os
import threading
import webbrowser
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from regard.cli import packaged
from regard.cli.models import EXAMPLES, FILES, PACKAGED, from_folder, model_run, takes_text
from regard.cli.packaged.base import words_of
from regard.cli.packaged.translation import run_name
from regard.errors import RegardError
from regard.record.store import load_trace
from regard.translate.shipped import SHIPPED
from regard.viewer.scene import Scene
from regard.viewer.server import Draft, PromptTokens, ServedModel, Step, uvicorn_server
from regard.viewer.server.http.access import AccessPolicy
from regard.viewer.server.models.generation import GeneratedToken, stepwise

#: what a translator is asked first, if it knows the words and reads no other language
_SENTENCES = {
    "English": "The cat is sleeping on the table.",
    "French": "Le chat dort sur la table.",
}


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Models to run: {', '.join([*PACKAGED, *SHIPPED])}, mobilesam; a folder saved "
            "by transformers; or module:function, called with the text if it takes one, which "
            "returns a model, its inputs and, if it likes, the tokens (default: minilm)."
        ),
    ] = None,
    translator: Annotated[
        list[Path] | None,
        typer.Option(help="A checkpoint of `regard train` (.safetensors); repeatable."),
    ] = None,
    trace: Annotated[
        list[Path] | None, typer.Option(help="A saved trace (.safetensors); repeatable.")
    ] = None,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; anything but a loopback address needs --token."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 picks a free one.", min=0, max=65535)] = 8765,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="REGARD_TOKEN",
            help="Access token of visitors, at least 12 characters; auto generates and prints one.",
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = False,
) -> None:
    """Serve a page on which to type texts and see what models attend to, or browse saved traces."""
    uvicorn_server.check_extra()
    AccessPolicy.of(host, token)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    console = Console(stderr=True)
    names: list[str | Path] = [*(models or []), *(translator or [])]
    if not names and not trace:
        names = ["minilm"]
    served: list[ServedModel] = []
    for number, name in enumerate(names, 1):
        with console.status(f"loading {name} ({number} of {len(names)})"):
            served.append(_served(name, {model.name for model in served}))
    scenes = []
    for path in trace or []:
        with console.status(f"reading {path}"):
            scenes.append(Scene.of(load_trace(path), title=path.stem))

    def ready(address: str) -> None:
        print(f"regard is at {address} (stop it with Ctrl+C)", flush=True)
        if browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    uvicorn_server.serve(served, scenes, host=host, port=port, token=token, ready=ready)


def _served(name: str | Path, taken: set[str]) -> ServedModel:
    """A model as the server takes it; a `Path` is a translator's. Visitors see no folders."""
    short = _short(name)
    if short in taken and isinstance(name, Path) and name.stem != short:
        short = f"{short} ({name.stem})"  # the best and the average of one run
    if short in taken:
        raise RegardError(f"{name}: two models are named {short!r}")
    if isinstance(name, Path):
        return _of_translator(short, packaged.PackagedTranslator.of_checkpoint(name))
    if name in SHIPPED:
        return _of_translator(name, packaged.shipped_translator(name))
    if name in FILES:
        return _of_files(name)
    if name in PACKAGED:
        with packaged.quietly():
            return _of_text(short, PACKAGED[name](), EXAMPLES[name][0])
    if Path(name).is_dir():
        with packaged.quietly():
            return _of_text(short, from_folder(Path(name)), "")
    if ":" not in name:
        raise RegardError(_unknown(name))
    example = model_run(name, None)  # fails now rather than at the first request
    return ServedModel(short, example.title, "text", lambda text: _scene_of_function(name, text))


def _unknown(name: str) -> str:
    """The error for a name that is no model's."""
    if Path(name).suffix == ".safetensors":
        return f"{name}: a checkpoint is served with --translator {name}, a trace with --trace"
    names = ", ".join([*PACKAGED, *SHIPPED, "mobilesam"])
    return f"{name}: expected {names}, a folder saved by transformers, or module:function"


def _short(name: str | Path) -> str:
    """The last part of a folder's name, the run of a checkpoint."""
    if isinstance(name, Path):
        return run_name(name)
    return Path(name).name if Path(name).is_dir() else name


def _of_text(name: str, loaded: packaged.TextModel, example: str) -> ServedModel:
    return ServedModel(
        name,
        loaded.title,
        "text",
        lambda text: _scene(loaded.look(text)),
        generate=_generation(loaded) if loaded.generates else None,
        tokens=lambda text: len(loaded.encode(text).tokens),
        example=example,
    )


def _of_translator(name: str, loaded: packaged.PackagedTranslator) -> ServedModel:
    def translate(text: str, most: int) -> Generator[Draft]:
        for result in loaded.steps(text, most):
            yield Draft(result.written or "", _scene(result))

    language, *_ = loaded.translator.checkpoint.extra.get("languages", ["English"])
    sentence = _SENTENCES[language]

    return ServedModel(
        name,
        loaded.title,
        "text",
        lambda text: _scene(loaded.look(text)),
        translate=translate,
        tokens=loaded.tokens,
        example=sentence if loaded.knows(sentence) else "",
    )


def _of_files(name: str) -> ServedModel:
    if name != "mobilesam":
        raise RegardError(f"{name} listens to sound; a server runs models of texts and images")
    with packaged.quietly():
        loaded = packaged.mobilesam()
    return ServedModel(name, loaded.title, "image", lambda data: _scene(loaded.look(data)))


def _scene(result: packaged.LookResult) -> Scene:
    return Scene.of(result.trace, **result.options())


def _scene_of_function(name: str, text: str) -> Scene:
    example = model_run(name, text if takes_text(name) else None)
    return Scene.of(example.trace(), title=example.title, words=example.words)


def _generation(
    loaded: packaged.TextModel,
) -> Callable[[str, int], Generator[PromptTokens | Step | Scene]]:
    """How a packaged model continues a text."""

    def generate(text: str, count: int) -> Generator[PromptTokens | Step | Scene]:
        encoded, tokenizer = loaded.encode(text), loaded.tokenizer
        special = [word in encoded.words.special for word in encoded.words.pieces]
        yield PromptTokens(encoded.tokens, special)
        ends = [tokenizer.eos_token_id]
        for event in stepwise(loaded.model, encoded.inputs["input_ids"], count, ends):
            if isinstance(event, GeneratedToken):
                names = tokenizer.convert_ids_to_tokens([token for token, _ in event.likely])
                likely = [(name, share) for name, (_, share) in zip(names, event.likely)]
                yield Step(tokenizer.convert_ids_to_tokens(event.token), event.rows(), likely)
                continue
            words = words_of(tokenizer, event.fed)
            trace = event.trace.with_tokens(words.tokens)
            prompt = len(encoded.tokens)
            yield Scene.of(trace, title=loaded.title, words=words, prompt=prompt)

    return generate
