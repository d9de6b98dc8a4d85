"""Closed-loop load: each client sends its next request when its last one has ended."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from specd.bench.prompts import Prompt
from specd.bench.sample import Sample


async def closed_loop(
    ask: Callable[[Prompt], Awaitable[Sample]],
    prompts: Iterable[Prompt],
    clients: int,
    done: Callable[[Sample], None],
) -> None:
    """Have `clients` clients ask all prompts, in order; `done` gets each sample as it ends."""
    rest = iter(prompts)  # shared, so that whoever is free takes the next

    async def client() -> None:
        for prompt in rest:
            done(await ask(prompt))

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
