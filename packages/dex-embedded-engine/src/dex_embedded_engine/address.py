"""Owns addresses: what may be bound, and whether something listens there already."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from dex_embedded_engine.errors import AddressError

_PREFIX = "unix:"
_TCP = re.compile(r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")
_HIGHEST_PORT = 65535
_LONGEST_SOCKET_PATH = 100
# A name may stand for addresses that this machine does not have, such as ::1 without IPv6.
_ABSENT = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


@dataclass(frozen=True)
class Address:
    """A place to listen at: a TCP host and port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: Path | None = None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def target(self, port: int | None = None) -> str:
        """Return the gRPC target, with the port that was really bound."""
        if self.path is not None:
            return f"{_PREFIX}{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port if port is None else port}"


def parse_address(text: str) -> Address:
    """Read ``HOST:PORT``, ``[IPv6]:PORT`` or ``unix:PATH``.

    Raises:
        AddressError: it is none of these.
    """
    if text.startswith(_PREFIX):
        path = text.removeprefix(_PREFIX)
        if not path or "\0" in path or len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
            raise AddressError(
                f"address {text!r} names no usable socket path; use unix:PATH with a path of at "
                f"most {_LONGEST_SOCKET_PATH} bytes"
            )
        return Address(path=Path(path))
    found = _TCP.fullmatch(text)
    if found is None or int(found["port"]) > _HIGHEST_PORT or not _is_ipv6(found["ipv6"]):
        raise AddressError(
            f"address {text!r} is not HOST:PORT, [IPv6]:PORT or unix:PATH; write it like "
            f"'127.0.0.1:8801'"
        )
    return Address(host=found["ipv6"] or found["host"], port=int(found["port"]))


def require_free(address: Address) -> None:
    """Refuse an address at which something listens already.

    A Unix socket that nobody listens at any more was left by a killed engine and is removed.

    Raises:
        AddressError: taken, or its folder does not exist.
    """
    if address.path is None:
        _try_to_bind(address)
        return
    if not address.path.parent.is_dir():
        raise AddressError(
            f"the folder of socket {str(address.path)!r} does not exist; create it first"
        )
    if not address.path.exists():
        return
    if not address.path.is_socket():
        raise AddressError(f"{str(address.path)!r} is not a socket; choose another path")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            # Without blocking: the queue of an engine that hangs may be full.
            probe.setblocking(False)
            try:
                probe.connect(str(address.path))
            except ConnectionRefusedError:
                address.path.unlink(missing_ok=True)
                return
            except BlockingIOError:
                pass
    except OSError as error:
        raise AddressError(
            f"socket {str(address.path)!r} cannot be used ({error.strerror}); choose another path"
        ) from error
    raise AddressError(
        f"address {address.target()!r} is taken; stop what listens there or choose another"
    )


def _try_to_bind(address: Address) -> None:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a host name"
        raise AddressError(
            f"the host of address {address.target()!r} is not known ({reason}); "
            f"use 127.0.0.1 or an address of this machine"
        ) from error
    failures: list[OSError] = []
    for family, kind, protocol, _, where in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
        except OSError as error:
            failures.append(error)
    present = [error for error in failures if error.errno not in _ABSENT]
    if present or len(failures) == len(found):
        first = (present or failures)[0]
        raise AddressError(
            f"address {address.target()!r} cannot be bound ({first.strerror}); stop what listens "
            f"there or choose another"
        ) from first


def _is_ipv6(text: str | None) -> bool:
    """Tell whether `text`, if there is any, is an IPv6 address."""
    if text is None:
        return True
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
