//! One row of a study: a point and its figures.

use super::{Point, Sum};
use crate::stats::{Interval, Share, Times, Z_95};
use serde_json::{Map, Value, json};

/// Shares at which the distribution of latencies is written down.
const CURVE_STEPS: usize = 200;

/// A point of a study and what was measured there. The order of the figures is that of the columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What sets the point apart.
    pub params: Vec<(String, Value)>,
    /// What was measured; null where there was nothing to measure.
    pub values: Vec<(String, Value)>,
    /// The distribution of the time from issue to the effect: milliseconds, and the share of all
    /// transfers that had their effect by then.
    pub curve: Vec<(f64, f64)>,
}

/// Rounds to six significant digits, so that files do not change with the last bit.
fn tidy(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powi(5 - value.abs().log10().floor() as i32);
    if scale.is_finite() && scale > 0.0 { (value * scale).round() / scale } else { value }
}

pub(super) fn number(value: Option<f64>) -> Value {
    value.map_or(Value::Null, |value| json!(tidy(value)))
}

/// A share with its interval as three columns.
fn share(values: &mut Vec<(String, Value)>, name: &str, ends: &str, seeds: &[Share]) {
    let (total, Interval { low, high }) = Share::pooled(seeds, Z_95);
    let known = total.n > 0;
    for (name, value) in [
        (name.to_owned(), total.rate()),
        (format!("{ends}_low"), low),
        (format!("{ends}_high"), high),
    ] {
        values.push((name, number(known.then_some(value))));
    }
}

impl Row {
    pub(super) fn of(point: &Point, sum: &Sum) -> Self {
        let policy = serde_json::to_value(point.options.policy).unwrap_or(Value::Null);
        let mut params: Vec<(String, Value)> =
            point.params.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        params.push(("policy".to_owned(), policy));
        let m = &sum.measures;
        let mut values: Vec<(String, Value)> = Vec::new();
        let mut put = |name: &str, value: Value| values.push((name.to_owned(), value));
        put("seeds", json!(sum.seeds));
        put("transfers", json!(m.transfers));
        put("applied", json!(m.applied));
        put("declined", json!(m.declined));
        put("escalated", json!(m.escalated));
        put("silent_losses", json!(m.silent));
        put("logged_losses", json!(m.logged));
        put("double_applications", json!(m.doubled));
        put("spurious", json!(m.spurious));
        put("spurious_applied", json!(m.spurious_applied));
        put("twins", json!(m.twins));
        put("broken_runs", json!(sum.broken));
        share(&mut values, "silent_rate", "silent", &sum.silent);
        share(&mut values, "double_rate", "double", &sum.doubled);
        share(&mut values, "spurious_rate", "spurious", &sum.spurious);
        share(&mut values, "bound", "bound", &sum.late);
        for (prefix, times) in [("", &m.latency), ("recovery_", &m.recovery)] {
            for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)] {
                let value = number(times.quantile_ms(quantile));
                values.push((format!("{prefix}{name}_ms"), value));
            }
        }
        let seconds = |ms: Option<f64>| ms.map(|ms| ms / 1000.0);
        for (name, value) in [
            ("lateness_p99_ms", m.lateness.quantile_ms(0.99)),
            ("lateness_max_ms", m.lateness.max_ms()),
            ("overprotection_mean_s", seconds(m.overprotection.mean_ms())),
            ("attempts_mean", Some(m.attempts_mean())),
            ("bytes_mean", Some(m.bytes_mean())),
            ("syncs_mean", Some(m.syncs as f64 / (m.transfers + m.twins).max(1) as f64)),
        ] {
            values.push((name.to_owned(), number(value)));
        }
        let runs = sum.seeds.max(1) as f64;
        let many = m.settled.count() > 0;
        for (name, value) in [
            ("settled_p50_ms", m.settled.quantile_ms(0.5)),
            ("settled_max_ms", m.settled.max_ms()),
            ("custodian_bytes_mean", many.then_some(m.custodian_bytes as f64 / runs)),
            ("custodian_objects_mean", many.then_some(m.custodian_objects as f64 / runs)),
        ] {
            values.push((name.to_owned(), number(value)));
        }
        Self { params, values, curve: curve(&m.latency, m.transfers) }
    }

    /// A figure or parameter.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        let all = self.params.iter().chain(&self.values);
        all.into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// A figure or parameter that is a number.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }

    /// As one object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let all = self.params.iter().chain(&self.values);
        let mut members: Map<String, Value> = all.cloned().collect();
        if !self.curve.is_empty() {
            let points = self.curve.iter().map(|(ms, share)| json!([tidy(*ms), tidy(*share)]));
            members.insert("latency_curve".to_owned(), points.collect());
        }
        Value::Object(members)
    }
}

/// The distribution as a few hundred steps, of all transfers: what never had its effect keeps it
/// below one.
fn curve(times: &Times, transfers: u64) -> Vec<(f64, f64)> {
    let steps = times.curve();
    let of_all = times.count() as f64 / transfers.max(1) as f64;
    let every = steps.len().div_ceil(CURVE_STEPS).max(1);
    let last = steps.len().saturating_sub(1);
    let kept = steps.iter().enumerate().filter(|(at, _)| at % every == 0 || *at == last);
    kept.map(|(_, (ms, share))| (*ms, share * of_all)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_six_digits() {
        assert_eq!(tidy(0.123_456_789), 0.123_457);
        assert_eq!(tidy(123_456_789.0), 123_457_000.0);
        assert_eq!((tidy(0.0), tidy(3.0)), (0.0, 3.0));
    }
}
