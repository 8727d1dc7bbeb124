"""The `regard` command."""

import sys
from io import TextIOWrapper
from typing import Annotated, Any

import regard
from regard.errors import MissingExtraError, RegardError


def main() -> None:
    """Run the command line; errors of regard and of files are shown in one line."""
    try:
        import typer
    except ImportError as error:
        raise SystemExit(str(MissingExtraError("typer", "cli"))) from error
    from typer.core import TyperCommand, TyperGroup

    from regard.cli.align import align
    from regard.cli.check_model import check_model_command
    from regard.cli.collect import collect
    from regard.cli.export import export
    from regard.cli.look import look
    from regard.cli.report import report
    from regard.cli.score import score
    from regard.cli.serve import serve
    from regard.cli.threads import use_free_cores
    from regard.cli.train import train
    from regard.cli.translate import translate

    class Command(TyperCommand):
        """A command whose help names no type beside a flag, where typer writes <bool>."""

        def get_params(self, ctx: Any) -> list[Any]:
            return _without_flag_types(super().get_params(ctx))

    class Commands(TyperGroup):
        """The same for the command of all commands."""

        def get_params(self, ctx: Any) -> list[Any]:
            return _without_flag_types(super().get_params(ctx))

    app = typer.Typer(
        cls=Commands,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="Attention you can see, measure, change and reuse.",
    )

    @app.callback(invoke_without_command=True)
    def version(
        show: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    ) -> None:
        if show:
            print(f"regard {regard.__version__}")

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # characters that it cannot show become codes
            stream.reconfigure(errors="backslashreplace")
    for command in (look, serve, translate, train, align, score, export, collect, report):
        app.command(cls=Command)(command)
    app.command("check-model", cls=Command)(check_model_command)
    use_free_cores()
    try:
        app()
    except (RegardError, OSError) as error:  # a disk that is full, a file nobody may read
        print(f"regard: {error}", file=sys.stderr)
        raise SystemExit(1) from error


def _without_flag_types(parameters: list[Any]) -> list[Any]:
    """The parameters of a command; flags have an empty metavar."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters
