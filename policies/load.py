"""What the load allows: a cap on every request's k by the number of running requests.

A tighter cap holds at once. A looser one waits until the load has allowed it for `dwell_steps` steps in a
row, and once the cap is 0 the load must first fall to `resume_at`:

    running  1 ........... 32   33 ... 48 ... 25   24 ............................. 1
    cap      as the table says  0                  as the table says, after each dwell
"""

from dataclasses import dataclass

from policies.base import LoadState
from policies.settings import LoadSettings


@dataclass(frozen=True, slots=True)
class LoadLimit:
    """What one step may do."""

    cap: int
    state: LoadState
    text: str  # one clause for people: "load cap: 17 running > 16"


class LoadPolicy:
    """A state machine that is told the number of running requests once a step."""

    def __init__(self, settings: LoadSettings, k_max: int) -> None:
        self.configure(settings, k_max)
        self._cap = max(cap for _, cap in settings.table)

    def configure(self, settings: LoadSettings, k_max: int) -> None:
        """Change the rules. The cap in force stays until the next step, and a looser one has to dwell."""
        self._settings = settings
        self._k_max = k_max
        self._clear()

    def step(self, running: int) -> LoadLimit:
        """The limit for the step that starts now."""
        allowed = self._allowed(running)
        if allowed > self._cap:
            self._dwell(allowed)
        else:
            self._cap = allowed
            self._clear()
        return LoadLimit(self._cap, self._state(), self._text(running, allowed))

    def _clear(self) -> None:
        self._waited = 0  # steps in a row that allowed more than the cap in force
        self._offered: int | None = None  # the least that they allowed

    def _dwell(self, allowed: int) -> None:
        self._waited += 1
        self._offered = allowed if self._offered is None else min(self._offered, allowed)
        if self._waited >= self._settings.dwell_steps:
            self._cap = self._offered
            self._clear()

    def _allowed(self, running: int) -> int:
        rules = self._settings
        if running > (rules.off_above if self._cap else rules.resume_at):
            return 0
        return self._by_table(running)

    def _by_table(self, running: int) -> int:
        table = self._settings.table
        return next((cap for up_to, cap in table if running <= up_to), table[-1][1])

    def _state(self) -> LoadState:
        if self._cap == 0:
            return LoadState.OFF
        return LoadState.FULL if self._cap >= self._k_max else LoadState.SHRUNK

    def _text(self, running: int, allowed: int) -> str:
        subject = "load cap" if self._cap else "load off"
        if allowed > self._cap:
            return f"{subject}: held for {self._settings.dwell_steps - self._waited} more steps"
        return f"{subject}: {self._why(running)}"

    def _why(self, running: int) -> str:
        rules = self._settings
        if running > rules.off_above:
            return f"{running} running > {rules.off_above}"
        if not self._cap and self._by_table(running) > 0:
            return f"{running} running > {rules.resume_at}, where drafting resumes"
        passed = [up_to for up_to, _ in rules.table[:-1] if running > up_to]
        return f"{running} running > {passed[-1]}" if passed else f"{running} running <= {rules.table[0][0]}"


def unshrunk_up_to(settings: LoadSettings, k_max: int) -> int:
    """The most running requests at which the load can be FULL, as far as the settings say."""
    if settings.table[-1][1] >= k_max:
        return settings.off_above
    return min(settings.off_above, max((up_to for up_to, cap in settings.table if cap >= k_max), default=0))
