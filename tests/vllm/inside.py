"""Runs in the environment with vLLM: what our scheduler does in a real engine, as JSON on the last line of stdout.

One in-process engine on the demo model, in fp32, where texts with and without drafts are equal.
"""

import asyncio
import copy
import json
import os
import sys
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import Any

from engine.api import Configure, DraftSettings, FromEngine, Ready, StepReport
from engine.vllm import versions
from engine.vllm.link import SOCKET_VARIABLE, Listener
from policies.settings import PolicySettings

TOKENS = 48
PROMPTS = (
    "Repeat this line five times: the quick brown fox jumps over the lazy dog.",
    "Write a short poem about rain.",
    "Copy: alpha beta gamma delta alpha beta gamma delta alpha beta gamma delta",
    "What is the capital of France, and what is it known for?",
)


class Ear:
    """A listener in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self.heard: list[FromEngine] = []
        self._path = path
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()
        self._up.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())

    async def _listen(self) -> None:
        async with Listener(self._path, self.heard.append) as self._listener:
            self._up.set()
            await asyncio.Event().wait()

    def tell(self, settings: PolicySettings) -> None:
        """To the scheduler; it is there when this returns."""
        orders = Configure(policy=settings, draft=DraftSettings())
        asyncio.run_coroutine_threadsafe(self._tell(orders), self._loop).result()

    async def _tell(self, orders: Configure) -> None:
        self._listener.configure(orders)
        await asyncio.sleep(0.1)

    def reports(self) -> list[StepReport]:
        """All so far; they are as good as there when a step is done."""
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.2), self._loop).result()
        return [one for one in self.heard if isinstance(one, StepReport)]


def main() -> None:
    """Everything in turn."""
    model = sys.argv[1]
    os.environ.update(
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_LOGGING_LEVEL="ERROR",
    )
    with tempfile.TemporaryDirectory() as folder:
        os.environ[SOCKET_VARIABLE] = f"{folder}/s"
        print(json.dumps(_shown(model, Ear(Path(folder) / "s"))))  # noqa: T201  the answer


def _shown(model: str, ear: Ear) -> dict[str, Any]:
    from vllm import LLM  # noqa: PLC0415  vLLM is in this environment alone

    llm = LLM(
        model=model,
        dtype="float32",
        max_num_seqs=8,
        max_model_len=1024,
        enforce_eager=True,
        disable_log_stats=False,
        speculative_config={
            "method": "ngram",
            "num_speculative_tokens": 6,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 2,
        },
    )
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    found: dict[str, Any] = {"scheduler": type(scheduler).__qualname__}
    found["by position"] = _by_position(scheduler.vllm_config)
    ear.tell(PolicySettings(kind="off"))
    plain = _texts(llm)
    before = len(ear.reports())
    found["drafted when off"] = _drafted(ear.reports())
    counted = _counters(llm)
    ear.tell(PolicySettings(kind="static", static_k=6))
    static = _texts(llm)
    ear.tell(PolicySettings())
    ours = _texts(llm)
    found["equal"] = [static == plain, ours == plain]
    reports = ear.reports()[before:]
    found["ours"] = _summary(reports)
    found["vllm"] = {name: value - counted[name] for name, value in _counters(llm).items()}
    found["ends"] = sorted(
        (output.finish, output.report.tokens) for report in reports for output in report.outputs
    )
    found["hello"] = [one.proposers for one in ear.heard if isinstance(one, Ready)]
    before = len(ear.reports())
    _texts(llm, {"specd_id": "mine", "specd_k": 2, "specd_class": "code"})
    asked = [one for report in ear.reports()[before:] for one in report.rounds]
    found["asked"] = sorted({(one.request, one.traffic_class) for one in asked})
    found["asked k"] = max(one.drafted for one in asked)
    ear.tell(PolicySettings(kind="static", static_k=3))
    found["asynchronous"] = _asynchronous(scheduler)
    found["versions"] = _versions()  # at last: from then on no version is known
    return found


def _asynchronous(beside: Any) -> dict[str, Any]:
    """Our scheduler for asynchronous scheduling, which vLLM never has on CPU, with nobody to compute: two steps are
    under way, and of each draft the first token is kept. beside: the scheduler of an engine that is configured.
    """
    from vllm import SamplingParams  # noqa: PLC0415
    from vllm.v1.outputs import ModelRunnerOutput  # noqa: PLC0415
    from vllm.v1.request import Request  # noqa: PLC0415

    from engine.vllm.scheduler import SpecdAsyncScheduler  # noqa: PLC0415

    scheduler = SpecdAsyncScheduler(
        _asynchronously(beside.vllm_config),
        beside.kv_cache_config,
        beside.structured_output_manager,
        beside.block_size,
    )
    parameters = [
        SamplingParams(max_tokens=9, ignore_eos=True, extra_args={"specd_k": 1}),
        SamplingParams(max_tokens=30, ignore_eos=True, extra_args={"specd_k": 3}),
    ]
    requests = [Request(str(n), [1, 2, 3], each, None) for n, each in enumerate(parameters)]
    for request in requests:
        scheduler.add_request(request)
    under_way: deque[Any] = deque()
    drafts = []
    while scheduler.requests:
        while len(under_way) < 2:
            under_way.append(scheduler.schedule())
        output = under_way.popleft()
        names = list(output.num_scheduled_tokens)
        made = [output.scheduled_spec_decode_tokens.get(name, []) for name in names]
        drafts += made
        said = [[7, 7] if draft else [7] for draft in made]
        places = {name: place for place, name in enumerate(names)}
        scheduler.update_from_output(output, ModelRunnerOutput(names, places, said))
    steering = scheduler.pilot.steering
    scheduler.schedule()  # says who has ended
    return {
        "ahead": type(steering).__name__,
        "drafts": sorted({len(draft) for draft in drafts}),
        "placeholders": all(token == -1 for draft in drafts for token in draft),
        "tokens": [request.num_output_tokens for request in requests],
        "kept": [len(steering._texts), len(steering.policy._estimates._own)],
    }


def _asynchronously(config: Any) -> Any:
    """The configuration, where steps overlap; without a prefix cache, which would want the hashes of prompts."""
    found = copy.copy(config)
    found.scheduler_config = copy.copy(config.scheduler_config)
    found.scheduler_config.async_scheduling = True
    found.cache_config = copy.copy(config.cache_config)
    found.cache_config.enable_prefix_caching = False
    return found


def _versions() -> str | None:
    versions.PINNED = ("0.1.0",)
    return versions.unsupported_version(versions.installed())


def _by_position(config: Any) -> list[float]:
    """What our counter, as vLLM finds it, has after two drafts, of three tokens and of one."""
    from prometheus_client import REGISTRY  # noqa: PLC0415
    from vllm.v1.metrics.loggers import load_stat_logger_plugin_factories  # noqa: PLC0415
    from vllm.v1.metrics.stats import SchedulerStats  # noqa: PLC0415
    from vllm.v1.spec_decode.metrics import SpecDecodingStats  # noqa: PLC0415

    from engine.vllm.counters import NAME  # noqa: PLC0415

    (logger,) = load_stat_logger_plugin_factories()
    drafted = SpecDecodingStats.new(4)
    drafted.observe_draft(num_draft_tokens=3, num_accepted_tokens=1)
    drafted.observe_draft(num_draft_tokens=1, num_accepted_tokens=1)
    logger(config).record(SchedulerStats(spec_decoding_stats=drafted), None)
    found = [each for family in REGISTRY.collect() if family.name == NAME for each in family.samples]
    return [each.value for each in found if each.name.endswith("_total")]


def _texts(llm: Any, wishes: dict[str, Any] | None = None) -> list[list[int]]:
    from vllm import SamplingParams  # noqa: PLC0415

    parameters = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, extra_args=wishes)
    messages = [[{"role": "user", "content": text}] for text in PROMPTS]
    return [list(one.outputs[0].token_ids) for one in llm.chat(messages, parameters, use_tqdm=False)]


def _drafted(reports: list[StepReport]) -> int:
    return sum(one.drafted for report in reports for one in report.rounds)


def _summary(reports: list[StepReport]) -> dict[str, int]:
    rounds = [one for report in reports for one in report.rounds]
    return {
        "drafts": sum(one.drafted > 0 for one in rounds),
        "draft_tokens": sum(one.drafted for one in rounds),
        "accepted_tokens": sum(one.accepted for one in rounds),
    }


def _counters(llm: Any) -> dict[str, int]:
    """vLLM's own."""
    wanted = {f"vllm:spec_decode_num_{name}": name for name in ("drafts", "draft_tokens", "accepted_tokens")}
    return {wanted[one.name]: int(one.value) for one in llm.get_metrics() if one.name in wanted}


if __name__ == "__main__":
    main()
