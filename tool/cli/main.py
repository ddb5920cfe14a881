"""The command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from qkvac import __version__
from qkvac.engine.endings import endings, exit_status
from qkvac.publication.commands import report
from qkvac.streams import prepare, silence
from qkvac.texts import line, visible
from qkvac.usage import UsageError

MESSAGE = 2000
"""Characters of a line of an error."""
NO_COMMAND: tuple[type[Exception], ...] = tuple(
    found for found in [getattr(click.exceptions, "NoArgsIsHelpError", None)] if found is not None
)
"""What newer releases of click raise where a command is missing; older ones print its help."""

EPILOG = (
    "A pass proves nothing about shapes that were not run, about dropout in training, or speed. "
    "Exit status: 0 everything passed; 1 something failed; 2 bad usage, or a port that cannot be "
    "loaded; 3 nothing decisive passed; 130 interrupted, 143 and 129 by SIGTERM and SIGHUP."
)


def _use(context: click.Context, option: click.Parameter, files: Sequence[Path]) -> None:
    from qkvac.targets.equations import use

    use(files)


equations = click.option(
    "--spec",
    "specs",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    multiple=True,
    help="A Python file that declares profiles of your own.",
    expose_value=False,
    is_eager=True,
    callback=_use,
)
"""The option of every command that speaks of profiles: they are known before anything else is."""

drawn_from = (
    click.option("--secret", is_flag=True, help="Draws (1, or --seeds) from fresh entropy."),
    click.option("--entropy", default="", metavar="SEED", help="Draws from this: the same again."),
)
"""The options of every command that draws cases."""


def shared(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that runs cells."""
    several: dict[str, Any] = {"multiple": True}
    output = click.Path(path_type=Path, dir_okay=False)
    options = (
        equations,
        click.option("--profile", "profiles", help="Only this function.", **several),
        click.option("--dtype", "dtypes", help="float64, float32, bfloat16 or float16.", **several),
        click.option("--device", "devices", help="cpu, cuda, cuda:1; default: all.", **several),
        click.option("--case", "cases", metavar="GLOB", help="Only cases like this.", **several),
        click.option(
            "--tier",
            type=click.Choice(["quick", "default", "full"]),
            default="default",
            help="quick: named cases alone; full: longer ones, and all in compiled modes.",
        ),
        click.option(
            "--seeds",
            type=click.IntRange(0, 1000),
            default=0,
            metavar="N",
            help="N more draws of random cases.",
        ),
        *drawn_from,
        click.option("--strict", is_flag=True, help="Suspicious results fail."),
        click.option("--record", type=output, metavar="FILE", help="Write a record (JSON Lines)."),
        click.option(
            "--report",
            "published",
            type=click.Path(path_type=Path, file_okay=False),
            metavar="DIR",
            help="Write the record, an HTML page, a summary and badges into a folder.",
        ),
        click.option(
            "--known-deviations",
            type=output,
            metavar="FILE",
            help="Failures to expect, besides the suite's own list.",
        ),
        click.option("-n", "--workers", default=0, help="Processes at a time; default: cores."),
        click.option("-x", "fail_fast", is_flag=True, help="Stop at the first failure."),
        click.option(
            "--timeout",
            default=60.0,
            metavar="SECONDS",
            show_default=True,
            help="For each case; four times that where a mode compiles it.",
        ),
        click.option("--memory", metavar="SIZE", help="For a process on the CPU, like 4G."),
        click.option("--threads", default=1, help="Of a tested process.", show_default=True),
        click.option("--shard", metavar="I/K", help="Only part I of K, alike in size: 2/4."),
        click.option("--list", "listing", is_flag=True, help="List the cells, run nothing."),
        click.option("--format", "form", type=click.Choice(["text", "json"]), default="text"),
    )
    for option in reversed(options):
        command = option(command)
    return command


class Commands(click.Group):
    """Commands whose output may find no reader any more."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read the output has had enough of it.
            silence()
            return 0
        return status


@click.group(cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="qkvac")
@click.pass_context
def cli(context: click.Context) -> None:
    """Do all these implementations compute the same attention?"""
    from qkvac.cli.settings import defaults

    context.default_map = defaults(cli.commands)


@cli.command(epilog=EPILOG)
@click.option(
    "-b", "--backend", "backends", multiple=True, help="torch, or one mode: torch/compile."
)
@shared
def run(backends: tuple[str, ...], **given: Any) -> int:
    """Run the matrix: every installed backend.

    In all modes, devices and dtypes.

    \b
    qkvac run --profile attention
    qkvac run -b torch/compile --dtype float16 --case 'hot/*' --record run.jsonl
    qkvac run --report results
    """
    from qkvac.cli.running import run_cells

    return run_cells(backends=backends, port=None, **given)


declared = click.option(
    "--declare",
    metavar="KEY=VALUE",
    multiple=True,
    help="Declare something of the port, in dotted TOML: arithmetic.storage=float32, "
    "only.causal=true.",
)
"""The option of every command that takes a port."""


class PortCommand(click.Command):
    """A command whose port may be all that stands after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            from qkvac.isolation.commands import text_of

            at = args.index("--")
            args = [*args[:at], "--", text_of(args[at + 1 :])]
        return super().parse_args(ctx, args)


@cli.command(cls=PortCommand, epilog=EPILOG)
@click.argument("port", metavar="PORT | -- COMMAND...")
@declared
@shared
def check(port: str, **given: Any) -> int:
    """Check one port.

    PORT is file.py or package.module with a function `attention(X, Wq, Wk, Wv)`. It takes NumPy
    arrays X[n, d] and W[d, c] and returns Q, K, V, A and C: in a dict, in a tuple, or C alone.
    After a colon may stand what is meant of a module, package.module:name: an object that has the
    function, or the function itself.

    A model.onnx has inputs and outputs of these names, and scores for Ω.

    A port in another language is a COMMAND after `--`. It is called with two folders besides: one
    with the inputs of every case in a safetensors file, one for its outputs in files of the same
    names, or in CASE.unsupported with the reason where it is not made for the inputs.

    \b
    qkvac check my_port.py
    qkvac check my_port.py --dtype float32 --case 'normal/*'
    qkvac check package.module:Layer --report results
    qkvac check -- ./my_program --flag
    """
    from qkvac.cli.running import run_cells

    return run_cells(backends=(), port=port, **given)


@cli.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@equations
@click.option("--profile", "profiles", help="Only this function.", multiple=True)
@click.option("--dtype", "dtypes", help="Default: every dtype.", multiple=True)
@click.option("--case", "cases", metavar="GLOB", help="Only cases like this.", multiple=True)
@click.option(
    "--tier",
    type=click.Choice(["quick", "default", "full"]),
    default="quick",
    help="default: the covering arrays, too, which are large.",
)
@click.option(
    "--seeds",
    type=click.IntRange(0, 1000),
    default=0,
    metavar="N",
    help="N more draws of random cases.",
)
@drawn_from[0]
@drawn_from[1]
@click.option(
    "--declare",
    metavar="KEY=VALUE",
    help="Only what a port that declares this is asked for.",
    multiple=True,
)
@click.option("--with-expected", is_flag=True, help="Also write certified values and bounds.")
def export(folder: Path, with_expected: bool, secret: bool, entropy: str, **given: Any) -> None:
    """Write the cases as files to DIR.

    For a port in any language, on any machine. One safetensors file for each case and dtype, and a
    manifest. A port writes files of the same names that hold the quantities (scores stands for Ω),
    which `qkvac grade` judges.
    """
    from qkvac.cli.exporting import export as write
    from qkvac.draw import entropy as drawn_from
    from qkvac.subjects.selection import Selection

    write(folder, Selection(**given, entropy=drawn_from(secret, entropy)), with_expected)


@cli.command(epilog=EPILOG)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("outputs", type=click.Path(path_type=Path))
@declared
@shared
def grade(folder: Path, outputs: Path, **given: Any) -> int:
    """Judge what a port wrote for exported cases.

    OUTPUTS are the files that it wrote for what was exported to DIR.
    All that was exported is judged, whatever --tier, --seeds and --secret say. What the port
    declares is read from port.toml in OUTPUTS.
    """
    from qkvac.cli.running import run_cells
    from qkvac.execution.vectors import read_manifest

    manifest = read_manifest(folder)
    given |= {"tier": "full", "seeds": manifest.draws}
    given |= {"secret": False, "entropy": manifest.entropy}
    graded = (str(folder), str(outputs))
    return run_cells(backends=(), port=None, graded=graded, **given)


@cli.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@equations
@click.option("--profile", "profiles", multiple=True, help="A function to write (attention).")
def new(file: Path, profiles: tuple[str, ...]) -> None:
    """Write a port to fill in.

    To FILE.py, or a declaration to port.toml.
    """
    from qkvac.cli.skeleton import write

    click.echo(write(file, profiles))


@cli.command()
@click.argument("profile", required=False)
@equations
@click.option("--format", "form", type=click.Choice(["text", "latex", "json"]), default="text")
def spec(profile: str | None, form: str) -> None:
    """Print the equations of a PROFILE.

    Its shapes and its conventions, too.
    Without one, of `attention`, or of the first that --spec declares.
    """
    from qkvac.cli.showing import spec_text

    click.echo(spec_text(profile, form))


@cli.command()
@equations
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def backends(form: str) -> None:
    """List the backends, and what each offers.

    Also why one cannot run here.
    """
    from qkvac.cli.showing import show_backends

    show_backends(form)


@cli.command()
@equations
@click.option("--profile", "profiles", multiple=True, help="Only this function.")
@click.option("--case", "cases", metavar="GLOB", multiple=True, help="Only cases like this.")
@click.option("--coverage", is_flag=True, help="What the crossed cases cover, and what not.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def cases(profiles: tuple[str, ...], cases: tuple[str, ...], coverage: bool, form: str) -> None:
    """List the named cases and the reason for each.

    Besides them every profile has crossed cases (`--case '*/crossed*'` lists those): lengths,
    widths, heads, leading axes, masks, numbers, data, layouts and dtypes, each two values together
    in some case. --coverage shows which are, and why others cannot.
    """
    if coverage:
        from qkvac.cli.coverage import show_coverage

        show_coverage(profiles, form)
        return
    from qkvac.cli.showing import show_cases

    show_cases(profiles, cases, form)


@cli.command()
@click.argument("case")
@equations
@click.option("--dtype", help="Default: the widest that the case is for.")
@declared
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def show(case: str, dtype: str | None, declare: tuple[str, ...], form: str) -> None:
    """Show a CASE: inputs, certified values, bounds.

    Also what is exact. The bounds are those of a port that declares nothing, or --declare.

    \b
    qkvac show normal/2x3x5 --dtype float16
    qkvac show normal/2x3x5 --declare arithmetic.softmax=fused
    """
    from qkvac.cli.showing import show_case

    show_case(case, dtype, form, declare)


@cli.command()
@click.argument("name", required=False)
@equations
@click.option("--profile", help="Its faults, and every first-order change of its equations.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def faults(name: str | None, profile: str | None, form: str) -> None:
    """List the faults that are recognised.

    The suite is tested with them, and diagnoses them. NAME shows one of them.
    """
    from qkvac.cli.catalogue import show_faults

    show_faults(name, form, profile)


cli.add_command(report)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits; errors of usage are one line and status 2."""
    prepare()
    try:
        with endings():
            status = cli.main(args=arguments, prog_name="qkvac", standalone_mode=False)
    except click.ClickException as error:
        if isinstance(error, NO_COMMAND):
            # Its message is the help, which keeps its lines.
            click.echo(error.format_message(), err=True)
            sys.exit(2)
        _fail(error.format_message())
    except UsageError as error:
        from qkvac.cli.settings import origin

        _fail(f"{origin(str(error))}{error}")
    except (KeyboardInterrupt, click.Abort) as error:
        sys.exit(exit_status(error))
    except OSError as error:
        silence()
        where = f"{error.filename}: " if error.filename is not None else "the output: "
        _fail(f"{where}{error.strerror or error}")
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str) -> NoReturn:
    first, *place = message.split("\n")
    text = "\n".join([line(" ".join(first.split()), MESSAGE), *map(visible, place)])
    with suppress(OSError):
        click.echo(f"qkvac: {text}" if text else cli.get_help(click.Context(cli)), err=True)
    sys.exit(2)
