//! Charts as SVG. Colours and fonts come from the page.

use super::chart::{Axis, Chart, Kind, Scale, Series};
use std::fmt::Write as _;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 46.0;
/// Colours of the page that lines are given in turn.
pub(super) const COLOURS: usize = 8;

/// An axis with its range and place.
struct Ruler {
    axis: Axis,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Ruler {
    fn new(axis: Axis, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let usable =
            |value: &f64| value.is_finite() && (axis.scale == Scale::Linear || *value > 0.0);
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(usable) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (if axis.scale == Scale::Log { 1.0 } else { 0.0 }, 1.0);
        }
        match axis.scale {
            Scale::Log => {
                (low, high) = (power(low.log10().floor()), power(high.log10().ceil()));
                if low == high {
                    high *= 10.0;
                }
            }
            Scale::Linear => {
                low = low.min(0.0);
                let step = step(high - low);
                high = (high / step).ceil() * step;
                if high <= low {
                    high = low + 1.0;
                }
                if axis.percent {
                    high = high.min(1.0).max(if high <= 0.0 { 1.0 } else { 0.0 });
                }
            }
        }
        Self { axis, low, high, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let share = match self.axis.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => {
                let value = value.max(self.low);
                (value / self.low).log10() / (self.high / self.low).log10()
            }
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.axis.scale {
            Scale::Log => {
                let (first, last) =
                    (self.low.log10().round() as i32, self.high.log10().round() as i32);
                (first..=last).map(|exponent| power(f64::from(exponent))).collect()
            }
            Scale::Linear => {
                let step = step(self.high - self.low);
                let count = ((self.high - self.low) / step + 1e-9).floor() as u32;
                (0..=count).map(|n| self.low + step * f64::from(n)).collect()
            }
        }
    }

    fn text(&self, value: f64) -> String {
        if self.axis.percent {
            return format!("{} %", short(value * 100.0));
        }
        match value {
            _ if value >= 1e6 => format!("{}M", short(value / 1e6)),
            _ if value >= 1e3 => format!("{}k", short(value / 1e3)),
            _ => short(value),
        }
    }
}

fn power(exponent: f64) -> f64 {
    10f64.powf(exponent)
}

/// A round distance that divides a range into about five.
fn step(range: f64) -> f64 {
    let rough = (range / 5.0).max(1e-12);
    let size = power(rough.log10().floor());
    let round = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|n| n * size >= rough * 0.999);
    round.unwrap_or(10.0) * size
}

/// A number without needless digits.
fn short(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Text as it may stand in a page.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn path(x: &Ruler, y: &Ruler, points: &[(f64, f64)], steps: bool) -> String {
    let mut path = String::new();
    for (n, (at, value)) in points.iter().enumerate() {
        let (px, py) = (x.at(*at), y.at(*value));
        let _ = match (n, steps) {
            (0, _) => write!(path, "M{px:.1} {py:.1}"),
            (_, true) => write!(path, "H{px:.1}V{py:.1}"),
            (_, false) => write!(path, "L{px:.1} {py:.1}"),
        };
    }
    path
}

/// The chart as an SVG element.
pub(super) fn draw(chart: &Chart, data: &[Series]) -> String {
    if chart.kind == Kind::Bars {
        return bars(chart, data);
    }
    let points = || data.iter().flat_map(|series| series.points.iter().chain(&series.beside));
    let highs = data.iter().flat_map(|series| series.band.iter().map(|(_, _, high)| *high));
    let level = chart.level.map(|(level, _)| level);
    let x = Ruler::new(chart.x, points().map(|(x, _)| *x), LEFT, WIDTH - RIGHT);
    let ys = points().map(|(_, y)| *y).chain(highs).chain(level);
    let y = Ruler::new(chart.y, ys, HEIGHT - BOTTOM, TOP);
    let mut svg = frame(chart, &y);
    for tick in x.ticks() {
        let at = x.at(tick);
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{at:.1} {TOP}V{:.1}\"/><text x=\"{at:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\">{}</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 16.0,
            x.text(tick)
        );
    }
    if let Some((level, name)) = chart.level {
        let at = y.at(level);
        let _ = write!(
            svg,
            "<path class=\"level\" d=\"M{LEFT} {at:.1}H{:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            WIDTH - RIGHT - 4.0,
            at - 5.0,
            escape(name)
        );
    }
    for (n, series) in data.iter().enumerate() {
        let colour = n % COLOURS;
        if series.band.len() > 1 {
            let upper = series.band.iter().map(|(x, _, high)| (*x, *high));
            let lower = series.band.iter().rev().map(|(x, low, _)| (*x, *low));
            let outline: Vec<(f64, f64)> = upper.chain(lower).collect();
            let d = path(&x, &y, &outline, false);
            let _ = write!(svg, "<path class=\"band c{colour}\" d=\"{d}Z\"/>");
        }
        let d = path(&x, &y, &series.points, chart.kind == Kind::Curve);
        let _ = write!(svg, "<path class=\"line c{colour}\" d=\"{d}\"/>");
        if chart.kind == Kind::Lines {
            for (at, value) in &series.points {
                let _ = write!(
                    svg,
                    "<circle class=\"dot c{colour}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.6\"><title>{}: {} at \
                     {}</title></circle>",
                    x.at(*at),
                    y.at(*value),
                    escape(&series.name),
                    y.text(*value),
                    x.text(*at)
                );
            }
        }
        if !series.beside.is_empty() {
            let d = path(&x, &y, &series.beside, false);
            let _ = write!(svg, "<path class=\"beside c{colour}\" d=\"{d}\"/>");
        }
    }
    svg.push_str("</svg>");
    svg
}

/// The chart as a file: with its title, its legend, and its own colours.
pub(super) fn alone(chart: &Chart, data: &[Series]) -> String {
    const TITLE: f64 = 26.0;
    const LINE: f64 = 18.0;
    let chart_svg = draw(chart, data);
    let inner = chart_svg.split_once('>').map_or("", |(_, rest)| rest);
    let inner = inner.strip_suffix("</svg>").unwrap_or(inner);
    let drawn = if chart.kind == Kind::Bars { bars_height(data.len()) } else { HEIGHT };
    let mut names: Vec<(String, String)> = Vec::new();
    if chart.kind != Kind::Bars {
        let lines = data.iter().enumerate();
        names.extend(lines.map(|(n, line)| (format!("line c{}", n % COLOURS), line.name.clone())));
        names.extend(chart.beside.map(|(_, name)| ("beside c0".to_owned(), name.to_owned())));
    }
    let height = TITLE + drawn + LINE * names.len().div_ceil(2) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\
         <style>{}</style><text class=\"label title\" x=\"{:.1}\" y=\"16\">{}</text>\
         <g transform=\"translate(0 {TITLE})\">{inner}</g>",
        super::html::CHART_STYLE,
        LEFT,
        escape(&chart.title)
    );
    for (n, (class, name)) in names.iter().enumerate() {
        let x = LEFT + (n % 2) as f64 * (WIDTH - LEFT) / 2.0;
        let y = TITLE + drawn + LINE * (n / 2) as f64 + 6.0;
        let _ = write!(
            svg,
            "<path class=\"{class}\" d=\"M{x:.1} {y:.1}h22\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x + 28.0,
            y + 4.0,
            escape(name)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// The element with its y axis and labels, left open.
fn frame(chart: &Chart, y: &Ruler) -> String {
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
        escape(&chart.title)
    );
    for tick in y.ticks() {
        let at = y.at(tick);
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 7.0,
            at + 4.0,
            y.text(tick)
        );
    }
    let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
    let _ = write!(
        svg,
        "<text class=\"label\" transform=\"translate(13 {middle:.1}) rotate(-90)\" \
         text-anchor=\"middle\">{}</text><text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" \
         text-anchor=\"middle\">{}</text>",
        escape(chart.y.label),
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0,
        escape(chart.x.label)
    );
    svg
}

/// Height of one bar with its room.
const ROW: f64 = 28.0;

fn bars_height(count: usize) -> f64 {
    TOP + ROW * count as f64 + BOTTOM
}

/// Lying bars with their intervals: names need room.
fn bars(chart: &Chart, data: &[Series]) -> String {
    const NAMES: f64 = 170.0;
    let height = bars_height(data.len());
    let values = data.iter().flat_map(|series| series.points.iter().map(|(_, y)| *y));
    let highs = data.iter().flat_map(|series| series.band.iter().map(|(_, _, high)| *high));
    let x = Ruler::new(chart.y, values.chain(highs), NAMES, WIDTH - RIGHT - 50.0);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
        escape(&chart.title)
    );
    for tick in x.ticks() {
        let at = x.at(tick);
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{at:.1} {TOP}V{:.1}\"/><text x=\"{at:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\">{}</text>",
            height - BOTTOM,
            height - BOTTOM + 16.0,
            x.text(tick)
        );
    }
    for (n, series) in data.iter().enumerate() {
        let (top, colour) = (TOP + ROW * n as f64, n % COLOURS);
        let Some((_, value)) = series.points.first() else { continue };
        let end = x.at(*value);
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text><rect class=\"bar c{colour}\" \
             x=\"{NAMES}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
            NAMES - 8.0,
            top + ROW / 2.0 + 4.0,
            escape(&series.name),
            top + 4.0,
            end - NAMES,
            ROW - 8.0
        );
        let mut right = end;
        if let Some((_, low, high)) = series.band.first() {
            right = x.at(*high);
            let _ = write!(
                svg,
                "<path class=\"whisker\" d=\"M{:.1} {y:.1}H{right:.1}\"/>",
                x.at(*low),
                y = top + ROW / 2.0
            );
        }
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            right + 6.0,
            top + ROW / 2.0 + 4.0,
            if *value == 0.0 { "0".to_owned() } else { format!("{:.2} %", value * 100.0) }
        );
    }
    let _ = write!(
        svg,
        "<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text></svg>",
        (NAMES + WIDTH - RIGHT) / 2.0,
        height - 8.0,
        escape(chart.y.label)
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_range() {
        let ruler = Ruler::new(Axis::share("a", ""), [0.0, 0.43].into_iter(), 0.0, 100.0);
        assert_eq!(ruler.ticks().first(), Some(&0.0));
        assert!(ruler.high >= 0.43 && ruler.ticks().len() <= 8, "{:?}", ruler.ticks());
        assert_eq!(ruler.text(0.25), "25 %");
        let ruler = Ruler::new(Axis::log("a", ""), [3.0, 4_000.0].into_iter(), 0.0, 100.0);
        assert_eq!(ruler.ticks(), [1.0, 10.0, 100.0, 1_000.0, 10_000.0]);
        assert_eq!((ruler.text(10_000.0), ruler.at(100.0)), ("10k".to_owned(), 50.0));
        let empty = Ruler::new(Axis::log("a", ""), std::iter::empty(), 0.0, 100.0);
        assert_eq!(empty.ticks(), [1.0, 10.0]);
    }
}
