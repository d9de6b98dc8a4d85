"""Whether an engine that runs has the memory for what another config lets its steps become."""

from engine.api import Room
from policies.load import most_rows
from policies.settings import PolicySettings


def shortage(room: Room, settings: PolicySettings, running: int) -> str | None:
    """Why steps of so many texts might not find the memory that they need, and what to do; None if they will. What
    others have taken of it since the engine started is not known here.
    """
    rows = most_rows(settings, running)
    missing = (rows - room.rows) * room.row_bytes - room.spare_bytes
    if rows <= room.rows or missing <= 0:
        return None
    return (
        f"with policy.k_max = {settings.k_max} and policy.tree_nodes = {settings.tree_nodes} a step may verify {rows}"
        f" rows, and the engine planned for {room.rows}: {-(-missing >> 20)} MiB more than were free at its start."
        " Set them lower, or lower engine.max_running and restart specd"
    )
