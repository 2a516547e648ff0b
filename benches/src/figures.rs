//! Figures of all rounds of a comparison, and what is made of them.

use serde_json::{Value, json};

/// All that was measured of several contestants.
#[derive(Debug)]
pub struct Figures {
    base: String,
    rows: Vec<Row>,
}

/// One thing that was measured.
#[derive(Debug)]
pub struct Row {
    /// What.
    pub name: &'static str,
    /// In what.
    pub unit: &'static str,
    /// The rounds of each contestant.
    pub contestants: Vec<(String, Vec<f64>)>,
}

/// One figure: what, in what, and how much.
pub type Figure = (&'static str, &'static str, f64);

impl Figures {
    /// No figures yet; the contestant `base` is what the others are held against.
    #[must_use]
    pub fn against(base: &str) -> Self {
        Self { base: base.to_owned(), rows: Vec::new() }
    }

    /// Adds what was measured of a contestant in one round.
    pub fn add(&mut self, contestant: &str, measured: impl IntoIterator<Item = Figure>) {
        for (name, unit, figure) in measured {
            let at = self.rows.iter().position(|row| row.name == name).unwrap_or_else(|| {
                self.rows.push(Row { name, unit, contestants: Vec::new() });
                self.rows.len() - 1
            });
            let contestants = &mut self.rows[at].contestants;
            match contestants.iter_mut().find(|(known, _)| known == contestant) {
                Some((_, rounds)) => rounds.push(figure),
                None => contestants.push((contestant.to_owned(), vec![figure])),
            }
        }
    }

    /// What was measured, in the order of its first round.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The median of the contestant that the others are held against.
    #[must_use]
    pub fn base(&self, row: &Row) -> Option<f64> {
        let found = row.contestants.iter().find(|(name, _)| *name == self.base);
        found.map(|(_, rounds)| median(rounds))
    }

    /// As a table in Markdown: medians, and how many times the base's. A cell is empty where a
    /// contestant has no such figure.
    #[must_use]
    pub fn table(&self) -> String {
        let names = self.contestants();
        let mut text = String::from("| what |");
        for name in &names {
            text.push_str(&format!(" {name} |"));
        }
        text.push_str("\n|---|");
        text.push_str(&"---:|".repeat(names.len()));
        text.push('\n');
        for row in &self.rows {
            text.push_str(&format!("| {}, {} |", row.name, row.unit));
            for name in &names {
                text.push_str(&self.cell(row, name));
            }
            text.push('\n');
        }
        text
    }

    /// Everybody of whom anything was measured, in the order of their first figure.
    fn contestants(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for (name, _) in self.rows.iter().flat_map(|row| &row.contestants) {
            if !names.contains(&name.as_str()) {
                names.push(name.as_str());
            }
        }
        names
    }

    fn cell(&self, row: &Row, name: &str) -> String {
        let Some((_, rounds)) = row.contestants.iter().find(|(known, _)| known == name) else {
            return " |".to_owned();
        };
        let figure = median(rounds);
        match self.base(row).filter(|_| name != self.base) {
            Some(base) => format!(" {} ({:.2}) |", rounded(figure), figure / base),
            None => format!(" {} |", rounded(figure)),
        }
    }

    /// All rounds, for a program.
    #[must_use]
    pub fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            let of = row.contestants.iter().map(|(name, rounds)| {
                (name.clone(), json!({ "median": median(rounds), "rounds": rounds }))
            });
            let of: serde_json::Map<_, _> = of.collect();
            json!({ "row": row.name, "unit": row.unit, "contestants": of })
        });
        rows.collect()
    }
}

/// The middle one; of an even number the upper of the two in the middle.
#[must_use]
pub fn median(rounds: &[f64]) -> f64 {
    let mut sorted = rounds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// With three digits that count at least.
fn rounded(figure: f64) -> String {
    let decimals = if figure.abs() < 10.0 { 2 } else { usize::from(figure.abs() < 100.0) };
    format!("{figure:.decimals$}")
}
