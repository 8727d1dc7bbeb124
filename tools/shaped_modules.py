"""Prints the modules whose signatures have shapes, for pytest's `--jaxtyping-packages`.

Run-time checks make a call several times slower, so they cover shapes and dtypes alone: plain
types are mypy's, and most modules of capture have nothing else.
"""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imports(tree: ast.Module) -> set[tuple[str, str]]:
    """What a module imports, as (module, name)."""
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {(s.module or "", alias.name) for s in statements for alias in s.names}


def aliases(tree: ast.Module) -> set[str]:
    """The names that stand for a shape: `Weights = Float[Tensor, "batch head query key"]`."""
    types = {name for module, name in imports(tree) if module == "jaxtyping"}
    return {
        statement.targets[0].id
        for statement in tree.body
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        if any(isinstance(node, ast.Name) and node.id in types for node in ast.walk(statement))
    }


if __name__ == "__main__":
    paths = sorted((SOURCE / "regard").rglob("*.py"))
    trees = {module_name(path): ast.parse(path.read_text()) for path in paths}
    shapes = {(module, name) for module, tree in trees.items() for name in aliases(tree)}
    imported = {module: imports(tree) for module, tree in trees.items()}
    shapes |= {pair for pairs in imported.values() for pair in pairs if pair[0] == "jaxtyping"}
    print(",".join(module for module, pairs in imported.items() if pairs & shapes))
