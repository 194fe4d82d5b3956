"""Moving a corpus from one model to another while queries and writes go on.

    coordinator = BackfillCoordinator.create(
        "new.db.migration", source=old, target=new, source_service=old_model, target_service=new_model
    )
    coordinator.run()                                 # embeds every document of `old` into `new`; resumes after a kill
    coordinator.write([("id", "a text")])             # goes where the migration's state says
    coordinator.query("what is a cat?").matches       # from the vectors of one model only

The state is in one SQLite file, the journal, that any number of processes may open at once.
"""

from __future__ import annotations

from lattice_embed.migration.controller import MigrationController
from lattice_embed.migration.coordinator import BackfillCoordinator, QueryAnswer
from lattice_embed.migration.drift_verdict import DriftVerdict, read_verdict
from lattice_embed.migration.plan import BackfillConfig, MigrationPlan
from lattice_embed.migration.progress import BackfillProgress
from lattice_embed.migration.routing import MigrationPhase, Route, RoutingConfig, Side
from lattice_embed.migration.states import MigrationState

__all__ = [
    "BackfillConfig",
    "BackfillCoordinator",
    "BackfillProgress",
    "DriftVerdict",
    "MigrationController",
    "MigrationPhase",
    "MigrationPlan",
    "MigrationState",
    "QueryAnswer",
    "Route",
    "RoutingConfig",
    "Side",
    "read_verdict",
]
