"""Settings of a server: a frozen value, filled from flags or from PERFCAST_* variables."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from predictor.errors import InvalidRequest
from predictor.units import MIB

_PREFIX = "PERFCAST_"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server listens, what it accepts and how it stops.

    Attributes:
        host, port: where to listen; port 0 takes a free one.
        bundle: folder of the trained models; None is the one that ships.
        workers: processes that share the port; each holds its own bundle.
        threads: calls answered at the same time by one process.
        max_message_bytes: largest message accepted; a bound against abuse.
        max_graph_bytes: largest model accepted, after all chunks.
        max_concurrent_rpcs: calls beyond it are refused at once with RESOURCE_EXHAUSTED.
        graph_folder: where uploaded models lie, shared by all workers; None is a temporary folder.
        graph_store_bytes: size limit of that folder; the models used longest ago leave first.
        token: bearer token that every call but a health check must carry; None asks for none.
        tls_certificate, tls_key: PEM files; both or neither.
        allow_insecure: permits plain text on an address other than loopback.
        reflection: answers grpc reflection.
        access_log: one JSON line per call on standard error.
        drain_s: time between "not serving" and closing, for load balancers to notice.
        grace_s: time that running calls get to finish.
        max_connection_age_s: connections are renewed after it, so that clients spread over workers.
    """

    host: str = "127.0.0.1"
    port: int = 50051
    bundle: str | None = None
    workers: int = 1
    threads: int = 8
    max_message_bytes: int = 16 * MIB
    max_graph_bytes: int = 64 * MIB
    max_concurrent_rpcs: int = 256
    graph_folder: str | None = None
    graph_store_bytes: int = 512 * MIB
    token: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    allow_insecure: bool = False
    reflection: bool = True
    access_log: bool = True
    drain_s: float = 0.0
    grace_s: float = 10.0
    max_connection_age_s: float = 300.0

    def __post_init__(self) -> None:
        for name in ("workers", "threads", "max_message_bytes", "max_graph_bytes", "max_concurrent_rpcs"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}; expected at least 1", field=name)
        if not 0 <= self.port <= 65535:
            raise InvalidRequest(f"port is {self.port}; expected 0 to 65535", field="port")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise InvalidRequest("TLS needs both a certificate and a key file", field="tls_certificate")
        if not self.tls_certificate and not self.allow_insecure and not _is_loopback(self.host):
            raise InvalidRequest(
                f"host {self.host} would be reached in plain text from other machines: give a TLS "
                "certificate and key, or allow it with --allow-insecure",
                field="host",
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """Settings from PERFCAST_HOST, PERFCAST_PORT, ...; `overrides` that are not None win.

        Raises InvalidRequest naming the variable that holds something else than expected.
        """
        source = os.environ if environment is None else environment
        values: dict[str, Any] = {}
        for field in fields(cls):
            variable = _PREFIX + field.name.upper()
            if variable in source:
                values[field.name] = _parse(variable, source[variable], str(field.type))
        values.update({name: value for name, value in overrides.items() if value is not None})
        return cls(**values)

    def read_tls(self) -> tuple[bytes, bytes] | None:
        """(key, certificate chain) or None. Raises InvalidRequest when a file cannot be read."""
        if not self.tls_key or not self.tls_certificate:
            return None
        try:
            return Path(self.tls_key).read_bytes(), Path(self.tls_certificate).read_bytes()
        except OSError as error:
            raise InvalidRequest(
                f"{error.filename}: {error.strerror}; expected a PEM file", field="tls"
            ) from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _parse(variable: str, text: str, kind: str) -> str | int | float | bool | None:
    if kind.startswith("str"):
        return text or None
    try:
        if kind == "bool":
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[
                text.lower()
            ]
        return int(text) if kind == "int" else float(text)
    except (ValueError, KeyError):
        raise InvalidRequest(f"{variable}={text!r}: expected {kind}", field=variable) from None
