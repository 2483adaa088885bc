"""Entry of ``hotstart``: runs a verb, and turns whatever happens into one line and an exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence

from hotstart.errors import HotstartError
from hotstart.reasons import DISK_FULL, INTERNAL, INTERRUPTED, USAGE

PROGRAM = "hotstart"
COMPLETE_ENV = "_HOTSTART_COMPLETE"
SIGPIPE_EXIT = 128 + signal.SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code and never raises."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        from hotstart.snapshot_agent.cli import interrupts, output
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{PROGRAM}: {error.name} is not installed; pip install 'hotstart[agent]'\n")
        return INTERNAL.exit_code
    output.prepare_streams()
    with interrupts.raised():
        try:
            return _dispatch(arguments)
        except BaseException as error:  # noqa: BLE001 - the boundary: a person gets one line, whatever it was
            return _report(error, arguments)


def _dispatch(arguments: list[str]) -> int:
    import click

    from hotstart.snapshot_agent.cli.root import program

    if instruction := os.environ.get(COMPLETE_ENV):
        from click.shell_completion import shell_complete

        return shell_complete(program, {}, PROGRAM, COMPLETE_ENV, instruction)
    try:
        with program.make_context(PROGRAM, list(arguments)) as ctx:
            code = program.invoke(ctx)
            return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        from hotstart.snapshot_agent.cli import output

        output.write(error.format_message() + "\n")
        return 0
    except click.exceptions.Exit as error:
        return error.exit_code


def _report(error: BaseException, arguments: Sequence[str]) -> int:
    """Tell what went wrong: one line on stderr, with JSON output the same on stdout."""
    from hotstart.snapshot_agent.cli import output, settings

    as_json, debug = settings.guess(arguments)
    if isinstance(error, BrokenPipeError) and output.stdout_is_gone():
        output.abandon_stdout()
        return SIGPIPE_EXIT
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if debug:
        import traceback

        traceback.print_exception(error)
    told = isinstance(error, output.Reported)
    failure = error.error if isinstance(error, output.Reported) else as_failure(error)
    if as_json and not told:
        try:
            output.write_json({"error": failure.to_json()})
        except OSError:
            output.abandon_stdout()
    if failure.reason is INTERRUPTED:
        output.leave_echoed_line()
    output.say(f"{PROGRAM}: {failure.line()}")
    output.settle_stdout()
    return failure.reason.exit_code


def as_failure(error: BaseException) -> HotstartError:
    """Any exception as a failure with a reason."""
    import click

    if isinstance(error, HotstartError):
        return error
    if isinstance(error, click.ClickException):
        from hotstart.snapshot_agent.cli.verbs import usage_error

        sentence, where = usage_error(error)
        return HotstartError(USAGE, sentence, next_step=where)
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return HotstartError(INTERRUPTED, f"stopped by {str(error) or 'the user'} before it was done")
    if isinstance(error, OSError):
        where = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
        what = f"{where}: {error.strerror or error}" if where else str(error.strerror or error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return HotstartError(DISK_FULL, what, next_step="free some space, or point HOTSTART_HOME elsewhere")
        return HotstartError(INTERNAL, what)
    return HotstartError(INTERNAL, f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    sys.exit(main())
