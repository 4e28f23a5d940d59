//! The provider's parameters: the one table that the provider declares to libfabric, that `strait info`
//! shows and that docs/provider.md lists, and the one way in which values are read.
//!
//! Values are read from text here, not by libfabric: its core takes `1M` for 1 and `abc` for 0.
#![forbid(unsafe_code)]

mod table;
mod value;

pub use table::{
    ALIAS, ALL, CMA, CONNECT_TIMEOUT, COPY_AGENT, DEVICE_DIRECT, EAGER_SIZE, FAULT_HANDLER, INJECT_SIZE,
    JOB_KEY, Kind, LINKS, NIC, OFI_WRITES, PEER_MEMORY, PREFIX, REPORT, RING_SIZE, Setting, TCP_LINGER,
    TCP_RAILS, TCP_TIMEOUT, UNEXPECTED_SIZE, XPU_MODE, bytes_text,
};
pub use value::{Reading, Value};

/// What to say of variables that have the prefix and are no parameter, one line each.
pub fn unknown<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let all = ALL.map(|s| s.variable());
    let mut lines: Vec<String> = names
        .into_iter()
        .filter(|name| name.starts_with(PREFIX) && !all.iter().any(|known| known == name))
        .map(|name| {
            let near = all.iter().map(|known| (distance(name, known), known)).min();
            match near {
                Some((n, known)) if n <= 4 => {
                    format!("{name} is no parameter and is ignored; is {known} meant?")
                }
                _ => format!("{name} is no parameter and is ignored; there are {}", all.join(", ")),
            }
        })
        .collect();
    lines.sort();
    lines
}

/// How many characters have to be put in, taken out or changed to make one of the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = i;
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = changed.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_lists_every_parameter() {
        let reference = include_str!("../../../../docs/provider.md");
        for s in ALL {
            let line = reference.lines().find(|l| l.starts_with(&format!("| `{}` ", s.variable())));
            let line = line.unwrap_or_else(|| panic!("docs/provider.md does not list {}", s.variable()));
            let default = s.default.split([',', ' ']).next().unwrap_or_default();
            assert!(line.contains(default), "{}: {default} in {line}", s.name);
        }
        let listed = reference.lines().filter(|l| l.starts_with("| `FI_STRAIT_")).count();
        assert_eq!(listed, ALL.len(), "docs/provider.md lists parameters that are none");
    }

    #[test]
    fn names_that_are_none_are_told() {
        let lines =
            unknown(["FI_STRAIT_RNG_SIZE", "PATH", "FI_STRAIT_CMA", "FI_STRAIT_COLOUR", "FI_PROVIDER"]);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("FI_STRAIT_COLOUR ") && lines[0].contains("FI_STRAIT_CONNECT_TIMEOUT"));
        assert!(lines[1].ends_with("is FI_STRAIT_RING_SIZE meant?"), "{lines:?}");
        // Variables are told apart by case.
        assert_eq!(unknown(["FI_STRAIT_cma"]).len(), 1);
    }
}
