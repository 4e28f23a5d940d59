//! What was measured, as text, JSON and CSV.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde::Serialize;

use super::stat::{Stat, bytes, digits};
use super::test::{Shape, Test, Unit};
use super::wire::About;

/// One test, size and provider.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub test: Test,
    pub size: usize,
    pub provider: String,
    pub unit: Unit,
    #[serde(flatten)]
    pub stat: Stat,
    pub values: Vec<f64>,
}

impl Row {
    /// `None` without values.
    pub fn new(test: Test, size: usize, provider: &str, values: &[f64]) -> Option<Row> {
        Some(Row {
            test,
            size,
            provider: provider.into(),
            unit: test.unit(),
            stat: Stat::of(values)?,
            values: values.into(),
        })
    }
}

/// What was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    pub provider: String,
    pub test: &'static str,
    /// The size it happened at, if it came to that.
    pub size: Option<usize>,
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {}", self.test, self.provider)?;
        if let Some(size) = self.size {
            write!(f, " at {} bytes", bytes(size))?;
        }
        write!(f, ": {}", self.text)
    }
}

/// Everything.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub version: &'static str,
    pub libfabric: String,
    pub libfabric_version: String,
    pub cpus: (usize, usize),
    /// Processes of patterns.
    pub procs: usize,
    pub reps: usize,
    pub providers: BTreeMap<String, About>,
    pub rows: Vec<Row>,
    pub unsupported: Vec<Failure>,
    pub failed: Vec<Failure>,
}

impl Report {
    /// The tests that have results, in order.
    pub fn tests(&self) -> Vec<Test> {
        let mut tests = Vec::new();
        for row in &self.rows {
            if tests.last() != Some(&row.test) {
                tests.push(row.test);
            }
        }
        tests
    }

    /// The providers that have results of a test, in order.
    pub fn providers_of(&self, test: Test) -> Vec<&str> {
        let mut providers: Vec<&str> = Vec::new();
        for row in self.rows.iter().filter(|row| row.test == test) {
            if !providers.contains(&row.provider.as_str()) {
                providers.push(&row.provider);
            }
        }
        providers
    }

    fn stat(&self, test: Test, size: usize, provider: &str) -> Option<Stat> {
        let row =
            self.rows.iter().find(|row| row.test == test && row.size == size && row.provider == provider)?;
        Some(row.stat)
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let (a, b) = self.cpus;
        let _ = writeln!(
            out,
            "libfabric {} ({}), cores {a} and {b}, {}",
            self.libfabric_version,
            self.libfabric,
            match self.reps {
                1 => "one repetition".to_owned(),
                n => format!("median (min–max) of {n} repetitions"),
            }
        );
        if a == b {
            out.push_str(
                "only one core: the two processes take turns, and times are those of the scheduler\n",
            );
        }
        for (name, about) in &self.providers {
            let _ = writeln!(
                out,
                "  {name}: version {}, domain {}, injects up to {} bytes",
                about.version,
                about.domain,
                bytes(about.inject_size)
            );
        }
        for test in self.tests() {
            self.table(&mut out, test);
        }
        if !self.unsupported.is_empty() {
            out.push_str("\nnot offered:\n");
            for (provider, text, tests) in self.reasons() {
                let _ = writeln!(out, "  {provider}: {}: {text}", tests.join(", "));
            }
        }
        if !self.failed.is_empty() {
            out.push_str("\nFAILED:\n");
            for one in &self.failed {
                let _ = writeln!(out, "  {one}");
            }
        }
        out
    }

    /// Why tests were not done: provider, reason, tests.
    fn reasons(&self) -> Vec<(&str, &str, Vec<&str>)> {
        let mut reasons: Vec<(&str, &str, Vec<&str>)> = Vec::new();
        for one in &self.unsupported {
            match reasons.iter_mut().find(|(p, t, _)| *p == one.provider && *t == one.text) {
                Some((_, _, tests)) => tests.push(one.test),
                None => reasons.push((&one.provider, &one.text, vec![one.test])),
            }
        }
        reasons
    }

    fn table(&self, out: &mut String, test: Test) {
        let unit = test.unit();
        let title = match test.shape() {
            Shape::Floor => format!("floor: {}", test.title()),
            Shape::Crowd => format!("{}: {} processes, {}", test.name(), self.procs, test.title()),
            _ => format!("{}: {}", test.name(), test.title()),
        };
        let providers = self.providers_of(test);
        let _ = write!(out, "\n{title}; {}, {}", unit.name(), unit.better());
        let _ = match providers[..] {
            [base, _, ..] => writeln!(out, "; speed of {base} by that of NAME: above 1 {base} is faster"),
            _ => writeln!(out),
        };
        let mut lines = Vec::new();
        let mut head = vec!["bytes".to_owned()];
        head.extend(providers.iter().map(|name| (*name).to_owned()));
        head.extend(providers.iter().skip(1).map(|name| format!("by {name}")));
        lines.push(head);
        let mut sizes: Vec<usize> = Vec::new();
        for row in self.rows.iter().filter(|row| row.test == test) {
            if !sizes.contains(&row.size) {
                sizes.push(row.size);
            }
        }
        for size in sizes {
            let stats: Vec<Option<Stat>> =
                providers.iter().map(|provider| self.stat(test, size, provider)).collect();
            let mut line = vec![bytes(size)];
            line.extend(stats.iter().map(|stat| match stat {
                Some(s) if self.reps == 1 => digits(s.median),
                Some(s) => {
                    format!("{} ({}–{})", digits(s.median), digits(s.min), digits(s.max))
                }
                None => "–".into(),
            }));
            let first = stats.first().copied().flatten();
            line.extend(stats.iter().skip(1).map(|stat| match (stat, first) {
                (Some(s), Some(f)) if f.median > 0.0 && s.median > 0.0 => {
                    format!("{:.2}", unit.speed(f.median, s.median))
                }
                _ => "–".into(),
            }));
            lines.push(line);
        }
        align(out, &lines);
    }

    /// For spreadsheets.
    pub fn csv(&self) -> String {
        let mut out = String::from("test,bytes,provider,unit,median,min,max,values\n");
        for row in &self.rows {
            let unit = match row.unit {
                Unit::Micros => "us",
                Unit::Megabytes => "MB/s",
                Unit::Megamessages => "Mmsg/s",
            };
            let values: Vec<String> = row.values.iter().map(|v| format!("{v:.4}")).collect();
            let Stat { median, min, max } = row.stat;
            let (test, size, provider) = (row.test.name(), row.size, quoted(&row.provider));
            let values = values.join(" ");
            let _ = writeln!(out, "{test},{size},{provider},{unit},{median:.4},{min:.4},{max:.4},{values}");
        }
        out
    }
}

/// Rows of files that [`Report::csv`] wrote, or another program in the same form: of each line the test, the
/// bytes, the provider and, at the end, the values count.
pub fn read_csv(text: &str) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for (n, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with("test,") {
            continue;
        }
        let row = row_of(line).ok_or_else(|| {
            format!("line {} is not \"test,bytes,provider,unit,median,min,max,values\": {line}", n + 1)
        })?;
        rows.push(row);
    }
    Ok(rows)
}

fn row_of(line: &str) -> Option<Row> {
    let (test, rest) = line.split_once(',')?;
    let (size, rest) = rest.split_once(',')?;
    let (provider, rest) = match rest.strip_prefix('"') {
        // Quotes in it are doubled.
        Some(quoted) => {
            let end = quoted.find("\",")?;
            (quoted[..end].replace("\"\"", "\""), &quoted[end + 2..])
        }
        None => rest.split_once(',').map(|(name, rest)| (name.to_owned(), rest))?,
    };
    let values = rest.split(',').nth(4)?.split_whitespace();
    let values: Vec<f64> = values.map(|v| v.parse().ok()).collect::<Option<_>>()?;
    Row::new(Test::parse(test)?, size.parse().ok()?, &provider, &values)
}

fn quoted(text: &str) -> String {
    match text.contains(['"', ',', ';', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into(),
    }
}

/// Columns to the right, as wide as they need.
fn align(out: &mut String, lines: &[Vec<String>]) {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for line in lines {
        for (text, width) in line.iter().zip(&widths) {
            let _ = write!(out, "  {text:>width$}");
        }
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let row = |size, provider, values: &[f64]| Row::new(Test::Lat, size, provider, values);
        Report {
            version: "0",
            libfabric: "x".into(),
            libfabric_version: "2.1".into(),
            cpus: (0, 1),
            procs: 2,
            reps: 3,
            providers: BTreeMap::new(),
            rows: [
                row(8, "strait", &[0.2, 0.1, 0.3]),
                row(8, "tcp;ofi_rxm", &[0.5, 0.4, 0.6]),
                row(4096, "strait", &[1.0]),
            ]
            .into_iter()
            .flatten()
            .collect(),
            unsupported: ["lat", "bw"]
                .map(|test| Failure { provider: "x".into(), test, size: None, text: "no".into() })
                .into(),
            failed: Vec::new(),
        }
    }

    #[test]
    fn text_has_medians_and_ratios() {
        let text = report().text();
        let find = |start: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(start));
            line.unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(find("8 "), ["8", "0.20", "(0.10–0.30)", "0.50", "(0.40–0.60)", "2.50"]);
        assert!(text.contains("above 1 strait is faster"), "{text}");
        assert_eq!(find("4K "), ["4K", "1.00", "(1.00–1.00)", "–", "–"]);
        assert_eq!(find("x: "), ["x:", "lat,", "bw:", "no"]);
    }

    #[test]
    fn the_ratio_of_a_rate_is_above_1_where_the_first_provider_is_faster() {
        let mut report = report();
        report.rows = [("strait", 14.0), ("shm", 1.0)]
            .into_iter()
            .filter_map(|(name, rate)| Row::new(Test::Rate, 8, name, &[rate]))
            .collect();
        let text = report.text();
        assert!(text.contains("by shm") && text.contains("14.00\n"), "{text}");
    }

    #[test]
    fn csv_has_a_line_a_row() {
        let csv = report().csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[2], "lat,8,\"tcp;ofi_rxm\",us,0.5000,0.4000,0.6000,0.5000 0.4000 0.6000");
    }

    #[test]
    fn csv_can_be_read_back() {
        let was = report();
        assert_eq!(read_csv(&was.csv()).unwrap(), was.rows);
        for bad in
            ["lat", "lat,8,shm", "lat,x,shm,us,1,1,1,1", "late,8,shm,us,1,1,1,1", "lat,8,shm,us,1,1,1,"]
        {
            let why = read_csv(&format!("test,\n{bad}\n")).unwrap_err();
            assert!(why.starts_with("line 2 "), "{why}");
        }
    }

    #[test]
    fn json_can_be_read_back() {
        let text = serde_json::to_string(&report()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["rows"][0]["test"], "lat");
        assert_eq!(value["rows"][0]["median"], 0.2);
        assert_eq!(value["rows"][0]["unit"], "us");
    }
}
