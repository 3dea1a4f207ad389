//! What is counted, for `/metrics`. Labels are names that the program or the component has: nothing that a caller writes.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::fmt;

/// How a call of a tool was answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Answer {
    pub tool: String,
    /// `fresh`, `replayed`, `read` or `refused`.
    pub outcome: &'static str,
    /// The refusal's; empty otherwise.
    pub code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Ended {
    /// `made` or `failed`.
    pub outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct InState {
    pub state: &'static str,
}

pub struct Metrics {
    registry: Registry,
    pub answers: Family<Answer, Counter>,
    /// Requests without a valid token.
    pub unauthorized: Counter,
    pub backups: Family<Ended, Counter>,
    pub queued: Gauge,
    pub batch_calls: Histogram,
    pub batch_seconds: Histogram,
    /// None where others change them as well.
    pub operations: Option<Family<InState, Gauge>>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut registry = Registry::with_prefix("counterfoil");
        let answers = Family::default();
        registry.register("answers", "Calls of tools that were answered", answers.clone());
        let unauthorized = Counter::default();
        registry.register("unauthorized", "Requests without a valid token", unauthorized.clone());
        let backups = Family::default();
        registry.register("backups", "Copies of the database", backups.clone());
        let queued = Gauge::default();
        registry.register("queued", "Calls and other work waiting for the database", queued.clone());
        let batch_calls = Histogram::new([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]);
        registry.register("batch_calls", "Calls that shared a commit", batch_calls.clone());
        let batch_seconds =
            Histogram::new([0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]);
        registry.register("batch_seconds", "From the first call of a batch to its commit", batch_seconds.clone());
        Metrics { registry, answers, unauthorized, backups, queued, batch_calls, batch_seconds, operations: None }
    }
}

impl Metrics {
    /// The same for whoever owns the database.
    #[must_use]
    pub fn of_owner() -> Metrics {
        let mut metrics = Metrics::default();
        let operations = Family::<InState, Gauge>::default();
        let help = "Operations whose effect is outside the database, counted a second after they change";
        metrics.registry.register("operations", help, operations.clone());
        Metrics { operations: Some(operations), ..metrics }
    }

    /// In the form of OpenMetrics, which Prometheus reads
    /// (<https://prometheus.io/docs/specs/om/open_metrics_spec/>).
    ///
    /// # Errors
    ///
    /// If it cannot be written, which is a bug.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
