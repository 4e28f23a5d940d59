//! A picture: a panel for each test over sizes, a line for each provider.

use std::path::Path;
use std::sync::Once;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use super::report::Report;
use super::stat::{bytes, digits};
use super::test::{Test, Unit};
use crate::fabric::Error;

/// How a picture is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Svg,
    Png,
}

/// By the end of the name.
pub fn format_of(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "svg" => Some(Format::Svg),
        "png" => Some(Format::Png),
        _ => None,
    }
}

const PANEL: (u32, u32) = (640, 420);
const FOOT: u32 = 62;
pub const INK: RGBColor = RGBColor(40, 44, 52);
const FAINT: RGBColor = RGBColor(225, 228, 232);
/// Distinct with the usual kinds of colour blindness too (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(100, 100, 100),
];

/// Text in a PNG is ours to draw, and in an SVG to measure; no font of the system is needed.
pub fn load_font() {
    static FONT: Once = Once::new();
    FONT.call_once(|| {
        let font = epaint_default_fonts::UBUNTU_LIGHT;
        let _ = register_font("sans-serif", FontStyle::Normal, font);
    });
}

/// Draws what was measured over more than one size, with a note below.
pub fn draw(report: &Report, note: &str, path: &Path) -> Result<(), Error> {
    load_font();
    let tests: Vec<Test> = report
        .tests()
        .into_iter()
        .filter(|test| test.only_size().is_none() && !test.is_floor())
        .filter(|test| points(report, *test).len() > 1)
        .collect();
    if tests.is_empty() {
        return Err(Error::Failed("nothing to plot: no test has results for two sizes".into()));
    }
    let columns = tests.len().min(2);
    let rows = tests.len().div_ceil(columns);
    let size = (PANEL.0 * columns as u32, PANEL.1 * rows as u32 + FOOT);
    let result = match format_of(path) {
        // The backend that writes the file itself does not say that it could not.
        Some(Format::Svg) => {
            let mut picture = String::new();
            let backend = SVGBackend::with_string(&mut picture, size);
            draw_on(backend, report, note, &tests, (rows, columns))
                .and_then(|()| std::fs::write(path, picture).map_err(|e| e.to_string()))
        }
        Some(Format::Png) => draw_on(BitMapBackend::new(path, size), report, note, &tests, (rows, columns)),
        None => Err("the name must end in .svg or .png".into()),
    };
    result.map_err(|error| Error::Failed(format!("plotting to {}: {error}", path.display())))
}

/// The sizes of a test.
fn points(report: &Report, test: Test) -> Vec<usize> {
    let mut sizes: Vec<usize> =
        report.rows.iter().filter(|row| row.test == test).map(|row| row.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn draw_on<B: DrawingBackend>(
    backend: B,
    report: &Report,
    note: &str,
    tests: &[Test],
    (rows, columns): (usize, usize),
) -> Result<(), String> {
    let area = backend.into_drawing_area();
    area.fill(&WHITE).map_err(text)?;
    let (area, foot) = area.split_vertically(PANEL.1 * rows as u32);
    // The same colour for a provider in every panel, and one legend for all.
    let mut names: Vec<&str> = Vec::new();
    for test in tests {
        for name in report.providers_of(*test) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let font = ("sans-serif", 17).into_font().color(&INK);
    let mut x = 24;
    for (index, name) in names.iter().enumerate() {
        let line = PathElement::new(vec![(x, 17), (x + 26, 17)], colour(index).stroke_width(3));
        foot.draw(&line).map_err(text)?;
        foot.draw(&Circle::new((x + 13, 17), 4, colour(index).filled())).map_err(text)?;
        foot.draw(&Text::new(*name, (x + 34, 8), font.clone())).map_err(text)?;
        let (width, _) = foot.estimate_text_size(name, &font).map_err(text)?;
        x += width as i32 + 64;
    }
    let style = ("sans-serif", 15).into_font().color(&INK.mix(0.75));
    foot.draw(&Text::new(note.to_owned(), (24, 34), style)).map_err(text)?;
    for (panel, test) in area.split_evenly((rows, columns)).iter().zip(tests) {
        draw_panel(panel, report, *test, &names)?;
    }
    area.present().map_err(text)
}

fn draw_panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    report: &Report,
    test: Test,
    names: &[&str],
) -> Result<(), String> {
    let rows = || report.rows.iter().filter(|row| row.test == test);
    let low = rows().map(|row| row.stat.min).fold(f64::INFINITY, f64::min).max(1e-6);
    let high = rows().map(|row| row.stat.max).fold(0.0, f64::max).max(low);
    let sizes = points(report, test);
    let (Some(least), Some(most)) = (sizes.first(), sizes.last()) else {
        return Ok(());
    };
    let x = (*least as f64 / 1.3)..(*most as f64 * 1.3);
    let y = (low / 1.4)..(high * 1.6);
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{}: {}", test.name(), test.title()), ("sans-serif", 19).into_font().color(&INK))
        .margin(16)
        .x_label_area_size(42)
        .y_label_area_size(66)
        .build_cartesian_2d(
            x.log_scale().base(2.0).with_key_points(thin(&sizes)),
            y.clone().log_scale().with_key_points(steps(low / 1.4, high * 1.6)),
        )
        .map_err(text)?;
    let unit = match test.unit() {
        Unit::Micros => "µs",
        other => other.name(),
    };
    chart
        .configure_mesh()
        .x_desc("message size, bytes")
        .y_desc(format!("{unit}, {}", test.unit().better()))
        .x_label_formatter(&|size| bytes(size.round() as usize))
        .y_label_formatter(&|value| short(*value))
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(INK.mix(0.6))
        .label_style(("sans-serif", 14).into_font().color(&INK))
        .axis_desc_style(("sans-serif", 15).into_font().color(&INK))
        .draw()
        .map_err(text)?;
    for name in report.providers_of(test) {
        let index = names.iter().position(|n| *n == name).unwrap_or(0);
        let colour = colour(index);
        let mine: Vec<_> = rows().filter(|row| row.provider == name).collect();
        let line = mine.iter().map(|row| (row.size as f64, row.stat.median));
        chart.draw_series(LineSeries::new(line.clone(), colour.stroke_width(2))).map_err(text)?;
        chart.draw_series(line.map(|point| Circle::new(point, 3, colour.filled()))).map_err(text)?;
        let bars = mine.iter().map(|row| {
            let at = row.size as f64;
            PathElement::new(
                vec![(at, row.stat.min.max(y.start)), (at, row.stat.max)],
                colour.mix(0.5).stroke_width(1),
            )
        });
        chart.draw_series(bars).map_err(text)?;
    }
    Ok(())
}

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

/// At most a dozen of the sizes, for the axis.
fn thin(sizes: &[usize]) -> Vec<f64> {
    let step = sizes.len().div_ceil(12).max(1);
    sizes.iter().step_by(step).map(|size| *size as f64).collect()
}

/// 1, 2 and 5 times powers of ten, or only the powers over a wide range.
fn steps(low: f64, high: f64) -> Vec<f64> {
    let wide = high / low > 2e3;
    let mut steps = Vec::new();
    for power in -6..12 {
        for factor in if wide { &[1.0][..] } else { &[1.0, 2.0, 5.0] } {
            let value = factor * 10f64.powi(power);
            if (low..=high).contains(&value) {
                steps.push(value);
            }
        }
    }
    steps
}

/// A round number, without useless zeroes.
fn short(value: f64) -> String {
    match value {
        v if v >= 1.0 => format!("{}", v.round()),
        v => digits(v).trim_end_matches('0').to_owned(),
    }
}

pub fn text<E: std::error::Error + Send + Sync>(error: DrawingAreaErrorKind<E>) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        assert_eq!(format_of(Path::new("a/b.SVG")), Some(Format::Svg));
        assert_eq!(format_of(Path::new("b.png")), Some(Format::Png));
        assert_eq!(format_of(Path::new("png")), None);
        assert_eq!(format_of(Path::new("b.pdf")), None);
    }

    #[test]
    fn axes() {
        assert_eq!(steps(0.15, 12.0), [0.2, 0.5, 1.0, 2.0, 5.0, 10.0]);
        assert_eq!(steps(0.5, 5000.0), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!((short(0.2), short(0.05), short(10.0)), ("0.2".into(), "0.05".into(), "10".into()));
        assert_eq!(thin(&[8; 20]).len(), 10);
    }
}
