"""The end of a run: the best parameters averaged, and what the translators score."""

from __future__ import annotations

from regard.translate.checkpoint import FILE, load_checkpoint
from regard.translate.training.corpus import Pairs
from regard.translate.training.final_scores import FinalScores, as_json, final_scores
from regard.translate.training.folder import average_files
from regard.translate.training.loop import Setting
from regard.translate.training.stopping import Asked, Best
from regard.translate.training.watch import Watcher
from regard.whole_files import write_text


def finish(
    setting: Setting, pairs: Pairs, best: Best, asked: Asked, watcher: Watcher
) -> dict[tuple[str, str], FinalScores] | None:
    """Average the best parameters, and score what there is; None when asked to end meanwhile.

    All of it can be done again, so nothing is lost then.
    """
    folder, search = setting.folder, setting.config.search
    folder.publish(best.kept[0].step)
    kept = [folder.kept(one.step) for one in best.kept]
    header, _ = FILE.read(kept[0])
    extra = {"steps": [one.step for one in best.kept]}
    FILE.write(folder.average, average_files(kept), {**header, "extra": extra})
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
