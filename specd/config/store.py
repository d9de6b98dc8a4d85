"""Where the daemon keeps what must outlive it."""

from pathlib import Path

from specd.config.section import Section, restart


class StoreSection(Section):
    """What outlives the daemon: open alerts, notifications on their way, silences, what detectors have learned."""

    directory: Path | None = restart(
        None, "where; unset takes $SPECD_STATE_DIR, else systemd's StateDirectory, else ~/.local/state/specd"
    )
