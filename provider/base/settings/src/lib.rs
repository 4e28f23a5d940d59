//! What can be set by the environment: the one table of the provider's parameters, which it declares to
//! libfabric, `strait info` shows and docs/provider.md lists; that of the other libraries; and the one way in
//! which values are read and checked.
//!
//! Values are read from text here, not by libfabric: its core takes `1M` for 1 and `abc` for 0.
#![forbid(unsafe_code)]

mod others;
mod table;
mod value;
mod words;

pub use others::{OTHERS, UCX_CHECK, UCX_CMA, UCX_FAULT_HANDLER, UCX_LOG, UCX_REPORT, UCX_RING};
pub use table::{
    ALIAS, ALL, CMA, CONNECT_TIMEOUT, COPY_AGENT, DEVICE_DIRECT, EAGER_SIZE, FAULT_HANDLER, GROUP_MEMORY,
    INJECT_SIZE, JOB_KEY, Kind, LINKS, LOG, LOG_FILE, NIC, OFI_WRITES, PEER_MEMORY, PORTS, PREFIX, REPORT,
    RING_SIZE, Setting, TCP_LINGER, TCP_RAILS, TCP_TIMEOUT, UNEXPECTED_SIZE, VERBS_DEVICE, VERBS_GID,
    VERBS_IDLE, VERBS_MTU, VERBS_ON_DEMAND, VERBS_PORT, VERBS_RAILS, XPU_MODE, bytes_text,
};
pub use value::{Reading, Value};

/// What the names of the other variables begin with.
const OTHER: &str = "STRAIT_";

/// A variable that has the prefix of settings and is none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unknown {
    pub name: String,
    /// The setting whose name is nearest, if one is near.
    pub near: Option<String>,
    /// A line for people.
    pub line: String,
}

/// What to say of variables that have the provider's prefix and are no parameter, one line each; also of
/// those that have a parameter's name but for `FI_`.
pub fn unknown<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let is_ours = |u: &Unknown| {
        u.name.starts_with(PREFIX) || u.near.as_ref().is_some_and(|near| *near == format!("FI_{}", u.name))
    };
    unknown_of(names, "").into_iter().filter(is_ours).map(|u| u.line).collect()
}

/// The variables that have this prefix, or any of settings if it is empty, and are no setting.
pub fn unknown_of<'a>(names: impl IntoIterator<Item = &'a str>, prefix: &str) -> Vec<Unknown> {
    let all: Vec<String> = ALL.iter().chain(OTHERS).map(Setting::variable).collect();
    let has_prefix =
        |name: &str| name.starts_with(prefix) && (name.starts_with(PREFIX) || name.starts_with(OTHER));
    let mut found: Vec<Unknown> = names
        .into_iter()
        .filter(|name| has_prefix(name) && !all.iter().any(|known| known == name))
        .map(|name| {
            let with_fi = format!("FI_{name}");
            let near = match all.iter().find(|known| **known == with_fi) {
                Some(known) => Some(known.as_str()),
                None => nearest(&name.to_ascii_uppercase(), all.iter().map(String::as_str), few),
            };
            let kin = if name.starts_with(PREFIX) { PREFIX } else { prefix };
            let line = match near {
                Some(known) => format!("{name} is no parameter and is ignored; is {known} meant?"),
                None if kin.is_empty() => format!("{name} is no parameter of Strait's and is ignored"),
                None => {
                    let kin: Vec<&str> =
                        all.iter().map(String::as_str).filter(|n| n.starts_with(kin)).collect();
                    format!("{name} is no parameter and is ignored; there are {}", kin.join(", "))
                }
            };
            Unknown { name: name.to_owned(), near: near.map(str::to_owned), line }
        })
        .collect();
    found.sort();
    found
}

/// How many changes may make another name of a setting's: half of what distinguishes it, and 4 at most.
fn few(known: &str) -> usize {
    let own = known.strip_prefix(PREFIX).or_else(|| known.strip_prefix(OTHER)).unwrap_or(known);
    (own.len() / 2).clamp(1, 4)
}

/// The word that is nearest, if it takes no more changes than `most` says of it.
fn nearest<'a>(
    text: &str,
    words: impl Iterator<Item = &'a str>,
    most: impl Fn(&str) -> usize,
) -> Option<&'a str> {
    words
        .map(|word| (distance(text, word), word))
        .filter(|(n, word)| *n <= most(word))
        .min()
        .map(|found| found.1)
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
    fn settings_of_all_libraries_are_known() {
        let names =
            ["STRAIT_UCX_REPROT", "STRAIT_LINKS", "STRAIT_RANK", "STRAIT_COLOUR", "UCX_TLS", "FI_STRAIT_CMA"];
        let found = unknown_of(names, "");
        let near: Vec<_> = found.iter().map(|u| (u.name.as_str(), u.near.as_deref())).collect();
        assert_eq!(
            near,
            [
                ("STRAIT_COLOUR", None),
                ("STRAIT_LINKS", Some("FI_STRAIT_LINKS")),
                ("STRAIT_UCX_REPROT", Some("STRAIT_UCX_REPORT"))
            ]
        );
        let of_ucx = unknown_of(["STRAIT_LINKS", "STRAIT_UCX_COLOUR"], "STRAIT_UCX_");
        assert!(of_ucx.len() == 1 && of_ucx[0].line.contains("there are STRAIT_UCX_LOG, "), "{of_ucx:?}");
        // The provider says nothing of other libraries' variables.
        let lines = unknown(names);
        assert!(lines.len() == 1 && lines[0].ends_with("is FI_STRAIT_LINKS meant?"), "{lines:?}");
    }

    #[test]
    fn names_that_are_none_are_reported() {
        let lines =
            unknown(["FI_STRAIT_RNG_SIZE", "PATH", "FI_STRAIT_CMA", "FI_STRAIT_COLOUR", "FI_PROVIDER"]);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("FI_STRAIT_COLOUR ") && lines[0].contains("FI_STRAIT_CONNECT_TIMEOUT"));
        assert!(lines[1].ends_with("is FI_STRAIT_RING_SIZE meant?"), "{lines:?}");
        // The case of letters counts.
        assert_eq!(unknown(["FI_STRAIT_cma"]).len(), 1);
    }
}
