"""Talking to the running daemon's admin listener."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2

from specd.cli.parser import Arguments, Parser, add_config_arguments
from specd.config.layers import load, salvage_admin
from specd.config.schema import AdminSection
from specd.errors import ConfigError, DaemonError, UserError
from specd.http.keys import plain_key

_PATIENCE: Final = 10.0
_EDITED: Final = "If admin.{} was edited since it started: that takes a restart"
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}  # noqa: S104  not bound: mapped away


@dataclass(frozen=True, slots=True)
class Answer:
    """What the daemon said."""

    status: int
    body: dict[str, Any]

    @property
    def message(self) -> str:
        """The daemon's own words for a refusal."""
        error = self.body.get("error")
        return str(error["message"]) if isinstance(error, dict) and "message" in error else str(self.body)

    @property
    def good(self) -> dict[str, Any]:
        """The body of an answer that is to be good. Raises `DaemonError`."""
        if self.status != httpx2.codes.OK:
            raise DaemonError(f"the daemon failed: {self.message}")
        return self.body


class Admin:
    """The admin listener of one daemon. Raises `UserError` when it cannot be reached or wants a token."""

    def __init__(self, listen: str, token: str | None) -> None:
        self._listen = listen
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def look(self, path: str) -> dict[str, Any]:
        """What there is to see, which the daemon tells at once. Raises `DaemonError`."""
        try:
            return self.request("GET", path, seconds=_PATIENCE).good
        except TimeoutError:
            raise DaemonError(
                f"the daemon has not answered within {_PATIENCE:.0f} s: is its machine busy?"
            ) from None

    def request(self, method: str, path: str, *, seconds: float | None, body: Any = None) -> Answer:
        """One call, with a body as JSON. Raises `TimeoutError` when the daemon takes longer than `seconds`."""
        socket, base = _endpoint(self._listen)
        try:
            with httpx2.Client(
                transport=httpx2.HTTPTransport(uds=socket),
                base_url=base,
                headers=self._headers,
                timeout=seconds,
            ) as client:
                response = client.request(method, path, json=body)
        except httpx2.ReadTimeout:
            raise TimeoutError from None
        except httpx2.TransportError as error:
            raise UserError(
                f"no specd answers at {self._listen} ({error}): is it running?"
                f" Name its config with -c or its admin listener with --admin. {_EDITED.format('listen')}"
            ) from None
        return self._checked(response)

    def client(self) -> httpx2.AsyncClient:
        """For whoever has many calls to make, however long each takes, and closes it in the end."""
        socket, base = _endpoint(self._listen)
        return httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(uds=socket),
            base_url=base,
            headers=self._headers,
            timeout=None,
        )

    def _checked(self, response: httpx2.Response) -> Answer:
        if response.status_code in {httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN}:
            raise UserError(
                f"{self._listen} wants another bearer token: name the right file in admin.token_file, or with"
                f" --token-file. {_EDITED.format('token_file')}"
            )
        try:
            body = response.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise UserError(f"what answers at {self._listen} is not the admin listener of specd")
        return Answer(response.status_code, body)


def add_admin_arguments(parser: Parser) -> None:
    """Where the daemon is: the config that it runs with says it, or `--admin`."""
    add_config_arguments(parser)
    parser.add_argument(
        "--admin",
        metavar="ADDRESS",
        help="host:port or unix:/path of the daemon (default: admin.listen of the config)",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="a file with the admin token (default: admin.token_file of the config)",
    )


def connect(args: Arguments) -> Admin:
    """The daemon that the arguments mean. A config that is broken elsewhere still tells its address."""
    flags = dict(args.flags)
    try:
        admin = load(args.config, flags=flags).config.admin
    except ConfigError:
        admin = salvage_admin(args.config, flags=flags)
    return Admin(args.admin or admin.listen, _token(args.token_file, admin))


def _token(named: Path | None, admin: AdminSection) -> str | None:
    if named is not None:
        return plain_key(named, "--token-file")
    return None if admin.token_file is None else plain_key(admin.token_file, "admin.token_file")


def _endpoint(listen: str) -> tuple[str | None, str]:
    """Socket path, if any, and base URL."""
    if listen.startswith("unix:"):
        path = listen.removeprefix("unix:")
        if not Path(path).is_socket():
            raise UserError(
                f"there is no socket {path}: is specd running? Name its config with -c. {_EDITED.format('listen')}"
            )
        return path, "http://specd"
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal():
        raise UserError(f"{listen} is no address: write host:port or unix:/path/to/socket")
    if port == "0":
        raise UserError(f"{listen} is a port chosen at start: name the one in the daemon's log with --admin")
    return None, f"http://{_ANY_ADDRESS.get(host, host)}:{port}"
