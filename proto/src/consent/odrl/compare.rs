//! Comparisons, exact: numbers are decimals of any length, never floats.

use super::{Operator, Truth, same};
use crate::time::Time;
use std::cmp::Ordering;

/// A decimal number: its digits before and behind the point, without zeros that say nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number<'a> {
    negative: bool,
    whole: &'a str,
    part: &'a str,
}

impl<'a> Number<'a> {
    /// Reads `90`, `-1.50` or `+007`; no exponents, and no separators.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let text = text.trim();
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() && part.is_empty() || !is_digits(whole) || !is_digits(part) {
            return None;
        }
        let (whole, part) = (whole.trim_start_matches('0'), part.trim_end_matches('0'));
        Some(Self { negative: negative && !(whole.is_empty() && part.is_empty()), whole, part })
    }

    fn compare(&self, other: &Self) -> Ordering {
        // Behind the point digits stand in the order of their weight, so they compare as text.
        let size = |one: &Self, other: &Self| {
            let whole = one.whole.len().cmp(&other.whole.len()).then(one.whole.cmp(other.whole));
            whole.then(one.part.cmp(other.part))
        };
        match (self.negative, other.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => size(self, other),
            (true, true) => size(other, self),
        }
    }
}

fn date(text: &str) -> Option<jiff::civil::Date> {
    let plain = text.len() == 10 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    plain.then(|| text.parse().ok())?
}

/// Whether a text is a date, or a date-time.
pub(super) fn is_date(text: &str) -> bool {
    date(text).is_some() || Time::parse_rfc3339(text).is_ok()
}

fn order(given: &str, wanted: &str) -> Option<Ordering> {
    if let (Some(given), Some(wanted)) = (Number::parse(given), Number::parse(wanted)) {
        return Some(given.compare(&wanted));
    }
    if let (Some(given), Some(wanted)) = (date(given), date(wanted)) {
        return Some(given.cmp(&wanted));
    }
    match (Time::parse_rfc3339(given), Time::parse_rfc3339(wanted)) {
        (Ok(given), Ok(wanted)) => Some(given.cmp(&wanted)),
        _ => None,
    }
}

/// Compares what is given of `left` with the right operand.
pub(super) fn compare(left: &str, given: &str, operator: Operator, right: &[String]) -> Truth {
    let wanted = right.first().map_or("", String::as_str);
    let equal = || match (Time::parse_rfc3339(given), Time::parse_rfc3339(wanted)) {
        (Ok(given), Ok(wanted)) => (given == wanted).into(),
        _ => same(given.trim(), wanted),
    };
    let ordered = |holds: fn(Ordering) -> bool| match order(given.trim(), wanted) {
        Some(order) => holds(order).into(),
        None => Truth::Unknown(format!("{left} is {given:?}, which has no order with {wanted:?}")),
    };
    // What is given may be several things, with commas between them.
    let some: Vec<&str> =
        given.split(',').map(str::trim).filter(|value| !value.is_empty()).collect();
    let in_right = |value: &str| Truth::any(right.iter().map(|wanted| same(value, wanted)));
    let in_given = |wanted: &str| Truth::any(some.iter().map(|value| same(value, wanted)));
    if some.is_empty() {
        return Truth::Unknown(format!("{left} is empty"));
    }
    // Of several values one may be it, and another not: which is meant only operators over sets say.
    let several = |truth: Truth| match truth {
        Truth::NotMet if some.len() > 1 => {
            Truth::Unknown(format!("{left} is several values, {given:?}"))
        }
        truth => truth,
    };
    match operator {
        Operator::Eq => several(equal()),
        Operator::Neq => several(equal()).not(),
        Operator::Gt => ordered(Ordering::is_gt),
        Operator::Gteq => ordered(Ordering::is_ge),
        Operator::Lt => ordered(Ordering::is_lt),
        Operator::Lteq => ordered(Ordering::is_le),
        Operator::IsA => match equal() {
            Truth::Met => Truth::Met,
            _ => Truth::Unknown(format!("whether {given:?} is a {wanted:?} takes a vocabulary")),
        },
        Operator::HasPart | Operator::IsAllOf => {
            Truth::all(right.iter().map(|wanted| in_given(wanted)))
        }
        Operator::IsPartOf => Truth::all(some.iter().map(|value| in_right(value))),
        Operator::IsAnyOf => Truth::any(some.iter().map(|value| in_right(value))),
        Operator::IsNoneOf => Truth::any(some.iter().map(|value| in_right(value))).not(),
    }
}
