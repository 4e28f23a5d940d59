//! [`Found`] for people.

use std::fmt::Write;

use super::found::{Finding, Found, Limit};
use super::parameter::Source;
use super::peer::Way;

/// A name, and text beside it. Further lines stand below the first.
pub fn put(out: &mut String, name: &str, text: &str) {
    for (k, part) in text.lines().flat_map(|text| wrap(text, 82)).enumerate() {
        let name = if k == 0 { name } else { "" };
        let _ = writeln!(out, "{name:<14} {part}");
    }
}

/// The way to a peer.
pub fn way(way: &Way) -> String {
    let mut out = String::new();
    put(&mut out, "peer", &way.peer);
    put(&mut out, "link", way.link.as_deref().unwrap_or("NONE"));
    put(&mut out, "path", &way.path);
    out
}

pub fn render(found: &Found) -> String {
    let mut out = String::new();
    let mut line = |name: &str, text: &str| put(&mut out, name, text);
    line("strait", found.strait);
    let libfabric = &found.libfabric;
    match (&libfabric.version, &libfabric.path, &libfabric.error) {
        (Some(version), Some(path), _) => line("libfabric", &format!("{version}, {path}")),
        (_, _, error) => {
            line("libfabric", &format!("NOT FOUND: {}", error.as_deref().unwrap_or("")));
        }
    }
    let provider = &found.provider;
    if provider.offered {
        let version = provider.version.as_deref().unwrap_or("?");
        let path = provider.path.as_deref().unwrap_or("part of libfabric");
        line("provider", &format!("offered by this libfabric: version {version}, {path}"));
    } else {
        line("provider", "NOT OFFERED by this libfabric");
        for advice in &provider.advice {
            line("", advice);
        }
    }
    for link in &found.links {
        line(&format!("link {}", link.name), &text_of(&link.finding));
    }
    line("peer memory", &text_of(&found.cma));
    line("membarrier", &text_of(&found.membarrier));
    if !found.container.is_empty() {
        line("container", &format!("perhaps: {}", found.container.join(", ")));
    }
    let memory: Vec<String> = found
        .memory
        .iter()
        .map(|memory| match memory.finding.ok {
            true if memory.kind == "system" => memory.kind.to_owned(),
            true => format!("{}: {}", memory.kind, memory.finding.text),
            false => format!("{}: {}", memory.kind, memory.finding.text),
        })
        .collect();
    line("memory", &memory.join("; "));
    for adapter in &found.adapters {
        let name = adapter.name.as_ref().map_or_else(|| "RDMA".into(), |name| format!("RDMA {name}"));
        line(&name, &text_of(&adapter.finding));
    }
    line("cores", &format!("{}: {}", found.cpus.len(), ranges(&found.cpus)));
    for limit in &found.limits {
        line(limit.name, &amounts(limit));
    }
    if found.environment.is_empty() {
        line("environment", "nothing set that matters (FI_PROVIDER, FI_PROVIDER_PATH, FI_STRAIT_*)");
    }
    for (k, (name, value)) in found.environment.iter().enumerate() {
        line(if k == 0 { "environment" } else { "" }, &format!("{name}={value}"));
    }
    for (k, parameter) in found.parameters.iter().enumerate() {
        let source = match (parameter.source, &parameter.set) {
            (Source::Default, _) => "default".to_owned(),
            (Source::Environment, Some(set)) => format!("environment: {set}"),
            (_, set) => format!("libfabric: {}", set.as_deref().unwrap_or_default()),
        };
        let text = format!("{} = {} ({source}): {}", parameter.name, parameter.value, parameter.help);
        line(if k == 0 { "parameters" } else { "" }, &text);
        if let Some(problem) = &parameter.problem {
            line("", &format!("WRONG: {problem}"));
        }
    }
    for name in &found.unknown {
        line("", &format!("WRONG: {name}"));
    }
    out
}

/// What a limit is, and what it is for.
fn amounts(limit: &Limit) -> String {
    let amount = |value: Option<u64>| match value {
        None => "unlimited".to_owned(),
        Some(value) if limit.bytes && value >= 1 << 20 => format!("{} MiB", value >> 20),
        Some(value) if limit.bytes => format!("{} KiB", value >> 10),
        Some(value) => value.to_string(),
    };
    let most = if limit.soft == limit.hard {
        String::new()
    } else {
        format!(" (can be raised to {})", amount(limit.hard))
    };
    format!("{}{most}: {}", amount(limit.soft), limit.means)
}

fn text_of(finding: &Finding) -> String {
    match finding.ok {
        true => finding.text.clone(),
        false => format!("NO: {}", finding.text),
    }
}

/// `0-3,8` of sorted numbers.
pub fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &n in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => parts.push((n, n)),
        }
    }
    let parts: Vec<String> =
        parts.into_iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    parts.join(",")
}

/// Lines of at most `width` characters where words allow that; the original spaces stay within.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = match lines.last_mut() {
            Some(line) if line.is_empty() || line.chars().count() + 1 + word.chars().count() <= width => line,
            _ => {
                lines.push(String::new());
                match lines.last_mut() {
                    Some(line) => line,
                    None => return lines,
                }
            }
        };
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_words() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[]), "");
        assert_eq!(wrap("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrap("aaaaaaaa b", 5), ["aaaaaaaa", "b"]);
    }
}
