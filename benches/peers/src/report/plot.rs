//! A plot as SVG that needs nothing else.

use std::collections::BTreeSet;
use std::fmt::Write as _;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
/// Room for what stands beside the axes.
const LEFT: f64 = 72.0;
const RIGHT: f64 = 110.0;
const MARGIN: f64 = 30.0;
/// Steps of a linear axis, at least.
const STEPS_MIN: f64 = 4.0;
/// Points that are each named on the x axis, at most; of more the axis names round numbers.
const NAMED_MAX: usize = 10;

/// Which axes are logarithmic. A linear one begins at zero, so that nothing looks steeper than it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axes {
    pub(crate) x_log: bool,
    pub(crate) y_log: bool,
}

/// A line through points.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) color: &'static str,
    pub(crate) wide: u8,
    pub(crate) points: Vec<(f64, f64)>,
    /// Lowest and highest of each point, or none at all.
    pub(crate) ranges: Vec<(f64, f64)>,
}

/// From values to a span of pixels.
#[derive(Clone, Copy, Debug)]
struct Axis {
    low: f64,
    high: f64,
    log: bool,
    from: f64,
    to: f64,
}

impl Axis {
    fn at(&self, value: f64) -> f64 {
        let place =
            |value: f64| if self.log { value.max(f64::MIN_POSITIVE).log10() } else { value };
        let share = (place(value) - place(self.low)) / (place(self.high) - place(self.low));
        self.from + share * (self.to - self.from)
    }

    /// Values to name: powers of ten, or round ones.
    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let (low, high) = (self.low.log10().ceil() as i32, self.high.log10().floor() as i32);
            return (low..=high).map(|power| 10f64.powi(power)).collect();
        }
        let step = round_step(self.high);
        (0..).map(|nth| f64::from(nth) * step).take_while(|tick| *tick <= self.high).collect()
    }
}

/// 1, 2 or 5 times a power of ten, of which at least [`STEPS_MIN`] reach `high`.
fn round_step(high: f64) -> f64 {
    let ten = 10f64.powf((high / STEPS_MIN).log10().floor());
    let fits = |factor: &f64| factor * ten * STEPS_MIN <= high;
    [5.0, 2.0].into_iter().find(fits).unwrap_or(1.0) * ten
}

/// The plot, or nothing if there is nothing to show.
pub(crate) fn plot(title: &str, unit: &str, axes: Axes, lines: &[Line]) -> String {
    let shown = |at: &(f64, f64)| at.1.is_finite() && (at.1 > 0.0 || !axes.y_log);
    let all = || lines.iter().flat_map(|line| line.points.iter().copied()).filter(shown);
    let ends =
        lines.iter().flat_map(|line| line.ranges.iter().flat_map(|(low, high)| [*low, *high]));
    let values: Vec<f64> = all()
        .map(|(_, y)| y)
        .chain(ends.filter(|y| y.is_finite() && (*y > 0.0 || !axes.y_log)))
        .collect();
    let (Some(low), Some(high)) = (
        values.iter().copied().min_by(f64::total_cmp),
        values.iter().copied().max_by(f64::total_cmp),
    ) else {
        return String::new();
    };
    let (low, high) = if axes.y_log {
        let low = low.log10().floor();
        (10f64.powf(low), 10f64.powf(high.log10().ceil().max(low + 1.0)))
    } else {
        (0.0, if high > 0.0 { high * 1.05 } else { 1.0 })
    };
    let y = Axis { low, high, log: axes.y_log, from: HEIGHT - MARGIN, to: MARGIN };
    let widest = all().map(|(x, _)| x).fold(f64::MIN, f64::max);
    let narrowest = if axes.x_log { all().map(|(x, _)| x).fold(f64::MAX, f64::min) } else { 0.0 };
    // One point alone still needs a span.
    let widest = if widest > narrowest { widest } else { narrowest.max(1.0) * 2.0 };
    let x = Axis { low: narrowest, high: widest, log: axes.x_log, from: LEFT, to: WIDTH - RIGHT };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\"><title>{title}</title>\
         <text x=\"{LEFT}\" y=\"16\" style=\"font-weight:600\">{title} ({unit})</text>"
    );
    for tick in y.ticks() {
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\" stroke=\"#e3e7ec\"/><text x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\">{4}</text>",
            WIDTH - RIGHT,
            y.at(tick),
            LEFT - 6.0,
            y.at(tick) + 4.0,
            grouped(tick)
        );
    }
    let named: BTreeSet<u64> = all().map(|(x, _)| x as u64).collect();
    let steps: Vec<f64> = if axes.x_log && named.len() <= NAMED_MAX {
        named.into_iter().map(|at| at as f64).collect()
    } else {
        x.ticks()
    };
    for step in steps {
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x.at(step),
            HEIGHT - MARGIN + 16.0,
            grouped(step)
        );
    }
    let mut taken: Vec<f64> = Vec::new();
    for line in lines {
        draw(&mut svg, line, x, y, shown, &mut taken);
    }
    svg.push_str("</svg>");
    svg
}

fn draw(
    svg: &mut String,
    line: &Line,
    x: Axis,
    y: Axis,
    shown: impl Fn(&(f64, f64)) -> bool,
    taken: &mut Vec<f64>,
) {
    let points: Vec<(f64, f64)> =
        line.points.iter().filter(|at| shown(at)).map(|(px, py)| (x.at(*px), y.at(*py))).collect();
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let (color, wide) = (line.color, line.wide);
    let _ = write!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{wide}\"/>",
        path.join(" ")
    );
    for ((at, _), (low, high)) in line.points.iter().zip(&line.ranges) {
        if shown(&(*at, *low)) && shown(&(*at, *high)) {
            let _ = write!(
                svg,
                "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{2:.1}\" stroke=\"{color}\"/>",
                x.at(*at),
                y.at(*low),
                y.at(*high)
            );
        }
    }
    for (x, y) in &points {
        let _ = write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{color}\"/>");
    }
    if let Some((end_x, end_y)) = points.last() {
        // Names of lines that end close to each other would cover each other.
        let mut at = end_y + 4.0;
        while taken.iter().any(|other| (other - at).abs() < 12.0) {
            at -= 12.0;
        }
        taken.push(at);
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{at:.1}\" style=\"fill:{color}\">{}</text>",
            end_x + 8.0,
            line.name
        );
    }
}

/// A number of an axis, with commas.
fn grouped(at: f64) -> String {
    if at < 1.0 || at.fract() > 0.0 {
        return format!("{at}");
    }
    let digits = format!("{at:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_ten_are_grouped() {
        assert_eq!(grouped(1.0), "1");
        assert_eq!(grouped(1000.0), "1,000");
        assert_eq!(grouped(1e6), "1,000,000");
        assert_eq!(grouped(0.1), "0.1");
        assert_eq!(grouped(0.0), "0");
        assert_eq!(grouped(2.5), "2.5");
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_names_round_numbers() {
        let axis = Axis { low: 0.0, high: 47_000.0, log: false, from: 0.0, to: 470.0 };
        assert_eq!(axis.ticks(), [0.0, 10_000.0, 20_000.0, 30_000.0, 40_000.0]);
        assert!((axis.at(23_500.0) - 235.0).abs() < 1e-9);
        assert_eq!(round_step(21.0), 5.0);
        assert_eq!(round_step(9.0), 2.0);
        assert_eq!(round_step(0.045), 0.01);
    }

    #[test]
    fn a_logarithmic_axis_names_powers_of_ten() {
        let axis = Axis { low: 10.0, high: 10_000.0, log: true, from: 0.0, to: 300.0 };
        assert_eq!(axis.ticks(), [10.0, 100.0, 1_000.0, 10_000.0]);
        assert!((axis.at(100.0) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_and_one_point_are_plotted_too() {
        let line = |points: Vec<(f64, f64)>| Line {
            name: "x".into(),
            color: "#000",
            wide: 2,
            ranges: points.iter().map(|(_, y)| (y * 0.9, y * 1.1)).collect(),
            points,
        };
        for axes in [Axes { x_log: true, y_log: true }, Axes { x_log: false, y_log: false }] {
            assert_eq!(plot("t", "u", axes, &[line(Vec::new())]), "");
            for points in [vec![(64.0, 9.0)], vec![(1.0, 0.0), (2.0, 5.0)]] {
                let svg = plot("t", "u", axes, &[line(points)]);
                assert!(
                    svg.contains("<circle") && !svg.contains("NaN") && !svg.contains("inf"),
                    "{svg}"
                );
            }
        }
    }
}
