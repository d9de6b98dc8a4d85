"""From a config to a model that answers, while the doors are open already."""

from collections.abc import Callable

from specd import memory
from specd.banner import example
from specd.engineless import NO_ENGINE, engineless
from specd.life import Life
from specd.notify import Notifier
from specd.parts import Parts
from specd.reloading import watch as watch_config
from specd.target.watch import watch


async def bring_up(
    parts: Parts, life: Life, notifier: Notifier, url: str, say: Callable[[str], None]
) -> None:
    """Then watch what may change. url: of the inference listener. Raises `UserError` where the model cannot be had."""
    if engineless(parts.reloader.config):
        _observe(parts, life, notifier, say)
        return
    line = parts.lines.current
    await line.find(head=parts.updates.last_head)
    line.start("alone")
    life.spawn(line.over())
    await line.read()
    await line.ready()
    config = parts.reloader.config
    parts.watchers.identify(line, config)
    await parts.watchers.alarm.manager.judge(line.findings(config))
    life.spawn(parts.updates.check_start())
    parts.healer.go_on(line)
    life.spawn(watch(lambda: parts.reloader.config.model.target, parts.updates.follow))
    life.spawn(watch_config(parts.reloader, parts.reloads.reload))
    memory.settle()
    notifier.ready()
    say(f"ready, for example:\n  {example(url, await line.model(), keyed=parts.doors.keys.required)}")


def _observe(parts: Parts, life: Life, notifier: Notifier, say: Callable[[str], None]) -> None:
    """There is no engine to start: whoever asks for one is told so."""
    parts.lines.current.close(NO_ENGINE)
    life.spawn(watch_config(parts.reloader, parts.reloads.reload))
    notifier.ready()
    names = ", ".join(section.name for section in parts.reloader.config.observe) or "nobody yet"
    say(f"no engine here; observed: {names}")
