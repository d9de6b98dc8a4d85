"""A GGUF file as the target, its linears quantised to int8: said everywhere, and answering."""

import hashlib
from pathlib import Path

from tests.daemon.daemon_process import wait_until
from tests.scenarios.stage import Stage
from tests.tiny_gguf import write_gguf


def test_a_gguf_is_served_with_int8_linears(stage: Stage, tiny_dir: Path, tmp_path: Path) -> None:
    """Test that the daemon converts the file, quantises, says both in log, status and metrics, and writes text."""
    file = write_gguf(tiny_dir, tmp_path / "tiny-f32.gguf")
    target = {"path": str(file), "name": "", "dtype": "bfloat16", "quantization": "int8"}
    with stage.daemon(model={"target": target}) as daemon:
        wait_until(lambda: f"dequantising {file}" in daemon.log, "the conversion to begin")
        wait_until(lambda: "tiny-f32.gguf is served from" in daemon.log, "the conversion to end")
        daemon.ready()
        status = daemon.status()
        revision = f"{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}-int8"
        assert status["model"] == {
            "name": "tiny-f32",
            "target_revision": revision,
            "draft_revision": "ngram-2-5",
            "quantization": "int8",
            "source": "tiny-f32.gguf, dequantised to bfloat16",
        }
        assert status["engine"]["info"]["quantization"] == "int8"
        assert f'quantization="int8",revision="{revision}"' in daemon.get("/metrics").text
        with daemon.client() as client:
            answer = client.completions.create(
                model="tiny-f32", prompt="the daemon", max_tokens=8, extra_body={"ignore_eos": True}
            )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 8
