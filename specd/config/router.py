"""`[router]`: what `specd route` stands in front of. The daemon does not read it."""

from urllib.parse import urlsplit

from pydantic import field_validator

from specd.config.files import SecretFile
from specd.config.section import Section, hot, restart


class RouterSection(Section):
    """`specd route`: two instances of an engine that cannot be steered, and which of them gets a request."""

    speculating: str = hot("", "URL of the instance that drafts, such as http://127.0.0.1:8080")
    plain: str = hot("", "URL of the instance that does not")
    draft: int | None = hot(
        None,
        "tokens that the speculating instance drafts at most: it gets requests while policy.load allows so many. "
        "Unset: while drafting is not off",
        ge=1,
        le=64,
    )
    key_file: SecretFile | None = restart(
        None,
        "bearer key for both instances, on the file's first line; without it what the client sends goes on to them, "
        "unless it is a key for the router itself",
    )
    health_path: str = hot("/health", "of an instance: 200 says that it serves")
    check_seconds: float = hot(2.0, "between two looks at the health of an instance", gt=0)
    connect_seconds: float = hot(3.0, "an instance that takes no connection for so long is passed over", gt=0)
    silence_seconds: float = hot(
        300.0, "an instance that says nothing for so long while it answers is given up", gt=0
    )
    bytes_per_token: float = hot(
        4.0, "of a request's body, by which its tokens are guessed for policy.load.context_table", gt=0
    )

    @field_validator("speculating", "plain")
    @classmethod
    def _address(cls, url: str) -> str:
        if url and (fault := _fault(url)):
            raise ValueError(f"{fault}: write http://host:port, without a path")
        return url.rstrip("/")

    @field_validator("health_path")
    @classmethod
    def _path(cls, path: str) -> str:
        if not path.startswith("/"):
            raise ValueError("it must begin with /")
        return path


def _fault(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0
    except ValueError:
        return "its port is none"
    if parts.scheme not in {"http", "https"} or not parts.hostname or not has_port:
        return "it names no server"
    if parts.username is not None or parts.path.strip("/") or parts.query or parts.fragment:
        return "it says more than scheme, host and port"
    return None
