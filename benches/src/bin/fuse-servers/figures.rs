//! Figures of all rounds, and what is made of them.

use serde_json::{Value, json};

use super::{contestants::Kind, loads::Row};

/// The rounds of each server.
type Rounds = Vec<(Kind, Vec<f64>)>;

/// All that was measured.
#[derive(Debug, Default)]
pub(crate) struct Figures(Vec<(Row, Rounds)>);

impl Figures {
    pub(crate) fn add(&mut self, kind: Kind, measured: Vec<(Row, f64)>) {
        for (row, figure) in measured {
            let at = self.0.iter().position(|(known, _)| *known == row).unwrap_or_else(|| {
                self.0.push((row, Vec::new()));
                self.0.len() - 1
            });
            let kinds = &mut self.0[at].1;
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, rounds)) => rounds.push(figure),
                None => kinds.push((kind, vec![figure])),
            }
        }
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = (Row, &[(Kind, Vec<f64>)])> {
        self.0.iter().map(|(row, kinds)| (*row, kinds.as_slice()))
    }

    /// As a table in Markdown: medians, and how many times fuser's.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for (nth, (row, kinds)) in self.rows().enumerate() {
            if nth == 0 {
                text.push_str("| what |");
                for (kind, _) in kinds {
                    text.push_str(&format!(" {} |", kind.name()));
                }
                text.push_str("\n|---|");
                text.push_str(&"---:|".repeat(kinds.len()));
                text.push('\n');
            }
            text.push_str(&format!("| {}, {} |", row.name(), row.unit()));
            let base = of_fuser(kinds);
            for (kind, rounds) in kinds {
                let figure = median(rounds);
                match base.filter(|_| *kind != Kind::Fuser) {
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

    pub(crate) fn json(&self) -> Value {
        let rows = self.rows().map(|(row, kinds)| {
            let by_kind = kinds.iter().map(|(kind, rounds)| {
                (kind.name().to_owned(), json!({ "median": median(rounds), "rounds": rounds }))
            });
            let by_kind: serde_json::Map<_, _> = by_kind.collect();
            json!({ "row": row.name(), "unit": row.unit(), "servers": by_kind })
        });
        rows.collect()
    }
}

/// The median of fuser, which the others are held against.
pub(crate) fn of_fuser(kinds: &[(Kind, Vec<f64>)]) -> Option<f64> {
    kinds.iter().find(|(kind, _)| *kind == Kind::Fuser).map(|(_, rounds)| median(rounds))
}

pub(crate) fn median(rounds: &[f64]) -> f64 {
    let mut sorted = rounds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
