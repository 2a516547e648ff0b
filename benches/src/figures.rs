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

    /// As a table in Markdown: medians, and how many times the base's.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::new();
        for (nth, row) in self.rows.iter().enumerate() {
            if nth == 0 {
                text.push_str("| what |");
                for (name, _) in &row.contestants {
                    text.push_str(&format!(" {name} |"));
                }
                text.push_str("\n|---|");
                text.push_str(&"---:|".repeat(row.contestants.len()));
                text.push('\n');
            }
            text.push_str(&format!("| {}, {} |", row.name, row.unit));
            let base = self.base(row);
            for (name, rounds) in &row.contestants {
                let figure = median(rounds);
                match base.filter(|_| *name != self.base) {
                    Some(base) => {
                        text.push_str(&format!(" {figure:.0} ({:.2}) |", figure / base));
                    }
                    None => text.push_str(&format!(" {figure:.0} |")),
                }
            }
            text.push('\n');
        }
        text
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
