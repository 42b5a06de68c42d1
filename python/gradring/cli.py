"""The `gradring` command: reads the command line and hands over.

Each subcommand is imported when it is asked for: `gradring run` starts without what `bench` needs.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gradring.commands import endings
from gradring.commands.output_files import CannotWrite
from gradring.errors import InvalidArgument
from gradring.settings.config import TRANSPORTS, absolute_program, folder

# For these, everything after the name belongs to the subcommand's own parser.
_DELEGATED = {  # Name -> the module that has its `main`, and a line of help.
    "bench": ("gradring.bench", "measure an operation between the ranks"),
    "demo": (
        "gradring.demo",
        "train on two local ranks beside one process, and on a parameter server",
    ),
    "serve": ("gradring.ps.command", "hold tables for workers: one process of a parameter server"),
    "tune": ("gradring.tune", "measure what links cost here, for the choice of algorithms"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Args:
        argv: Arguments without the program's name; ``None`` takes the process's own.

    Returns:
        The exit code: 2 for a command line that makes no sense or names what cannot be used, 128 +
        signal where one ended it, else the subcommand's.
    """
    endings.prepare_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    interrupts = endings.Interrupts()
    try:
        with endings.ended_by_signals() as interrupts:
            code = _perform(arguments)
            sys.stdout.flush()  # What fits the buffer would fail at exit only.
            # Where it was made an error of an import, as by NumPy, the command may have gone on.
            return 128 + signal.SIGINT if interrupts.have_come else code
    except ImportError:
        if interrupts.have_come:
            return 128 + signal.SIGINT
        raise
    except InvalidArgument as error:
        print(f"gradring: {error}", file=sys.stderr)
        return 2
    except CannotWrite as error:
        print(f"gradring: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # As `gradring doctor | head`: no message.
        endings.discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        return _tell(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except endings.Ended as ended:
        return 128 + ended.number


def _tell(error: OSError) -> int:
    """Say what the system has refused, and return the exit code; what names nothing is raised."""
    if endings.is_unwritable(error):
        endings.discard_output()
        print(f"gradring: cannot write the output: {error.strerror}", file=sys.stderr)
        return 1
    if error.errno in (errno.EMFILE, errno.ENFILE):
        limit = "ulimit -n" if error.errno == errno.EMFILE else "fs.file-max"
        print(f"gradring: {error.strerror} ({limit})", file=sys.stderr)
        return 1
    if not isinstance(error.filename, (str, bytes)):
        raise error
    print(f"gradring: {os.fsdecode(error.filename)}: {error.strerror}", file=sys.stderr)
    return 2


def _perform(arguments: list[str]) -> int:
    if arguments and arguments[0] in _DELEGATED:
        return _delegate(arguments[0], arguments[1:])
    options = _parser().parse_args(arguments)
    action: Callable[[argparse.Namespace], int] = options.action
    return action(options)


def _delegate(name: str, arguments: list[str]) -> int:
    command = importlib.import_module(_DELEGATED[name][0])
    return int(command.main(arguments) or 0)


def _run(options: argparse.Namespace) -> int:
    from gradring.launch import job
    from gradring.launch.options import Options

    command = list(options.command)
    if command[:1] == ["--"]:
        del command[0]
    if options.module is not None:
        raise InvalidArgument(
            f"-m {options.module}: there is no such option; say what to run as in a shell: "
            f"gradring run -n 2 python -m {options.module}"
        )
    if options.timeout is not None and not options.timeout > 0:
        raise InvalidArgument(f"--timeout {options.timeout:g}: not a positive number of seconds")
    return job.run(
        Options(
            command=tuple(command),
            count=options.count,
            hosts_file=options.hosts,
            transport=options.transport,
            timeout=options.timeout,
            interface=options.interface,
            ports=options.ports,
            metrics=options.metrics,
            rendezvous=options.rendezvous,
            ssh=options.ssh,
            python=absolute_program(options.python),
            forward=tuple(options.env),
            grace=options.grace,
            start_timeout=options.start_timeout,
            prefix=options.prefix,
            quiet=options.quiet,
            verbose=options.verbose,
            keep_going=options.keep_going,
            restart_ranks=options.restart_ranks,
            bind=options.bind,
            servers=options.servers,
            server_log=options.server_log,
            restart_servers=options.restart_servers,
            server_options=options.server_options,
        )
    )


def _doctor(options: argparse.Namespace) -> int:
    from gradring.doctor import job_doctor, machine_doctor

    if options.job is not None:
        return job_doctor.main(options.job, as_json=options.json)
    asked = {name: getattr(options, name) for name in ("sizes", "op", "ranks", "path_ms")}
    if any(value is not None for value in asked.values()):
        from gradring.doctor import choice_doctor

        given = {name: value for name, value in asked.items() if value is not None}
        return choice_doctor.main(choice_doctor.Asked(**given), as_json=options.json)
    return machine_doctor.main(as_json=options.json)


def _trace_merge(options: argparse.Namespace) -> int:
    from gradring import trace

    told = trace.merge_folder(options.folder, options.output)
    print(told, file=sys.stderr if str(options.output) == "-" else sys.stdout)
    return 0


def _version(_options: argparse.Namespace) -> int:
    from gradring.machine.host_facts import own_version

    print(f"gradring {own_version()}")
    return 0


class _Parser(argparse.ArgumentParser):
    """Of a subcommand: shows its own usage where an argument is wrong.

    It lets --server-options begin with a dash, which argparse takes for another option.
    """

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse, with the value joined to its option; what follows the program is the program's."""
        given, known, at = list(args), self._option_string_actions, 0
        while at < len(given) and given[at].startswith("-") and given[at] != "--":
            value = given[at + 1] if at + 1 < len(given) else ""
            if given[at] == "--server-options" and value.startswith("-") and value not in known:
                given[at : at + 2] = [f"{given[at]}={value}"]
            takes_value = given[at] in known and known[given[at]].nargs is None
            at += 2 if takes_value else 1
        found, unknown = super().parse_known_args(given, namespace)
        if unknown:  # Else the parser around it says so, with the usage of `gradring` itself.
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradring",
        description="Data-parallel training on ordinary machines.",
        epilog="Environment variables: docs/configuration.md, or `gradring doctor`.",
    )
    parser.add_argument("--version", action="store_const", const=_version, dest="action")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    _add_run(commands)
    _add_doctor(commands)
    _add_trace(commands)
    for name, (_, text) in _DELEGATED.items():
        commands.add_parser(name, help=text)
    commands.add_parser("version", help="print the version").set_defaults(action=_version)

    def no_command(_options: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return 2

    parser.set_defaults(action=no_command)
    return parser


def _add_doctor(commands: argparse._SubParsersAction[Any]) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="show what gradring finds on this machine, and what to change",
        description="Shows what is in force on this machine, and what is wrong: the exit code is "
        "1 where something keeps a job from starting. As the program of a job (`gradring run "
        "--hosts hosts.txt gradring doctor`) it does so on every host.",
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.add_argument(
        "--job",
        metavar="PID|HOST:PORT|FOLDER",
        help="show instead what each rank of a job does: a running one by the process id of "
        "`gradring run` or of a rank, or by rank 0's address (with GRADRING_SECRET set); one that "
        "failed by the folder of its records",
    )
    choice = doctor.add_argument_group(
        "show instead which algorithm a call takes",
        "With all ranks on one host (shm), and with each on a host of its own (tcp). Several hosts "
        "with several ranks take hierarchical for all_reduce and broadcast from 64K on.",
    ).add_argument
    choice(
        "--size",
        dest="sizes",
        type=_sizes,
        metavar="LIST",
        help="of messages, as 64K,1MiB (default: some from 64 to 256M)",
    )
    choice("--op", metavar="OP", help="default: all_reduce")
    choice("--ranks", type=int, metavar="N", help="default: the job's, or 4; at most 16384")
    choice("--path-ms", type=float, metavar="MS", help="way between their hosts, one direction (0)")
    doctor.set_defaults(action=_doctor)


def _sizes(text: str) -> tuple[int, ...]:
    from gradring.bench.cases import parse_size

    try:
        return tuple(parse_size(each) for each in text.split(","))
    except InvalidArgument as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_trace(commands: argparse._SubParsersAction[Any]) -> None:
    trace = commands.add_parser("trace", help="put the traces of all ranks together")
    actions = trace.add_subparsers(title="actions", metavar="ACTION", required=True)
    merge = actions.add_parser(
        "merge",
        help="one file of what the ranks wrote into GRADRING_TRACE",
        description="Writes one Chrome trace, on rank 0's clock: for https://ui.perfetto.dev",
    )
    merge.add_argument("folder", type=Path, metavar="FOLDER", help="what GRADRING_TRACE was")
    merge.add_argument(
        "-o", dest="output", type=Path, metavar="FILE", required=True, help="- is standard output"
    )
    merge.set_defaults(action=_trace_merge)


def _add_run(commands: argparse._SubParsersAction[Any]) -> None:
    from gradring.launch.options import Options

    run = commands.add_parser(
        "run",
        help="start the ranks of a job and end them together",
        usage="gradring run -n N [options] train.py [arguments]",
        description="Starts N ranks of a program, here or on the hosts of a file. A program that "
        "ends in .py is run by this Python. The first rank that fails is named, all others are "
        "stopped, and its exit code becomes this command's.",
    )
    add = run.add_argument
    add("-n", dest="count", type=int, metavar="N", help="number of ranks")
    add("-m", dest="module", help=argparse.SUPPRESS)  # What others' launchers take.
    add("-np", dest="count", type=int, help=argparse.SUPPRESS)  # As well, for the same as -n.
    add(
        "--hosts",
        type=Path,
        metavar="FILE",
        help="lines `[user@]host [slots=N] [mbit=M]`; others than this one by ssh",
    )
    add("--transport", choices=TRANSPORTS, help="how ranks talk (default: what fits)")
    add("--timeout", type=float, metavar="S", help="seconds without progress that fail a call (30)")
    add("--interface", metavar="NAME|CIDR", help="to use (default: what leads to rank 0)")
    add("--rendezvous", metavar="HOST:PORT", help="where rank 0 is reached (port 0: pick one)")
    add("--ssh", default=Options.ssh, metavar="COMMAND", help="default: %(default)s")
    add(
        "--python",
        default=Options.python,
        metavar="PATH",
        help="interpreter, here and on every host (this one)",
    )
    add(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="variable that other hosts get too; again for more",
    )
    add(
        "--grace",
        type=float,
        default=Options.grace,
        metavar="S",
        help="seconds from SIGTERM to SIGKILL (5)",
    )
    add(
        "--start-timeout",
        type=float,
        default=Options.start_timeout,
        metavar="S",
        help="seconds that hosts may take to start ranks (30)",
    )
    add("--no-bind", dest="bind", action="store_false", help="no cores of its own for each rank")
    add(
        "--no-prefix",
        dest="prefix",
        action="store_false",
        help="no rank in front of each line; where the output is no terminal, every byte as it is",
    )
    add("--quiet", action="store_true", help="no status line")
    add("--verbose", action="store_true", help="tell what is started where")
    _add_losses(run)
    _add_ports(run)
    _add_servers(run)
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    run.set_defaults(action=_run)


def _add_losses(run: argparse.ArgumentParser) -> None:
    add = run.add_argument_group("when a rank fails, or a host is lost").add_argument
    add("--keep-going", action="store_true", help="leave the others to finish")
    add(
        "--restart-ranks",
        action="store_true",
        help="start it again, to join the others when they call grow()",
    )


def _add_ports(run: argparse.ArgumentParser) -> None:
    add = run.add_argument_group("ports").add_argument
    add("--ports", metavar="FIRST-LAST", help="range that free ports to listen at are taken from")
    add(
        "--metrics",
        metavar="[HOST:]PORT",
        help="rank 0 answers Prometheus there, rank r at PORT + r, then the servers",
    )


def _add_servers(run: argparse.ArgumentParser) -> None:
    add = run.add_argument_group("parameter servers").add_argument
    add("--servers", type=int, default=0, metavar="S", help="how many to start")
    add("--server-log", type=folder, metavar="DIR", help="where servers keep logs of what they do")
    add(
        "--restart-servers",
        action="store_true",
        help="start a server that dies again from its log, and go on",
    )
    add(
        "--server-options",
        default="",
        metavar="TEXT",
        help="for each `gradring serve`: --threads=2, or '--fsync always' with --server-log",
    )


if __name__ == "__main__":
    sys.exit(main())
