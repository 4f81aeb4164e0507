"""Re-exports all wire records, so that other modules need only one import."""

from topics.alerts import Alert
from topics.controls import Control
from topics.dead_letters import DeadLetter
from topics.decisions import DECISION_KINDS, Decision, PlannedCombo, PlanRecord
from topics.demand import Demand
from topics.fleet import (
    PHASES,
    Assignment,
    DesiredInstance,
    InstanceState,
    ObservedInstance,
    Status,
)
from topics.leadership import Leadership
from topics.ledger import LedgerEntry
from topics.routing import Endpoint, RequestKind, RouteGroup, Routes, TypeRoute
from topics.scoring import PromptRule, ScoreSource, ScoreSplit
from topics.services import DeclaredService, FinalizedNames
from topics.supply import Availability, Price
from topics.telemetry import Telemetry

__all__ = [
    "DECISION_KINDS",
    "PHASES",
    "Alert",
    "Assignment",
    "Availability",
    "Control",
    "DeadLetter",
    "Decision",
    "DeclaredService",
    "Demand",
    "DesiredInstance",
    "Endpoint",
    "FinalizedNames",
    "InstanceState",
    "Leadership",
    "LedgerEntry",
    "ObservedInstance",
    "PlanRecord",
    "PlannedCombo",
    "Price",
    "PromptRule",
    "RequestKind",
    "RouteGroup",
    "Routes",
    "ScoreSource",
    "ScoreSplit",
    "Status",
    "Telemetry",
    "TypeRoute",
]
