"""The end of a run: the best parameters averaged, and what the translators score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.files import write_text
from regard.translate.checkpoint import FILE, load_checkpoint
from regard.translate.training.corpus import Pairs
from regard.translate.training.final_scores import FinalScores, as_json, final_scores
from regard.translate.training.folder import RunFolder, average_files
from regard.translate.training.loop import Setting
from regard.translate.training.stopping import Asked, Best
from regard.translate.training.watch import Watcher


def finish(
    setting: Setting, pairs: Pairs, best: Best, asked: Asked, watcher: Watcher
) -> dict[tuple[str, str], FinalScores] | None:
    """Average the best parameters, and score what there is; None when asked to end meanwhile.

    All of it can be done again, so nothing is lost then.
    """
    folder, search = setting.folder, setting.config.search
    folder.prune(best)
    _write_translators(folder, best)
    scores = {}
    for name, path in (("best", folder.best), ("average", folder.average)):
        checkpoint = load_checkpoint(path, setting.fabric.device)
        for part, found in (("valid", pairs.valid), ("test", pairs.test)):
            if asked:
                return None
            if found:
                watcher.note(f"translating the {part} pairs with the {name} translator")
                scores[name, part] = final_scores(checkpoint, found, search, setting.fabric.device)
    if asked:
        return None
    write_text(folder.scores, as_json(scores, search))
    return scores


def _write_translators(folder: RunFolder, best: Best) -> None:
    """The best and the average; those that are there already stay, with what was added to them."""
    steps = [one.step for one in best.kept]
    if _extra(folder.best).get("step") != steps[0]:
        folder.publish(steps[0])
    if _extra(folder.average).get("steps") != steps:
        kept = [folder.kept(step) for step in steps]
        header = FILE.header(kept[0])
        FILE.write(folder.average, average_files(kept), {**header, "extra": {"steps": steps}})


def _extra(path: Path) -> dict[str, Any]:
    """What a translator's file says besides the translator; nothing where there is none."""
    if not path.exists():
        return {}
    extra: dict[str, Any] = FILE.header(path).get("extra", {})
    return extra
