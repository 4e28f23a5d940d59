//! What is allowed to be over the limit of its rule: `ci/limits.txt`. Its numbers only fall.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::changes::Changes;
use crate::rules::{Measure, Rule};

pub const FILE: &str = "ci/limits.txt";

const HEAD: &str = "\
# What is over the limit of its rule (docs/ci.md), and by how much: rule, crate and name, number.
# Written by `cargo xtask check --write`. Numbers only fall; a line that rises needs `--raise` and a reason.
";

/// Rule and subject of a line.
pub type Key = (Rule, String);

/// Lines of the file: line number and number allowed.
pub type Limits = BTreeMap<Key, (usize, usize)>;

pub fn parse(text: &str) -> Result<Limits, String> {
    let mut limits = Limits::new();
    for (line, row) in text.lines().enumerate().filter(|(_, l)| !l.starts_with('#') && !l.trim().is_empty()) {
        let parts = row.split_once(' ').and_then(|(rule, rest)| {
            let (subject, number) = rest.rsplit_once(' ')?;
            Some(((Rule::parse(rule)?, subject.to_owned()), number.parse().ok()?))
        });
        let (key, number) =
            parts.ok_or_else(|| format!("{FILE}:{}: not RULE SUBJECT NUMBER: {row}", line + 1))?;
        limits.insert(key, (line + 1, number));
    }
    Ok(limits)
}

/// The largest measure of each subject that is over its rule's limit.
fn over(measures: &[Measure]) -> BTreeMap<Key, &Measure> {
    let mut found: BTreeMap<Key, &Measure> = BTreeMap::new();
    for measure in measures.iter().filter(|m| m.is_over()) {
        let one = found.entry((measure.rule, measure.subject())).or_insert(measure);
        if measure.value > one.value {
            *one = measure;
        }
    }
    found
}

/// One line for each difference from the file.
pub fn check(limits: &Limits, measures: &[Measure], changes: &Changes) -> Vec<String> {
    let over = over(measures);
    let mut failures = Vec::new();
    for (key, measure) in &over {
        let (line, allowed) = limits.get(key).copied().unwrap_or((0, key.0.limit()));
        if measure.value > allowed {
            failures.push(too_large(measure, allowed, changes));
        } else if measure.value < allowed {
            let now = measure.value;
            failures.push(format!("{FILE}:{line}: {} {}: {allowed}, is {now} now: {WRITE}", key.0, key.1));
        }
    }
    for ((rule, subject), (line, _)) in limits.iter().filter(|(key, _)| !over.contains_key(key)) {
        failures.push(format!("{FILE}:{line}: {rule} {subject}: within the limit now: {WRITE}"));
    }
    failures
}

const WRITE: &str = "run cargo xtask check --write";

fn too_large(measure: &Measure, allowed: usize, changes: &Changes) -> String {
    let rule = measure.rule;
    let new = measure.sites.iter().find(|site| changes.has(site));
    let place = match new.or(measure.sites.first()) {
        Some(site) => format!("{}:{}", site.file, site.line),
        None => FILE.to_owned(),
    };
    let (value, subject) = (measure.value, measure.subject());
    let (unit, advice) = (rule.unit(), rule.advice());
    let here = match new {
        Some(site) if rule.counts() => format!(" ({})", site.text),
        _ => String::new(),
    };
    let list = if measure.sites.len() > 1 {
        format!("; all: cargo xtask list {rule} {}", measure.package)
    } else {
        String::new()
    };
    format!("{place}: {rule}: {subject}: {value} {unit}, {allowed} allowed{here}: {advice}{list}")
}

/// The new text of the file: numbers that fell; with `raise` also those that rose, and new lines.
pub fn write(limits: &Limits, measures: &[Measure], raise: bool) -> String {
    let mut text = HEAD.to_owned();
    for (key, measure) in over(measures) {
        let allowed = limits.get(&key).map(|(_, allowed)| *allowed);
        let number = match allowed {
            _ if raise => measure.value,
            Some(allowed) => allowed.min(measure.value),
            None => continue,
        };
        let _ = writeln!(text, "{} {} {number}", key.0, key.1);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Site;

    fn measure(rule: Rule, package: &str, name: &str, value: usize) -> Measure {
        let site = Site { file: "a.rs".to_owned(), line: 3, text: String::new() };
        Measure { rule, package: package.to_owned(), name: name.to_owned(), value, sites: vec![site] }
    }

    const TEXT: &str = "# head\nfields c A 20\nfolder a/b 30\nwords c 5\n";

    fn now(fields: usize, folder: usize, words: usize) -> Vec<Measure> {
        vec![
            measure(Rule::Fields, "c", "A", fields),
            measure(Rule::Fields, "c", "A", 3),
            measure(Rule::Folder, "", "a/b", folder),
            measure(Rule::Words, "c", "", words),
        ]
    }

    fn failures(measures: &[Measure]) -> Vec<String> {
        check(&parse(TEXT).unwrap(), measures, &Changes::default())
    }

    #[test]
    fn numbers_as_in_the_file_are_sound() {
        assert_eq!(failures(&now(20, 30, 5)), [""; 0]);
    }

    #[test]
    fn a_number_that_rose_or_has_no_line_fails() {
        let found = failures(&now(21, 30, 5));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("a.rs:3: fields: c A: 21 fields, 20 allowed: group"), "{found:?}");
        let mut measures = now(20, 30, 5);
        measures.push(measure(Rule::Lines, "", "a.rs", 501));
        assert_eq!(failures(&measures), ["a.rs:3: lines: a.rs: 501 lines, 500 allowed: split the file"]);
        let mut words = measure(Rule::Words, "c", "", 6);
        words.sites.push(words.sites[0].clone());
        let found = failures(&[now(20, 30, 0), vec![words]].concat());
        assert_eq!(found.len(), 1);
        assert!(found[0].ends_with("use the term of the table; all: cargo xtask list words c"));
    }

    #[test]
    fn a_number_that_fell_has_to_be_written() {
        let found = failures(&now(19, 20, 0));
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|f| f.ends_with(WRITE)));
        assert!(found.contains(&format!("{FILE}:3: folder a/b: within the limit now: {WRITE}")));
    }

    #[test]
    fn writing_lowers_and_raises_only_where_it_is_wanted() {
        let limits = parse(TEXT).unwrap();
        let mut measures = now(19, 31, 0);
        measures.push(measure(Rule::Methods, "c", "T", 17));
        let lowered = write(&limits, &measures, false);
        assert_eq!(lowered, format!("{HEAD}fields c A 19\nfolder a/b 30\n"));
        let raised = write(&limits, &measures, true);
        assert_eq!(raised, format!("{HEAD}fields c A 19\nfolder a/b 31\nmethods c T 17\n"));
        assert_eq!(check(&parse(&raised).unwrap(), &measures, &Changes::default()), [""; 0]);
    }

    #[test]
    fn a_line_of_another_form_is_named() {
        assert_eq!(
            parse("fields c A").unwrap_err(),
            format!("{FILE}:1: not RULE SUBJECT NUMBER: fields c A")
        );
        assert!(parse("fiels c A 3").is_err());
    }
}
