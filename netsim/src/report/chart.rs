//! What a chart shows of the rows of a study.

use crate::study::Row;
use serde_json::Value;

/// How an axis is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By powers of ten.
    Log,
}

/// One axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// The column it shows.
    pub field: &'static str,
    /// What is written beside it.
    pub label: &'static str,
    /// How it is divided.
    pub scale: Scale,
    /// Whether it is a share, written in percent.
    pub percent: bool,
}

impl Axis {
    /// An even axis.
    #[must_use]
    pub const fn linear(field: &'static str, label: &'static str) -> Self {
        Self { field, label, scale: Scale::Linear, percent: false }
    }

    /// An axis by powers of ten.
    #[must_use]
    pub const fn log(field: &'static str, label: &'static str) -> Self {
        Self { scale: Scale::Log, ..Self::linear(field, label) }
    }

    /// A share, from 0.
    #[must_use]
    pub const fn share(field: &'static str, label: &'static str) -> Self {
        Self { percent: true, ..Self::linear(field, label) }
    }
}

/// What it looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One column against another, a line for each series.
    Lines,
    /// The distributions of latencies, a step curve for each series.
    Curve,
    /// A bar for each row, named by the column of the x axis.
    Bars,
}

/// One chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Its headline.
    pub title: String,
    /// What it looks like.
    pub kind: Kind,
    /// What goes to the right.
    pub x: Axis,
    /// What goes up.
    pub y: Axis,
    /// Columns whose values make a series each.
    pub series: Vec<&'static str>,
    /// Rows that are shown: all of these columns have these values.
    pub only: Vec<(&'static str, Value)>,
    /// Columns of the ends of an interval about the line.
    pub band: Option<(&'static str, &'static str)>,
    /// A second column that is drawn dashed beside each line, and its name.
    pub beside: Option<(&'static str, &'static str)>,
    /// A height that is marked, and its name.
    pub level: Option<(f64, &'static str)>,
    /// What is written below.
    pub note: &'static str,
}

/// One line of a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    pub(super) band: Vec<(f64, f64, f64)>,
    pub(super) beside: Vec<(f64, f64)>,
}

impl Chart {
    /// Lines by `x`; the rest is for the caller to say.
    #[must_use]
    pub fn new(title: &str, x: Axis) -> Self {
        Self {
            title: title.to_owned(),
            kind: Kind::Lines,
            x,
            y: x,
            series: Vec::new(),
            only: Vec::new(),
            band: None,
            beside: None,
            level: None,
            note: "",
        }
    }

    /// What it shows of `rows`, in their order.
    pub(super) fn data(&self, rows: &[Row]) -> Vec<Series> {
        let mut all: Vec<Series> = Vec::new();
        let shown = |row: &&Row| self.only.iter().all(|(name, value)| row.get(name) == Some(value));
        for row in rows.iter().filter(shown) {
            let name = self.name_of(row);
            if !all.iter().any(|series| series.name == name) {
                all.push(Series { name: name.clone(), ..Series::default() });
            }
            let Some(series) = all.iter_mut().find(|series| series.name == name) else { continue };
            match self.kind {
                Kind::Curve => series.points.extend(&row.curve),
                Kind::Bars => self.point(series, row, 0.0),
                Kind::Lines => {
                    if let Some(x) = row.number(self.x.field) {
                        self.point(series, row, x);
                    }
                }
            }
        }
        all
    }

    fn point(&self, series: &mut Series, row: &Row, x: f64) {
        let Some(y) = row.number(self.y.field) else { return };
        series.points.push((x, y));
        let ends = self.band.and_then(|(low, high)| Some((row.number(low)?, row.number(high)?)));
        series.band.extend(ends.map(|(low, high)| (x, low, high)));
        let beside = self.beside.and_then(|(field, _)| row.number(field));
        series.beside.extend(beside.map(|y| (x, y)));
    }

    fn name_of(&self, row: &Row) -> String {
        let fields: &[&str] =
            if self.kind == Kind::Bars { &[self.x.field] } else { self.series.as_slice() };
        let part = |name: &&str| match row.get(name) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => format!("{name} {other}"),
            None => String::new(),
        };
        fields.iter().map(part).collect::<Vec<_>>().join(", ")
    }
}
