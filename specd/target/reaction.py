"""What follows where the canary finds that a draft has fallen: `drift.on_canary_fail`."""

import logging
from collections.abc import Callable, Iterable, Sequence

from specd.config.schema import Config
from specd.target.canary import Judged
from specd.target.line import Line

log = logging.getLogger(__name__)

Rule = Callable[[Sequence[Judged]], str | None]
"""Why what the canary has said rules a line out."""

Heal = Callable[[Line, Sequence[Judged]], None]
"""Has drafts that have fallen trained anew, in its own time."""


class Reaction:
    """As the config in force has it."""

    def __init__(self, config: Callable[[], Config], heal: Heal) -> None:
        self._config = config
        self._heal = heal

    def ruled_out(self, judged: Sequence[Judged]) -> str | None:
        """Why a line that serves nobody yet is not to, if so."""
        bad = [each for each in judged if each.bad]
        if not bad or not self.rolls_back:
            return None
        return f"{bad[0].text()}; drift.on_canary_fail = rollback does not let it serve"

    @property
    def rolls_back(self) -> bool:
        """Whether a line whose drafts have fallen is left."""
        return self._config().drift.on_canary_fail == "rollback"

    def to(self, line: Line, judged: Iterable[Judged]) -> None:
        """This was found out of a line that serves."""
        asked = list(judged)
        bad = [each for each in asked if each.bad]
        line.fallen = line.fallen.difference(each.proposer for each in asked) | {
            each.proposer for each in bad
        }
        if bad and self._config().drift.on_canary_fail == "retrain":
            self._heal(line, bad)
        elif bad:
            self.hush(line)

    def hush(self, line: Line) -> None:
        """Those who have fallen draft no more, where that is configured."""
        match self._config().drift.on_canary_fail:
            case "off" if line.fallen:
                line.silence(line.fallen)
                log.warning("%s draft no more: drift.on_canary_fail = off", ", ".join(sorted(line.fallen)))
            case "ngram" if line.fallen:
                line.look_up()
                log.warning("prompt lookup drafts alone: drift.on_canary_fail = ngram")
            case _:
                pass
