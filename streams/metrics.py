"""Prometheus metrics. Each process has one registry, served on its own port by `health.py`.

Names start with `uniscale_`; tests compare the dashboard and the alert rules with them.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Every counter, gauge and histogram in the system; a process uses those of its service."""

    def __init__(self, service: str) -> None:
        self.service = service
        self.registry = CollectorRegistry()
        self._of_records()
        self._of_admission()
        self._of_decisions()
        self._of_models()
        self._of_http()
        self._of_outcomes()

    def _of_records(self) -> None:
        """Add the metrics of every service."""
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        self.records = counter("records", "Records handled to the end", "service", "topic")
        self.stage = histogram(
            "stage_seconds", "Append of the input until everything it caused was delivered", "stage"
        )
        self.duplicates = counter("duplicates", "Records recognised as already handled", "topic")
        self.waits = counter("waits", "Pauses because a broker or an encoder was not available", "topic")
        self.dead_letters = counter("dead_letters", "Records given up", "topic", "error")
        self.crashes = counter("crashes_at_record", "Failures at one record that was tried again", "topic")
        self.lag = gauge("consumer_lag", "Records not yet committed by this process", "topic", "partition")
        self.oldest_open = gauge(
            "oldest_open_seconds", "How long the record in flight for longest has been; the log names it"
        )
        self.stalled = gauge(
            "partition_stalled_seconds",
            "How long records have waited or been in flight without one being handled; 0 while none waits",
            "topic",
            "partition",
        )
        self.loop_lag = histogram("loop_lag_seconds", "How late the event loop is, ten times a second")
        self.clock_skew = gauge("clock_skew_seconds", "This machine's clock less the broker's")

    def _of_admission(self) -> None:
        """Add the metrics of the embedder."""
        gauge, histogram = self._gauge, self._histogram
        self.in_flight = gauge("in_flight", "Queries forwarded and not yet answered")
        self.admission_wait = histogram("admission_wait_seconds", "Time a query waits for a free slot")

    def _of_decisions(self) -> None:
        """Add the metrics of the decider."""
        counter, gauge = self._counter, self._gauge
        self.decisions = counter("decisions", "Decisions made", "reason")
        self.choices = counter("choices", "Chosen configurations", "model", "qp", "cp", "bs")
        self.masked = counter(
            "masked_models", "Decisions made without a model whose executor is silent", "model"
        )
        self.failed_attempts = counter(
            "failed_attempts",
            "Attempts that failed before any text: `retried` on another model, or `answered` as failed",
            "model",
            "outcome",
        )
        self.pending = gauge("pending", "Decisions without a reward yet")
        self.oldest_pending = gauge(
            "oldest_pending_timestamp_seconds",
            "Append time of the oldest query decided here without a reward",
        )
        self.rewards_applied = counter("rewards_applied", "Rewards that reached the policy", "kind")
        self.rewards_ignored = counter("rewards_ignored", "Rewards that changed nothing", "why")
        self.expired = counter(
            "expired_unread", "Records that retention took before the learner read them", "topic"
        )
        self.policy_version = gauge("policy_version", "Rewards and corrections applied to the policy")
        self.objective_price = gauge(
            "objective_price",
            "λ: accuracy that an objective with a target gives up to save one eFLOP",
            "objective",
        )
        self.objective_cost = gauge(
            "objective_mean_eflops",
            "Mean cost of the queries of an objective with a target since that was set: `spent`, and the `target`",
            "objective",
            "of",
        )
        self.objective_usd = gauge(
            "objective_mean_usd", "The same in USD, where costs are", "objective", "of"
        )
        self.objective_accuracy = gauge(
            "objective_accuracy",
            "Mean accuracy of those whose outcome is known: `predicted` when they were decided, and `true`",
            "objective",
            "of",
        )
        self.cost_drift = gauge(
            "model_cost_drift",
            "What a model's latest searches cost, as a multiple of what was learned; absent or 1 where that holds",
            "model",
        )
        self.accuracy_drifts = counter(
            "model_accuracy_drifts",
            "Times that a model's answers proved to be right more or less often than was learned",
            "model",
        )
        self.sequence = gauge("learner_sequence", "Next sequence number of the learner's log")
        self.snapshot_place = gauge("snapshot_place", "Sequence number that the newest snapshot reaches")
        self.snapshot_time = gauge(
            "snapshot_timestamp_seconds", "When this process last wrote a snapshot, or recovered the learner"
        )
        self.recovery_seconds = gauge(
            "recovery_seconds", "How long the last recovery took: `read` the log, `fold` it", "part"
        )

    def _of_models(self) -> None:
        """Add the metrics of the executors, and the failures of any engine."""
        counter, gauge = self._counter, self._gauge
        self.tokens = counter("tokens", "Tokens generated", "model")
        self.drafts = counter("drafts", "Drafts generated", "model")
        self.scored = counter("scored_drafts", "Drafts scored", "verifier")
        self.shortened = counter(
            "shortened_paths",
            "Drafts scored on their path's last steps only, as the whole exceeds the verifier's context",
            "verifier",
        )
        self.repeated_tokens = counter(
            "repeated_tokens",
            "Tokens of steps that ran again because their process died, input and output: billed twice, counted once",
            "model",
            "kind",
        )
        self.engine_faults = counter(
            "engine_faults", "Attempts of an engine or verifier that failed", "service"
        )
        self.model_failures = counter(
            "model_failures",
            "Queries without a text through a fault of the model",
            "model",
            "cause",
        )
        self.probes = counter(
            "probes",
            "Probe questions to models whose queries fail: `passed` or `failed`",
            "model",
            "result",
        )
        self.suspended = gauge(
            "suspended_models",
            "1 while a model is suspended: its endpoint, or the model at the probe question, failed repeatedly",
            "model",
        )
        self.servers_down = gauge(
            "servers_down", "Of the servers of a model with several, those that get no queries", "model"
        )

    def _of_http(self) -> None:
        """Add the metrics of the gateway."""
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        self.http_requests = counter(
            "http_requests",
            "HTTP requests to the gateway, 499 if the client left first",
            "route",
            "status",
            "tenant",
        )
        self.http_seconds = histogram(
            "http_request_seconds", "From a request to the end of its response", "route"
        )
        self.http_first_chunk = histogram(
            "http_first_chunk_seconds", "From a request to the first chunk of its stream", "route"
        )
        self.http_open_streams = gauge("http_open_streams", "Responses being streamed")

    def _of_outcomes(self) -> None:
        """Add the metrics of the aggregator."""
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        self.misplaced = counter(
            "misplaced", "Records found in another partition than their query's, and sent there", "topic"
        )
        self.answers = counter("answers", "Answers that count", "status")
        self.spent = histogram("spent_seconds", "Where the time of queries went", "component")
        self.ungraded = counter(
            "ungraded",
            "Answers with a reference that could not be graded: nobody knows whether they are right",
        )
        self.eflops = counter("eflops", "Equivalent FLOPs spent", "part")
        self.usd = counter("usd", "US dollars billed, where costs are in USD", "model")
        self.reward = histogram(
            "reward", "Scalar reward", "kind", buckets=tuple(x / 10 for x in range(-5, 16))
        )
        self.reward_term = histogram(
            "reward_term",
            "Raw terms of the reward",
            "term",
            buckets=(0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 10, 20, 30, 40),
        )
        self.cohort_queries = counter(
            "cohort_queries",
            "Ended queries of a drawn cohort: `all`, `failed`, or `graded`",
            "cohort",
            "of",
        )
        self.cohort_correct = counter(
            "cohort_correct", "Right ones among those graded, failures included", "cohort"
        )
        self.cohort_eflops = counter("cohort_eflops", "Equivalent FLOPs of those", "cohort")
        self.cohort_usd = counter("cohort_usd", "US dollars of those, where costs are in USD", "cohort")
        self.uplift_accuracy = gauge(
            "uplift_accuracy",
            "Accuracy of the policy minus that of the control group since this worker began: `mean`, and `low` and "
            "`high` of a 95 % confidence sequence",
            "bound",
        )
        self.uplift_cost_ratio = gauge(
            "uplift_cost_ratio",
            "Mean cost of the policy divided by that of the control group, likewise",
            "bound",
        )
        self.late = counter("late", "Feedback after its deadline, and rewards after the default", "topic")
        self.closed_early = counter(
            "closed_early", "Rewards closed before their wait for feedback was over: too many were open"
        )
        self.open_rows = gauge("join_rows", "Queries the aggregator has open")
        self.overdue = gauge(
            "join_overdue_seconds",
            "How long ago the oldest deadline passed that an open row still has; up to 20 are normal",
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"uniscale_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"uniscale_{name}", text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, *labels: str, buckets: tuple[float, ...] = _SECONDS
    ) -> Histogram:
        return Histogram(f"uniscale_{name}", text, labels, registry=self.registry, buckets=buckets)

    def text(self) -> bytes:
        """Return the registry in Prometheus' text format."""
        return generate_latest(self.registry)
