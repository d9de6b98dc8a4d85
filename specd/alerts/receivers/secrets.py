"""Files that hold one secret. No message quotes what is in them."""

from pathlib import Path

from specd.errors import UserError


class SecretError(UserError):
    """A secret file that cannot be used. The message names the file and never quotes it."""


def secret_text(path: Path) -> str:
    """What is in the file. Raises `SecretError`."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SecretError(f"the secret file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SecretError(f"the secret file {path} is not text") from None


def one_line(path: Path) -> str:
    """The only line of the file, such as a token. Raises `SecretError`."""
    text = secret_text(path).strip()
    if not text or len(text.split()) > 1:
        raise SecretError(f"the secret file {path} should hold one word on one line, and nothing else")
    return text
