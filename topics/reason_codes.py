"""Reason codes: the closed set of reasons for decisions, plans and vetoes.

Codes appear in decision records and in the values of the core. `autoscaler.explain` turns codes
into sentences; no program needs to parse those sentences.
"""

from __future__ import annotations

from enum import StrEnum


class ReasonCode(StrEnum):
    """The code of a reason. meaning: the explanation of the code in
    docs/reference/reason-codes.md."""

    meaning: str

    def __new__(cls, code: str, meaning: str) -> ReasonCode:
        """Create the member with the value `code`."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    # Reasons to request a full plan.
    PERIOD = "period", "The time between two full plans has passed."
    PRICE = "price", "The price of a pool changed by more than `replan_threshold`."
    AVAILABILITY = (
        "availability",
        "The nodes that a pool offers changed by more than `replan_threshold`.",
    )
    NODE_LOST = "node_lost", "An owned node, or one with an instance, became silent."
    NODE_BACK = "node_back", "A node that was lost reports again."
    LAUNCH_FAILED = "launch_failed", "An instance did not start in time, or failed to start."
    SERVICE_ADDED = "service_added", "A model was declared."
    SERVICE_REMOVED = "service_removed", "A model's declaration was withdrawn."
    SERVICE_MODE = "service_mode", "The declared mode of a model changed."
    SERVICE_FLOOR = "service_floor", "The declared or scheduled floor of a model changed."
    SERVICE_CHANGED = "service_changed", "The declaration of a model changed."
    ALERT = "alert", "An alert fired."
    EXTENSION = "extension", "An installed package asked for it; its text says why."
    ENGINES_SEEN = "engines_seen", "The state that engines reported when the alert fired."
    SLO_MISSED = "slo_missed", "Requests missed their SLO although the load was within the plan."
    TYPE_MIX = "type_mix", "The shares of a model's request types changed."
    MODEL_MIX = "model_mix", "The models' shares of all requests changed."
    LENGTHS = "lengths", "Prompts became longer and answers shorter, or vice versa."
    ROLES = "roles", "A model lacks capacity, and more of its instances may change roles."
    EXCESS = "excess", "A model needs less capacity than planned."
    LEFT_OUT = "left_out", "A part of the last plan could not be applied."
    SCATTERED = "scattered", "Instances occupy more nodes than necessary."
    NO_THRESHOLDS = (
        "no_thresholds",
        "A service that routes to several models has no thresholds yet.",
    )
    SCORES = "scores", "The scores of a service's requests differ from the plan."
    MORE = "more", "There are more reasons for a full plan than listed."

    # Reasons for the planned demand.
    DECLARED = "declared", "The declared rate is used until traffic arrives."
    WAKE = "wake", "The first requests arrived at a model that runs no instance."
    SURGE = "surge", "More requests arrive than planned."
    BURST = "burst", "Requests arrive in bursts above their mean rate."
    BACKLOG = "backlog", "More requests are in flight than the arrival rate explains."
    ROUTED = "routed", "Requests arrive through a service that routes to several models."
    FORECAST = "forecast", "A forecast expects more by the time a new instance is ready."
    RISING = "rising", "The rate is rising and expected to rise further."
    LOWER_DEMAND = "lower_demand", "Demand was below the plan for long enough."
    WORTH_ITS_RENT = (
        "worth_its_rent",
        "Demand is lower, but returned so soon before that idle capacity is worth its rent.",
    )
    IDLE = "idle", "No request arrived for long enough."
    OVERESTIMATED = "overestimated", "Missed SLOs show that capacity is lower than predicted."
    SLOW_ENGINES = "slow_engines", "Output tokens take longer than predicted."
    DERATED = (
        "derated",
        "Planned capacity is lower because measurements are worse than predictions.",
    )

    LEARNT_CAPACITY = (
        "learnt_capacity",
        "Planned capacity is higher because measurements are better than planned.",
    )

    # Causes of a change: without it, the change would not be made.
    REQUIRED = "required", "A limit requires the change."
    MAKES_ROOM = "makes_room", "Other models need the GPUs."
    SLO_PREDICTED = "slo_predicted", "The running GPUs are predicted to miss the SLO."
    MORE_WORK = "more_work", "The plan does more work for the budget."
    CHEAPER = "cheaper", "Other instances serve the same demand at a lower cost."
    EQUAL_COST = "equal_cost", "Within the tolerance of plans, the change costs nothing."
    PLAN_SAVES = "plan_saves", "Without the change, the plan of all models would cost more."

    # Parts of a change.
    REPLANNED = "replanned", "The triggers of the full plan that contains the change."
    CAPACITY_LOST = "capacity_lost", "Lost capacity is replaced."
    FLOOR = "floor", "The model has fewer instances than its floor."
    COST = "cost", "The change of the bill."
    MOVED_TOGETHER = "moved_together", "An instance moves so that a node can be released."
    SERVING_IN = "serving_in", "The time until new instances serve."
    ROLE_SWITCHES = "role_switches", "Instances change roles without moving."
    PLAN_GAP = "plan_gap", "The proven distance of the plan from the best one."
    DIVIDED_ANEW = "divided_anew", "The traffic split among the same instances changes."
    THRESHOLDS_CHOSEN = "thresholds_chosen", "New thresholds were chosen for a service."
    THRESHOLDS_IN_FORCE = "thresholds_in_force", "The chosen thresholds came into force."
    FLEET_NOT_READY = "fleet_not_ready", "The fleet for new thresholds is not ready in time."

    # Rollouts of changed versions.
    ROLLOUT_BEGAN = "rollout_began", "Waves begin to replace the instances of other versions."
    ROLLOUT_WAVE = "rollout_wave", "A wave of a rollout replaces instances."
    ROLLOUT_DONE = "rollout_done", "All instances of a model run one version again."
    ROLLOUT_PROPOSED = "rollout_proposed", "A rollout waits for an approval."
    ROLLOUT_WAITS = "rollout_waits", "The next wave of a rollout cannot begin now."
    ROLLOUT_TAKEN_BACK = "rollout_taken_back", "A version failed, so the former one returns."
    CANARY_COMPARED = "canary_compared", "Nothing is removed while a canary is compared."
    CANARY_FIT = "canary_fit", "The first instance of a new version is no worse than the former."
    CANARY_UNDECIDED = "canary_undecided", "A canary had too few requests for a verdict."
    CANARY_WORSE = "canary_worse", "The first instance of a new version is worse than the former."
    CRASH_LOOP = "crash_loop", "An instance of the new version ended again and again."
    ORDERED_BACK = "ordered_back", "An operator ordered the former version back."
    NO_SLACK = "no_slack", "No instance can leave, and no GPU is free for its replacement."

    # Reasons to delay a change or a part of it.
    SCALE_IN_PAUSED = "scale_in_paused", "Nothing may be removed now."
    NO_TELEMETRY = "no_telemetry", "No telemetry arrives."
    TELEMETRY_STALE = "telemetry_stale", "The last seconds of telemetry are missing."
    TELEMETRY_GAPS = "telemetry_gaps", "Telemetry covers too little of the local window."
    GATEWAY_SILENT = "gateway_silent", "A gateway that had traffic stopped reporting."
    STILL_IN_FLIGHT = "still_in_flight", "No requests arrive, but some are in flight."
    ENGINES_DISAGREE = "engines_disagree", "Gateways report no requests, but engines accept some."
    ROUTES_UNCONFIRMED = "routes_unconfirmed", "No gateway has confirmed the current routes."
    SLO_STRAINED = "slo_strained", "Too few recent requests met their SLO."
    LATENCY_RISING = "latency_rising", "Latency is rising towards its limit."
    UNREAD = "unread", "The controller has not read all telemetry and statuses yet."
    NO_FULL_WINDOW = "no_full_window", "No full window has passed since the start."
    TOO_MANY_REVERSALS = "too_many_reversals", "The fleet was scaled out and in too often."
    LESS_CAPACITY = "less_capacity", "Capacity is well below what was predicted."
    START_TIMES = "start_times", "Instances start later or sooner than predicted."
    NOT_COVERED = "not_covered", "The remaining capacity would not cover demand."
    FLEET_CHANGED = "fleet_changed", "The fleet changed while a plan was made."
    PROPOSAL_OUTDATED = "proposal_outdated", "The fleet changed since the proposal."
    SWITCH_WAITS = "switch_waits", "A planned role switch cannot begin now."
    NO_ROOM = "no_room", "No free GPUs were found for planned instances."
    ADDITIONS_NOT_ENOUGH = "additions_not_enough", "Additions alone do not serve the model."
    NOTHING_LEFT = "nothing_left", "An approved change has no remaining steps."

    # Commands of operators and schedules.
    PAUSED = "paused", "An operator paused a model or the fleet."
    FROZEN = "frozen", "An operator froze removals of a model or the fleet."
    UNFROZEN = "unfrozen", "A freeze by an operator ended."
    RELEASED = "released", "An operator told Shoal to leave a model's instances alone."
    FREEZE = "freeze", "A freeze window is in force."
    FREEZE_BEGAN = "freeze_began", "A freeze window began."
    SCHEDULED_FLOOR = "scheduled_floor", "A scheduled floor is in force."
    LEFT_RUNNING = "left_running", "A withdrawn model keeps running, unmanaged."
    HELD_RUNNING = (
        "held_running",
        "A withdrawn model keeps running because an operator paused or released it.",
    )
    RESUMED = "resumed", "A pause ended."
    MANAGED_AGAIN = "managed_again", "A released model is managed by Shoal again."
    DECLARED_AGAIN = "declared_again", "A withdrawn model is declared again, or was stopped."
    WINDOW_OVER = "window_over", "A scheduled window ended."
    PROPOSAL_EXPIRED = "proposal_expired", "A proposal expired without an answer."
    UNASKED = "unasked", "The policy allows the change without an approval."
    ACCEPTED_FOR = "accepted_for", "An operator accepted all changes for a time."
    PROPOSAL_UPDATED = "proposal_updated", "A newer plan changed an open proposal."
    PROPOSAL_WITHDRAWN = (
        "proposal_withdrawn",
        "A proposal was withdrawn because demand has returned.",
    )
    PROPOSAL_REJECTED = "proposal_rejected", "A proposal was rejected."
    PROPOSAL_APPROVED = "proposal_approved", "A proposal was approved and applied."
    PROPOSAL_DROPPED = "proposal_dropped", "A proposal was approved, but not applied."

    # Events and conditions that the controller observes.
    REBUILT = "rebuilt", "A new leader restored its state from the topics."
    DRAIN_TOO_SHORT = "drain_too_short", "The drain time-out is shorter than the longest answers."
    DRAIN_LONG_ENOUGH = "drain_long_enough", "The drain time-out is long enough again."
    START_BELOW_PROVISION = (
        "start_below_provision",
        "The start time-out is shorter than a pool's provision time.",
    )
    APPROVAL_TOO_SHORT = "approval_too_short", "Proposals expire before a plan renews them."
    REQUEST_LIMIT_TOO_SHORT = (
        "request_limit_too_short",
        "Gateways end requests before the longest answers.",
    )
    READER_BEHIND = "reader_behind", "The controller's topic readers fell behind."
    READER_CAUGHT_UP = "reader_caught_up", "The controller's topic readers caught up."
    BACKING_OFF = "backing_off", "A launch failed, so its node gets no launches for a while."
    START_FAILED = "start_failed", "An instance failed to start."
    NOT_READY = "not_ready", "An instance was not ready in time."
    STRAY = "stray", "An instance runs that is in no assignment."
    PRICE_SET_ASIDE = "price_set_aside", "An implausible price was ignored."
    PRICE_STALE = "price_stale", "The last price of a pool is too old to rely on."
    PRICE_FRESH = "price_fresh", "A pool's price is fresh again."
    OFFER_STALE = "offer_stale", "The last availability of a pool is too old."
    OFFER_FRESH = "offer_fresh", "A pool's availability is fresh again."
    UNMANAGED = "unmanaged", "The number of servers that Shoal did not start changed."
    UNCERTAIN = (
        "uncertain",
        "Start times or capacity of a model differ much from their predictions.",
    )
    AS_PREDICTED = "as_predicted", "Start times and capacity of a model are as predicted again."
    KV_MEASURED = (
        "kv_measured",
        "An engine's KV cache differs from its prediction; plans use the measured size.",
    )
    START_REFUSED = (
        "start_refused",
        "An engine refused to start for lack of memory; plans avoid that slice.",
    )
    KV_IMPOSSIBLE = "kv_impossible", "An engine reported an impossible KV cache, which is ignored."
    NOT_MEASURED = "not_measured", "The instances that differed from their prediction are gone."
    NO_NEW_PLAN = "no_new_plan", "No new plan arrived, so the last good one remains."
    NO_ANSWER = "no_answer", "The planner did not answer in time."

    # Conditions of a model, from which its verdict follows.
    NOTHING_READY = "nothing_ready", "Requests arrive and no instance is ready."
    NOT_SERVED = "not_served", "No request of the local window was served."
    PROMISE_BROKEN = "promise_broken", "Too few requests meet the SLO, beyond chance."
    PROMISE_WAS_BROKEN = (
        "promise_was_broken",
        "Too few requests of the long window met the SLO; those of the local window do.",
    )
    CAPACITY_SHORT = "capacity_short", "The plan serves less than the planned demand."
    FLOOR_SHORT = "floor_short", "Fewer instances are planned than the floor requires."
    OVER_SPOT_LIMIT = "over_spot_limit", "More capacity is on spot nodes than the model allows."
    PROPOSAL_WAITS = "proposal_waits", "A proposal waits for an approval."
    SERVERS_UNCOUNTED = (
        "servers_uncounted",
        "Recommendations wait until the servers that Shoal did not start are counted.",
    )
    RECOMMENDED_ONLY = "recommended_only", "The model's mode is `recommend`."
    STARTING = "starting", "Planned instances are not ready yet."
    LEAVING = "leaving", "Instances that are no longer planned still run."
    AT_ZERO = "at_zero", "No instance is planned."
    STEADY = "steady", "All planned instances are ready."

    # Demand that a plan cannot serve.
    UNSERVED = "unserved", "Some demand cannot be served."
    FLOOR_UNMET = "floor_unmet", "Fewer instances can run than the floor requires."
    NOTHING_MORE = "nothing_more", "No further capacity is available."
    OUTSIDE_SLO = "outside_slo", "The planned GPUs of the model cannot meet its SLO."

    # Binding limits of a plan.
    POOL_FULL = "pool_full", "All nodes of a pool are in use."
    POOLS_FULL = (
        "pools_full",
        "All nodes of the pools that share a limit are in use, over all markets.",
    )
    POOL_LIMIT = "pool_limit", "A pool has fewer nodes than the fleet would need."
    POOL_TOO_FEW_GPUS = "pool_too_few_gpus", "A pool has too few GPUs left."
    POOL_WITHOUT_NODES = "pool_without_nodes", "A pool has no nodes available."
    CEILING = "ceiling", "The model has as many instances as its ceiling allows."
    SPOT_LIMIT = "spot_limit", "The model has its maximum share of spot capacity."
    BUDGET = "budget", "The budget allows no more."
    SPOT_SHARE = "spot_share", "A higher spot share would allow more capacity."

    # Constraints that a plan violates.
    PROMISED_FLOOR = "promised_floor", "A model has fewer instances than its floor."
    PROMISED_USEFUL_FLOOR = (
        "promised_useful_floor",
        "Too few instances of a model can serve one request at a time without pauses.",
    )
    PROMISED_SPOT = "promised_spot", "A model has a larger share on spot nodes than it allows."
    PROMISED_SURVIVAL = (
        "promised_survival",
        "After a loss that a model must survive, capacity is too low.",
    )
    PROMISED_BUDGET = "promised_budget", "The bill exceeds the budget."
    INSTANCES_PLANNED = "instances_planned", "The number of planned instances."
    OFF_SPOT = "off_spot", "The share of capacity that is not on spot."
    LOSS_LEAVES = "loss_leaves", "The share of demand that is served after a loss."
    NODES_COST = "nodes_cost", "The cost of whole nodes."
    NOT_POSSIBLE = "not_possible", "No plan satisfies the constraint with the available capacity."
    NOT_PLANNED = "not_planned", "No plan that was found satisfies the constraint."
    NOT_KEPT = "not_kept", "A strategy ignores the constraint, and its plan violates it."

    # Notes on a plan.
    SLO_OUT_OF_REACH = "slo_out_of_reach", "No GPU that the model may use meets its SLO."
    NO_USABLE_NODE = "no_usable_node", "No usable node is left in the model's pools."
    NO_POOL = "no_pool", "The model may use no pool."
    SPLITS_NOWHERE = "splits_nowhere", "The model cannot be split over any slice of its pools."
    TOO_LARGE = "too_large", "The model fits into no slice of its pools."
    NOTHING_SERVES_IT = "nothing_serves_it", "No pool can hold the model and serve it."
    ONE_AFTER_ANOTHER = (
        "one_after_another",
        "No instance of the model can serve one request at a time without pauses.",
    )
    PREFIX_HITS = "prefix_hits", "Prefix caches hold a share of the prompt tokens."
    ROUGH_BOUND = "rough_bound", "The proven gap is a weak bound for this plan."
    TYPE_NOT_SERVED = "type_not_served", "No GPU serves a request type within the SLO."
    BUDGET_TOO_SMALL = "budget_too_small", "Budget and nodes allow no instance of the model."
    BUDGET_STUCK = (
        "budget_stuck",
        "A better use of the budget needs running instances to stop first.",
    )
    NO_BUDGET_OBJECTIVE = "no_budget_objective", "The policy has no objective for a budget."
    BUDGET_WITHOUT_PLAN = "budget_without_plan", "The budget allows no instance that meets its SLO."
    NOT_IN_TIME = "not_in_time", "No plan was found in time."
    SOLVER_FAILED = "solver_failed", "The solver returned no plan."
    SOLVER_REFUTED = "solver_refuted", "The solver's plan failed verification."
    SOLVER_TIMEOUT = "solver_timeout", "The solver did not answer within its limit."
    SOLVER_GONE = "solver_gone", "The solver's process ended."
    SOLVER_GARBLED = "solver_garbled", "The solver's answer is invalid."
    SOLVER_ERROR = "solver_error", "An error ended the search for a plan."
    SOLVER_AWAY = "solver_away", "A simulation has no solver."
    SUPERSEDED = "superseded", "A newer request for a plan replaced this one."
    REQUEST_REFUSED = "request_refused", "The planner could not use the request."
    NO_PLAN = "no_plan", "There is no plan."

    # Bounds of a service's score thresholds.
    QUALITY_POOLS = "quality_pools", "The pools cannot serve all of the load."
    QUALITY_OUT_OF_REACH = "quality_out_of_reach", "No split reaches the required quality."
    QUALITY_COSTS_NOTHING = "quality_costs_nothing", "Less quality would save nothing."
    QUALITY_COSTS = "quality_costs", "Less quality would save money."
