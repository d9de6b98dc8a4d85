"""`specd check`: what would keep `specd run` from serving, without starting it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec

from specd.alerts.receivers.kinds import usable
from specd.cli.configured import load_config
from specd.cli.parser import CACHE, Arguments, Parser, add_config_arguments, describe
from specd.config.layers import Loaded
from specd.config.limits import limits_of_nobody
from specd.config.schema import Config
from specd.config.target import TargetSection
from specd.engineless import engineless
from specd.errors import ModelError, UserError
from specd.http.guard import exposed
from specd.http.keys import Keys
from specd.models.architecture import quantization_reason
from specd.models.cache import hashes
from specd.models.doubts import doubts_about
from specd.models.drafts import find_drafts
from specd.models.gguf import gguf_file
from specd.models.pair import misfit, mismatch
from specd.models.profile import find_profile
from specd.models.resolve import resolve_target, still_to_convert
from specd.mqtt.settings import read_settings
from specd.store import heads_dir

P = ParamSpec("P")


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    describe(
        parser,
        """
Validate the config, the files that it names and the model, without starting. One line per fault,
with where it was written, its key and what is right; exit 0 or 2. What is odd but can be served
is a warning.""",
        """
        specd check
        specd check -c specd.toml --set model.target.path=/models/llama""",
        files=CACHE,
    )
    add_config_arguments(parser)


def run(args: Arguments) -> int:
    """Check in order of dependence: a config that does not parse names no model."""
    loaded = load_config(args)
    print(f"ok: config {loaded.digest} from {_origin(loaded)}")
    alone = engineless(loaded.config)
    faults = [*_refusals(loaded.config), *(() if alone else _model_faults(loaded.config))]
    if faults:
        raise UserError("\n".join(faults))
    for doubt in _doubts(loaded.config):
        print(f"warning: {doubt}")
    if alone:
        print(f"ok: no engine here, {len(loaded.config.observe)} observed")
        return 0
    target = loaded.config.model.target
    print(f"ok: model {target.path} is complete and can be served{_not_as_it_lies(target)}")
    return 0


def _not_as_it_lies(target: TargetSection) -> str:
    """What the engine makes of the weights before it serves them."""
    steps = []
    if gguf_file(Path(target.path).expanduser()) is not None:
        steps.append("dequantised to bfloat16, once")
    if target.quantization != "none":
        steps.append(f"its linears quantised to {target.quantization} at every start")
    return "".join(f", {step}" for step in steps)


def _origin(loaded: Loaded) -> str:
    names = [*map(str, loaded.files), *dict.fromkeys(loaded.pinned.values())]
    return ", ".join(names) or "defaults only"


def _refusals(config: Config) -> Iterator[str]:
    """What `specd run` would refuse, by the very functions that refuse it there."""
    yield from exposed(config)
    yield from _said_by(Keys, config.server.api_keys_file, "server.api_keys_file")
    yield from _said_by(Keys, config.admin.token_file, "admin.token_file")
    target, device = config.model.target, config.engine.device
    reason = quantization_reason(target.quantization, device, target.number_format(device))
    if reason is not None:
        yield f"model.target.quantization: {reason}"
    for receiver in config.alerts.receivers:
        yield from _said_by(usable, receiver)
    yield from _said_by(read_settings, config.mqtt, "")


def _doubts(config: Config) -> Iterator[str]:
    """What would be served, but hardly as it is meant."""
    keys = Keys(config.server.api_keys_file, "server.api_keys_file")
    yield from limits_of_nobody(config.server.limits, keys.names)
    target = config.model.target
    if target.dtype == "bfloat16" and target.auto_format(config.engine.device) == "float32":
        yield (
            "model.target.dtype: this processor has no instructions for bfloat16, which is many times slower here than "
            'float32: "auto" takes that'
        )


def _said_by(use: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Iterator[str]:
    try:
        use(*args, **kwargs)
    except UserError as error:
        yield str(error)


def _model_faults(config: Config) -> Iterator[str]:
    try:
        if still_to_convert(config.model.target.path) is not None:
            return
        path = resolve_target(config.model.target.path, download=False, ours=config.engine.backend == "specd")
    except ModelError as error:
        yield from (f"model.target.path: {line}" for line in str(error).splitlines())
        return
    draft = config.drafting
    try:
        faults = [misfit(draft, path, hashes()), mismatch(draft, path)]
    except ModelError as error:
        yield str(error)
        return
    yield from (fault for fault in faults if fault is not None)
    if draft.on_mismatch == "refuse" and not any(faults):
        drafts = find_drafts(draft, path, hashes(), trained=heads_dir(config.store))
        yield from (f"model.draft: {doubt}" for doubt in doubts_about(drafts, path, hashes()))
    if config.policy.profile is not None and not any(faults):
        yield from _said_by(_check_profile, config, path)


def _check_profile(config: Config, path: Path) -> None:
    drafts = find_drafts(config.drafting, path, hashes(), trained=heads_dir(config.store))
    find_profile(config, path, drafts, hashes())
