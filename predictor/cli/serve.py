"""`perfcast serve`: the gRPC server."""

from __future__ import annotations

from typing import Annotated

import typer


def serve(
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on; default 127.0.0.1.")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="0 takes a free one; default 50051.")] = None,
    bundle: Annotated[str | None, typer.Option("--bundle", metavar="PATH", help="Trained models.")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Processes on the port; default 1.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", help="Calls at a time per process; default 8.")
    ] = None,
    token: Annotated[str | None, typer.Option("--token", help="Bearer token that calls must carry.")] = None,
    tls_certificate: Annotated[str | None, typer.Option("--tls-cert", metavar="PEM")] = None,
    tls_key: Annotated[str | None, typer.Option("--tls-key", metavar="PEM")] = None,
    allow_insecure: Annotated[
        bool | None, typer.Option("--allow-insecure", help="Permit plain text beyond this machine.")
    ] = None,
    graph_folder: Annotated[
        str | None, typer.Option("--graph-folder", metavar="DIR", help="Keep uploaded models here.")
    ] = None,
    access_log: Annotated[bool | None, typer.Option("--access-log/--no-access-log")] = None,
) -> None:
    """Serve predictions over gRPC until interrupted. Every setting also has a PERFCAST_* variable."""
    from predictor.cli.console import one_line
    from predictor.serve.app import main
    from predictor.serve.settings import ServerSettings

    settings = ServerSettings.from_environment(
        host=host,
        port=port,
        bundle=bundle,
        workers=workers,
        threads=threads,
        token=token,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        allow_insecure=allow_insecure,
        graph_folder=graph_folder,
        access_log=access_log,
    )
    main(settings, on_ready=lambda address: typer.echo(f"perfcast serves on {one_line(address)}", err=True))
