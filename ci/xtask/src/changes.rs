//! Lines that differ from the last commit, as git sees them: where a count that rose has risen.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use crate::rules::Site;

#[derive(Debug, Default)]
pub struct Changes(BTreeMap<String, Vec<Range<usize>>>);

impl Changes {
    /// None where there is no git.
    pub fn read(root: &Path) -> Self {
        let git = |arguments: &[&str]| {
            let output = Command::new("git").arg("-C").arg(root).args(arguments).output();
            output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default()
        };
        let mut changes = Self::parse(&git(&["diff", "--unified=0", "--no-ext-diff", "--no-color", "HEAD"]));
        for file in git(&["ls-files", "--others", "--exclude-standard"]).lines() {
            changes.0.insert(file.to_owned(), vec![Range { start: 0, end: usize::MAX }]);
        }
        changes
    }

    fn parse(diff: &str) -> Self {
        let mut changes = Self::default();
        let mut file = None;
        for line in diff.lines() {
            if let Some(path) = line.strip_prefix("+++ ") {
                file = path.strip_prefix("b/");
            } else if let (Some(file), Some(head)) = (file, line.strip_prefix("@@ ")) {
                let new = head.split_whitespace().find_map(|part| part.strip_prefix('+'));
                if let Some(lines) = new.and_then(range) {
                    changes.0.entry(file.to_owned()).or_default().push(lines);
                }
            }
        }
        changes
    }

    pub fn has(&self, site: &Site) -> bool {
        self.0.get(&site.file).is_some_and(|ranges| ranges.iter().any(|lines| lines.contains(&site.line)))
    }
}

/// Of `12` or `12,3`.
fn range(text: &str) -> Option<Range<usize>> {
    let (start, count) = text.split_once(',').unwrap_or((text, "1"));
    let start = start.parse().ok()?;
    Some(start..start + count.parse::<usize>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_diff() {
        let diff = "--- a/x.rs\n+++ b/x.rs\n@@ -3 +3,2 @@ fn f()\n+a\n+b\n@@ -9,2 +10,0 @@\n-c\n--- a/y.rs\n+++ /dev/null\n@@ -1 +0,0 @@\n";
        let changes = Changes::parse(diff);
        let has = |line| changes.has(&Site { file: "x.rs".to_owned(), line, text: String::new() });
        assert_eq!((1..12).filter(|&l| has(l)).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(changes.0.len(), 1);
    }
}
