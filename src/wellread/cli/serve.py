"""`wellread serve`: linkers, knowledge bases and a page over HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wellread.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from socket import socket

    from wellread.server.settings import Settings


@click.command("serve")
@click.option("--kb", "kbs", multiple=True, required=True, help="A knowledge base; several give several layers.")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="[KB=][NAME=]MODEL",
    help="elq, knowbert, prior, or the folder of one (of ELQ, KnowBERT or LUKE); for one KB by its name, or for all. "
    "Several can be compared on the page, by NAME or that of their folder.  [default: the usual one, and prior]",
)
@click.option(
    "--encoder",
    "encoders",
    multiple=True,
    metavar="[NAME=]MODEL",
    help="What vectors and the attention view are of: an asset, a folder, the run of a trained task. Clients choose "
    "among several by their names.  [default: minilm]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="0.0.0.0 lets other machines in.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option(
    "--token-file", metavar="FILE", help="Who knows the word in it may change knowledge bases; without it nobody may."
)
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME", help="A name that the server is called by besides its own."
)
@click.option(
    "--queue",
    type=click.IntRange(1),
    help="Texts that may wait or be read at a time; then 429 is said.  [default: 16 for each reader]",
)
@click.option(
    "--readers",
    type=click.IntRange(1, 64),
    help="Processes that link, each on one core; 1 links with all cores in the server's own.  [default: one for each "
    "core if the usual linker of each KB is ELQ's, else 1]",
)
@click.option("--max-body", type=click.IntRange(1024), default=2 << 20, show_default=True, help="Bytes of a request.")
@click.option("--max-text", type=click.IntRange(1), default=100_000, show_default=True, help="Characters of a text.")
@click.option("--max-texts", type=click.IntRange(1), default=64, show_default=True, help="Texts of a request.")
@click.option("--timeout", type=click.FloatRange(0.1), default=30.0, show_default=True, help="Seconds for a request.")
@click.option(
    "--grace", type=click.IntRange(1), default=30, show_default=True, help="Seconds to finish in when told to stop."
)
def command(
    kbs: tuple[str, ...],
    models: tuple[str, ...],
    encoders: tuple[str, ...],
    host: str,
    port: int,
    token_file: str | None,
    hosts: tuple[str, ...],
    queue: int | None,
    readers: int | None,
    max_body: int,
    max_text: int,
    max_texts: int,
    timeout: float,
    grace: int,
) -> None:
    """Serve linkers, knowledge bases and a page to try them on. Ctrl-C finishes what was taken, and stops.

    \b
    Examples:
      wellread serve --kb vital
      wellread serve --kb vital --kb wordnet --port 8080
      wellread serve --kb my.kb --model runs/my-linker/model --model prior --token-file token.txt
      wellread serve --kb vital --encoder minilm --encoder reviews=runs/my-reviews
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"{error.name} is not installed; install it with: pip install 'wellread[serve]'"
        ) from None
    from wellread.linking.multi import name_kbs
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
    settings = Settings(limits, token, allowed_hosts(host, hosts), _encoders(encoders or ("minilm",)))
    named = name_kbs(kbs)
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
    """Load, telling what is loaded, and serve."""
    from wellread.io import console
    from wellread.kb.packaged import open_kb
    from wellread.server.engine import Engine
    from wellread.server.registry import LinkerRegistry
    from wellread.server.middleware import LOG
    from wellread.server.run import is_loopback, serve

    begin = time.monotonic()
    sizes = {}
    for name, kb in kbs.items():  # what is wrong with any of them is told before the first is loaded
        with open_kb(kb) as opened:
            sizes[name] = len(opened)

    def tell(name: str, model: str) -> None:
        linker = "its usual linker" if model == "auto" else model
        console.note(f"loading {name} ({sizes[name]:,} entities), {linker} …")

    registry = LinkerRegistry.load(list(kbs.values()), models, LOG.warning, tell)

    def ready(port: int) -> None:
        where = f"http://{host if ':' not in host else f'[{host}]'}:{port}/"
        took = console.duration(time.monotonic() - begin)
        console.note(f"ready after {took}, listening on {where} — open it in a browser (Ctrl-C stops)")
        if not is_loopback(host):
            console.note(f"{host} lets other machines in: whoever reaches it may read these knowledge bases")

    serve(Engine(registry, settings), sockets, ready=ready)


def _models(given: Sequence[str], names: Sequence[str]) -> dict[str, list[str]]:
    """The models of each KB: ["elq", "wordnet=prior"] -> {"vital": ["elq"], "wordnet": ["prior"]}.

    What is before = and no KB is the name of a linker, which the shelf reads.
    """
    own: dict[str, list[str]] = {}
    for_all = []
    for one in given:
        name, equals, model = one.partition("=")
        if equals and name in names:
            if not model:
                raise UsageError(f"--model {one} names no model; give elq, knowbert, prior, or a folder")
            own.setdefault(name, []).append(model)
        else:
            for_all.append(one)
    return {name: own.get(name, for_all) for name in names}


def _encoders(given: Sequence[str]) -> dict[str, str]:
    """Encoders by their names: ["minilm", "mine=runs/a"] -> {"minilm": "minilm", "mine": "runs/a"}.

    One without a name is called after its folder; a path that has = in it is itself.
    """
    named: dict[str, str] = {}
    for one in given:
        name, equals, model = one.partition("=")
        if not equals or Path(one).exists():
            name, model = Path(one).name.partition("@")[0], one
        if not name or not model or name == "auto":
            raise UsageError(f"--encoder {one} is not understood; give NAME=MODEL, with another name than auto")
        if name in named:
            raise UsageError(f"two encoders are called {name}; give one of them another name: --encoder NAME={model}")
        if _is_path(model) and not Path(model).is_dir():
            raise UsageError(f"there is no encoder in {model}; give a folder, or the run of a trained task")
        named[name] = model
    return named


def _is_path(model: str) -> bool:
    """Whether it cannot be an asset or a model of the hub, which are fetched when they are first asked for."""
    return model.startswith((".", "/", "~")) or model.count("/") > 1 or Path(model).exists()
