"""The `regard` command."""

import sys

from regard.errors import MissingExtraError, RegardError


def main() -> None:
    """Run the command line; errors of regard are shown in one line."""
    try:
        import typer
    except ImportError as error:
        raise SystemExit(str(MissingExtraError("typer", "cli"))) from error
    from regard.cli.look import look

    app = typer.Typer(add_completion=False, help="Attention you can see, measure and reuse.")
    app.callback()(lambda: None)
    app.command()(look)
    try:
        app()
    except RegardError as error:
        print(f"regard: {error}", file=sys.stderr)
        raise SystemExit(1) from error
