//! Patterns of names.

use crate::publisher::Kind;

/// A name with `*` for any characters and `?` for any one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(pub String);

impl Pattern {
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        // Where to go on if what follows the last star does not match here.
        let (mut p, mut n, mut retry) = (0, 0, None);
        while n < name.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    retry = Some((p, n));
                    p += 1;
                }
                Some(c) if *c == b'?' || *c == name[n] => (p, n) = (p + 1, n + 1),
                _ => match retry {
                    Some((star, at)) => {
                        retry = Some((star, at + 1));
                        (p, n) = (star + 1, at + 1);
                    }
                    None => return false,
                },
            }
        }
        pattern[p..].iter().all(|c| *c == b'*')
    }
}

/// Which publishers: by name, or of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Name(Pattern),
    Kind(String),
}

impl Target {
    pub fn matches(&self, name: &str, kind: Kind) -> bool {
        match self {
            Target::Name(pattern) => pattern.matches(name),
            Target::Kind(of) => of == kind.name(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, matches) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("0000:3a:*", "0000:3a:00.0", true),
            ("0000:3a:*", "0000:3b:00.0", false),
            ("*:00.?", "0000:3a:00.1", true),
            ("a*b*c", "axbxbxc", true),
            ("a*b*c", "axbxbx", false),
            ("nvme?", "nvme", false),
            ("**", "x", true),
        ] {
            assert_eq!(Pattern(pattern.into()).matches(name), matches, "{pattern} {name}");
        }
        // No pattern takes long.
        assert!(!Pattern("*a".repeat(32) + "b").matches(&"a".repeat(64)));
    }
}
