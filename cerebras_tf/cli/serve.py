"""`cerebras-tf serve` and `cerebras-tf credentials new`: the wafer of this computer at an address.

Neither TensorFlow nor PyTorch is needed.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import sys
from pathlib import Path
from typing import Any

from cerebras_tf.cli.parser import gigabytes, positive_int
from cerebras_tf.config.address import DEFAULT_PORT, address_problem, normalize_cs_ip, split_address
from cerebras_tf.errors import ConfigError
from cerebras_tf.installing import pip_install
from cerebras_tf.quantities import counted, in_bytes

NEW, SERVE = "new", "serve"


def add_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the arguments of a command.

    Args:
        what: `new` or `serve`.
    """
    if what == NEW:
        parser.add_argument(
            "--output",
            type=Path,
            default=Path("wafer.pem"),
            metavar="FILE",
            help="file for clients; the server's is next to it, for wafer.pem wafer-server.pem",
        )
    else:
        _add_serve(parser)
    parser.set_defaults(what=what)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--listen",
        default=f"127.0.0.1:{DEFAULT_PORT}",
        metavar="ADDRESS:PORT",
        help="address of this computer; 0.0.0.0 for all",
    )
    add(
        "--credentials_path",
        type=Path,
        required=True,
        metavar="FILE",
        help="the server's file of `cerebras-tf credentials new`; for --status any of them",
    )
    add("--max_memory_gb", type=gigabytes, metavar="GB", help="memory for the model of a client")
    add("--memoryx_dir", metavar="DIR", help="store weights and optimizer state in files there")
    add(
        "--memoryx_ram_gb",
        type=gigabytes,
        metavar="GB",
        help="memory for these with --memoryx_dir (default: half)",
    )
    add("--num_threads", type=positive_int, metavar="N", help="threads (default: one per core)")
    add(
        "--max_programs",
        type=positive_int,
        default=256,
        metavar="N",
        help="compiled programs that are kept",
    )
    add(
        "--keep_s",
        type=positive_int,
        default=120,
        metavar="S",
        help="seconds for which a client without a connection keeps the wafer",
    )
    add(
        "--status_port",
        type=positive_int,
        metavar="PORT",
        help="also show a page with the status, on this computer only",
    )
    add("--status", action="store_true", help="show what the server at --listen does, and end")


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    if args.what == NEW:
        _make_credentials(args.output)
    elif args.status:
        _show_status(args)
    else:
        _serve(args)


def _make_credentials(client: Path) -> None:
    from cerebras_tf.address.credentials import new_credentials

    server = client.with_name(f"{client.stem}-server{client.suffix}")
    found = new_credentials(client, server)
    print(f"certificate with SHA-256 {found.fingerprint}")
    print(f"{server}: for the server, cerebras-tf serve --credentials_path {server}")
    print(f"{client}: for clients, --cs_ip HOST:PORT --credentials_path {client}")


def _address(text: str) -> str:
    """HOST:PORT of --listen, where port 0 is one that is free."""
    if split_address(text) is None and not text.endswith(":0"):
        raise ConfigError(f"--listen: {address_problem(text)} Received: {text!r}.")
    return text if text.endswith(":0") else str(normalize_cs_ip(text))


def _imported(name: str) -> Any:
    import importlib

    from cerebras_tf.address.choose import quiet_grpc

    quiet_grpc()
    try:
        return importlib.import_module(f"cerebras_tf.address.{name}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"serve: the package grpcio must be installed. Received: no {error.name}. "
            + pip_install("'cerebras_tf[address]'")
            + " installs it."
        ) from error


def _serve(args: argparse.Namespace) -> None:
    from cerebras_tf.address.choose import address_of_rank
    from cerebras_tf.address.credentials import load_credentials
    from cerebras_tf.kernels.compiled_threads import num_threads, set_num_threads
    from cerebras_tf.swarmx import job

    given = load_credentials(args.credentials_path, serves=True)
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # memory holds the key
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("cerebras_tf").setLevel(logging.INFO)
    set_num_threads(args.num_threads)
    settings = _settings(args)
    address = address_of_rank(_address(args.listen), "--listen")
    server = _imported("server").WaferServer(address, given, settings, args.keep_s)
    server.start()
    try:
        host = address.rpartition(":")[0]
        print(f"wafer at {host}:{server.port}: {counted(num_threads(), 'thread')}", flush=True)
        print(f"certificate with SHA-256 {given.fingerprint}", flush=True)
        if args.status_port is not None and job.rank() == 0:
            page = _imported("status").serve_page(server.status, args.status_port)
            print(f"status page at http://127.0.0.1:{page.server_port}", flush=True)
        server.wait()
    finally:
        server.stop()


def _settings(args: argparse.Namespace) -> Any:
    from cerebras_tf.address.service import ServiceSettings
    from cerebras_tf.memoryx.process_folder import remove_stores, require_usable

    folder = args.memoryx_dir
    if folder is None and args.memoryx_ram_gb is not None:
        raise ConfigError(
            "--memoryx_ram_gb: must come with --memoryx_dir. Received: none. Add it, or remove "
            "--memoryx_ram_gb."
        )
    if folder is not None:
        folder = os.path.abspath(folder)
        require_usable(folder)
        remove_stores(Path(folder))
    memory, kept = (
        None if gb is None else int(gb * 1e9) for gb in (args.max_memory_gb, args.memoryx_ram_gb)
    )
    return ServiceSettings(memory, args.max_programs, folder, kept)


def _show_status(args: argparse.Namespace) -> None:
    from cerebras_tf.address.credentials import load_credentials

    address, given = _address(args.listen), load_credentials(args.credentials_path)
    found = _imported("client").status_of(address, given)
    print("\n".join(status_lines(found)))


def status_lines(found: dict[str, Any]) -> list[str]:
    """What a server does, for a console."""
    lines = [f"wafer on {found['host']}, cerebras_tf {found['version']}"]
    if found["holder"] is None:
        lines.append("free")
    else:
        lost = "" if found["connected"] else ", which is not connected now"
        lines.append(f"used by {found['holder']}{lost}, since {found['held_s']:.0f} s")
        rate = f"{found['steps_per_s']:.3g} per second"
        steps, held = counted(found["steps"], "step"), in_bytes(found["held_bytes"])
        lines.append(f"{steps}, {rate}, in {held}")
    lines += [f"waiting: {label}" for label in found["waiting"]]
    for step, loss in found["losses"][-1:]:
        lines.append(f"global_step = {step}, loss = {loss:.6g}")
    lines.append(f"{in_bytes(found['free_bytes'])} of memory free")
    return lines
