//! The picture of `strait perf --mpi`: a row for each pattern, a column for each size, the speed in a cell.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::gain::Measured;
use super::plot::{Format, INK, format_of, load_font, text};
use super::stat::bytes;
use crate::fabric::Error;

const CELL: (i32, i32) = (104, 34);
const LEFT: i32 = 130;
const TOP: i32 = 84;

/// Draws it into a file.
pub fn draw(measured: &Measured, title: &str, path: &Path) -> Result<(), Error> {
    load_font();
    let mut sizes: Vec<usize> = measured.order.iter().flat_map(|pattern| measured.sizes(pattern)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let columns = i32::try_from(sizes.len()).unwrap_or(64) + 1;
    let rows = i32::try_from(measured.order.len()).unwrap_or(64);
    let size = ((LEFT + columns * CELL.0 + 24).max(560) as u32, (TOP + rows * CELL.1 + 56) as u32);
    let result = match format_of(path) {
        Some(Format::Svg) => {
            let mut picture = String::new();
            draw_on(SVGBackend::with_string(&mut picture, size), measured, title, &sizes)
                .and_then(|()| std::fs::write(path, picture).map_err(|e| e.to_string()))
        }
        Some(Format::Png) => draw_on(BitMapBackend::new(path, size), measured, title, &sizes),
        None => Err("the name must end in .svg or .png".into()),
    };
    result.map_err(|error| Error::Failed(format!("plotting to {}: {error}", path.display())))
}

fn draw_on<B: DrawingBackend>(
    backend: B,
    measured: &Measured,
    title: &str,
    sizes: &[usize],
) -> Result<(), String> {
    let area = backend.into_drawing_area();
    area.fill(&WHITE).map_err(text)?;
    write(&area, &format!("{title}: speed over strait by speed over what it does now"), (16, 14), 17)?;
    let legend = "above 1 (blue) strait is faster, below 1 (orange) slower; message size, bytes:";
    write(&area, legend, (16, 38), 14)?;
    for (column, size) in sizes.iter().enumerate() {
        let name = if *size == 0 { "none".into() } else { bytes(*size) };
        write(&area, &name, (LEFT + column as i32 * CELL.0 + 30, 62), 14)?;
    }
    write(&area, "all sizes", (LEFT + sizes.len() as i32 * CELL.0 + 22, 62), 14)?;
    for (row, pattern) in measured.order.iter().enumerate() {
        let y = TOP + row as i32 * CELL.1;
        write(&area, pattern, (16, y + 8), 15)?;
        let cells = sizes.iter().map(|size| measured.speed(pattern, *size)).chain([measured.mean(pattern)]);
        for (column, speed) in cells.enumerate().filter_map(|(column, speed)| Some((column, speed?))) {
            let x = LEFT + column as i32 * CELL.0;
            let cell = Rectangle::new([(x, y), (x + CELL.0 - 3, y + CELL.1 - 3)], colour(speed).filled());
            area.draw(&cell).map_err(text)?;
            write(&area, &format!("{speed:.2}"), (x + 30, y + 8), 15)?;
        }
    }
    if let Some(all) = measured.all() {
        let y = TOP + measured.order.len() as i32 * CELL.1 + 16;
        let busy = match measured.noisy() {
            0 => String::new(),
            rows => format!("; in {rows} cells repetitions differ by more than twice: a busy host"),
        };
        write(&area, &format!("all patterns, geometric mean: {all:.2}{busy}"), (16, y), 15)?;
    }
    area.present().map_err(text)
}

fn write<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    words: &str,
    at: (i32, i32),
    size: i32,
) -> Result<(), String> {
    let style = ("sans-serif", size).into_font().color(&INK);
    area.draw(&Text::new(words.to_owned(), at, style)).map_err(text)
}

/// White at 1; full at twice and at half the speed.
fn colour(speed: f64) -> RGBColor {
    let far = (speed.log2().abs()).min(1.0) * 0.7;
    let (r, g, b) = if speed >= 1.0 { (0.0, 114.0, 178.0) } else { (213.0, 94.0, 0.0) };
    let mixed = [r, g, b].map(|full: f64| (255.0 + (full - 255.0) * far) as u8);
    RGBColor(mixed[0], mixed[1], mixed[2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_has_a_row_for_each_pattern() {
        let mut measured = Measured::default();
        measured.add(0, &[("ring".into(), 8, 4.0), ("ring".into(), 4096, 1.0), ("barrier".into(), 0, 2.0)]);
        measured.add(1, &[("ring".into(), 8, 1.0), ("ring".into(), 4096, 1.0), ("barrier".into(), 0, 1.0)]);
        let path = std::env::temp_dir().join(format!("strait-mpi-chart-{}.svg", std::process::id()));
        draw(&measured, "mpirun <2>", &path).unwrap();
        let picture = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for word in ["ring", "barrier", "4.00", "above 1", "mpirun &lt;2&gt;"] {
            assert!(picture.contains(word), "{word}: {picture}");
        }
    }
}
