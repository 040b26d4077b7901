"""`wellread serve`: linkers, knowledge bases and a page over HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wellread.cli.options import kbs_or_default
from wellread.errors import MissingExtraError, UsageError, install_extra

if TYPE_CHECKING:
    from socket import socket

    from wellread.server.settings import Settings


@click.command("serve")
@click.option("--kb", "kbs", multiple=True, help="Knowledge base to serve; repeatable.  [default: vital]")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="[KB=][NAME=]MODEL",
    help="elq, knowbert, prior, or a model folder; for one KB, or for all; repeatable. NAME is shown on the page.  "
    "[default: the KB's default linker, and prior]",
)
@click.option(
    "--encoder",
    "encoders",
    multiple=True,
    metavar="[NAME=]MODEL",
    help="Encoder of /embed and /explain: an asset, a folder, or the run of a task; repeatable.  [default: minilm]",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 accepts other machines."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option(
    "--token-file",
    metavar="FILE",
    help="File with the token that allows changes of KBs; without it they are read-only.",
)
@click.option(
    "--corrections",
    metavar="FOLDER",
    help="Folder for corrections made on the page.  [default: beside each knowledge base]",
)
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="Additional accepted Host name; repeatable.")
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Page that may use /reconcile, such as OpenRefine: http://127.0.0.1:3333; repeatable.",
)
@click.option(
    "--queue",
    type=click.IntRange(1),
    help="Maximum texts that wait or run; more get 429.  [default: 16 per worker]",
)
@click.option(
    "--readers",
    type=click.IntRange(1, 64),
    help="Worker processes, one core each; 1 links in the server's process with all cores.  [default: one per core "
    "if all default linkers are ELQ's, else 1]",
)
@click.option(
    "--max-body", type=click.IntRange(1024), default=2 << 20, show_default=True, help="Maximum bytes of a request."
)
@click.option(
    "--max-text", type=click.IntRange(1), default=100_000, show_default=True, help="Maximum characters of a text."
)
@click.option("--max-texts", type=click.IntRange(1), default=64, show_default=True, help="Maximum texts of a request.")
@click.option(
    "--timeout", type=click.FloatRange(0.1), default=30.0, show_default=True, help="Timeout of a request in seconds."
)
@click.option(
    "--grace", type=click.IntRange(1), default=30, show_default=True, help="Seconds to finish requests when stopping."
)
def command(
    kbs: tuple[str, ...],
    models: tuple[str, ...],
    encoders: tuple[str, ...],
    host: str,
    port: int,
    token_file: str | None,
    corrections: str | None,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    queue: int | None,
    readers: int | None,
    max_body: int,
    max_text: int,
    max_texts: int,
    timeout: float,
    grace: int,
) -> None:
    """Serve linkers, knowledge bases and a web page. Ctrl-C finishes accepted requests, and stops.

    \b
    Examples:
      wellread serve
      wellread serve --kb vital --kb wordnet --port 8080
      wellread serve --kb my.kb --model runs/my-linker/model --model prior --token-file token.txt
      wellread serve --kb products.kb --allow-origin http://127.0.0.1:3333
      wellread serve --kb vital --encoder minilm --encoder reviews=runs/my-reviews
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"wellread serve needs the extra serve: {error.name} is not installed; {install_extra('serve')}"
        ) from None
    from wellread.linking.multi import name_kbs
    from wellread.server.correction_routes import folder_of
    from wellread.server.cross_origin import check_origins
    from wellread.server.run import allowed_hosts, bind_sockets, read_token
    from wellread.server.settings import Limits, Settings

    limits = Limits(
        body=max_body,
        text=max_text,
        texts=max_texts,
        characters=max(Limits().characters, 4 * max_text),
        queue=queue,
        readers=readers,
        seconds=timeout,
        grace=grace,
    )
    token = None if token_file is None else read_token(token_file)
    settings = Settings(
        limits,
        token,
        allowed_hosts(host, hosts),
        _encoders(encoders or ("minilm",)),
        origins=check_origins(origins),
        corrections=folder_of(corrections),
    )
    named = name_kbs(kbs_or_default(kbs))
    chosen = _models(models, list(named))
    with bind_sockets(host, port, patience=timeout) as sockets:
        _serve(named, chosen, settings, host, sockets)


def _serve(
    kbs: Mapping[str, str | Path],
    models: Mapping[str, Sequence[str]],
    settings: Settings,
    host: str,
    sockets: Sequence[socket],
) -> None:
    """Load the linkers with progress messages, and serve."""
    from wellread.io import console
    from wellread.kb.packaged import open_kb
    from wellread.server.engine import Engine
    from wellread.server.middleware import LOG
    from wellread.server.registry import LinkerRegistry
    from wellread.server.run import is_loopback, serve

    begin = time.monotonic()
    sizes = {}
    for name, kb in kbs.items():  # reports a broken KB before any linker is loaded
        with open_kb(kb) as opened:
            sizes[name] = len(opened)

    def note_loading(name: str, model: str) -> None:
        linker = "its default linker" if model == "auto" else model
        console.note(f"loading {name} ({sizes[name]:,} entities), {linker} …")

    registry = LinkerRegistry.load(list(kbs.values()), models, LOG.warning, note_loading)

    def ready(port: int) -> None:
        where = f"http://{host if ':' not in host else f'[{host}]'}:{port}/"
        took = console.duration(time.monotonic() - begin)
        console.note(f"ready after {took}, listening on {where} — open it in a browser (Ctrl-C stops)")
        if not is_loopback(host):
            console.note(f"{host} is reachable from other machines: all of them may read these knowledge bases")

    serve(Engine(registry, settings), sockets, ready=ready)


def _models(given: Sequence[str], names: Sequence[str]) -> dict[str, list[str]]:
    """Return the models of each KB: ["elq", "wordnet=prior"] -> {"vital": ["elq"], "wordnet": ["prior"]}.

    A prefix that is not a KB is the name of a linker, which `server.served_kb.name_models` parses.
    """
    own: dict[str, list[str]] = {}
    for_all = []
    for one in given:
        name, equals, model = one.partition("=")
        if equals and name in names:
            if not model:
                raise UsageError(f"--model {one} has no model; give elq, knowbert, prior, or a folder")
            own.setdefault(name, []).append(model)
        else:
            for_all.append(one)
    return {name: own.get(name, for_all) for name in names}


def _encoders(given: Sequence[str]) -> dict[str, str]:
    """Return encoders by name: ["minilm", "mine=runs/a"] -> {"minilm": "minilm", "mine": "runs/a"}.

    An encoder without a name is named after its folder; an existing path may contain "=".
    """
    named: dict[str, str] = {}
    for one in given:
        name, equals, model = one.partition("=")
        if not equals or Path(one).exists():
            name, model = Path(one).name.partition("@")[0], one
        if not name or not model or name == "auto":
            raise UsageError(f"--encoder {one} has an empty name or model, or the name auto; give NAME=MODEL")
        if name in named:
            raise UsageError(
                f"two encoders have the name {name}; give one of them another name: --encoder NAME={model}"
            )
        if _is_path(model) and not Path(model).is_dir():
            raise UsageError(f"{model} is not a folder; give the folder of an encoder, or the run of a trained task")
        named[name] = model
    return named


def _is_path(model: str) -> bool:
    """Return True if it is a path: neither an asset nor a hub name, which are fetched on first use."""
    return model.startswith((".", "/", "~")) or model.count("/") > 1 or Path(model).exists()
