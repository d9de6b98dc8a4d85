"""`specd check`: what would keep `specd run` from serving, without starting it."""

from collections.abc import Iterator
from pathlib import Path

from specd.cli.configured import load_config
from specd.cli.parser import Arguments, Parser, add_config_arguments, describe
from specd.config.layers import Loaded
from specd.config.schema import Config
from specd.errors import ModelError, UserError
from specd.models.directory import read_config
from specd.models.resolve import resolve_target


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    describe(
        parser,
        """
Validate the config, the files that it names and the model, without starting. One line per fault,
with where it was written, its key and what is right; exit 0 or 2.""",
        """
        specd check
        specd check -c specd.toml --set model.target.path=/models/llama""",
    )
    add_config_arguments(parser)


def run(args: Arguments) -> int:
    """Check in order of dependence: a config that does not parse names no model."""
    loaded = load_config(args)
    print(f"ok: config {loaded.digest} from {_origin(loaded)}")
    faults = [*_file_faults(loaded.config), *_model_faults(loaded.config)]
    if faults:
        raise UserError("\n".join(faults))
    print(f"ok: model {loaded.config.model.target.path} is complete and can be served")
    return 0


def _origin(loaded: Loaded) -> str:
    names = [*map(str, loaded.files), *dict.fromkeys(loaded.pinned.values())]
    return ", ".join(names) or "defaults only"


def _file_faults(config: Config) -> Iterator[str]:
    for key, path in _named_files(config):
        try:
            path.open("rb").close()
        except OSError as error:
            yield f"{key}: {path}: {error.strerror}"


def _named_files(config: Config) -> Iterator[tuple[str, Path]]:
    named = {"server.api_keys_file": config.server.api_keys_file, "admin.token_file": config.admin.token_file}
    for number, receiver in enumerate(config.alerts.receivers):
        named[f"alerts.receivers[{number}].secret_file"] = receiver.secret_file
    yield from ((key, path) for key, path in named.items() if path is not None)


def _model_faults(config: Config) -> Iterator[str]:
    try:
        path = resolve_target(config.model.target.path, download=False)
    except ModelError as error:
        yield from (f"model.target.path: {line}" for line in str(error).splitlines())
        return
    layers = read_config(path).get("num_hidden_layers")
    skipped = config.model.draft.skip_layers or ()
    if isinstance(layers, int) and any(not 0 <= layer < layers for layer in skipped):
        yield f"model.draft.skip_layers: the target has layers 0 to {layers - 1}, not all of {list(skipped)}"
