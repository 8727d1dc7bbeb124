"""axe-core finds no serious or critical fault, in any view and theme."""

import pytest

VIEWS = ["map", "matrix", "lines", "text"]
RUN = """() => axe.run(document, {preload: false, resultTypes: ["violations"]})"""


def faults(looking, axe: str) -> list[str]:
    """What axe-core calls serious or critical, with the elements it means."""
    looking.page.evaluate(axe)
    found = looking.page.evaluate(RUN)["violations"]
    return [
        f"{fault['id']} ({fault['impact']}): {fault['help']}: {node['html']:.200}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"][:3]
    ]


@pytest.mark.parametrize(
    "dark", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["light", "dark"]
)
@pytest.mark.parametrize("view", VIEWS)
def test_no_serious_fault(open_page, sentence_trace, axe, view, dark):
    looking = open_page(sentence_trace, f"view={view}&layer=3&head=1&selected=12", dark=dark)
    assert not faults(looking, axe)


@pytest.mark.parametrize(
    "fragment",
    [
        "view=map&unit=words&special=hidden&pair=16,8&sort=pair",
        "view=lines&layer=3&head=1&selected=12&heads=1.8,2.8",
    ],
    ids=["ranked", "kept"],
)
def test_no_serious_fault_with_words_and_heads_chosen(open_page, sentence_trace, axe, fragment):
    looking = open_page(sentence_trace, fragment, dark=True)
    assert not faults(looking, axe)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_serious_fault_in_the_image_view(open_page, disc_trace, axe, dark):
    looking = open_page(disc_trace, "view=image&layer=2&head=0&selected=1", dark=dark)
    assert not faults(looking, axe)


def test_no_serious_fault_in_the_help_and_on_a_narrow_screen(open_page, sentence_trace, axe):
    looking = open_page(sentence_trace, "view=matrix&layer=3&head=1", width=390, height=844)
    assert not faults(looking, axe)
    looking.page.keyboard.press("?")
    looking.page.wait_for_selector("dialog[open]")
    assert not faults(looking, axe)


def test_no_serious_fault_while_a_generation_is_shown(open_page, story_trace, axe):
    looking = open_page(story_trace, "view=lines&layer=2&head=1&step=4")
    assert not faults(looking, axe)


def test_a_fault_would_be_found(open_page, sentence_trace, axe):
    looking = open_page(sentence_trace, "view=matrix")
    looking.page.evaluate(
        "() => document.body.append(document.createElement('button'), new Image(9, 9))"
    )
    assert any(fault.startswith("button-name") for fault in faults(looking, axe))
