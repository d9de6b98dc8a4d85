"""Traffic without a model: what requests, costs and acceptance make of each policy, step by step.

trace      when requests come, how long they are
machine    what a step costs, and how many may run
texts      which drafted tokens would be accepted
contender  a policy in the simulation
outcome    what came of it
"""

from policies.simulate.contenders import Adaptive, Contender, Fixed, Table
from policies.simulate.machine import Jitter, Machine, mistaken
from policies.simulate.outcome import Outcome
from policies.simulate.texts import DEFAULT, Acceptance, Texts, Traits
from policies.simulate.trace import Trace
from policies.simulate.world import simulate

__all__ = [
    "DEFAULT",
    "Acceptance",
    "Adaptive",
    "Contender",
    "Fixed",
    "Jitter",
    "Machine",
    "Outcome",
    "Table",
    "Texts",
    "Trace",
    "Traits",
    "mistaken",
    "simulate",
]
