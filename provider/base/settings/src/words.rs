//! Values that are words: whether they can be meant, and whether what they name is there.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::nearest;
use crate::table::Kind;

/// Names of links.
const LINKS: [&str; 4] = ["shm", "tcp", "verbs", "ofi"];
/// Longest name of a provider.
const LONGEST: usize = 32;
/// Names that begin like this are those of layers to libfabric's core.
const LAYERS: [&str; 3] = ["ofi_", "off_", "lnx"];

/// What a word says, if it is yes or no.
pub fn switch(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "y" | "yes" | "on" | "true" => Some(true),
        "0" | "n" | "no" | "off" | "false" => Some(false),
        _ => None,
    }
}

/// Why this is no value of its kind; nothing to say but what is taken: an empty reason.
pub fn problem(kind: Kind, text: &str) -> Option<String> {
    match kind {
        Kind::Choice(words) if words.iter().any(|word| word.eq_ignore_ascii_case(text)) => None,
        Kind::Choice(words) => Some(meant(text, words).unwrap_or_default()),
        Kind::Links => text.split(',').find_map(|name| link(name.trim())),
        Kind::Report if switch(text).is_some() || text.contains(['/', '.']) => None,
        Kind::Report => Some(String::new()),
        Kind::Provider => provider(text).err().map(Into::into),
        _ => None,
    }
}

/// Whether a provider can have this name; in `Err`, why not.
pub fn provider(name: &str) -> Result<(), &'static str> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-');
    if name.is_empty() || name.len() > LONGEST || !name.bytes().all(plain) {
        return Err("a name is of up to 32 small letters, digits, _ and -");
    }
    if LAYERS.iter().any(|l| name.starts_with(l)) {
        return Err("such names are those of layered providers");
    }
    Ok(())
}

fn meant(text: &str, words: &[&str]) -> Option<String> {
    let word = nearest(&text.to_ascii_lowercase(), words.iter().copied(), |_| 2)?;
    Some(format!("is {word} meant?"))
}

/// Why this is no name in a list of links.
fn link(name: &str) -> Option<String> {
    let below = name.strip_prefix("ofi:").map(str::trim);
    match (name, below) {
        ("shm" | "tcp" | "verbs" | "ofi", _) => None,
        (_, Some(below)) if !below.is_empty() => None,
        (_, Some(_)) => Some("a provider's name is missing behind ofi:".into()),
        ("", _) => Some("a name is missing beside a comma".into()),
        _ if name.contains(char::is_whitespace) => {
            Some(format!("{name:?} is no link: names have commas between them"))
        }
        _ => {
            let meant = meant(name, &LINKS).map(|meant| format!("; {meant}")).unwrap_or_default();
            Some(format!("{name:?} is no link{meant}"))
        }
    }
}

/// Why what this names cannot be used on this host.
pub fn absent(kind: Kind, text: &str) -> Option<String> {
    let path = Path::new(text);
    match kind {
        Kind::Report if text.contains(['/', '.']) => cannot_write(path),
        Kind::Output(_) => cannot_write(path),
        Kind::Input(_) if text.contains('/') && !path.exists() => Some("there is no such file".into()),
        Kind::Program if !matches!(text, "auto" | "no") => match path.metadata() {
            Ok(file) if file.is_file() && file.permissions().mode() & 0o111 != 0 => None,
            Ok(_) => Some("that is no program".into()),
            Err(e) => Some(e.to_string()),
        },
        Kind::Device if switch(text).is_none() && text != "auto" => device(Path::new("/sys"), text),
        _ => None,
    }
}

/// Whether a file can be made, as far as its directory says.
fn cannot_write(path: &Path) -> Option<String> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty())?;
    match dir.metadata() {
        _ if dir.to_string_lossy().contains("%p") => None,
        Ok(found) if found.is_dir() && !path.is_dir() => None,
        Ok(_) => Some("that is no file that can be written".into()),
        Err(e) => Some(format!("{}: {e}", dir.display())),
    }
}

/// Why a network device of this name cannot be named.
fn device(sys: &Path, name: &str) -> Option<String> {
    let is_one = |dir: &str| sys.join(dir).join(name).exists();
    let with_domain = format!("0000:{name}");
    let found = !name.contains('/')
        && (["class/infiniband", "class/net", "class/cxi", "bus/pci/devices"].into_iter().any(is_one)
            || sys.join("bus/pci/devices").join(with_domain).exists());
    if found {
        return None;
    }
    let mut all = Vec::new();
    for dir in ["class/infiniband", "class/cxi", "class/net"] {
        let entries = std::fs::read_dir(sys.join(dir)).into_iter().flatten().flatten();
        all.extend(entries.map(|e| e.file_name().to_string_lossy().into_owned()));
    }
    all.truncate(8);
    Some(match all.is_empty() {
        true => "there is no such device, nor any other one".into(),
        false => format!("there is no such device here, but {}", all.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ALIAS, COPY_AGENT, LINKS, LOG, LOG_FILE, NIC, REPORT, Setting};

    fn complaint(setting: Setting, text: &str) -> String {
        setting.check(text).complaint.unwrap_or_default()
    }

    #[test]
    fn each_wrong_word_has_its_reason() {
        for (setting, text, word) in [
            (LINKS, "smh", "\"smh\" is no link; is shm meant?"),
            (LINKS, "shm tcp", "commas between them"),
            (LINKS, "none", "\"none\" is no link)"),
            (LINKS, "shm,,tcp", "a name is missing"),
            (LINKS, "shm,ofi:", "behind ofi:"),
            (REPORT, "foo", "yes, no, or a file"),
            (REPORT, "/nonexistent/x.json", "/nonexistent: No such file"),
            (COPY_AGENT, "/nonexistent", "No such file"),
            (COPY_AGENT, "/proc/version", "that is no program"),
            (NIC, "nosuch0", "there is no such device"),
            (NIC, "../net/lo", "there is no such device"),
            (ALIAS, "EFA", "small letters"),
            (ALIAS, "ofi_rxm", "layered"),
            (LOG, "wran", "is warn meant?"),
            (LOG, "all", "warn, info, debug"),
            (LOG_FILE, "/nonexistent/x", "/nonexistent: No such file"),
            (LOG_FILE, "/tmp", "no file that can be written"),
        ] {
            let line = complaint(setting, text);
            assert!(line.starts_with(&format!("{}={text} is ", setting.variable())), "{setting:?}: {line}");
            assert!(line.contains(word) && line.contains(&setting.kind.to_string()), "{word}: {line}");
        }
    }

    #[test]
    fn right_words_are_taken() {
        let program = std::env::current_exe().unwrap();
        for (setting, text) in [
            (LINKS, "shm,tcp"),
            (LINKS, " tcp , ofi:tcp;ofi_rxm"),
            (REPORT, "on"),
            (REPORT, "report.json"),
            (REPORT, "/tmp/x.%p.json"),
            (COPY_AGENT, "auto"),
            (COPY_AGENT, program.to_str().unwrap()),
            (NIC, "no"),
            (NIC, "auto"),
            (NIC, "lo"),
            (ALIAS, "efa"),
            (LOG, "INFO"),
            (LOG_FILE, "/tmp/strait.log"),
            (LOG_FILE, "strait.log"),
        ] {
            assert_eq!(complaint(setting, text), "", "{}={text}", setting.name);
        }
    }

    #[test]
    fn only_names_of_core_providers_are_taken() {
        for good in ["efa", "cxi", "efa-direct", "my_net2"] {
            assert_eq!(provider(good), Ok(()), "{good}");
        }
        for bad in
            ["", "tcp;ofi_rxm", "^efa", "a,b", "EFA", "a b", "ofi_rxm", "off_coll", "lnx", &"x".repeat(33)]
        {
            assert!(provider(bad).is_err(), "{bad}");
        }
    }
}
