"""The profile that `specd calibrate` wrote: its file, and whether it holds for what is to run here."""

from pathlib import Path

import msgspec

from policies.profile import FORMAT, Profile, Subject, misfit
from specd import host
from specd.config.schema import Config
from specd.errors import UserError
from specd.models.cache import HashCache
from specd.models.drafts import Drafts
from specd.models.identity import fingerprint


def subject_of(config: Config, target: Path, drafts: Drafts, hashes: HashCache) -> Subject:
    """What would be measured if this config were. Slow once per model: it reads all weights."""
    engine, model = config.engine, config.model.target
    return Subject(
        processor=host.gpu_model() if engine.device == "cuda" else host.cpu_model(),
        cores=host.cores(),
        threads=engine.threads or host.cores(),
        target=fingerprint(target, hashes),
        drafts=drafts.fingerprints(config.model.draft),
        dtype=model.number_format(engine.device),
        quantization=model.quantization,
    )


def write_profile(profile: Profile, file: Path) -> None:
    """As indented JSON."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=1) + b"\n")


def read_profile(file: Path) -> Profile:
    """Raises UserError for what is no profile of this format."""
    try:
        content = file.read_bytes()
        if (made := msgspec.json.decode(content, type=_Header).format) != FORMAT:
            raise UserError(
                f"{file} is a profile of format {made}, and format {FORMAT} is read: calibrate again"
            )
        return msgspec.json.decode(content, type=Profile)
    except OSError as error:
        raise UserError(
            f"{file} cannot be read ({error.strerror}): make it with `specd calibrate --out {file}`"
        ) from None
    except msgspec.MsgspecError as error:
        raise UserError(f"{file} is no profile of `specd calibrate` ({error}): make it anew") from None


def find_profile(config: Config, target: Path, drafts: Drafts, hashes: HashCache) -> Profile | None:
    """The one that the config names, if it names one. Raises UserError where it does not hold here."""
    if config.policy.profile is None:
        return None
    file = config.policy.profile.expanduser()
    try:
        profile = read_profile(file)
    except UserError as error:
        raise UserError(f"policy.profile: {error}") from None
    if reason := misfit(profile.subject, subject_of(config, target, drafts, hashes)):
        raise UserError(
            f"policy.profile: {file} does not hold here: {reason}. Run `specd calibrate --out {file}` again, or leave "
            "the key out"
        )
    return profile


class _Header(msgspec.Struct):
    format: int = 0
