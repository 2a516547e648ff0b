//! Figures with goals as a picture: a bar for each, as long as it is of its goal.

use std::path::Path;

use anyhow::Result;
use plotters::prelude::*;

/// A figure that has a goal.
#[derive(Debug)]
pub struct Bar {
    /// What was measured.
    pub name: String,
    /// The figure and its goal, in a few words.
    pub summary: String,
    /// How many times its goal it is, more being better: the worst round, the middle, the best.
    pub times_of_goal: (f64, f64, f64),
}

/// Pixels of the picture and its parts.
const WIDTH: i32 = 960;
const HEAD: i32 = 44;
const ROW: i32 = 42;
const FOOT: i32 = 12;
const LABELS: i32 = 400;
const GOAL: i32 = 260;

/// Where bars end that are longer.
const TIMES_MAX: f64 = 1.6;

const REACHED: RGBColor = RGBColor(0x2E, 0x7D, 0x5B);
const MISSED: RGBColor = RGBColor(0xC2, 0x6A, 0x2D);

/// Draws the figures as an SVG file.
///
/// # Errors
/// When the file cannot be written.
pub fn draw(title: &str, bars: &[Bar], path: &Path) -> Result<()> {
    let rows = i32::try_from(bars.len())?;
    let size = (WIDTH.unsigned_abs(), (HEAD + rows * ROW + FOOT).unsigned_abs());
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&WHITE)?;
    root.draw(&Text::new(title, (12, 12), ("sans-serif", 15)))?;
    for (bar, row) in bars.iter().zip(0..) {
        let top = HEAD + row * ROW;
        root.draw(&Text::new(bar.name.as_str(), (12, top + 4), ("sans-serif", 13)))?;
        let text = ("sans-serif", 12).into_font().color(&BLACK.mix(0.6));
        root.draw(&Text::new(bar.summary.as_str(), (12, top + 20), text))?;
        let (least, middle, most) = bar.times_of_goal;
        let color = if middle >= 1.0 { REACHED } else { MISSED };
        let corners = [(LABELS, top + 6), (at(middle), top + 28)];
        root.draw(&Rectangle::new(corners, color.filled()))?;
        let range = vec![(at(least), top + 17), (at(most), top + 17)];
        root.draw(&PathElement::new(range, BLACK.stroke_width(2)))?;
        let times = format!("{middle:.2} of the goal");
        let place = (at(middle.max(most)) + 8, top + 11);
        root.draw(&Text::new(times, place, ("sans-serif", 12)))?;
    }
    let line = vec![(at(1.0), HEAD - 6), (at(1.0), HEAD + rows * ROW)];
    root.draw(&PathElement::new(line, BLACK.stroke_width(1)))?;
    root.present()?;
    Ok(())
}

/// The place of so many times the goal.
fn at(times: f64) -> i32 {
    let pixels = (times.clamp(0.0, TIMES_MAX) * f64::from(GOAL)).round();
    #[expect(clippy::cast_possible_truncation, reason = "a place in the picture")]
    let pixels = pixels as i32;
    LABELS + pixels
}
