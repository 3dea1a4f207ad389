//! What was measured: as JSON, and as tables in Markdown.

use comfy_table::{CellAlignment, Table, presets::ASCII_MARKDOWN};
use serde::Serialize;

/// The median of several rounds, and their range.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Spread { median: at(values.len() / 2), least: at(0), most: at(values.len().saturating_sub(1)) }
    }

    /// Of the ratios in each round.
    pub fn of_ratios(values: &[f64], to: &[f64]) -> Spread {
        Spread::of(values.iter().zip(to).map(|(value, to)| value / to))
    }

    fn text(&self) -> String {
        format!("{} ({} to {})", short(self.median), short(self.least), short(self.most))
    }
}

/// Three figures that count.
fn short(value: f64) -> String {
    let digits = if value.abs() >= 100.0 {
        0
    } else if value.abs() >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$}")
}

/// One figure.
#[derive(Debug, Serialize)]
pub struct Row {
    pub work: String,
    /// The kind of file system.
    pub place: String,
    pub callers: usize,
    pub contender: &'static str,
    pub unit: &'static str,
    pub value: Spread,
}

/// Something aimed at, and what became of it.
#[derive(Debug, Serialize)]
pub struct Target {
    pub what: String,
    pub aim: Aim,
    pub value: Spread,
    pub is_met: bool,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Aim {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    /// By the median.
    pub fn new(what: impl Into<String>, aim: Aim, value: Spread) -> Target {
        let is_met = match aim {
            Aim::AtMost(most) => value.median <= most,
            Aim::AtLeast(least) => value.median >= least,
        };
        Target { what: what.into(), aim, value, is_met }
    }
}

#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// What this was measured on and with.
    pub about: Vec<(String, String)>,
    pub targets: Vec<Target>,
    pub rows: Vec<Row>,
}

impl Report {
    pub fn text(&self) -> String {
        let about: String = self.about.iter().map(|(what, value)| format!("- {what}: {value}\n")).collect();
        format!("{about}\n## Aims\n\n{}\n\n## Figures\n\n{}\n", self.targets_table(), self.rows_table())
    }

    fn targets_table(&self) -> Table {
        let mut table = table(&["Work", "Aim", "Measured", "Met"]);
        for target in &self.targets {
            let aim = match target.aim {
                Aim::AtMost(most) => format!("at most {}", short(most)),
                Aim::AtLeast(least) => format!("at least {}", short(least)),
            };
            let is_met = if target.is_met { "yes" } else { "no" };
            table.add_row([target.what.clone(), aim, target.value.text(), is_met.to_owned()]);
        }
        table
    }

    fn rows_table(&self) -> Table {
        let mut table = table(&["Work", "Where", "Callers", "Contender", "Median (range)", "Unit"]);
        if let Some(column) = table.column_mut(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for row in &self.rows {
            table.add_row([
                row.work.clone(),
                row.place.clone(),
                row.callers.to_string(),
                row.contender.to_owned(),
                row.value.text(),
                row.unit.to_owned(),
            ]);
        }
        table
    }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header);
    table
}
