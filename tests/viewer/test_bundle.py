"""The page's modules: one bundle that is current, and a check that finds mistakes in them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from needed import missing

import regard.viewer
from regard.viewer.document import script, style

ROOT = Path(__file__).parents[2]
VIEWER = Path(regard.viewer.__file__).parent
FRONTEND, STATIC = VIEWER / "frontend", VIEWER / "static"
TOOLS = ROOT / ".venv/node/node_modules/.bin"
MODULES = sorted(FRONTEND.rglob("*.js"))
SHEETS = sorted((FRONTEND / "styles").rglob("*.css"))
#: Folders of modules: each imports from itself and those before it, a view from no other view.
LAYERS = ["data", "drawing", "state", "export", "controls", "views", "page", "live", "report"]
BUNDLES = ["page", "report"]
FILES = [f"{bundle}.{kind}" for bundle in BUNDLES for kind in ("js", "css")]
#: What begins a bundle, and folders that only one of them has.
ENTRIES = {"page": "main", "report": "report"}
ALONE = {"live": "page", "report": "report"}
#: Lines of a module that the check must not pass, and what it says of each.
MISTAKES = {
    'import { none } from "./data/scene.js"; none();': "has no exported member 'none'",
    'import { lost } from "./data/lost.js"; lost();': "Cannot find module './data/lost.js'",
    "visibleLabels([]);": "Cannot find name 'visibleLabels'",
    "const forgotten = 1;": "'forgotten' is declared but its value is never read",
    "startPage(1);": "Expected 0 arguments, but got 1",
}


def run(command, *arguments):
    if shutil.which("node") is None:
        missing("there is no node")
    for tool in ("esbuild", "tsc"):
        if not (TOOLS / tool).exists():
            missing(f"{tool} is not installed")
    return subprocess.run(
        [ROOT / "tools" / command, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def name(path):
    return path.relative_to(FRONTEND).as_posix()


@pytest.fixture
def frontend(tmp_path):
    """A copy of the modules, to break."""
    return Path(shutil.copytree(FRONTEND, tmp_path / "frontend"))


class TestBuild:
    def test_the_bundle_is_current(self, tmp_path):
        built = run("page_build.sh", tmp_path)
        assert built.returncode == 0, built.stderr
        assert not built.stderr, "no warning"
        for file in FILES:
            same = (tmp_path / file).read_bytes() == (STATIC / file).read_bytes()
            assert same, f"{file} is not what viewer/frontend builds: `make page`"

    def test_a_change_makes_another_bundle(self, frontend, tmp_path):
        with (frontend / "page/page.js").open("a") as file:
            file.write('\nconsole.log("changed");\n')
        with (frontend / "styles/views/text.css").open("a") as file:
            file.write(".changed { color: red; }\n")
        assert run("page_build.sh", tmp_path, frontend).returncode == 0
        for file in FILES:
            assert (tmp_path / file).read_bytes() != (STATIC / file).read_bytes()

    def test_a_text_cannot_end_the_element_it_stands_in(self, frontend, tmp_path):
        with (frontend / "page/page.js").open("a") as file:
            file.write('\nconsole.log("</script><p>");\n')
        with (frontend / "main.css").open("a") as file:
            file.write('.ending::after { content: "</style><p>"; }\n')
        assert run("page_build.sh", tmp_path, frontend).returncode == 0
        for bundle in BUNDLES:
            assert r"<\/script>" in (tmp_path / f"{bundle}.js").read_text()
            assert r"<\/style>" in (tmp_path / f"{bundle}.css").read_text()

    @pytest.mark.parametrize("path", [*MODULES, *SHEETS], ids=name)
    def test_every_file_is_in_the_bundle(self, path):
        mark = {".js": f"  // {name(path)}\n", ".css": f"/* {name(path)} */\n"}[path.suffix]
        has = [bundle for bundle in BUNDLES if mark in script(bundle) + style(bundle)]
        entries = {f"{entry}.js": bundle for bundle, entry in ENTRIES.items()}
        alone = ALONE.get(path.parent.name) or entries.get(name(path))
        if path.suffix == ".js" or path.parent.name == "report":
            assert has == ([alone] if alone else BUNDLES)
        else:
            assert has == BUNDLES, "styles of the viewer are those of both"

    def test_neither_hosts_nor_paths_of_a_machine(self):
        """The registry that packages come from is the user's choice."""
        for path in (FRONTEND / "package-lock.json", *(STATIC / file for file in FILES)):
            text = path.read_text()
            assert not set(re.findall(r"\w+://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
            assert str(ROOT) not in text


@pytest.mark.parametrize("bundle", BUNDLES)
class TestScript:
    def test_nothing_is_left_of_modules(self, bundle):
        assert not re.search(r"^\s*(import|export)\b", script(bundle), re.MULTILINE)

    def test_nothing_ends_its_element(self, bundle):
        text = script(bundle) + style(bundle)
        assert not re.search(r"</(script|style)|<!--", text, re.IGNORECASE)

    def test_it_is_ascii(self, bundle):
        """A document without a charset, as some notebooks are, reads the bytes that the hash is
        of."""
        assert script(bundle).isascii() and style(bundle).isascii()


class TestModules:
    @pytest.mark.parametrize("path", MODULES, ids=name)
    def test_text_is_never_markup(self, path):
        text = path.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text

    def test_a_folder_has_a_dozen_files_at_most(self):
        folders = {path.parent for path in [*MODULES, *SHEETS]}
        for folder in folders:
            assert len([path for path in folder.iterdir() if path.is_file()]) <= 12, folder


class TestCheck:
    def test_the_modules_pass(self):
        checked = run("page_check.sh")
        assert checked.returncode == 0, checked.stdout

    def test_mistakes_are_found(self, frontend):
        main = frontend / "main.js"
        main.write_text("\n".join([*MISTAKES, main.read_text()]))
        checked = run("page_check.sh", frontend)
        assert checked.returncode != 0
        for line, (mistake, said) in enumerate(MISTAKES.items(), start=1):
            complaint = rf"main\.js\({line},\d+\): error TS\d+: .*{re.escape(said)}"
            assert re.search(complaint, checked.stdout), mistake

    @pytest.mark.parametrize(
        "path", [path for path in MODULES if path.parent != FRONTEND], ids=name
    )
    def test_imports_come_from_lower_folders(self, path):
        folder = path.parent.relative_to(FRONTEND)
        lower = LAYERS[: LAYERS.index(folder.parts[0])]
        for imported in re.findall(r'^import .* from "(.+)";', path.read_text(), re.M):
            source = (path.parent / imported).resolve().parent.relative_to(FRONTEND)
            assert source == folder or source.parts[0] in lower, imported

    def test_every_export_is_imported(self):
        """A name that no other module needs is not exported."""
        texts = [path.read_text() for path in MODULES]
        exported = re.compile(r"^export (?:async )?(?:function\*?|const|let|class) (\w+)", re.M)
        imported = re.compile(r"^import \{(.*?)\} from", re.M | re.S)
        names = {found for text in texts for found in exported.findall(text)}
        used = {
            word for text in texts for found in imported.findall(text) for word in found.split(", ")
        }
        assert names - {word.strip() for word in used} == set()
