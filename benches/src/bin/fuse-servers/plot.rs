//! The figures as a picture: for each row a bar for each server, as long as its share of fuser's.

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum as _;
use millrace_benches::figures::{Figures, median};
use plotters::prelude::*;

use super::contestants::Kind;

/// Pixels of the picture and its parts.
const WIDTH: i32 = 960;
const HEAD: i32 = 60;
const BAR: i32 = 13;
const GAP: i32 = 14;
const FOOT: i32 = 12;
const LABELS: i32 = 260;
const ONCE: i32 = 190;
/// Where bars end that are longer.
const TIMES_MAX: f64 = 3.0;

/// Draws the figures as an SVG file.
pub(crate) fn draw(figures: &Figures, path: &Path) -> Result<()> {
    let heights = figures.rows().iter().map(|row| height(row.contestants.len()));
    let end = HEAD + heights.sum::<i32>();
    let size = (WIDTH.unsigned_abs(), (end + FOOT).unsigned_abs());
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&WHITE)?;
    let title = "One file system in memory, served by each: medians, as a share of fuser's";
    root.draw(&Text::new(title, (12, 12), ("sans-serif", 15)))?;
    let mut place = 12;
    if let Some(row) = figures.rows().first() {
        for (kind, _) in &row.contestants {
            let square = [(place, 36), (place + 12, 48)];
            root.draw(&Rectangle::new(square, color(kind).filled()))?;
            root.draw(&Text::new(kind.as_str(), (place + 18, 35), ("sans-serif", 13)))?;
            place += 100;
        }
    }
    let mut top = HEAD;
    for row in figures.rows() {
        let name = format!("{}, {}", row.name, row.unit);
        root.draw(&Text::new(name, (12, top), ("sans-serif", 13)))?;
        let base = figures.base(row).unwrap_or(f64::NAN);
        for ((kind, rounds), nth) in row.contestants.iter().zip(0..) {
            let figure = median(rounds);
            let (from, to) = (top + nth * BAR, top + (nth + 1) * BAR - 2);
            let bar = [(LABELS, from), (at(figure / base), to)];
            root.draw(&Rectangle::new(bar, color(kind).filled()))?;
            let said = format!("{figure:.0}");
            let beside = (at(figure / base) + 6, from);
            root.draw(&Text::new(said, beside, ("sans-serif", 11)))?;
        }
        top += height(row.contestants.len());
    }
    let line = vec![(at(1.0), HEAD - 6), (at(1.0), end - GAP + 4)];
    root.draw(&PathElement::new(line, BLACK.mix(0.5).stroke_width(1)))?;
    root.present()?;
    Ok(())
}

fn height(kinds: usize) -> i32 {
    i32::try_from(kinds).expect("a few") * BAR + GAP
}

fn color(server: &str) -> RGBColor {
    match Kind::from_str(server, false).expect("all are kinds") {
        Kind::Dev => RGBColor(0x2E, 0x7D, 0x5B),
        Kind::Asleep => RGBColor(0x9C, 0xC9, 0xB4),
        Kind::Uring => RGBColor(0x35, 0x6A, 0xA8),
        Kind::Fuser => RGBColor(0xC2, 0x6A, 0x2D),
        Kind::Libfuse => RGBColor(0x8A, 0x8A, 0x8A),
        Kind::LibfuseUring => RGBColor(0x5B, 0x6B, 0x8C),
    }
}

/// The place of so many times fuser's figure.
fn at(times: f64) -> i32 {
    let times = if times.is_finite() { times } else { 0.0 };
    let pixels = (times.clamp(0.0, TIMES_MAX) * f64::from(ONCE)).round();
    #[expect(clippy::cast_possible_truncation, reason = "a place in the picture")]
    let pixels = pixels as i32;
    LABELS + pixels
}
